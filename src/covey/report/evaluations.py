"""The evaluations in a run directory as table rows: benchmarks after training, and those by `covey eval`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from covey.runlog import RunDirectory, names
from covey.runlog.evaluations import StoredEvaluation, list_evaluations

_MORE = ("pass@", "maj@")


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """One finished evaluation."""

    set_name: str
    """The benchmark, or the held-out set."""
    state: str
    """The weights: `final`, `best` or `checkpoint-N`."""
    sampling: str
    """The sampling parameters as text."""
    problems: int
    samples: int
    """Completions per problem."""
    accuracy: tuple[float, float, float]
    """With its 95% interval, between 0 and 1; NaN where undefined."""
    more: tuple[tuple[str, tuple[float, float, float]], ...]
    """pass@k and maj@k of the largest k, if there are several completions."""
    folder: str
    """Its name within the run's folder `evaluation`."""


def evaluation_rows(run: RunDirectory) -> list[EvaluationRow]:
    """The evaluations of a run, oldest first; damaged ones are skipped with a warning."""
    return [
        _row(stored) for stored in list_evaluations(run.root, skip_damaged=True) if names.ACCURACY in stored.summary
    ]


def _row(stored: StoredEvaluation) -> EvaluationRow:
    settings = stored.settings
    samples = int(settings["num_samples"])
    more = _of_largest_k(stored.summary) if samples > 1 else []
    name = str(settings["name"])
    state = stored.name.removeprefix(f"{name}-")
    state = state if state.startswith("checkpoint-") else state.partition("-")[0]
    return EvaluationRow(
        set_name=name,
        state="-".join(state.split("-")[:2]) if state.startswith("checkpoint-") else state,
        sampling=_sampling(settings.get("sampling") or {}),
        problems=int(settings["data"]["problems"]),
        samples=samples,
        accuracy=_triple(stored.summary[names.ACCURACY]),
        more=tuple((metric, _triple(stored.summary[metric])) for metric in more),
        folder=stored.name,
    )


def _of_largest_k(summary: Mapping[str, Any]) -> list[str]:
    """The pass@k and the maj@k of the largest k above 1."""
    found = []
    for kind in _MORE:
        ks = [int(name.removeprefix(kind)) for name in summary if name.startswith(kind)]
        found += [f"{kind}{k}" for k in ks if k == max(ks) > 1]
    return found


def _sampling(sampling: Mapping[str, Any]) -> str:
    temperature = sampling.get("temperature")
    if not temperature:
        return "greedy" if temperature == 0 else ""
    words = [f"temperature {temperature:g}"]
    words += [f"top-k {sampling['top_k']}"] if sampling.get("top_k") else []
    words += [f"top-p {sampling['top_p']:g}"] if sampling.get("top_p", 1.0) < 1 else []
    return ", ".join(words)


def _triple(figure: Mapping[str, float]) -> tuple[float, float, float]:
    return figure["value"], figure["low"], figure["high"]
