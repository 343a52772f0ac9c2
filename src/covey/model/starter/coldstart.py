"""The starter models before their cold start, and what they learn in it; `training.trl.sft.train_starter` trains them.

A Qwen3 of about a million parameters is trained with the ordinary next-token loss, on the completion only, over freshly
drawn train-split arithmetic in the mixture of styles of `styles.py`. Everything is seeded. It takes under an hour on
two cores; the result ships inside the package, so that using Covey does not need it. The agent continues from these
weights, with the documents of `calling.py` and a tokenizer of its own.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType

import torch
from tokenizers import AddedToken
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from covey.config import DatasetConfig
from covey.config.groups.model import STARTER_MARK
from covey.data.tasks.arithmetic import Difficulty
from covey.data.tasks.drawing import problems, take
from covey.model.starter import STARTER_PATH
from covey.model.starter.calling import WRITTEN_DIGITS, agent_document
from covey.model.starter.styles import Document, document
from covey.model.starter.tasks import own_tokens, task_documents
from covey.model.starter.tokenizer import TAGS, TOOL_TAGS, build_tokenizer
from covey.runlog.files import follow_umask

DIFFICULTY = Difficulty(min_digits=1, max_digits=WRITTEN_DIGITS)
"""Problems of the cold start; the built-in task trains on 2 to 4 digits, its hard set has 5."""
AGENT_DIFFICULTY = Difficulty(min_digits=1, max_digits=WRITTEN_DIGITS + 1)
"""Problems of the agent's: it has to copy those of the hard set's length into a call."""

_NO_LOSS = -100
LONGEST_SHARE = 0.25
"""Share of the agent's problems with both numbers that long."""


@dataclass(frozen=True, slots=True)
class ColdStart:
    """Settings of the cold start; the defaults give the shipped model."""

    steps: int = 3200
    batch_size: int = 96
    learning_rate: float = 2e-3
    warmup_steps: int = 200
    weight_decay: float = 0.01
    seed: int = 0
    enough: float = 0.0
    """Training ends early once the mean loss of the last 25 steps is this low: how many steps a model needs
    until it sees how a task works depends on the seed."""
    micro_batches: int = 1
    """Parts of a batch, by the length of the documents: the fewer documents in each, the less padding."""
    agent: bool = False
    """Make the model that can call a tool, from the shipped starter's weights."""
    dataset: DatasetConfig | None = None
    """The task with several right answers that it learns, as a run asks its problems; None means sums and differences
    in several styles."""


AGENT = ColdStart(steps=1200, batch_size=64, learning_rate=1e-3, warmup_steps=30, micro_batches=4, agent=True)
"""The defaults of the agent."""
TASK_STARTS: Mapping[str, ColdStart] = MappingProxyType(
    {
        "countdown": ColdStart(steps=2200, batch_size=48, learning_rate=3e-3, warmup_steps=100),
        "graph_coloring": ColdStart(steps=2000, batch_size=16, learning_rate=3e-3, warmup_steps=100, enough=0.11),
    }
)
"""The defaults of the starts for these tasks."""
_EMBEDDING_STD = 0.15
"""Of their embeddings at first. Small ones, tied to the head, make tokens that occur in the same contexts alike before
anything tells them apart: with 0.02 the colours of graph_coloring are still guessed after 900 steps."""


def starter_config(tokenizer: PreTrainedTokenizerFast, task: str | None = None) -> Qwen3Config:
    """The architecture: a small Qwen3 with tied embeddings, 0.95 M parameters; for one task 0.4 M, and its config names
    the task."""
    size = {"hidden_size": 128, "intermediate_size": 448, "num_hidden_layers": 4, "head_dim": 32}
    if task is not None:
        size = {"hidden_size": 96, "intermediate_size": 320, "num_hidden_layers": 3, "head_dim": 24}
    marked = {} if task is None else {STARTER_MARK: task}
    return Qwen3Config(
        **size,
        **marked,
        vocab_size=len(tokenizer),
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )


