"""What the functions of Python return, and how a notebook shows it: small tables of HTML, with everything escaped."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment

from covey.errors import ConfigError, CoveyError
from covey.evaluation.comparison import check_metric, compare_evaluations, metric_of, newest_in_common
from covey.evaluation.estimators import Estimate
from covey.evaluation.figures import (
    change_ends_text,
    change_text,
    ends_text,
    estimate_text,
    is_share,
    p_text,
    paired_text,
    value_text,
)
from covey.evaluation.paired import Comparison, holm
from covey.evaluation.played import message_text
from covey.evaluation.stored import read_stored
from covey.report.load import load_run
from covey.report.summary import before_and_after, figure_name, how_it_ended
from covey.report.tables import evaluation_rows
from covey.runlog import names
from covey.runlog.directory import RunDirectory
from covey.runlog.evaluations import StoredEvaluation, is_evaluation

if TYPE_CHECKING:
    from covey.environments.episodes import Episode


@dataclass(frozen=True, slots=True)
class ResultTable:
    """A table of texts."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Collection[int] = ()
    """The columns that are aligned at the right."""


def render_result(
    heading: str,
    tables: Sequence[ResultTable] = (),
    *,
    note: str = "",
    image: bytes | None = None,
    below: Sequence[str] = (),
) -> str:
    """A result as HTML for a notebook."""
    template = (files("covey.report") / "assets" / "result.html").read_text(encoding="utf-8")
    page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(template)
    shown = None if image is None else base64.b64encode(image).decode()
    html = page.render(heading=heading, note=note, tables=tables, image=shown, below=below)
    return html.encode("utf-8", "replace").decode()


def run_html(run: RunDirectory) -> str:
    """What a run changed, with its curves."""
    try:
        record, changes = load_run(run.root), before_and_after(run)
    except CoveyError as error:  # a run that has not come to its first step
        return render_result(run.root.name, note=str(error))
    tables = []
    if changes:
        rows = [(row.label, *row.texts, row.values[2], row.test_text) for row in changes]
        points = "points" if all(row.is_share for row in changes) else "change"
        tables.append(ResultTable(("", "before", "after", points, "paired test"), rows, range(1, 4)))
    if after := evaluation_rows(run):
        evaluated = [(row.label, row.state, str(row.problems), row.sampling, row.text) for row in after]
        tables.append(ResultTable(("evaluation", "weights", "problems", "sampling", "result"), evaluated, (2,)))
    graders = {row.grader for row in changes if row.grader}
    below = [f"In brackets: 95% interval.{''.join(f' Grader: {one}.' for one in sorted(graders))}"] if changes else []
    below += [f"Report: {run.report}"] if run.report.is_file() else []
    image = run.curves.read_bytes() if run.curves.is_file() else None
    return render_result(
        f"{record.name}: {record.title}", tables, note=how_it_ended(record)[1], image=image, below=below
    )


class Evaluation(StoredEvaluation):
    """An evaluation that a notebook shows as a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        name = metric_of(self)
        figure = estimate_text(Estimate(**self.summary[name]), name)
        return f"<{_place(self)}: {figure_name(name, self.settings.get('grader'))} {figure}>"

    def _repr_html_(self) -> str:
        return Evaluations([self])._repr_html_()


class Evaluations(list[Evaluation]):
    """Evaluations that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        rows = [row for one in self for row in _figures(one)]
        headings = ("evaluation", "problems", "samples", "figure", "value", "95% interval")
        below = [str(one.folder) for one in self]
        return render_result(
            _counted(len(self), "evaluation"), [ResultTable(headings, rows, (1, 2, 4, 5))], below=below
        )


def _figures(one: StoredEvaluation) -> list[tuple[str, ...]]:
    """The rows of one evaluation: its main figure, and its shares of completions that are not 0."""
    counts = f"{one.settings['data']['problems']:,}", str(one.settings["num_samples"])
    rows: list[tuple[str, ...]] = []
    main = metric_of(one)
    for name, figure in one.summary.items():
        same = name != main and figure == one.summary.get(main)  # the mean reward of a single function, or pass@1
        if name == main or (
            not same and figure["value"] and not name.startswith((names.CHANCE, "grader/", "episode/"))
        ):
            label = figure_name(name, one.settings.get("grader"))
            found = Estimate(**figure)
            rows.append(
                (
                    names.set_label(one.settings["name"]),
                    *counts,
                    label,
                    value_text(found.value, name),
                    ends_text(found, name),
                )
            )
    return rows


