"""The names of all metrics and of the completions' columns. No other module spells them out.

A metric's name is a group and a name: `train/…` for what TRL logs at a step (under TRL's own name), `eval/…` for the
held-out problems, `eval_<set>/…` for other evaluation sets, `time/…` for seconds and throughput, `grader/…` for shares
of grading outcomes, `environment/…` for episodes with tools or an environment, `sampling/…` for the sampler against the
trainer, `staleness/…` for the age of completions, `memory/…` for bytes. Only times (also `environment/seconds`) and
memory may differ between two runs of one config and seed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

STEP = "step"

# Logged by TRL.
REWARD = "train/reward"
REWARD_STD = "train/reward_std"
FRAC_REWARD_ZERO_STD = "train/frac_reward_zero_std"
COMPLETION_LENGTH = "train/completions/mean_length"
CLIPPED_RATIO = "train/completions/clipped_ratio"
TOKENS = "train/num_tokens"
"""Of prompts and completions, since the start of the run."""
KL = "train/kl"
LOSS = "train/loss"
LEARNING_RATE = "train/learning_rate"
GRAD_NORM = "train/grad_norm"
ENTROPY = "train/entropy"
TOKEN_ACCURACY = "train/mean_token_accuracy"
"""Share of the learnt tokens that the model would have written; only of supervised training."""
CLIP_LOW = "train/clip_ratio/low_mean"
CLIP_HIGH = "train/clip_ratio/high_mean"
CLIP_REGION = "train/clip_ratio/region_mean"
TOOL_CALLS = "train/tools/call_frequency"
"""Tool calls per completion."""
TOOL_FAILURES = "train/tools/failure_frequency"
"""Share of the calls that failed."""

# Added by Covey's trainer.
EMPTY = "train/completions/empty"
"""Share of completions without text after the thinking, tags aside."""
OBJECTIVE = "train/objective/"
"""Metrics of the objective begin with it."""
BETA = f"{OBJECTIVE}beta"
TARGET_ENTROPY = "train/objective/target_entropy"
EFFECTIVE_COMPLETIONS = "train/objective/effective_completions"
WEIGHT_ON_CORRECT = "train/objective/weight_on_correct"
INCORRECT_MASS = "train/objective/incorrect_mass"
LOG_ODDS = "train/objective/log_odds"
LENGTH_TILT = "train/objective/length_tilt"
EXCLUDED = "train/objective/excluded_completions"
ENGINE_GAP = "train/engine/logp_gap"
"""Mean difference between vLLM's log-probs and the trainer's after the step's weight sync, in nats per token."""

# The sampler against the trainer, at each generation.
SAMPLING_GAP = "sampling/logp_gap"
"""Mean absolute difference of the sampler's log-probs and the trainer's, in nats per token."""
SAMPLING_GAP_PARTS = tuple(f"{SAMPLING_GAP}/{part}" for part in ("number_type", "truncation", "staleness"))
"""What the gap is made of: number type and kernels, tokens that were cut off, and older weights."""
SAMPLING_RATIO = "sampling/ratio/"
"""Raw ratios of the trainer's probability to the sampler's, before clipping or masking: `min`, `mean`, `max`, and
`outside`, the share outside of the clip range of the correction."""
STALENESS_MEAN = "staleness/mean"
"""Generation rounds between the weights that wrote the step's completions and those that first train on them."""
STALENESS_MAX = "staleness/max"

REASONING_SHARE = "train/vocabulary/reasoning_share"
"""Share of reasoning tokens among the thinking tokens."""
THINKING_SHARE = "train/vocabulary/thinking_share"
"""Share of thinking tokens: those between the thinking tags."""

# Episodes with tools or an environment.
ENVIRONMENT_TURNS = "environment/turns"
"""The model's turns, mean per episode."""
ENVIRONMENT_SECONDS = "environment/seconds"
"""In tools and the environment, mean per episode; those of different episodes overlap."""
ENVIRONMENT_TIMEOUTS = "environment/timeouts"
"""Episodes of the step that a deadline ended."""
ENVIRONMENT_MALFORMED = "environment/malformed_calls"
"""Turns of the step with a tool call that could not be parsed."""
ENVIRONMENT_CRASHES = "environment/crashes"
"""Episodes of the step that a crash of a tool's or an environment's process ended."""

# Seconds, and completions generated per second.
STEP_TIME = "time/step"
GENERATION_TIME = "time/generation"
"""With `training.staleness`, waiting for completions that are written ahead."""
ROLLOUT_TIME = "time/rollouts"
"""That the engine which writes ahead has worked, weight syncs included; per step."""
EVALUATION_TIME = "time/evaluation"
RESAMPLING_TIME = "time/resampling"
REWARDS_TIME = "time/rewards"
"""Waiting for rewards; with a name after it, until the results of that function were there."""
SCORING_TIME = "time/scoring"
"""Log-probs under the sampling policy and the reference model, and everything else before the loss."""
SYNC_TIME = "time/sync"
"""Weight sync to vLLM, and its check."""
ENVIRONMENT_TIME = "time/environment"
"""Waiting for tools and environments between the model's turns."""
FORWARD_TIME = "time/forward"
BACKWARD_TIME = "time/backward"
COMPLETIONS_PER_SECOND = "time/completions_per_second"

