"""Prompts through a tokenizer: rendered, measured and truncated."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from covey.errors import ModelError
from covey.log_once import log_once

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


TemplateArguments = Mapping[str, Any] | None
"""Arguments of the chat template besides the messages: `training.chat_template_kwargs`."""


logger = logging.getLogger(__name__)
_JOINER = "\u200d"  # it has no width, and splits what it stands in
_TAG = re.compile(r"</?\w+>")
_REASONING = re.compile(r"</?(think|answer)>")
_known: WeakKeyDictionary[Any, tuple[int, re.Pattern[str] | None]] = WeakKeyDictionary()

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
        prompt = without_special_tokens(tokenizer, prompt)
        text = str(tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=answering, **more))
    except Exception as error:  # a template is a program, and may fail in any way
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(f"The chat template cannot be applied to a prompt: {reason}. {_ADVICE}") from error
    if not text:
        raise ModelError(f"The chat template renders a prompt as an empty text. {_ADVICE}")
    return text


def without_special_tokens(tokenizer: Any, content: Any) -> Any:
    """Messages, or parts of them, whose texts cannot become special tokens, such as those that end or begin a turn.

    A token's text in them gets a zero-width joiner after its first character; everything else stays as it is, as do
    tags that prompts ask for (`<think>`; `<tool_call>` where it is no special token).

    Args:
        tokenizer: names the special tokens; other tokens that it adds count too.
        content: messages, in any nesting of mappings and lists. A prompt that is one text writes its turns itself.
    """
    if isinstance(content, str):
        return content
    if tokenizer not in _known or _known[tokenizer][0] != len(tokenizer):
        markers = {*tokenizer.all_special_tokens}
        for token in tokenizer.added_tokens_decoder.values():
            markers |= {token.content} if token.special or not _TAG.fullmatch(token.content) else set()
        found = sorted((one for one in markers if len(one.strip()) > 1 and not _REASONING.fullmatch(one)), key=len)
        pattern = re.compile("|".join(map(re.escape, reversed(found)))) if found else None
        _known[tokenizer] = len(tokenizer), pattern
    pattern = _known[tokenizer][1]
    return content if pattern is None else _split(pattern, content)


def _split(pattern: re.Pattern[str], content: Any) -> Any:
    if isinstance(content, str):
        before = content
        while pattern.search(content):
            content = pattern.sub(lambda found: f"{found[0][0]}{_JOINER}{found[0][1:]}", content)
        if content is not before:
            text = "The text of special tokens in messages or results is split, so that the model reads it as text."
            log_once(logger, text, key="special tokens")
        return content
    if isinstance(content, Mapping):
        return {key: _split(pattern, value) for key, value in content.items()}
    if not isinstance(content, list | tuple):
        return content
    parts = [_split(pattern, part) for part in content]
    texts = [part["text"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("text"), str)]
    if pattern.search("".join(texts)):  # templates join the blocks of a message
        parts = [{**part, "text": f"{part['text']}{_JOINER}"} if "text" in part else part for part in parts]
    return parts


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
