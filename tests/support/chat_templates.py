"""Tokenizers for the chat templates that TRL ships, and random conversations with tools for them."""

from __future__ import annotations

import json
import random
import re
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trl
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.utils import get_json_schema

from covey.environments.chat import ToolChat
from covey.errors import EnvironmentSetupError

FOLDER = Path(trl.__file__).parent / "chat_templates"
SHIPPED = sorted(path.stem for path in FOLDER.glob("*.jinja") if not path.stem.endswith("_training"))

_MARKUP = re.compile(r"<\|[^|<>\s]+\|>|<\|[a-z_\"]+>|<\|\"\|>|<[a-z_]+\|>|</?[a-z_]+>|<\uff5c[^<>\s]+\uff5c>|\[gMASK\]")
"""What is one token in the models of these templates, and sometimes more."""


@dataclass(frozen=True)
class Family:
    """What models of one kind sample."""

    eos: str
    """The tokenizer's end of sequence."""
    stops: tuple[str, ...] = ()
    """Further tokens that end a turn, by the model's generation config."""
    thinking: str | None = "reasoning_content"
    """The key of thinking in a message; None for a model that does not think."""
    always_thinks: bool = False
    """The template opens the thinking, so that a turn without any is not canonical."""
    one_call: bool = False
    """At most one call in a turn."""
    content_with_calls: bool = True
    """A turn with calls may hold text too."""


FAMILIES = {
    "qwen2_5": Family("<|im_end|>", thinking=None),
    "qwen3_instruct": Family("<|im_end|>", thinking=None),
    "qwen3_vl": Family("<|im_end|>", thinking=None),
    "qwen3_5_nothink": Family("<|im_end|>", thinking=None),
    "qwen3_5_think": Family("<|im_end|>", always_thinks=True),
    "qwen3_6": Family("<|im_end|>", always_thinks=True),
    "qwen3_8": Family("<|im_end|>", always_thinks=True),
    "qwen3": Family("<|im_end|>"),
    "llama3": Family("<|eot_id|>", thinking=None, one_call=True, content_with_calls=False),
    "gemma4_v5": Family("<eos>", ("<turn|>", "<|tool_response>"), content_with_calls=False, always_thinks=True),
    "gemma4": Family("<eos>", ("<turn|>", "<|tool_response>"), content_with_calls=False),
    "gptoss": Family("<|return|>", ("<|call|>",), "thinking", one_call=True, content_with_calls=False),
    "glm": Family("<|endoftext|>", ("<|user|>", "<|observation|>")),
    "lfm2": Family("<|im_end|>", thinking="thinking"),
    "nemotron": Family("<|im_end|>", always_thinks=True),
}


def family_of(template: str) -> Family:
    """The family of a template that can do tools; any other gets a plain one."""
    return next((found for start, found in FAMILIES.items() if template.startswith(start)), Family("<eos>"))


def make_tokenizer(template: str) -> PreTrainedTokenizerFast:
    """A tokenizer with one of TRL's templates, whose markup is single tokens; elsewhere it merges across words."""
    text, family = (FOLDER / f"{template}.jinja").read_text(encoding="utf-8"), family_of(template)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    seen = [*text.splitlines(keepends=True), *[json.dumps(get_json_schema(tool)) for tool in TOOLS] * 2]
    tokenizer.train_from_iterator(
        seen, trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    )
    markup = sorted({*_MARKUP.findall(text), family.eos, *family.stops})
    tokenizer.add_tokens([AddedToken(one, special=False, normalized=False) for one in markup])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=family.eos, bos_token="<bos>", pad_token="<pad>", chat_template=text
    )


def add(a: int, b: int) -> int:
    """
    Add two numbers.

    Args:
        a: One number.
        b: The other number.
    """
    return a + b


def search(query: str, options: dict[str, Any], tags: list[str], limit: float = 1.0, exact: bool = False) -> str:
    """
    Search for documents.

    Args:
        query: What to search for.
        options: Further settings.
        tags: Labels that all documents have.
        limit: The most.
        exact: Whether words count as they are written.
    """
    return query


TOOLS = [add, search]

_TEXTS = ("17", "Grüße, 数学 🙂", "two\nlines", "a 'quote' and a \"quote\"", "x" * 40, "{}", "<b>bold</b>", "1 < 2 > 0")
_RESULTS = (*_TEXTS, "", " ", "\n", "{'error': 'none'}", "trailing space ", "\n\nlines\n")


def random_turn(chooser: random.Random, family: Family, *, calls: bool) -> dict[str, Any]:
    """A turn of the model, with calls or as an answer."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    if not calls or (family.content_with_calls and chooser.random() < 0.5):
        message["content"] = chooser.choice(_TEXTS)
    if family.thinking is not None and (family.always_thinks or chooser.random() < 0.5):
        message[family.thinking] = chooser.choice(_TEXTS)
    if calls:
        count = 1 if family.one_call else chooser.randint(1, 3)
        message["tool_calls"] = [_random_call(chooser, f"call{index:05d}") for index in range(count)]
    return message


def random_results(chooser: random.Random, turn: dict[str, Any], markup: list[str]) -> list[dict[str, Any]]:
    """A result for each call, now and then one that looks like the template's own markup."""
    texts = [*_RESULTS, *markup, "".join(markup[:3])]
    return [
        {
            "role": "tool",
            "name": call["function"]["name"],
            "content": chooser.choice(texts),
            "tool_call_id": call["id"],
        }
        for call in turn["tool_calls"]
    ]


def _random_call(chooser: random.Random, identity: str) -> dict[str, Any]:
    if chooser.random() < 0.5:
        function: dict[str, Any] = {"name": "add", "arguments": {"a": chooser.randint(-9, 99), "b": 0}}
    else:
        arguments = {
            "query": chooser.choice(_TEXTS),
            "options": chooser.choice([{}, {"depth": 2, "deep": {"list": [1, 2.5, None, True]}}]),
            "tags": chooser.choice([[], ["one"], ["one", "zwei – two"]]),
            "limit": chooser.choice([0.5, 3, -1e-3]),
            "exact": chooser.random() < 0.5,
        }
        function = {"name": "search", "arguments": dict(chooser.sample(list(arguments.items()), chooser.randint(0, 5)))}
    return {"type": "function", "id": identity, "function": function}


def template_refusal(tokenizer: Any) -> str | None:
    """Why episodes with tools are impossible under a tokenizer's chat template; None if they are possible."""
    try:
        ToolChat.of(copy(tokenizer))
    except EnvironmentSetupError as error:
        return str(error)
    return None