# Bytes, peak since the start of the process.
PROCESS_MEMORY = "memory/process"
DEVICE_MEMORY = "memory/device"

# Metrics of an evaluation, for `eval_name`.
ACCURACY = "accuracy"
ACCURACY_LOW = "accuracy_low"
"""Lower end of the 95% interval."""
ACCURACY_HIGH = "accuracy_high"
"""Upper end of the 95% interval."""
MEAN_REWARD = "reward"
"""The mean of the weighted reward over the held-out completions; one function's is `reward/<name>`."""
FORMAT = "format"
LENGTH = "completion_length"
TRUNCATED = "truncated"
TURNS = "turns"
"""The model's turns, mean per episode; this and the next five only with tools or an environment."""
CALLS = "tool_calls"
"""Tool calls, mean per episode."""
FAILURES = "tool_failures"
"""Tool calls that failed, mean per episode."""
MALFORMED = "malformed_calls"
"""Turns with a tool call that could not be parsed, mean per episode."""
SECONDS = "environment_seconds"
"""In tools and the environment, mean per episode."""
PER_EPISODE = (TURNS, CALLS, FAILURES, MALFORMED, SECONDS)
EPISODE = "episode/"
"""Shares of episodes by how they ended begin with it."""

DISTINCT = "distinct"
"""With `@k` after it: different right answers among k completions."""
DISTINCT_IF_SOLVED = "distinct_if_solved"
"""The same among k completions of which one is right."""
COVERAGE = "coverage"
"""With `@k` after it: the share of a problem's right answers among k completions."""
CHANCE = "chance/"
"""Before the name of one of these or of `pass@k`: what uniformly random well-formed answers reach."""

TEST_SET = "test"
"""The main held-out set; its metrics are plain `eval/…`."""
HARD_SET = "hard"
"""Held-out problems harder than the training problems."""
_SET_LABELS = {
    TEST_SET: "held-out",
    HARD_SET: "harder set",
    "validation": "held-out (validation)",
    "single": "held-out (one answer)",
}

# Metrics of the two held-out sets of every arithmetic run.
EVAL_ACCURACY = "eval/accuracy"
EVAL_ACCURACY_LOW = "eval/accuracy_low"
EVAL_ACCURACY_HIGH = "eval/accuracy_high"
EVAL_LENGTH = "eval/completion_length"
EVAL_HARD_ACCURACY = "eval_hard/accuracy"

# How an episode ended.
ANSWERED = "answered"
"""The model's last turn called no tool."""
TIMED_OUT = "timed_out"
CRASHED = "crashed"
ENDS = (ANSWERED, "truncated", "max_turns", TIMED_OUT, CRASHED)

# Columns of the completions; one more per reward function, under its name, and those that rewards log.
COLUMN_PROMPT = "prompt"
COLUMN_COMPLETION = "completion"
COLUMN_ANSWER = "answer"
COLUMN_ADVANTAGE = "advantage"
COLUMN_RENDERED = "rendered_prompt"
"""The prompt through the chat template, exactly as the model saw it."""
COLUMN_GROUP = "group"
"""The index of the completion's group within its step."""
COLUMN_OUTCOME = "outcome"
"""The grader's outcome."""
COLUMN_LENGTH = "length"
"""In tokens."""
COLUMN_TRUNCATED = "truncated"
COLUMN_VERSION = "weight_version"
"""The generation round whose weights began the completion; only of asynchronous runs."""
COLUMN_VERSIONS = "weight_versions"
"""Where completions go on with newer weights: the version and the number of tokens of each part."""
COLUMN_WEIGHT = "maxent_weight"
"""The completion's weight in the MaxEnt target of its group."""
COLUMN_WEIGHTS = (COLUMN_WEIGHT, "xdr_weight", "unique_weight")
"""The completion's weight in its group, by the objectives that have weights."""

# Of episodes with tools or an environment.
COLUMN_TURNS = "turns"
"""The model's turns."""
COLUMN_CALLS = "tool_calls"
COLUMN_FAILURES = "tool_failures"
"""Tool calls that failed."""
COLUMN_EPISODE = "episode"
"""How it ended: `answered`, `truncated`, `max_turns`, `timed_out` or `crashed`."""
COLUMN_SECONDS = "environment_seconds"
"""Seconds in tools and the environment."""

SCORE = "score"
"""Of evaluations: an environment's reward that counts as accuracy."""

MODE = "mode"
"""The column in which graders, and rewards of the user's own by `log_extra`, name the mode of a right answer: a text
that equal answers share (see `covey.rewards.Graded`), None of any other completion."""

NUM_MODES = "num_modes"
"""The column of the user's data in which it says how many different right answers a problem has."""

