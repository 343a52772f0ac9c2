"""CPU kernels behind PyTorch's two flash operators for sequences of different lengths, in float64, for tests.

Written from the operators' meaning: queries of each sequence attend to its keys, aligned at the end if causal. The
backward pass takes the log-sum-exps and the output as they are given.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch


def _scores(q: torch.Tensor, k: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    """`[heads, queries, keys]`."""
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    if causal:
        ahead = torch.arange(len(k))[None, :] - torch.arange(len(q))[:, None] > len(k) - len(q)
        scores = scores.masked_fill(ahead, -torch.inf)
    return scores


def _sequences(*starts: torch.Tensor) -> list[tuple[slice, ...]]:
    return list(zip(*([slice(a, b) for a, b in pairwise(one.tolist())] for one in starts), strict=True))


def _check(q: Any, k: Any, v: Any, cq: Any, ck: Any, most_q: int, most_k: int, dropout: float) -> None:
    assert q.dtype == k.dtype == v.dtype
    assert cq.dtype == ck.dtype == torch.int32
    assert (int(cq[-1]), int(ck[-1])) == (len(q), len(k))
    assert (int(cq.diff().max()), int(ck.diff().max())) == (most_q, most_k)
    assert dropout == 0


def _forward(
    q: Any,
    k: Any,
    v: Any,
    cq: Any,
    ck: Any,
    most_q: int,
    most_k: int,
    dropout: float,
    causal: bool,
    debug: bool,
    **kw: Any,
) -> tuple[torch.Tensor, ...]:
    _check(q, k, v, cq, ck, most_q, most_k, dropout)
    scale, repeats = kw.get("scale") or q.shape[-1] ** -0.5, q.shape[1] // k.shape[1]
    out, sums = torch.empty_like(q), torch.empty(q.shape[1], len(q), dtype=torch.promote_types(q.dtype, torch.float32))
    for asking, seen in _sequences(cq, ck):
        keys, values = (one[seen].double().repeat_interleave(repeats, 1) for one in (k, v))
        scores = _scores(q[asking].double(), keys, causal, scale)
        out[asking] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).to(q.dtype)
        sums[:, asking] = scores.logsumexp(-1).to(sums)
    empty = torch.empty(0)
    return out, sums, empty, empty, empty


def _backward(
    grad: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    sums: Any,
    cq: Any,
    ck: Any,
    most_q: int,
    most_k: int,
    dropout: float,
    causal: bool,
    random: Any,
    unused: Any,
    **kw: Any,
) -> tuple[torch.Tensor, ...]:
    _check(q, k, v, cq, ck, most_q, most_k, dropout)
    scale, repeats = kw.get("scale") or q.shape[-1] ** -0.5, q.shape[1] // k.shape[1]
    to_q, to_k, to_v = (torch.zeros(one.shape, dtype=torch.float64) for one in (q, k, v))
    for asking, seen in _sequences(cq, ck):
        queries, upstream = q[asking].double(), grad[asking].double()
        keys, values = (one[seen].double().repeat_interleave(repeats, 1) for one in (k, v))
        weights = (_scores(queries, keys, causal, scale) - sums[:, asking, None].double()).exp()
        rows = (upstream * out[asking].double()).sum(-1).t()[..., None]
        inner = weights * (torch.einsum("qhd,khd->hqk", upstream, values) - rows) * scale
        to_q[asking] += torch.einsum("hqk,khd->qhd", inner, keys)
        to_k[seen] += torch.einsum("hqk,qhd->khd", inner, queries).unflatten(1, (-1, repeats)).sum(2)
        to_v[seen] += torch.einsum("hqk,qhd->khd", weights, upstream).unflatten(1, (-1, repeats)).sum(2)
    return to_q.to(q), to_k.to(k), to_v.to(v)


@contextmanager
def flash_kernels() -> Iterator[None]:
    """Context manager: the two operators have these kernels on a CPU."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("_flash_attention_forward", _forward, "CPU")
    library.impl("_flash_attention_backward", _backward, "CPU")
    try:
        yield
    finally:
        library._destroy()
