"""Prompts through a tokenizer: rendered, measured and truncated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from covey.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


TemplateArguments = Mapping[str, Any] | None
"""Arguments of the chat template besides the messages: `training.chat_template_kwargs`."""


_ADVICE = "Set another with model.chat_template, or check training.chat_template_kwargs."


def render(
    tokenizer: PreTrainedTokenizerBase, prompt: Any, arguments: TemplateArguments = None, *, answering: bool = True
) -> str:
    """A prompt exactly as the model sees it: a conversation through the chat template, with the generation prompt.
    Raises a `ModelError` if the chat template is invalid, fails on this conversation, or renders an empty text."""
    if isinstance(prompt, str):
        return prompt
    more = dict(arguments or {})
    try:
        text = str(tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=answering, **more))
    except Exception as error:  # a template is a program, and may fail in any way
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(f"The chat template cannot be applied to a prompt: {reason}. {_ADVICE}") from error
    if not text:
        raise ModelError(f"The chat template renders a prompt as an empty text. {_ADVICE}")
    return text


def thinking_prefix(
    tokenizer: PreTrainedTokenizerBase, prompt: Any, tag: str, arguments: TemplateArguments = None
) -> str:
    """The thinking tag with which a rendered prompt ends, and the text after it; empty if there is none.

    The chat template of DeepSeek-R1 and many prompts for base models begin the answer with `<think>`, so that the
    completion itself lacks the tag. A tag in the content of a message does not count.
    """
    text = render(tokenizer, prompt, arguments)
    start = text.rfind(f"<{tag}>")
    if start < 0 or f"</{tag}>" in text[start:]:
        return ""
    prefix = text[start:]
    if prefix.rstrip() == f"<{tag}>" or isinstance(prompt, str):
        return prefix if prefix.rstrip() == f"<{tag}>" else ""
    before = render(tokenizer, prompt, arguments, answering=False)
    return prefix if text.startswith(before) and start >= len(before) else ""


def prompt_lengths(
    tokenizer: PreTrainedTokenizerBase, arguments: TemplateArguments = None
) -> Callable[[list[Any]], list[int]]:
    """A function from prompts to their lengths in tokens, chat template included."""
    encode = prompt_ids(tokenizer, arguments)
    return lambda prompts: [len(ids) for ids in encode(prompts)]


def prompt_ids(
    tokenizer: PreTrainedTokenizerBase, arguments: TemplateArguments = None
) -> Callable[[list[Any]], list[list[int]]]:
    """A function from prompts to their tokens, chat template included."""

    def encode(prompts: list[Any]) -> list[list[int]]:
        texts = [render(tokenizer, prompt, arguments) for prompt in prompts]
        return list(tokenizer(texts, add_special_tokens=False).input_ids) if texts else []

    return encode


def cut_left(tokenizer: PreTrainedTokenizerBase) -> Callable[[str, int], str]:
    """A function that removes the first tokens of a text, given their number.

    With a fast tokenizer it cuts the text at a token's offset, so that no character is split.
    """

    def cut(text: str, count: int) -> str:
        if count <= 0:
            return text
        if not tokenizer.is_fast:
            return str(tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids[count:]))
        offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True).offset_mapping
        return text[offsets[count][0] :] if count < len(offsets) else ""

    return cut
