"""How far reasoning tokens have moved from their base tokens."""

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
    nearest: tuple[tuple[int, float], ...]
    """The ordinary tokens with the most similar embedding rows, with the cosine similarity; best first."""


@torch.no_grad()
def drift(model: Any, vocabulary: ReasoningVocabulary, tokens: Sequence[int], *, nearest: int = 3) -> list[Drift]:
    """Measure reasoning tokens of a loaded model, with or without adapters.

    Args:
        model: a causal language model.
        vocabulary: the model's.
        tokens: reasoning ids.
        nearest: how many ordinary tokens to return.
    """
    first = vocabulary.map.base_vocab_size
    embedding = normalize(model.get_input_embeddings().weight.detach().float(), dim=1)
    head = normalize(model.get_output_embeddings().weight.detach().float(), dim=1)
    known = torch.tensor([text is not None for text in vocabulary.token_bytes.text], device=embedding.device)
    found = []
    for start in range(0, len(tokens), BLOCK):
        part = list(tokens[start : start + BLOCK])
        bases = vocabulary.base(part)
        similarity = (embedding[part] @ embedding[:first].T).masked_fill(~known, -torch.inf)
        best = similarity.topk(min(nearest, first), dim=1)
        columns = (part, _cosines(embedding, part, bases), _cosines(head, part, bases), best.indices, best.values)
        for token, in_embedding, in_head, ids, cosines in zip(*columns, strict=True):
            around = tuple(zip(ids.tolist(), cosines.tolist(), strict=True))
            found.append(Drift(token, float(in_embedding), float(in_head), around))
    return found


def _cosines(rows: Tensor, tokens: Sequence[int], bases: Sequence[int]) -> list[float]:
    found: list[float] = (rows[list(tokens)] * rows[list(bases)]).sum(1).tolist()
    return found
