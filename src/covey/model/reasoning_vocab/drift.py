"""How far reasoning tokens have moved from the tokens that they began as."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from covey.model.reasoning_vocab.vocabulary import ReasoningVocabulary

BLOCK = 1024
"""Reasoning tokens that are compared with all ordinary ones at a time."""


@dataclass(frozen=True, slots=True)
class Drift:
    """One reasoning token now."""

    token: int
    embedding: float
    """Cosine between its row of the embedding and its base token's, as both are now."""
    head: float
    """The same of the head; that of the embedding where the two are one."""
    nearest: tuple[tuple[int, float], ...]
    """The ordinary tokens whose rows of the embedding are most like its own, with the cosine; best first."""


@torch.no_grad()
def drift(model: Any, vocabulary: ReasoningVocabulary, tokens: Sequence[int], *, nearest: int = 3) -> list[Drift]:
    """Measure reasoning tokens of a loaded model, adapters or not.

    Args:
        model: a causal language model.
        vocabulary: its own.
        tokens: reasoning ids.
        nearest: how many ordinary tokens to name.
    """
    first = vocabulary.map.base_vocab_size
    embedding = normalize(model.get_input_embeddings().weight.detach().float(), dim=1)
    head = normalize(model.get_output_embeddings().weight.detach().float(), dim=1)
    known = torch.tensor([text is not None for text in vocabulary.surfaces.text], device=embedding.device)
    found = []
    for start in range(0, len(tokens), BLOCK):
        part = list(tokens[start : start + BLOCK])
        bases = vocabulary.base(part)
        alike = (embedding[part] @ embedding[:first].T).masked_fill(~known, -torch.inf)
        best = alike.topk(min(nearest, first), dim=1)
        columns = (part, _cosines(embedding, part, bases), _cosines(head, part, bases), best.indices, best.values)
        for token, in_embedding, in_head, ids, cosines in zip(*columns, strict=True):
            around = tuple(zip(ids.tolist(), cosines.tolist(), strict=True))
            found.append(Drift(token, float(in_embedding), float(in_head), around))
    return found


def _cosines(rows: Tensor, tokens: Sequence[int], bases: Sequence[int]) -> list[float]:
    found: list[float] = (rows[list(tokens)] * rows[list(bases)]).sum(1).tolist()
    return found
