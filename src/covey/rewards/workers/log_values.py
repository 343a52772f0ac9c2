"""The names under which rewards log values, kept apart from those that Covey and TRL use."""

from __future__ import annotations

from collections.abc import Collection

OWN = "logged/"
"""Prefix for a name that is taken."""

_METRICS = frozenset(
    {
        *("loss", "policy_loss", "aux_loss", "grad_norm", "learning_rate", "epoch", "step", "step_time", "total_flos"),
        *("reward", "reward_std", "frac_reward_zero_std", "num_tokens", "num_input_tokens_seen", "entropy"),
        *("entropy_coef", "kl", "cispo_clip_ratio", "mean_token_accuracy"),
    }
)
_METRIC_GROUPS = (
    *("train/", "train_", "eval/", "eval_", "time/", "memory/", "grader/", "rewards/", "completions/", "clip_ratio/"),
    *("sampling/", "tools/", "vespo/", "profiling/", "objective/", "engine/", "vocabulary/", "resampling/"),
    *("environment/", "episode/", "staleness/", "rollout/", "chance/", "pass@"),
)
_METRIC_ENDS = ("_runtime", "_per_second")  # of timings by transformers
_COLUMNS = frozenset(
    {
        *("step", "prompt", "completion", "answer", "advantage", "rendered_prompt", "group", "outcome", "length"),
        *("truncated", "maxent_weight", "xdr_weight", "unique_weight", "completion_ids"),
        *("turns", "tool_calls", "tool_failures", "episode", "environment_seconds"),
        *("weight_version", "weight_versions"),
    }
)


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