COLUMN_IDS = "completion_ids"
"""The completion's token ids; only with a reasoning vocabulary."""

REPEATS_PROMPT = "completions/repeats_prompt"
"""The share of completions whose final text repeats the prompt (`covey.answers.watch`): under `train/` and `eval/`."""
GOLD_VALUE_SHARE = "grader/gold_value_share"
"""Of right completions, the share with a number equal to the gold answer, where that is a number; under `eval/` too."""

CHARACTERS = "train/completions/mean_characters"
"""Mean length of the completions in letters: of an audit, whose rollouts may not say how many tokens they are."""
PASSED = "train/pass@"
"""With k after it: of an audit; with `_low` and `_high` after that, the ends of its 95% interval."""

GRADER_ERRORS = "grader/errors"
"""Completions without a reward because a function failed, of all functions; with a name after it, of that one."""

_OURS = re.compile(
    r"(train|eval|eval_\w+|time|memory|grader|environment|staleness|rollout)/|sampling/(logp_gap|ratio/)"
)
_COMPONENT = re.compile(r"train/rewards/(.+)/mean")
_EVALUATED = re.compile(r"eval(?:_(\w+))?/(?:accuracy|reward)")
_PROFILED = "profiling/Time taken: "
_CLOSING = ("train_runtime", "train_loss", "total_flos")

T = TypeVar("T")


def weight_column(objective: str) -> str:
    """The column with an objective's weights of the completions."""
    return f"{objective}_weight"


def eval_name(set_name: str, metric: str) -> str:
    """The name of an evaluation metric: `eval/accuracy` for the set `test`, `eval_hard/accuracy` for `hard`."""
    return f"eval/{metric}" if set_name == TEST_SET else f"eval_{set_name}/{metric}"


def set_label(set_name: str) -> str:
    """What a held-out set is called wherever a user reads of it; any other name is returned as it is."""
    return _SET_LABELS.get(set_name, set_name)


def accuracy(row: Mapping[str, Any], set_name: str) -> tuple[Any, Any, Any]:
    """An evaluation's accuracy in a row, and the ends of its 95% interval; None if missing."""
    value, low, high = (row.get(eval_name(set_name, key)) for key in (ACCURACY, ACCURACY_LOW, ACCURACY_HIGH))
    return value, low, high


def evaluated_set(name: str) -> str | None:
    """The evaluation set, if this is the name of an accuracy or of a mean reward; else None."""
    found = _EVALUATED.fullmatch(name)
    return (found.group(1) or TEST_SET) if found else None


def logged(rows: Iterable[Mapping[str, object]]) -> list[str]:
    """Every name in these rows, in the order of its first row: there are few, but long runs have many rows."""
    return list(dict.fromkeys(chain.from_iterable(rows)))


def held_out_sets(rows: Iterable[Mapping[str, object]]) -> list[str]:
    """The evaluation sets in these rows, the main one first."""
    metrics = dict.fromkeys(chain.from_iterable(rows))
    found = dict.fromkeys(name for metric in metrics if (name := evaluated_set(metric)))
    return sorted(found, key=lambda name: name != TEST_SET)


def best_metric(rows: Sequence[Mapping[str, object]], best_by: str | None) -> str | None:
    """The metric that decides which evaluation is the best, on the main held-out set.

    Args:
        rows: rows of evaluations.
        best_by: `evaluation.best_by`: the metric's name after `eval/`; None takes the accuracy where there is one, else
            the mean reward.

    Returns:
        None if these rows have no such metric.
    """
    sets = held_out_sets(rows)
    if not sets:
        return None
    candidates = (ACCURACY, MEAN_REWARD) if best_by is None else (best_by,)
    found = (eval_name(sets[0], metric) for metric in candidates)
    return next((name for name in found if any(row.get(name) is not None for row in rows)), None)


def best_of(rows: Sequence[Mapping[str, object]], best_by: str | None) -> str | None:
    """As `best_metric`, by the name after `eval/`; where these rows lack `best_by`, what it would be without one."""
    found = best_metric(rows, best_by) or best_metric(rows, None)
    return found.partition("/")[2] if found else None


def reward_mean(reward: str) -> str:
    """The metric of a reward function's mean."""
    return f"train/rewards/{reward}/mean"


def rewarded(name: str) -> str | None:
    """The reward function, if this is the name of a reward's mean; else None."""
    found = _COMPONENT.fullmatch(name)
    return found.group(1) if found else None


def grader_name(outcome: str) -> str:
    """The metric of the share of gradings with this outcome."""
    return f"grader/{outcome}"


def train_row(logs: Mapping[str, T]) -> dict[str, T]:
    """Rename what TRL logged at a step.

    Step time and profiled functions go under `time/`, TRL's own evaluation under `eval/`, all else under `train/`.
    Names of ours stay. The trainer's totals after the last step are dropped: they belong to no step, and would differ
    between an uninterrupted run and a resumed one.
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
