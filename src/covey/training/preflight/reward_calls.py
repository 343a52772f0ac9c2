"""A first call of the user's own rewards and grader, before anything is trained or evaluated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from covey.config import Config
from covey.evaluation.grading import grader_name
from covey.rewards import RewardSettings, find
from covey.rewards.arguments import arguments_for_call, columns_of
from covey.rewards.findings import shown_prompt
from covey.rewards.registry import MODEL_PREFIX
from covey.rewards.results import call_problems
from covey.rewards.runner import RewardRunner
from covey.rewards.workers.run_reward import LOGS, CallResult
from covey.training.preflight.findings import Mark, PreflightFinding

PROMPTS = 2
"""Prompts whose groups the functions are called on."""


def own_functions(config: Config) -> dict[str, str]:
    """The user's own rewards and grader by name, each as `reward` or `grader`; none where environments are met, whose
    episodes only a model can play."""
    if config.environment.used or config.environment.rollout_func is not None:
        return {}
    found = {name: "reward" for name in config.rewards.funcs if ":" in name and not name.startswith(MODEL_PREFIX)}
    grader = grader_name(config)
    return {grader: "grader", **found} if grader is not None and ":" in grader else found


def try_calls(
    config: Config,
    rows: Sequence[Mapping[str, Any]],
    texts: Sequence[str],
    runner: RewardRunner,
    encode: Callable[[str], Sequence[int]],
) -> Iterator[PreflightFinding]:
    """Call each of the user's own functions as a training step does, on groups of equal completions.

    Args:
        rows: a few training rows.
        texts: a completion of each.
        runner: calls them, as in training.
        encode: gives the token ids of a completion.
    """
    from transformers import TrainerState

    generations = config.training.num_generations
    rows = [row for row in rows for _ in range(generations)]
    texts = [text for text in texts for _ in range(generations)]
    prompts = [row["prompt"] for row in rows]
    replies = [
        text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
        for prompt, text in zip(prompts, texts, strict=True)
    ]
    columns = {
        **columns_of(rows),
        "completion_ids": [list(encode(text)) for text in texts],
        "trainer_state": TrainerState(),
        **dict.fromkeys(LOGS),
    }
    settings = RewardSettings.of(config.rewards, config.training.max_completion_length)
    for name, what in own_functions(config).items():
        arguments = arguments_for_call(find(name, settings), False, prompts, replies, columns)
        (called,) = runner.pool_of(name).submit_call(name, arguments).result()
        yield _finding(name, what, called, prompts, skips=config.rewards.on_error == "skip")


def _finding(name: str, what: str, called: CallResult, prompts: Sequence[Any], *, skips: bool) -> PreflightFinding:
    problems, count = call_problems(called), len(prompts)
    on = f"a trial call with {count} completions"
    if problems:
        first = problems[0]
        where = "" if first.row is None else f" for one of {shown_prompt(prompts[first.row])}"
        return PreflightFinding(
            Mark.WARNING if skips else Mark.WRONG,
            f"{what} {name}",
            f"{on} failed{where}: {first.cause}",
            "Such completions get no reward (rewards.on_error=skip)."
            if skips
            else "Fix the function, or leave such completions out with rewards.on_error=skip.",
            name="reward_calls",
        )
    values = [value for value in called.values if value is not None]
    if not values:
        advice = "It, or the columns that it reads, may not fit the data."
        return PreflightFinding(Mark.WARNING, f"{what} {name}", f"{on} gave no value (all are None)", advice)
    low, high = min(values), max(values)
    gave = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    return PreflightFinding(Mark.FINE, f"{what} {name}", f"{on} gave {gave}")
