"""`covey profile`: whether a run could learn its problems, by completions sampled as training would sample them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from covey.answers import Outcome, Tags, without_tags
from covey.config import Config
from covey.data.load import json_lines
from covey.errors import ConfigError
from covey.evaluation.estimators import Estimate, pass_at_k, powers_up_to, share_estimate
from covey.evaluation.figures import estimate_text, value_text
from covey.evaluation.grading import grader_name
from covey.evaluation.job import Progress, Selection, run_evaluations
from covey.evaluation.metrics import compute_metrics
from covey.evaluation.run import LOST
from covey.evaluation.stored import Target, by_problem, prompts_of
from covey.model.load import load_tokenizer
from covey.model.prompts import prompt_lengths
from covey.rollout import SamplingSettings
from covey.runlog import names
from covey.runlog.directory import temporary_folder
from covey.runlog.evaluations import read_completions
from covey.runlog.files import guard_disk, write_atomically

_SAMPLING = ("max_completion_length", "temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_ROUND_TOKENS = 8192
"""Tokens that are sampled at a time at most, unless one problem has more: the time is looked at after each round."""
_FORMLESS = (Outcome.UNPARSABLE_PREDICTION, Outcome.UNEVALUATED, Outcome.WRONG_FORM)
_LEARN, _WARM_START, _EASY, _UNSURE = "learn", "warm start first", "too easy", "not enough problems to say"


def judge(
    right: Sequence[int], samples: int, group: int, formless: Sequence[int], lost: Sequence[int], chance: float | None
) -> tuple[str, str]:
    """The verdict on a sample of problems, and what it rests on.

    The first of these that holds for a whole 95% interval over problems; where an interval holds the threshold, there
    are "not enough problems to say".

    1. Over 50% of completions cannot be graded: "the grader cannot read it".
    2. Over 75% state no final answer: "the form is missing".
    3. Over 95% are right: "too easy".
    4. Over 5% of groups hold right and wrong answers: "learn", if pass@G is above chance; "warm start first", if it is
       below chance plus 2 points.
    5. Over 50% of groups are all right: "too easy". Else "warm start first": pass@G is under 5%, or problems are solved
       always or never.

    Args:
        right: how many of the completions of each problem are right.
        samples: the completions of a problem.
        group: completions of a group, G, at most the samples.
        formless: how many state no final answer that the grader reads.
        lost: how many it could not grade, by the fault of the data or its own.
        chance: pass@G of random answers, where it is known.
    """

    def share(counts: Sequence[int], value: Callable[[int], float] = lambda count: count / samples, k: int = 1) -> Any:
        return share_estimate([value(count) for count in counts], samples * len(right), k)

    passed = share(right, lambda count: pass_at_k(samples, count, group), group)
    mixed = share(right, lambda count: 1 - flat((count, samples - count), group), group)
    solved = share(right, lambda count: 1 - pass_at_k(samples, samples - count, group), group)
    both, reached = f"of groups of {group} hold right and wrong answers", f"pass@{group} is {estimate_text(passed)}"
    for estimate, threshold, what, verdict in (
        (share(lost), 0.5, "of completions cannot be graded", "the grader cannot read it"),
        (share(formless), 0.75, "of completions state no answer", "the form is missing"),
        (share(right), 0.95, "of completions are right", _EASY),
        (mixed, 0.05, both, _LEARN),
        (solved, 0.5, f"of groups of {group} are all right", _EASY),
    ):
        reason = f"{reached}; {estimate_text(estimate)} {what}, where {threshold:.0%} decides"
        if estimate.low <= threshold <= estimate.high:
            return _UNSURE, reason
        if estimate.low > threshold and verdict == _LEARN and chance is not None and passed.low <= chance:
            verdict = _WARM_START if passed.high < chance + 0.02 else _UNSURE
            return verdict, f"{reached}, that of random answers {value_text(chance)}"
        if estimate.low > threshold:
            return verdict, reason
    return _WARM_START, f"{reached}; {estimate_text(mixed)} {both}"


def flat(counts: Collection[int], group: int) -> float:
    """The probability that a group drawn from a problem's completions has no signal, as all have one value: `Σ_v C(n_v,
    G) / C(n, G)` with the counts n_v of completions by value, n in all. Unbiased."""
    return sum(1 - pass_at_k(sum(counts), sum(counts) - count, group) for count in counts)


class _TimeIsUpError(Exception):
    """Ends the sampling as an interruption would."""


def profile(
    config: Config, target: Target, progress: Progress, keep: tuple[float, float, Path] | None = None
) -> dict[str, Any]:
    """Sample completions of some problems as training would, and judge them; by name, as `covey profile --json` prints.

    Args:
        config: `model.name` is `target.source`; `profile` says what is sampled.
        target: the model.
        progress: see `Progress`.
        keep: the lowest and highest accuracy of the training rows that are written, as they were read, and a file for
            them (JSON lines). Then all rows are sampled where `profile.problems` is not set.

    Raises:
        CoveyError: the model or the data cannot be used, or nothing says which answers are right.
    """
    settings, training, grader = config.profile, config.training, grader_name(config)
    group = settings.group or training.num_generations
    samples, ks = settings.samples or group, tuple(powers_up_to(group))
    if samples < group:
        raise ConfigError(f"profile.samples={samples} is less than a group of {group}: set at least that.")
    if keep is not None and settings.split != "train":
        raise ConfigError(f"--keep takes rows to train on: leave out profile.split={settings.split}.")
    why = "No reward of this run says which answers are right, so set evaluation.grader, as in "
    why += "evaluation.grader=accuracy."
    if grader is None and not config.environment.used:
        raise ConfigError(why)
    more: dict[str, Any] = {"benchmarks": (), "num_samples": samples, "k": ks}
    more["max_problems"] = settings.problems or (256 if keep is None else None)
    at_once = min(config.evaluation.batch_size, _ROUND_TOKENS // (training.max_completion_length or _ROUND_TOKENS))
    more["batch_size"] = max(1, at_once // samples) * samples  # whole problems
    sampled = replace(config, evaluation=replace(config.evaluation, **more))
    completions, loaded, seconds = _sampled(sampled, target, progress)
    if all(one["outcome"] is None for one in completions):
        raise ConfigError(why)
    problems, metrics = by_problem(completions), compute_metrics(completions, config.seed, ks, grader)

    def without_signal(value: Callable[[Any], Any]) -> Estimate:
        shares = [flat(Counter(map(value, problem)).values(), group) for problem in problems]
        return share_estimate(shares, len(completions), group)

    def counts(*outcomes: Outcome) -> list[int]:
        return [sum(one["outcome"] in outcomes for one in problem) for problem in problems]

    tags, right = Tags(config.rewards.think_tag, config.rewards.answer_tag), counts(Outcome.RIGHT)
    said = [[without_tags(one["completion"].rpartition(f"</{tags.think}>")[2], tags) for one in p] for p in problems]
    empty = share_estimate([texts.count("") / samples for texts in said], len(completions))
    chances = {f"pass@{k}": at.value for k in ks if (at := metrics.get(f"{names.CHANCE}pass@{k}"))}
    chance = chances.get(f"pass@{group}")
    verdict, reason = judge(right, samples, group, counts(*_FORMLESS), counts(*LOST), chance)
    kept = [at for at, count in enumerate(right) if keep and keep[0] <= count / samples <= keep[1]]
    if keep is not None:
        table = loaded.source and loaded.source.select(kept)
        written: Any = {name: table.values(name) for name in table.columns} if table else loaded.train.select(kept)
        with guard_disk(keep[2].name, keep[2].absolute().parent, elsewhere="name another file with --out"):
            write_atomically(keep[2], json_lines(written, "rows") if kept else b"")
    lengths = prompt_lengths(load_tokenizer(config.model), training.chat_template_kwargs)
    longest = max(lengths(prompts_of(loaded.train.select(range(len(problems))))))
    by = {"by_correctness": without_signal(lambda one: one["outcome"] == Outcome.RIGHT)}
    if all(one["reward"] is not None for one in completions):  # unless the held-out rows lack a column
        by["by_reward"] = without_signal(lambda one: one["reward"])
        if verdict == _LEARN and len(values := {one["reward"] for one in completions}) == 1:
            verdict = "the reward is constant"
            reason += f"; but all completions, right or wrong, have the reward {values.pop():g}"
    outcomes = {str(outcome): metrics[f"grader/{outcome}"] for outcome in Outcome}
    wanted = min(more["max_problems"] or len(loaded.train), len(loaded.train))
    found: dict[str, Any] = {"problems": len(problems), "wanted": wanted, "rows": len(loaded.train)}
    found |= {"samples": samples, "group": group, **({} if keep is None else {"kept": len(kept)})}
    found |= {"minutes": settings.minutes, "seconds": seconds, "longest_prompt": longest}
    found |= {"tokens_per_second": sum(one["length"] for one in completions) / seconds}
    found |= {"completion_length": metrics["completion_length"]}
    found |= {"outcomes": {**outcomes, "truncated": metrics["truncated"], "empty": empty}}
    found |= {"pass@k": {str(k): metrics[f"pass@{k}"] for k in ks}, "chance": chances, "groups_without_signal": by}
    return found | {"verdict": verdict, "reason": reason}


def _sampled(config: Config, target: Target, progress: Progress) -> tuple[list[dict[str, Any]], Any, float]:
    """The completions of as many problems as `profile.minutes` allow, the loaded data, and the seconds taken."""
    times = list[float]()

    def timed(name: str, done: int, total: int) -> None:
        times.append(time.monotonic())
        progress(name, done, total)
        spent = times[-1] - times[0]
        if done and spent + spent / (len(times) - 1) > 60 * config.profile.minutes:  # another round would end too late
            raise _TimeIsUpError

    given = {name: value for name in _SAMPLING if (value := getattr(config.training, name)) is not None}
    selection = Selection(config.profile.split, SamplingSettings(**given))
    with temporary_folder("covey-profile-") as folder:
        with suppress(_TimeIsUpError):
            run_evaluations(config, target, {}, folder / "trial", timed, selection=selection)
        return [*read_completions(folder / "trial")], selection.loaded, times[-1] - times[0]
