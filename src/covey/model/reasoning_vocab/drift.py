"""How far reasoning tokens have moved, from their base tokens and from where they started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from covey.model.reasoning_vocab.vocabulary import ReasoningVocabulary

BLOCK = 1024
"""Reasoning tokens per block in the comparison with all ordinary ones."""


@dataclass(frozen=True, slots=True)
class Drift:
    """The drift of one reasoning token."""

    token: int
    embedding: float
    """Cosine similarity of its embedding row to that of its base token, at present."""
    head: float
    """The same for the output head; with tied weights equal to `embedding`."""
    start_embedding: float | None
    """Cosine similarity of its embedding row to the same row before training; None if that is not known."""
    start_head: float | None
    """The same for the output head."""
    nearest: tuple[tuple[int, float], ...]
    """The ordinary tokens with the most similar embedding rows, with the cosine similarity; best first."""


@torch.no_grad()
def drift(
    model: Any, vocabulary: ReasoningVocabulary, tokens: Sequence[int], *, start: Any = None, nearest: int = 3
) -> list[Drift]:
    """Measure reasoning tokens of a loaded model, with or without adapters.

    Args:
        model: a causal language model.
        tokens: reasoning ids.
        start: the model before training, if it is there.
        nearest: how many ordinary tokens to return.
    """
    first = vocabulary.map.base_vocab_size
    embedding, head = _tables(model)
    before = [None, None] if start is None else [table.to(embedding.device) for table in _tables(start)]
    known = torch.tensor([text is not None for text in vocabulary.token_bytes.text], device=embedding.device)
    found = []
    for start in range(0, len(tokens), BLOCK):
        part = list(tokens[start : start + BLOCK])
        bases = vocabulary.base(part)
        similarity = (embedding[part] @ embedding[:first].T).masked_fill(~known, -torch.inf)
        best = similarity.topk(min(nearest, first), dim=1)
        to_base = (_cosines(table, part, table, bases) for table in (embedding, head))
        to_start = (_cosines(now, part, then, part) for now, then in zip((embedding, head), before, strict=True))
        for token, base, at_head, began, head_began, ids, values in zip(
            part, *to_base, *to_start, best.indices, best.values, strict=True
        ):
            around = tuple(zip(ids.tolist(), values.tolist(), strict=True))
            found.append(Drift(token, base, at_head, began, head_began, around))
    return found


def _tables(model: Any) -> tuple[Tensor, Tensor]:
    """Embedding and head, with rows of norm 1."""
    modules = (model.get_input_embeddings(), model.get_output_embeddings())
    embedding, head = (normalize(one.weight.detach().float(), dim=1) for one in modules)
    return embedding, head


def _cosines(rows: Tensor, tokens: Sequence[int], others: Tensor | None, of: Sequence[int]) -> list[Any]:
    """The cosines of rows with those of other tokens; None for each without other rows."""
    if others is None:
        return [None] * len(tokens)
    found: list[float] = (rows[list(tokens)] * others[list(of)]).sum(1).tolist()
    return found
