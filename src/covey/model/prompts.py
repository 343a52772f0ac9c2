"""Prompts through a tokenizer: rendered, measured and truncated; and what is learnt after them."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from covey.answers.extract import Tags, open_thinking
from covey.errors import ModelError, one_line
from covey.log_once import log_once
from covey.rewards.reward import content_text, is_prefill

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


TemplateArguments = Mapping[str, Any] | None
"""Arguments of the chat template besides the messages: `training.chat_template_kwargs`."""


logger = logging.getLogger(__name__)
_JOINER = "\u200d"  # it has no width, and splits what it stands in
_TAG = re.compile(r"</?\w+>")
_MARKER = re.compile(r"\s*[<\[].*[>\]]\s*", re.DOTALL)  # what marks a turn; other added tokens are words
_REASONING = re.compile(r"</?(think|answer)>")
_known: WeakKeyDictionary[Any, tuple[int, re.Pattern[str] | None]] = WeakKeyDictionary()

_ADVICE = "Set another with model.chat_template, or check training.chat_template_kwargs."


def render(
    tokenizer: PreTrainedTokenizerBase, prompt: Any, arguments: TemplateArguments = None, *, answering: bool = True
) -> str:
    """A prompt exactly as the model sees it, see `apply_template`. Raises a `ModelError` if the chat template is
    invalid, fails on this conversation, leaves out calls of tools or their results, or renders an empty text."""
    if isinstance(prompt, str):
        return prompt
    more = {"answering": answering, "tokenize": False, **(arguments or {})}
    apply: Callable[[Any], Any] = partial(apply_template, tokenizer, **more)
    try:
        text = str(apply(prompt))
        left_out = [what for what, other in _otherwise(prompt) if apply(other) == text]
    except Exception as error:  # a template is a program, and may fail in any way
        raise ModelError(f"The chat template cannot be applied to a prompt: {one_line(error)}. {_ADVICE}") from error
    if left_out:
        raise ModelError(f"The chat template leaves the {left_out[0]} of tools out of a prompt. {_ADVICE}")
    if not text:
        raise ModelError(f"The chat template renders a prompt as an empty text. {_ADVICE}")
    return text


def apply_template(
    tokenizer: Any, messages: Sequence[Mapping[str, Any]], *, answering: bool = True, **more: Any
) -> Any:
    """Messages, as `as_shown`, through `apply_chat_template`; `answering`: up to where the model writes, which may be
    the end of a prefill; one of white space begins nothing."""
    if answering and is_prefill(messages) and not content_text(messages[-1]).strip():
        messages = messages[:-1]
    prefill = answering and is_prefill(messages)
    more |= {"add_generation_prompt": answering and not prefill, "continue_final_message": prefill}
    return tokenizer.apply_chat_template(as_shown(tokenizer, messages), **more)


def _otherwise(prompt: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[Any]]]:
    """The prompt with other calls, and with other results, if it has any: a template that shows them differs then."""
    if any(one.get("tool_calls") for one in prompt):
        other = partial(_with_calls, change=lambda call: {**call, "name": f"{call['name']}_"})
        yield "calls", [other(one) if one.get("tool_calls") else one for one in prompt]
    if any(one["role"] == "tool" for one in prompt):
        yield "results", [{**one, "content": f"{one['content']}_"} if one["role"] == "tool" else one for one in prompt]


def _with_calls(message: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """A message that calls tools, with other functions of a name and arguments; content that is null is empty."""
    calls = message["tool_calls"]
    changed = [{**one, "function": change(one["function"])} if "function" in one else change(one) for one in calls]
    return {**message, "content": message.get("content") or "", "tool_calls": changed}


def _with_parsed(function: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = function.get("arguments") or {}
    try:
        return {**function, "arguments": json.loads(arguments) if isinstance(arguments, str) else arguments}
    except ValueError:
        return function


def as_shown(tokenizer: Any, prompt: Any) -> Any:
    """Messages as they are given to a chat template; a prompt that is one text writes its turns itself.

    Arguments of calls, which OpenAI writes as JSON text, are objects. No text can become a special token, such as those
    that end or begin a turn: a token's text gets a zero-width joiner after its first character; everything else stays
    as it is, as do tags that prompts ask for (`<think>`; `<tool_call>` where it is no special token).

    Args:
        tokenizer: names the special tokens; other tokens that it adds count too, where they are in brackets.
        prompt: messages, or a text.
    """
    if isinstance(prompt, str):
        return prompt
    content = [_with_calls(one, _with_parsed) if one.get("tool_calls") else one for one in prompt]
    if tokenizer not in _known or _known[tokenizer][0] != len(tokenizer):
        markers = {*tokenizer.all_special_tokens}
        for token in tokenizer.added_tokens_decoder.values():
            marks = _MARKER.fullmatch(token.content) and not _TAG.fullmatch(token.content)
            markers |= {token.content} if token.special or marks else set()
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
        return {_split(pattern, key): _split(pattern, value) for key, value in content.items()}
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
    completion itself lacks the tag. A tag in the content of a message does not count: that of a prefill belongs to its
    row alone, see `covey.rewards.reward.whole_answers`.
    """
    prompt = prompt[:-1] if is_prefill(prompt) else prompt
    text = render(tokenizer, prompt, arguments)
    prefix = open_thinking(text, Tags(tag))
    if prefix.rstrip() in ("", f"<{tag}>"):
        return prefix
    before = render(tokenizer, prompt, arguments, answering=False)  # a prompt that is text has no other end
    return prefix if text.startswith(before) and len(before) <= len(text) - len(prefix) else ""


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


