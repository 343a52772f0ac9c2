"""What TRL knows of chat templates: which can render tool calls, how they are parsed, and their forms for training.

The one module besides `training/trl` that imports TRL: evaluation must render and parse a conversation exactly as
training does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jinja2 import TemplateError

from covey.errors import EnvironmentSetupError, one_line

_PARSED = ("response_template", "response_schema")


def template_refusal(tokenizer: Any) -> str | None:
    """Why episodes with tools are impossible under a tokenizer's chat template; None if they are possible.

    Args:
        tokenizer: a tokenizer; it is not changed.
    """
    try:
        prepare(tokenizer)
    except EnvironmentSetupError as error:
        return str(error)
    return None


def prepare(tokenizer: Any) -> tuple[str | None, Any]:
    """What rendering and parsing need besides the tokenizer, as TRL's trainer finds it.

    Returns:
        The chat template to render with, None for the tokenizer's own; and the response template to parse with, None
        for the tokenizer's own.

    Raises:
        EnvironmentSetupError: the template cannot render or parse tool calls, or cannot be rendered turn by turn.
    """
    from trl.chat_template_utils import (
        add_response_schema,
        get_training_chat_template,
        is_chat_template_prefix_preserving,
        supports_tool_calling,
    )

    raise NotImplementedError


def parse(tokenizer: Any, ids: Sequence[int], prefix: Sequence[int], tools: Sequence[Any]) -> dict[str, Any]:
    """The message that these tokens are, as TRL parses them; text that cannot be parsed is content.

    Args:
        tokenizer: with a response template.
        ids: the tokens of a turn.
        prefix: those before it.
        tools: functions or their schemas, which give the types of arguments.
    """
    from trl.chat_template_utils import parse_response

    parsed: dict[str, Any] = parse_response(tokenizer, list(ids), prefix=list(prefix), tools=list(tools) or None)
    return parsed