@dataclass(frozen=True, slots=True, repr=False)
class Comparisons:
    """Several evaluations on the same problems, each compared with the first of them."""

    evaluations: list[StoredEvaluation]
    metric: str
    """What is compared, by its name after `eval/`."""
    results: list[Comparison]
    """Each but the first evaluation against the first."""

    @property
    def corrected(self) -> list[float]:
        """The p-values after Holm's correction for several comparisons."""
        return holm([result.p_value for result in self.results])

    @property
    def values(self) -> list[float]:
        """The figure of each evaluation."""
        return [self.results[0].first, *(result.second for result in self.results)]

    @property
    def grader(self) -> str | None:
        """What has graded the answers."""
        grader: str | None = self.evaluations[0].settings.get("grader")
        return grader

    def __repr__(self) -> str:
        figure, first = figure_name(self.metric, self.grader), self.evaluations[0]
        lines = [f"{_place(first)}: {figure} {value_text(self.values[0], self.metric)}"]
        for one, found in zip(self.evaluations[1:], self.results, strict=True):
            value, problems = value_text(found.second, self.metric), _counted(found.problems, "problem")
            lines.append(f"{_place(one)}: {value}, {paired_text(found, self.metric)}, on {problems}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        metric, several = self.metric, len(self.results) > 1
        first = self.evaluations[0]
        headings = ["", figure_name(metric, self.grader), "points" if is_share(metric) else "difference"]
        headings += ["95% interval", "p", *(["p, corrected (Holm)"] if several else []), "better", "worse"]
        rows: list[list[str]] = [[_place(first), value_text(self.values[0], metric), *[""] * (len(headings) - 2)]]
        for one, found, corrected in zip(self.evaluations[1:], self.results, self.corrected, strict=True):
            change = change_text(found.difference, metric), change_ends_text(found.low, found.high, metric)
            p_values = [p_text(found.p_value), *([p_text(corrected)] if several else [])]
            counts = str(len(found.gained)), str(len(found.lost))
            rows.append([_place(one), value_text(found.second, metric), *change, *p_values, *counts])
        note = f"Each against the first, on {_counted(self.results[0].problems, 'problem')}: a paired test."
        return render_result("Comparison", [ResultTable(headings, rows, range(1, len(headings)))], note=note)


def compare_all(
    evaluations: Sequence[StoredEvaluation], metric: str | None = None, *, any_sampling: bool = False
) -> Comparisons:
    """Compare two or more evaluations with the first of them.

    Args:
        evaluations: from `find_evaluations`.
        metric: a figure that all of them have; None takes the accuracy, or without a grader the mean reward.
        any_sampling: compare also where the sampling settings differ.

    Raises:
        RunDirectoryError: they cannot be compared, or not by this figure.
    """
    if metric is not None:
        check_metric(evaluations, metric)
    first, *others = evaluations
    results = [compare_evaluations(first, other, metric=metric, any_sampling=any_sampling) for other in others]
    return Comparisons([*evaluations], metric or metric_of(first), results)


def find_evaluations(folders: Sequence[Path]) -> list[StoredEvaluation]:
    """One evaluation per folder or file; of run directories the newest that all of them have.

    Raises:
        ConfigError: one is named twice.
        RunDirectoryError: one holds no evaluation, or the runs have none in common.
    """
    if repeated := [str(folder) for folder, count in Counter(folders).items() if count > 1]:
        raise ConfigError(f"{', '.join(repeated)} is given twice: a run is compared with another one.")
    singles = {one: read_stored(one) for one in folders if one.suffix == ".jsonl" or is_evaluation(one)}
    runs = [folder for folder in folders if folder not in singles]
    wanted = next((one.settings.get("name") for one in singles.values()), None)
    singles |= dict(zip(runs, newest_in_common(runs, wanted), strict=True))
    return [singles[folder] for folder in folders]


def _place(one: StoredEvaluation) -> str:
    """Its name after that of its run, or of its folder, without the folders above."""
    parts = one.folder.absolute().parts
    return f"{parts[-3] if parts[-2] == 'evaluation' else parts[-2]}/{parts[-1]}"


class GeneratedText(str):
    """A completion: a text that knows its prompt."""

    prompt: Any
    """Text or messages."""
    episode: Episode | None
    """What was said and called, of a model with tools or an environment."""

    @classmethod
    def of(cls, text: str, prompt: Any, episode: Episode | None) -> GeneratedText:
        """Make one."""
        made = cls(text)
        made.prompt, made.episode = prompt, episode
        return made

    def _repr_html_(self) -> str:
        return GeneratedTexts([self])._repr_html_()


class GeneratedTexts(list[GeneratedText]):
    """Completions that a notebook shows as a table of prompts and texts."""

    def _repr_html_(self) -> str:
        rows = [(_said(one), str(one)) for one in self]
        return render_result(_counted(len(self), "completion"), [ResultTable(("prompt", "completion"), rows)])


def _said(one: GeneratedText) -> str:
    """What comes before the completion; of messages, each with its role."""
    if isinstance(one.prompt, str) and one.episode is None:
        return one.prompt
    said = one.prompt if one.episode is None else [*one.episode.messages, *one.episode.completion][:-1]
    return "\n".join(f"{message['role']}: {message_text(message)}" for message in said)


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
