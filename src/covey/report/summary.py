"""The top of the report: how a run ended, its key settings, and what it changed.

A change is between the first and the last evaluation of a held-out set, with the paired test between them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from covey.evaluation.comparison import PairedResult, compare_steps
from covey.evaluation.estimators import Estimate
from covey.evaluation.figures import change_text, estimate_text, is_share, paired_text, value_text
from covey.report.load import RunRecord, environment_text, load_run, read_mapping, short_name
from covey.report.panels import axes, format_value
from covey.report.tables import evaluation_rows
from covey.runlog import names
from covey.runlog.directory import RunDirectory
from covey.runlog.files import write_atomically
from covey.runlog.metrics import Row, read_metrics, series
from covey.runlog.notes import FAILED, FINISHED


@dataclass(frozen=True, slots=True)
class Change:
    """A held-out figure at two evaluations of one run."""

    held_out: str
    metric: str
    """The accuracy, or another metric by its name after `eval/`."""
    grader: str | None
    """Of the accuracy."""
    steps: tuple[int, int]
    before: Estimate
    after: Estimate
    paired: PairedResult
    """Completion by completion, on the same problems."""
    label: str = ""

    @property
    def difference(self) -> float:
        return self.after.value - self.before.value

    @property
    def verdict(self) -> int:
        """1 for a gain and -1 for a loss by the paired test, else 0."""
        return self.paired.verdict

    @property
    def what(self) -> str:
        """The figure's name and grader: `held-out accuracy (grader: exact_match)`."""
        return f"{names.set_label(self.held_out)} {figure_name(self.metric, self.grader)}"

    @property
    def texts(self) -> tuple[str, str]:
        """Before and after, with their intervals."""
        return estimate_text(self.before, self.metric), estimate_text(self.after, self.metric)

    @property
    def values(self) -> tuple[str, str, str]:
        """Before, after and the difference, without intervals."""
        before, after = (value_text(one.value, self.metric) for one in (self.before, self.after))
        return before, after, change_text(self.difference, self.metric)

    @property
    def test_text(self) -> str:
        """The paired test, or why there is none: `+8.0 points (95% interval …), p = 2e-07, on 500 problems`."""
        found = self.paired.found
        if found is None:
            return f"no paired test: {self.paired.reason}"
        return f"{paired_text(found, self.metric)}, paired on {found.problems:,} problems"

    @property
    def is_share(self) -> bool:
        return is_share(self.metric)

    @property
    def in_percent(self) -> tuple[Estimate, Estimate] | None:
        """Before and after with their intervals in percent, for a drawing; None if they are not shares."""
        if not is_share(self.metric) or math.isnan(self.before.low) or math.isnan(self.after.low):
            return None
        before, after = (Estimate(100 * one.value, 100 * one.low, 100 * one.high) for one in (self.before, self.after))
        if min(before.low, after.low) < 0 or max(before.high, after.high) > 100:  # an environment's rewards may be any
            return None
        return before, after


def figure_name(metric: str, grader: str | None = None) -> str:
    """A metric's name in a sentence, an accuracy with its grader."""
    graded = f" (grader: {grader})" if grader and metric == names.ACCURACY else ""
    return metric.replace("reward/", "reward ").replace("_", " ") + graded


def changes(record: RunRecord, until: int | None = None) -> list[Change]:
    """The first and the last evaluation on every held-out set that was evaluated at least twice.

    Args:
        until: only evaluations up to this step, which may be the first one.
    """
    found = []
    for held_out in names.held_out_sets(record.rows):
        evaluated = evaluations(record, held_out, until)
        if len(evaluated) >= (2 if until is None else 1):
            found.append(change_between(record, held_out, evaluated[0], evaluated[-1]))
    return found


def evaluations(record: RunRecord, held_out: str | None = None, until: int | None = None) -> list[Row]:
    """The rows with the figure that decides the best evaluation, on this set, else on the main one."""
    held_out = held_out or next(iter(names.held_out_sets(record.rows)), names.TEST_SET)
    key = names.eval_name(held_out, record.metric or names.ACCURACY)
    return [row for row in record.rows if row.get(key) is not None and (until is None or row[names.STEP] <= until)]