def make_tokenizer(
    seed: int = 0, *, agent: bool = False, dataset: DatasetConfig | None = None
) -> PreTrainedTokenizerFast:
    """A starter's tokenizer, trained on a sample of its cold start's data. Some texts of a task are one token, which
    keeps prompts short."""
    texts = []
    for doc in islice(_documents(seed, agent, dataset, 4000), 4000):
        texts += [f"{m['role']}\n{m['content']}" for m in doc.messages]
        texts.append(f"assistant\n{doc.completion}")
        texts += [f"system\nTools: {tool['function']['name']}(expression)" for tool in doc.tools]
    for tag in TAGS + TOOL_TAGS:
        texts = [text.replace(tag, " ") for text in texts]
    own = own_tokens(dataset, seed) if dataset is not None else []
    for text in own:
        texts = [one.replace(text, " ") for one in texts]
    tokenizer = build_tokenizer(texts, tools=agent)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in own])
    return tokenizer


def new_starter(settings: ColdStart) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """The model before its cold start, and its tokenizer."""
    dataset = settings.dataset
    tokenizer = make_tokenizer(settings.seed, agent=settings.agent, dataset=dataset)
    model = Qwen3ForCausalLM(starter_config(tokenizer, None if dataset is None else dataset.task))
    if dataset is not None:
        torch.nn.init.normal_(model.get_input_embeddings().weight, std=_EMBEDDING_STD)
    if settings.agent:
        _take_weights(model, tokenizer)
    model.generation_config.update(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    return model, tokenizer


def examples(settings: ColdStart, tokenizer: PreTrainedTokenizerFast) -> Iterator[dict[str, list[int]]]:
    """Tokens and labels of the documents without end, those of one batch by their length if it has several
    micro-batches. What is learnt is the completion and its end of turn."""
    stream = _documents(settings.seed, settings.agent, settings.dataset)
    while True:
        rows = [_row(next(stream), tokenizer) for _ in range(settings.batch_size)]
        if settings.micro_batches > 1:
            rows.sort(key=lambda row: len(row["input_ids"]))
        yield from rows


def save_starter(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, card: str, target: Path) -> None:
    """Write weights, tokenizer and card to `target`, replacing its files only when all are written."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        (Path(temporary) / "README.md").write_text(card, encoding="utf-8")
        target.mkdir(exist_ok=True)
        for file in Path(temporary).iterdir():
            file.replace(target / file.name)
    follow_umask(target)


def _take_weights(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    """Copy the shipped starter's weights; a token that it lacks starts as the mean of its pieces."""
    old_tokenizer = AutoTokenizer.from_pretrained(STARTER_PATH)
    weights = AutoModelForCausalLM.from_pretrained(STARTER_PATH).state_dict()
    rows = weights["model.embed_tokens.weight"]
    known = old_tokenizer.get_vocab()
    means = []
    for token in tokenizer.convert_ids_to_tokens(range(len(tokenizer))):
        text = tokenizer.convert_tokens_to_string([token])
        pieces = [known[token]] if token in known else old_tokenizer(text)["input_ids"]
        means.append(rows[pieces].mean(0))
    weights["model.embed_tokens.weight"] = weights["lm_head.weight"] = torch.stack(means)
    model.load_state_dict(weights)


def _documents(seed: int, agent: bool, dataset: DatasetConfig | None, count: int | None = None) -> Iterator[Document]:
    if dataset is not None:
        yield from task_documents(dataset, seed)
        return
    rng = random.Random(f"covey-starter-{seed}")
    difficulty, make = (AGENT_DIFFICULTY, agent_document) if agent else (DIFFICULTY, document)
    stream = iter(take(difficulty, "train", seed, count)) if count else problems(difficulty, "train", seed)
    longest = problems(replace(difficulty, min_digits=difficulty.max_digits), "train", seed)
    for problem in stream:
        yield make(next(longest) if agent and rng.random() < LONGEST_SHARE else problem, rng)


def _row(doc: Document, tokenizer: PreTrainedTokenizerFast) -> dict[str, list[int]]:
    prompt = tokenizer.apply_chat_template(
        doc.messages, tools=list(doc.tools) or None, add_generation_prompt=True, tokenize=True, return_dict=True
    )["input_ids"]
    prompt += tokenizer(doc.given)["input_ids"]
    completion = [*tokenizer(doc.completion)["input_ids"], tokenizer.eos_token_id]
    return {"input_ids": [*prompt, *completion], "labels": [_NO_LOSS] * len(prompt) + completion}