def turn_end(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The special token that the chat template puts after an assistant's answer; None without one."""
    marker = "covey7answer"
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": marker}]
    try:
        text = render(tokenizer, messages, answering=False)
    except ModelError:  # it may need arguments, or refuse such a conversation; the prompts of the data are rendered too
        return None
    _, _, tail = text.rpartition(marker)
    ids = tokenizer(tail, add_special_tokens=False).input_ids
    return next((int(i) for i in ids if i in set(tokenizer.all_special_ids)), None)


NOT_LEARNT = -100
"""The label of a token without a loss, as in PyTorch."""


def labelled(
    tokenizer: PreTrainedTokenizerBase,
    prompt: Any,
    completion: Any,
    end: int,
    arguments: TemplateArguments = None,
    *,
    every_turn: bool = True,
    tag: str = "think",
) -> Iterator[tuple[list[int], list[int]]]:
    """Tokens and labels of an example: of each turn of the assistant its text, after exactly what the model would see,
    and the token that ends the turn; nothing that a template writes after it.

    Turns share a sequence as far as the template shows those before as they were written; else a new one begins.

    Args:
        prompt: messages, or a text that is taken as it is.
        completion: what is written: a text, or messages, also of others than the assistant.
        end: the token that ends a turn.
        every_turn: whether every turn of the assistant in the completion is learnt, or the last one.
        tag: of thinking; where the template has opened it, it is not written twice, and is closed.
    """
    turns = [{"role": "assistant", "content": completion}] if isinstance(completion, str) else completion
    spoken = [at for at, turn in enumerate(turns) if turn["role"] == "assistant"][0 if every_turn else -1 :]
    ids, labels = list[int](), list[int]()
    for at in spoken:
        context = prompt if isinstance(prompt, str) else [*prompt, *turns[:at]]
        before, text = render(tokenizer, context, arguments), turns[at]["content"] or ""
        if not isinstance(completion, str):
            whole = render(tokenizer, [*context, turns[at]], arguments, answering=False)
            if whole.startswith(before) and text.rpartition(f"</{tag}>")[2].strip() in whole[len(before) :]:
                text = whole[len(before) :].rstrip()
            elif turns[at].get("tool_calls"):
                raise ModelError(f"The chat template renders a turn that calls tools in another place. {_ADVICE}")
        if not isinstance(prompt, str) and thinking_prefix(tokenizer, context, tag, arguments):
            text = text.lstrip().removeprefix(f"<{tag}>").lstrip("\n")
            text = text if f"</{tag}>" in text else f"</{tag}>\n\n{text}"  # it is open, and would never be closed
        text = text.partition(str(tokenizer.decode([end])))[0]
        seen, said = (list(tokenizer(one, add_special_tokens=False).input_ids) for one in (before, text))
        said += [end] if not said or said[-1] not in tokenizer.all_special_ids else []  # a call may have its own end
        if ids and seen[: len(ids)] != ids:
            yield ids, labels
            ids, labels = [], []
        labels = [*labels, *[NOT_LEARNT] * (len(seen) - len(ids)), *said]
        ids = [*seen, *said]
    yield ids, labels