def change_between(record: RunRecord, held_out: str, first: Row, last: Row, best: bool = False) -> Change:
    """Two evaluations of a run, by the metric that decides its best one.

    Args:
        best: whether the last one is the best of the run: as the luckiest of several, it is not tested.
    """
    metric, steps = record.metric or names.ACCURACY, (int(first[names.STEP]), int(last[names.STEP]))
    what = f"held-out {figure_name(metric)}"
    label = {names.TEST_SET: what, names.HARD_SET: "on the harder set"}.get(held_out, f"{what} on {held_out}")
    before, after = (figure_of(row, held_out, metric) for row in (first, last))
    untested = "it is the best of several" if best else "it is the first evaluation" if first is last else ""
    return Change(
        held_out=held_out,
        metric=metric,
        grader=record.grader if metric == names.ACCURACY else None,
        steps=steps,
        before=before,
        after=after,
        paired=PairedResult(held_out, reason=untested)
        if untested
        else compare_steps(record.run.root, held_out, *steps, metric),
        label=f"best, at step {steps[1]}" if best else label,
    )


def figure_of(row: Row, held_out: str, metric: str) -> Estimate:
    """An evaluation's figure and its interval, as far as the row has it."""
    values = (row.get(names.eval_name(held_out, f"{metric}{end}")) for end in ("", "_low", "_high"))
    return Estimate(*(float(value) if isinstance(value, int | float) else math.nan for value in values))


def best_row(record: RunRecord) -> Row | None:
    """The metrics of the step whose checkpoint `best_model` links to; None if it is not above the first evaluation."""
    best, evaluated = record.run.best_checkpoint(), evaluations(record)
    if best is None or not evaluated:
        return None
    key = names.eval_name(names.held_out_sets(record.rows)[0], record.metric or names.ACCURACY)
    step = int(best.name.rpartition("-")[2])
    return next((row for row in evaluated if row[names.STEP] == step and row[key] > evaluated[0][key]), None)


def before_and_after(run: RunDirectory) -> list[Change]:
    """The changes of a run; another one to the best checkpoint if that is better than the first and not the last."""
    return rows_of(load_run(run.root)) if read_metrics(run.metrics) else []


def rows_of(record: RunRecord) -> list[Change]:
    """See `before_and_after`."""
    table = changes(record)
    best = best_row(record)
    if table and best is not None and best[names.STEP] != table[0].steps[1]:
        first = evaluations(record)[0]
        table.insert(1, change_between(record, table[0].held_out, first, best, best=True))
    return table


def write_summary(
    run: RunDirectory, rows: Sequence[Change], seconds: float, peak_memory_bytes: int, reason: str = ""
) -> None:
    """Write `summary.json` of a finished run: the same numbers for programs.

    Args:
        reason: why training ended, as a phrase.
    """
    best = run.best_checkpoint()
    summary: dict[str, Any] = {
        "status": FINISHED,
        "reason": reason,
        "training_seconds": round(seconds, 1),
        "peak_memory_bytes": peak_memory_bytes,
        "held_out": [
            {
                "name": row.label,
                "grader": row.grader,
                "before": _numbers(row.metric, row.before),
                "after": _numbers(row.metric, row.after),
                "paired": _paired(row.paired),
            }
            for row in rows
        ],
        "evaluations": [
            {
                "name": row.set_name,
                "weights": row.state,
                "folder": row.folder,
                "grader": row.grader,
                **_numbers(*next(iter(row.figures.items()))),
            }
            for row in evaluation_rows(run)
        ],
        "best_checkpoint": None if best is None else best.name,
    }
    write_atomically(run.summary, json.dumps(summary, indent=2) + "\n")


def summary_line(step: int, seconds: float, peak_memory_bytes: int, reason: str = "") -> str:
    """Why training ended, steps, time and memory in one line."""
    minutes, rest = divmod(round(seconds), 60)
    memory = peak_memory_bytes / 1e9
    why = f"Finished, as {reason}: " if reason else ""
    steps = f"{step} step{'s' * (step != 1)}"
    return f"{why}{steps}, {minutes} min {rest:02d} s of training here, {memory:.1f} GB peak memory."


def _numbers(metric: str, found: Estimate) -> dict[str, float | None]:
    named = {metric: found.value, "low": found.low, "high": found.high}
    return {key: value if math.isfinite(value) else None for key, value in named.items()}


def _paired(result: PairedResult) -> dict[str, float | None] | None:
    if result.found is None:
        return None
    found = result.found
    named = {"difference": found.difference, "low": found.low, "high": found.high, "p_value": found.p_value}
    return {key: value if math.isfinite(value) else None for key, value in named.items()}


