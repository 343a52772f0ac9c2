"""From the log-probs that vLLM returns in each place: the sampled token's own, and which tokens could be sampled.

vLLM gives its sampling masks themselves (`return_sampling_mask`) only with its newer model runner, which needs Triton,
and not over HTTP. In `processed_logprobs` mode, the K likeliest tokens after top-k, top-p and min-p say the same: those
with a finite log-prob could be sampled.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from covey.rollout.engine import SamplingSettings

_CUT_OFF = -9000.0
"""Servers write -9999 for the log-prob of a token that was cut off, since JSON has no infinity."""


def candidates(sampling: SamplingSettings, vocab_size: int) -> int:
    """How many tokens can be sampled in each place where their set is to be returned: `top_k` and `logprobs` of the
    request; 0 where it is not.

    Args:
        vocab_size: of the engine's model.
    """
    if not (sampling.support and sampling.truncates):
        return 0
    return min(sampling.most_kept or vocab_size, vocab_size)


def sampled_logps(
    ids: Sequence[int], token_ids: Sequence[Sequence[int]], logps: Sequence[Sequence[float | None]]
) -> list[float]:
    """The log-probs of the sampled tokens; NaN where vLLM could not compute one.

    Args:
        ids: the sampled tokens.
        token_ids: of each place, the tokens whose log-probs vLLM returned, in any order.
        logps: these.
    """
    found = [values[tokens.index(one)] for one, tokens, values in zip(ids, token_ids, logps, strict=True)]
    return [float("nan") if logp is None else float(logp) for logp in found]


def support_of(
    ids: Sequence[int], token_ids: Sequence[Sequence[int]], logps: Sequence[Sequence[float | None]]
) -> tuple[list[float], torch.Tensor]:
    """The log-probs of the sampled tokens, and the tokens that could be sampled, over which they are normalised.

    Where tokens tie for the last place, vLLM may keep more of them than it returns. The log-probs are then those among
    the tokens that are returned here.

    Args:
        ids: the sampled tokens.
        token_ids: of each place, the tokens whose log-probs vLLM returned: the K likeliest and the sampled one.
        logps: these, after all that cuts tokens off.

    Returns:
        The T log-probs, and the tokens as int32 `[T, C]`, the likeliest first, -1 where there are fewer than C.
    """
    widest = max(map(len, token_ids), default=0)
    tokens_TC = np.full((len(ids), widest), -1, dtype=np.int32)
    logps_TC = np.full((len(ids), widest), -np.inf)
    for place, (tokens, values) in enumerate(zip(token_ids, logps, strict=True)):
        tokens_TC[place, : len(tokens)] = tokens
        logps_TC[place, : len(values)] = [np.nan if logp is None else logp for logp in values]
    sampled_TC = tokens_TC == np.asarray(ids, dtype=np.int32)[:, None]
    kept_TC = (logps_TC > _CUT_OFF) | sampled_TC
    order_TC = np.argsort(np.where(kept_TC, -logps_TC, np.inf), axis=1, kind="stable")
    most = int(kept_TC.sum(axis=1).max(initial=0))
    support_TC = np.take_along_axis(np.where(kept_TC, tokens_TC, -1), order_TC, axis=1)[:, :most]
    mass_T = np.where(kept_TC, np.exp(logps_TC), 0.0).sum(axis=1)
    logps_T = logps_TC[sampled_TC] - np.log(mass_T)
    return logps_T.tolist(), torch.from_numpy(np.ascontiguousarray(support_TC))
