"""What TRL knows of chat templates: which can render tool calls, how they are parsed, and their forms for training.

The one module besides `training/trl` that imports TRL: evaluation must render and parse a conversation exactly as
training does.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from covey.errors import EnvironmentSetupError, one_line

_RESULT = "the result of the tool"
_CONVERSATION = (
    {"role": "user", "content": "the question"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "the_tool", "arguments": {"key": "the value"}}}],
    },
    {"role": "tool", "name": "the_tool", "content": _RESULT},
)


def prepare(tokenizer: Any) -> tuple[str | None, Any]:
    """What rendering and parsing need besides the tokenizer, as TRL's trainer finds it.

    Args:
        tokenizer: a tokenizer; it is not changed.

    Returns:
        The chat template to render with, None for the tokenizer's own; and the response template to parse with.

    Raises:
        EnvironmentSetupError: the template cannot render or parse tool calls, or cannot be rendered turn by turn.
    """
    from trl import chat_template_utils as trl_templates

    if not tokenizer.chat_template:
        raise _refused(tokenizer, "it has no chat template, and tools are shown to the model by one")
    if not trl_templates.supports_tool_calling(tokenizer):
        raise _refused(tokenizer, f"its chat template {_dropped(tokenizer)}")
    parsing = getattr(tokenizer, "response_template", None)
    if parsing is None:
        try:
            parsing = trl_templates.add_response_schema(copy(tokenizer)).response_template
        except ValueError:
            raise _refused(
                tokenizer,
                "its tool calls cannot be parsed: the tokenizer has no `response_template`, and TRL has none for this "
                "chat template. Set tokenizer.response_template, which transformers describes under response parsing, "
                "and save the tokenizer with the model",
            ) from None
    if trl_templates.is_chat_template_prefix_preserving(tokenizer):
        return None, parsing
    try:
        return trl_templates.get_training_chat_template(tokenizer), parsing
    except ValueError:
        raise _refused(
            tokenizer,
            "its chat template renders a turn of the model differently once a result follows it, so that tokens would "
            "differ from those that were sampled, and TRL has no other form of this template. Change the template so "
            "that what it has rendered never depends on later messages",
        ) from None


def _dropped(tokenizer: Any) -> str:
    """What a chat template does that has no tool calls, as the end of a sentence."""
    try:
        text = tokenizer.apply_chat_template(list(_CONVERSATION), tokenize=False)
    except (TemplateError, TypeError) as error:
        return f"refuses a conversation with a tool call and its result: {one_line(error)}"
    return f"leaves out {'the tool call' if _RESULT in text else 'the results of tools'}"


def _refused(tokenizer: Any, reason: str) -> EnvironmentSetupError:
    from trl import chat_template_utils as trl_templates

    advice = "a file with a template that shows tools, in this model's own special tokens"
    if "<|im_start|>" in tokenizer.get_vocab():  # ChatML
        word = f"model.chat_template={Path(trl_templates.__file__).parent}/chat_templates/qwen2_5.jinja"
        advice = f"one that shows tools: `{shlex.quote(word)}` is Qwen 2.5's, of the same tokens"
    return EnvironmentSetupError(
        f"This model's tokenizer cannot be used with tools or an environment: {reason}. Set model.chat_template to "
        f"{advice}; or choose another model: those of Qwen 2.5 to 3.6, Llama 3.1 and 3.2, Gemma 4, GPT-OSS, GLM-4-MoE, "
        "LFM2.5 and Nemotron 3 can, among others."
    )


def parse(
    tokenizer: Any, ids: Sequence[int], prefix: Sequence[int] | None = None, tools: Sequence[Any] | None = None
) -> dict[str, Any]:
    """The message that these tokens are, as TRL parses them; text that cannot be parsed is content.

    Args:
        tokenizer: with a response template.
        ids: the tokens of a turn.
        prefix: those before it.
        tools: functions or their schemas, which give the types of arguments.
    """
    from trl.chat_template_utils import parse_response

    try:
        parsed: dict[str, Any] = parse_response(tokenizer, ids, prefix=prefix, tools=tools)
    except (AttributeError, KeyError, IndexError, RecursionError):  # what TRL does not expect of what a model writes
        parsed = {"role": "assistant", "content": tokenizer.decode(list(ids), skip_special_tokens=True)}
    return parsed