def how_it_ended(record: RunRecord) -> tuple[str, str]:
    """The status (`finished`, `running`, `failed` or `stopped`), and a sentence or two about it."""
    of = f" of {record.max_steps}" if record.max_steps else ""
    if record.run.audit.exists():
        return FINISHED, f"{record.summary.get('reason') or 'An audit that was stopped'}."
    if record.summary.get("status") == FAILED:
        message = str(record.summary.get("message") or "").rstrip(".")
        return FAILED, f"Failed after step {record.step}{of}: {message}. {_resumes(record)}"
    if record.run.is_locked():
        return "running", f"At step {record.step}{of} when this page was written."
    if record.summary or record.run.final_model.is_dir() or (record.max_steps and record.step >= record.max_steps):
        took, reason = training_time(record), record.summary.get("reason")
        took = f" in {took}" if took else ""
        return FINISHED, f"Finished after {record.step} steps{took}{f': {reason}' if reason else ''}."
    return "stopped", f"Stopped after step {record.step}{of}. {_resumes(record)}"


def training_time(record: RunRecord) -> str | None:
    """The time of all steps and evaluations, over all starts of the run; of the last start if that is all there is."""
    spent = axes(record.rows)["seconds"]
    seconds = spent[-1] if spent else record.summary.get("training_seconds")
    return _duration(seconds) if isinstance(seconds, int | float) else None


def _resumes(record: RunRecord) -> str:
    newest, name = record.run.newest_checkpoint(), record.run.root.name
    if newest is None:
        return "There is no checkpoint to resume from."
    if "script" in record.config:
        return f"The script resumes from {newest.name} with train(resume_from_checkpoint=True)."
    return f"The same command with run_name={name} resumes from {newest.name}."


def key_settings(record: RunRecord) -> list[tuple[str, str]]:
    """The key settings and totals of the run, as name and value; unknown ones are left out."""
    if audit := read_mapping(record.run.audit):
        facts = {"rollouts": audit["rows"], "files": len(audit["files"]), "groups": audit["groups"]}
        facts |= {"grader": audit["grader"] or "none", "right from a reward of": f"{audit['right_at']:g}"}
        return [(name, f"{value:,}" if isinstance(value, int) else value) for name, value in facts.items()]
    config, training = record.config, record.config.get("training") or {}
    rewards, objective = config.get("rewards") or {}, config.get("objective") or {}
    weights, environment = training.get("reward_weights"), config.get("environment") or {}
    functions = [str(name) for name in rewards.get("funcs") or ()]
    if weights and len(weights) == len(functions):
        functions = [f"{name} × {weight:g}" for name, weight in zip(functions, weights, strict=True)]
    packages, commit = record.environment.get("packages") or {}, str(record.environment.get("git_commit") or "")
    memory = [max((v for _, v in series(record.rows, key)), default=0.0) for key in _MEMORY]
    examples = (config.get("sft") or {}).get("rows")
    supervised = {"supervised training on": examples, "objective": None, "completions per prompt": None, "β": None}
    listed = {
        "script": config.get("script"),
        "objective": objective.get("name"),
        "rewards": ", ".join(functions),
        "environment": environment_text(config),
        "tools": ", ".join(map(short_name, environment.get("tools") or ())),
        "most turns": environment.get("max_turns") if environment.get("factory") or environment.get("tools") else None,
        "completions per prompt": training.get("num_generations"),
        "learning rate": training.get("learning_rate"),
        "β": training.get("beta"),
        "grader": record.grader if record.metric == names.ACCURACY else None,
        "best checkpoint": _best(record),
        "seed": config.get("seed"),
        "training time": training_time(record),
        "peak memory": " + ".join(format_value(value, "bytes") for value in memory if value) or None,
        "used instead": ", ".join(map(str, record.environment.get("used") or ())),
        "Covey, TRL, PyTorch": ", ".join(str(packages.get(name) or "–") for name in ("covey", "trl", "torch"))
        if packages
        else None,
        "commit": commit and commit[:10] + (" + changes" if record.environment.get("git_modified") else ""),
        **(supervised if examples else {}),
    }
    return [
        (name, f"{value:g}" if isinstance(value, float) else str(value))
        for name, value in listed.items()
        if value not in (None, "")
    ]


_MEMORY = (names.PROCESS_MEMORY, names.DEVICE_MEMORY)


def _best(record: RunRecord) -> str | None:
    row = best_row(record)
    if row is None or record.metric is None:
        return None
    found = value_text(figure_of(row, names.held_out_sets(record.rows)[0], record.metric).value, record.metric)
    figure = "" if record.metric == names.ACCURACY else f" {figure_name(record.metric)}"
    return f"step {row[names.STEP]}: {found} held-out{figure}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
