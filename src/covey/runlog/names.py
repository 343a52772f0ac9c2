"""What every metric and every column of the completions is called. No other module spells one of these names out.

A metric's name is a group and a name: `train/…` for what TRL logs at a step (under TRL's own name), `eval/…` for the
held-out problems and `eval_<set>/…` for every other evaluation set, `time/…` for seconds and speeds, `grader/…` for
the shares of grading outcomes, `memory/…` for bytes. Times and memory are the only metrics in which two runs of one
config and seed may differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

STEP = "step"

# What TRL logs.
REWARD = "train/reward"
REWARD_STD = "train/reward_std"
FRAC_REWARD_ZERO_STD = "train/frac_reward_zero_std"
COMPLETION_LENGTH = "train/completions/mean_length"
CLIPPED_RATIO = "train/completions/clipped_ratio"
KL = "train/kl"
LOSS = "train/loss"
LEARNING_RATE = "train/learning_rate"
GRAD_NORM = "train/grad_norm"
ENTROPY = "train/entropy"
NUM_TOKENS = "train/num_tokens"
EPOCH = "train/epoch"
CLIP_LOW = "train/clip_ratio/low_mean"
CLIP_HIGH = "train/clip_ratio/high_mean"
CLIP_REGION = "train/clip_ratio/region_mean"

# What Covey's trainer adds.
BETA = "train/objective/beta"
TARGET_ENTROPY = "train/objective/target_entropy"
EFFECTIVE_COMPLETIONS = "train/objective/effective_completions"
WEIGHT_ON_CORRECT = "train/objective/weight_on_correct"
ENGINE_GAP = "train/engine/logp_gap"
"""Mean difference between vLLM's log-probabilities and the trainer's, in nats per token, after the sync of the step."""

REASONING_SHARE = "train/vocabulary/reasoning_share"
"""Share of reasoning tokens among the tokens that were written inside of thinking."""
THINKING_SHARE = "train/vocabulary/thinking_share"
"""Share of the tokens that were written inside of thinking."""

# Seconds, and completions generated per second.
STEP_TIME = "time/step"
GENERATION_TIME = "time/generation"
EVALUATION_TIME = "time/evaluation"
RESAMPLING_TIME = "time/resampling"
REWARDS_TIME = "time/rewards"
SCORING_TIME = "time/scoring"
"""Log-probabilities under the policy that wrote the completions and under the reference; and what else comes before the
loss."""
SYNC_TIME = "time/sync"
"""Giving vLLM the weights, and the proof that it has them."""
FORWARD_TIME = "time/forward"
BACKWARD_TIME = "time/backward"
COMPLETIONS_PER_SECOND = "time/completions_per_second"

# Bytes, at most since the run was started.
PROCESS_MEMORY = "memory/process"
DEVICE_MEMORY = "memory/device"

# The second half of an evaluation metric's name, to be joined by `eval_name`.
ACCURACY = "accuracy"
ACCURACY_LOW = "accuracy_low"
"""Lower end of the 95% interval."""
ACCURACY_HIGH = "accuracy_high"
"""Upper end of the 95% interval."""
FORMAT = "format"
LENGTH = "completion_length"
TRUNCATED = "truncated"

TEST_SET = "test"
"""The held-out problems that a run is judged by; their metrics are plain `eval/…`."""
HARD_SET = "hard"
"""Held-out problems harder than anything trained on."""

# The spelled-out names of the two sets that every arithmetic run has.
EVAL_ACCURACY = "eval/accuracy"
EVAL_ACCURACY_LOW = "eval/accuracy_low"
EVAL_ACCURACY_HIGH = "eval/accuracy_high"
EVAL_FORMAT = "eval/format"
EVAL_LENGTH = "eval/completion_length"
EVAL_TRUNCATED = "eval/truncated"
EVAL_HARD_ACCURACY = "eval_hard/accuracy"

# Columns of the completions. Beside them stand one column per reward function, under its name, and what rewards log.
COLUMN_PROMPT = "prompt"
COLUMN_COMPLETION = "completion"
COLUMN_ANSWER = "answer"
COLUMN_ADVANTAGE = "advantage"
COLUMN_RENDERED = "rendered_prompt"
"""The prompt through the chat template, exactly as the model saw it."""
COLUMN_GROUP = "group"
"""The number of the completion's group within its step."""
COLUMN_OUTCOME = "outcome"
"""What the grader made of it."""
COLUMN_LENGTH = "length"
"""In tokens."""
COLUMN_TRUNCATED = "truncated"
COLUMN_WEIGHT = "maxent_weight"
"""The completion's weight in the MaxEnt target of its group."""

COLUMN_IDS = "completion_ids"
"""The completion's token ids; written under a reasoning vocabulary only."""

_OURS = re.compile(r"(train|eval|eval_\w+|time|memory|grader)/")
_COMPONENT = re.compile(r"train/rewards/(.+)/mean")
_ACCURACY = re.compile(r"eval(?:_(\w+))?/accuracy")
_PROFILED = "profiling/Time taken: "
_CLOSING = ("train_runtime", "train_loss", "total_flos")

T = TypeVar("T")


def eval_name(set_name: str, metric: str) -> str:
    """The name of an evaluation metric: `eval/accuracy` for the set `test`, `eval_hard/accuracy` for `hard`."""
    return f"eval/{metric}" if set_name == TEST_SET else f"eval_{set_name}/{metric}"


def evaluated_set(name: str) -> str | None:
    """The evaluation set whose accuracy bears this name; None for any other metric."""
    found = _ACCURACY.fullmatch(name)
    return (found.group(1) or TEST_SET) if found else None


def held_out_sets(rows: Iterable[Mapping[str, object]]) -> list[str]:
    """The evaluation sets in these rows: the one that the run is judged by first, the others as they come."""
    found = dict.fromkeys(name for row in rows for metric in row if (name := evaluated_set(metric)))
    return sorted(found, key=lambda name: name != TEST_SET)


def reward_mean(reward: str) -> str:
    """The name of the mean of one reward function."""
    return f"train/rewards/{reward}/mean"


def rewarded(name: str) -> str | None:
    """The reward function whose mean bears this name; None for any other metric."""
    found = _COMPONENT.fullmatch(name)
    return found.group(1) if found else None


def grader_name(outcome: str) -> str:
    """The name of the share of all gradings that ended so."""
    return f"grader/{outcome}"


def train_row(logs: Mapping[str, T]) -> dict[str, T]:
    """Give what TRL logged at a step our names.

    Step time and profiled functions go under `time/`, TRL's own evaluation under `eval/`, all else under `train/`. A
    name that is one of ours already stays. What the trainer says once, after the last step, about the whole run is left
    out: it belongs to no step, and would differ between a straight run and a resumed one.
    """
    row = {}
    for name, value in logs.items():
        if name in _CLOSING:
            continue
        if name.endswith(("_runtime", "_per_second")) and not _OURS.match(name):
            if not name.startswith("train_"):
                row[f"time/{name}"] = value
            continue
        row[_our_name(name)] = value
    return row


def _our_name(name: str) -> str:
    if _OURS.match(name):
        return name
    if name == "step_time":
        return STEP_TIME
    if name.startswith(_PROFILED):
        return "time/" + name.removeprefix(_PROFILED).partition(".")[2]  # drops the trainer's class
    if name.startswith("eval_"):
        return eval_name(TEST_SET, name.removeprefix("eval_"))
    return f"train/{name}"
