"""`covey audit`: the rollouts of any trainer as a run directory, with their completions, metrics and disagreements."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from covey.answers import VALUE_GRADERS, Outcome, Tags, holds_gold_value, repeats_prompt, without_tags
from covey.data.rollouts import Rollouts
from covey.errors import ConfigError, RewardError
from covey.evaluation.estimators import pass_at_k, powers_up_to, share_estimate
from covey.evaluation.grading import stated_answer, weighted_reward
from covey.rewards.registry import MODE_GRADERS
from covey.rewards.reward import RewardSettings, completion_text, last_user_message
from covey.rewards.workers.pool import WorkerPool
from covey.runlog import MetricsWriter, RunDirectory, names, write_completions
from covey.runlog.files import json_line, write_atomically
from covey.runlog.notes import FINISHED

KEPT = 100
"""Disagreements of each kind in `audit.json`, for pages; `disagreements.jsonl` has all."""
_SAME = 1e-6  # rewards this near are one
_UNDECIDED = (None, Outcome.UNPARSABLE_GOLD, Outcome.TIMED_OUT, Outcome.CRASHED)
_TOLD = ("disagreement", "file", "row", "step", "gold", "extracted", "reward")
_STORED = ("prompt", "completion", "truncated", "outcome", "disagreement", "extracted", "place")

Row = dict[str, Any]


def audit(rollouts: Rollouts, root: Path, right_at: float = 1.0, grader: str | None = None) -> dict[str, Any]:
    """Examine rollouts, and write them as a run.

    Args:
        rollouts: as they were read; verdicts are added to their rows.
        root: the run directory; an earlier audit there is replaced.
        right_at: the reward from which a completion counts as right.
        grader: checks the rewards; None: the one that the reward is called, or of the task that the answers are for.

    Returns:
        What `audit.json` has, with every disagreement.

    Raises:
        CoveyError: a row cannot be graded, or the folder cannot be written or holds something else.
    """
    run, rows, groups, steps, flat = RunDirectory(root), rollouts.rows, 0, list[Row](), list[list[Row]]()
    if not run.is_empty() and not run.audit.exists():
        raise ConfigError(f"{root} holds what no audit wrote: name another folder with --out.")
    gold = next((row["gold"] for row in rows if row["gold"] is not None), None)
    if gold is not None and grader is None:
        own = [name for name in rollouts.columns.get("compared", ()) if name in ("exact_match", *MODE_GRADERS)]
        tasks = {"countdown": '"numbers"', "graph_coloring": '"vertices"'}
        grader = next(chain(own, (name for name, key in tasks.items() if key in gold)), "accuracy")
    _judge(rows, right_at, grader)
    differ = [{name: row[name] for name in _TOLD} | {"verdict": row["outcome"]} for row in rows if row["disagreement"]]
    kinds = Counter(one["disagreement"] for one in differ)
    rewards = [row["reward"] for row in rows if row["reward"] is not None]
    compared = sum(row["reward"] is not None and row["outcome"] not in _UNDECIDED for row in rows)
    unread = [row["place"] for row in rows if row["reward"] is None] if "reward" in rollouts.columns else []
    asked: list[Counter[str]] = []
    with run.lock("the audit"), run.guard("the audit"):
        run.clear()
        write_atomically(run.audit, "{}\n")  # from here on the folder is an audit's
        run.write_environment()
        writer = MetricsWriter(run.metrics, None)
        for step, part in groupby(sorted(rows, key=itemgetter("step")), key=itemgetter("step")):
            found = _groups([*part])
            counted, without_signal, metrics = _metrics(found, grader)
            groups, flat = groups + counted, flat + without_signal
            writer.add(step, metrics)
            steps.append({names.STEP: step, **metrics})
            asked.append(Counter(last_user_message(group[0]["prompt"]) for group in found if group[0]["prompt"]))
            _write(run, step, found)
        writer.flush()
        of = sum(asked, Counter[str]())  # a prompt comes again in another step where training passes over data again
        repeated = of.total() - (sum(map(len, asked)) if len(of) > 1 else 1)
        told: dict[str, Any] = {
            **{"files": rollouts.files, "left_out": [*rollouts.left_out], "columns": rollouts.columns},
            **{"notes": rollouts.notes, "compared": compared, "unread": len(unread), "unread_at": unread[:1]},
            **{"asked": of.total(), "prompts": len(of), "repeated": repeated, "most_asked": of.most_common(1)},
            **{"grader": grader, "right_at": right_at, "largest_reward": max(rewards, default=None), "kinds": kinds},
            **{"rows": len(rows), "graded": sum(row["outcome"] is not None for row in rows), "groups": groups},
            "groups_without_signal": len(flat) if rewards else None,
            "solved_without_signal": sum(all(row["rewarded"] for row in group) for group in flat),
            "disagreements": differ if compared else None,
            "steps": steps,
        }
        kept = [one for kind in kinds for one in [one for one in differ if one["disagreement"] == kind][:KEPT]]
        more = f" and {len(rollouts.files) - 1} more" if rollouts.files[1:] else ""
        ended = {"status": FINISHED, "reason": f"An audit of {len(rows):,} rollouts in {rollouts.files[0]}{more}"}
        write_atomically(root / "disagreements.jsonl", "".join(map(json_line, differ)))
        write_atomically(run.audit, json.dumps(told | {"disagreements": kept if compared else None}, indent=2) + "\n")
        write_atomically(run.summary, json.dumps(ended) + "\n")
    return told


def _write(run: RunDirectory, step: int, groups: Sequence[Sequence[Row]]) -> None:
    rows = [*chain.from_iterable(groups)]
    columns = {name: [row["rewards"].get(name) for row in rows] for name in _functions(rows)}
    columns |= {name: [row[name] for row in rows] for name in _STORED}
    columns[names.COLUMN_ANSWER] = [row["gold"] for row in rows]
    columns = {name: values for name, values in columns.items() if any(one is not None for one in values)}
    columns[names.COLUMN_GROUP] = [at for at, group in enumerate(groups) for _ in group]
    write_completions(run.completions, step, columns)


def _judge(rows: Sequence[Row], right_at: float, grader: str | None) -> None:
    """Add to each row its `text` and `place`, the grader's `outcome`, whether it is `right` (by the grader, else by
    its reward) and, where these disagree, the `disagreement` in words and the answer that was `extracted`."""
    for row in rows:
        row |= {"text": completion_text(row["completion"]), "place": f"{row['file']}, {row['row']}"}
        row |= dict.fromkeys(("outcome", "extracted", "disagreement"))
        row["right"] = row["rewarded"] = None if row["reward"] is None else row["reward"] >= right_at - _SAME
    graded = [row for row in rows if row["gold"] is not None]
    data = [{"prompt": row["prompt"], "answer": row["gold"]} for row in graded]
    with WorkerPool(None, RewardSettings()) as pool:
        job = pool.submit_grading(str(grader), [row["text"] for row in graded], data) if graded else None
        results = job.result() if job else []
    for row, result in zip(graded, results, strict=True):
        if result.refused:
            raise RewardError(f"{row['place']} cannot be graded by {grader}: {result.cause}")
        row["outcome"] = result.outcome
        if result.outcome not in _UNDECIDED:
            row["right"] = result.outcome is Outcome.RIGHT
        if row["rewarded"] not in (None, row["right"]):
            row["disagreement"] = "right, not rewarded" if row["right"] else "rewarded, not right"
            row["extracted"] = stated_answer(row["text"], Tags())


def _groups(rows: Sequence[Row]) -> list[list[Row]]:
    """The groups of a step: by their column if it groups any, else by prompt; without both, each row is alone."""
    prompts = [json.dumps(row["prompt"], sort_keys=True, default=str) for row in rows]
    keys = [row["group"] for row in rows]
    if None in keys or len({*prompts}) < len({*keys}) == len(keys):
        keys = [at if row["prompt"] is None else prompts[at] for at, row in enumerate(rows)]
    found: dict[object, list[Row]] = {}
    for key, row in zip(keys, rows, strict=True):
        found.setdefault(key, []).append(row)
    return [*found.values()]


def _metrics(groups: Sequence[list[Row]], grader: str | None) -> tuple[int, list[list[Row]], dict[str, float]]:
    """The number of the groups whose completions all have a reward, those of them without signal, and the metrics of a
    step by their names in a run, without those that are not known."""
    rows = [*chain.from_iterable(groups)]
    totals = [[weighted_reward([*row["rewards"].values()]) for row in group] for group in groups]
    known = [[one for one in group if one is not None] for group in totals]
    several = [(group, of) for group, of in zip(groups, known, strict=True) if len(group) == len(of) > 1]
    spreads = [pstdev(of) for _, of in several]
    flat = [group for (group, _), spread in zip(several, spreads, strict=True) if spread < _SAME]
    right = [row for row in rows if row["outcome"] is Outcome.RIGHT and grader in VALUE_GRADERS]
    asked = [(row["text"], last_user_message(row["prompt"]), row["gold"]) for row in rows if row["prompt"]]
    messages = [row["completion"] if isinstance(row["completion"], list) else [] for row in rows]
    calls = [any(message.get("tool_calls") for message in each) for each in messages]
    said = [without_tags(row["text"].rpartition("</think>")[2]) or call for row, call in zip(rows, calls, strict=True)]
    values: dict[str, Sequence[float | None]] = {
        names.REWARD: [*chain.from_iterable(known)],
        names.REWARD_STD: spreads,
        names.FRAC_REWARD_ZERO_STD: [len(flat) / len(several)] if several else [],
        **{names.reward_mean(name): [row["rewards"].get(name) for row in rows] for name in _functions(rows)},
        names.CHARACTERS: [len(row["text"]) for row in rows],
        names.CLIPPED_RATIO: [row["truncated"] for row in rows],
        names.EMPTY: [not one for one in said],
        f"train/{names.REPEATS_PROMPT}": [repeats_prompt(*one) for one in asked],
        names.GOLD_VALUE_SHARE: [holds_gold_value(row["text"], row["gold"]) for row in right],
        **{names.grader_name(one): [row["outcome"] is one for row in rows if row["outcome"]] for one in Outcome},
    }
    metrics = {name: fmean(some) for name, each in values.items() if (some := [one for one in each if one is not None])}
    judged = [flags for group in groups if (flags := [row["right"] for row in group if row["right"] is not None])]
    for k in powers_up_to(Counter(map(len, judged)).most_common(1)[0][0]) if judged else ():
        enough = [flags for flags in judged if len(flags) >= k]
        shares = [pass_at_k(len(flags), sum(flags), k) for flags in enough]
        figure = share_estimate(shares, sum(map(len, enough)), k)
        for end, value in (("", figure.value), ("_low", figure.low), ("_high", figure.high)):
            metrics[f"{names.PASSED}{k}{end}"] = value
    return len(several), flat, metrics


def _functions(rows: Sequence[Row]) -> list[str]:
    """The reward functions of all files."""
    return [*dict.fromkeys(name for row in rows for name in row["rewards"])]
