"""Values that rewards log: converted to plain data, and kept apart from names that Covey and TRL use."""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
from collections.abc import Collection, Mapping
from pathlib import PurePath
from typing import Any

_MAX_DEPTH = 40
_MAX_BITS = 64
OWN = "logged/"
"""Prefix for a name that is taken."""

_METRICS = frozenset(
    {
        *("loss", "policy_loss", "aux_loss", "grad_norm", "learning_rate", "epoch", "step", "step_time", "total_flos"),
        *("reward", "reward_std", "frac_reward_zero_std", "num_tokens", "num_input_tokens_seen", "entropy"),
        *("entropy_coef", "kl", "cispo_clip_ratio"),
    }
)
_METRIC_GROUPS = (
    *("train/", "train_", "eval/", "eval_", "time/", "memory/", "grader/", "rewards/", "completions/", "clip_ratio/"),
    *("sampling/", "tools/", "vespo/", "profiling/", "objective/", "engine/", "vocabulary/", "resampling/"),
)
_METRIC_ENDS = ("_runtime", "_per_second")  # of timings by transformers
_COLUMNS = frozenset(
    {
        *("step", "prompt", "completion", "answer", "advantage", "rendered_prompt", "group", "outcome", "length"),
        *("truncated", "maxent_weight", "completion_ids"),
    }
)


class NotPlainError(TypeError):
    """The value is not plain data; the message names its type."""


def is_taken(function: str, name: str, rewards: Collection[str]) -> bool:
    """Whether Covey or TRL has a metric (`log_metric`) or a column (`log_extra`) of this name.

    Args:
        function: which of the two logs it.
        name: the metric or column.
        rewards: the names of the run's rewards, which are columns.
    """
    if function == "log_extra":
        return name in _COLUMNS or name in rewards
    return name in _METRICS or name.startswith(_METRIC_GROUPS) or name.endswith(_METRIC_ENDS)


def plain(value: Any, depth: int = 0) -> Any:
    """The value as plain data: numbers, strings, booleans, None, and lists and mappings of them.

    NumPy and PyTorch scalars, arrays and tensors become numbers and lists; decimals and fractions floats; dates and
    paths strings. What UTF-8 cannot encode (half of a surrogate pair) becomes `?`.

    Raises:
        NotPlainError: it is anything else.
    """
    if value is None or isinstance(value, bool):
        return value
    if depth > _MAX_DEPTH:
        raise NotPlainError(f"lists more than {_MAX_DEPTH} deep")
    match value:
        case str():
            return writable(value)
        case enum.Enum():
            return plain(value.value, depth + 1)
        case int():
            if value.bit_length() > _MAX_BITS:
                raise NotPlainError(f"a whole number of more than {_MAX_BITS} bits")
            return int(value)
        case float() | decimal.Decimal() | fractions.Fraction():
            return float(value)
        case datetime.date() | datetime.time() | datetime.timedelta() | PurePath():
            return writable(str(value))
        case Mapping():
            return {writable(str(name)): plain(inner, depth + 1) for name, inner in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(inner, depth + 1) for inner in value]
    if callable(getattr(value, "tolist", None)):  # NumPy, PyTorch, JAX
        listed = value.tolist()
        if type(listed) is not type(value):
            return plain(listed, depth + 1)
    raise NotPlainError(f"a value of the type {type(value).__name__}")


def writable(text: str) -> str:
    """The text, with `?` for what UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()
