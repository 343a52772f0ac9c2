"""Prompts as a tokenizer sees them: rendered, measured and cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


TemplateArguments = Mapping[str, Any] | None
"""What the chat template is given besides the messages: `training.chat_template_kwargs`."""


def render(
    tokenizer: PreTrainedTokenizerBase, prompt: Any, arguments: TemplateArguments = None, *, answering: bool = True
) -> str:
    """A prompt exactly as the model will see it: a conversation through the chat template, up to where it answers.

    Args:
        answering: whether what the template puts in front of the answer is there too.
    """
    if isinstance(prompt, str):
        return prompt
    more = dict(arguments or {})
    return str(tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=answering, **more))


def opened_thinking(
    tokenizer: PreTrainedTokenizerBase, prompt: Any, tag: str, arguments: TemplateArguments = None
) -> str:
    """The thinking tag that a rendered prompt opens for the model, with what follows it; empty where it opens none.

    The chat template of DeepSeek-R1, and many a prompt for base models, begin the answer with `<think>`, so that the
    completion itself lacks the tag. A tag that a message only speaks of opens nothing.
    """
    text = render(tokenizer, prompt, arguments)
    start = text.rfind(f"<{tag}>")
    if start < 0 or f"</{tag}>" in text[start:]:
        return ""
    begun = text[start:]
    if begun.rstrip() == f"<{tag}>" or isinstance(prompt, str):
        return begun if begun.rstrip() == f"<{tag}>" else ""
    before = render(tokenizer, prompt, arguments, answering=False)
    return begun if text.startswith(before) and start >= len(before) else ""


def prompt_lengths(
    tokenizer: PreTrainedTokenizerBase, arguments: TemplateArguments = None
) -> Callable[[list[Any]], list[int]]:
    """A function from prompts to their lengths in tokens, chat template included."""

    def measure(prompts: list[Any]) -> list[int]:
        texts = [render(tokenizer, prompt, arguments) for prompt in prompts]
        return [len(ids) for ids in tokenizer(texts, add_special_tokens=False).input_ids] if texts else []

    return measure


def cut_left(tokenizer: PreTrainedTokenizerBase) -> Callable[[str, int], str]:
    """A function that takes the first so many tokens off a text.

    It cuts the text at a token's place in it where the tokenizer knows that, so that no character is torn.
    """

    def cut(text: str, count: int) -> str:
        if count <= 0:
            return text
        if not tokenizer.is_fast:
            return str(tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids[count:]))
        offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True).offset_mapping
        return text[offsets[count][0] :] if count < len(offsets) else ""

    return cut
