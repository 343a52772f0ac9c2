"""What the pages' script draws: panels, axes and the means of long series, by hand."""

from __future__ import annotations

from pathlib import Path

from covey.report.compare import overlaid
from covey.report.load import load_run
from covey.report.panels import MOST_POINTS, Panel, Series, axes, chart_data, panel_data
from covey.runlog import names
from made_run import make_run


def test_a_panel_with_its_curves_and_intervals() -> None:
    one = Series("<b>", [(1, 0.5), (2, 0.123456789)], 9, low=[(1, 0.4), (2, 0.1)], high=[(1, 0.6), (2, 0.2)], run=1)
    panel = Panel("p", "<i>", [one], "percent", "A note.", target=0.25, held_out=True)
    assert panel_data(panel) == {
        "key": "p",
        "title": "<i>",
        "note": "A note.",
        "unit": "percent",
        "stacked": False,
        "from_zero": True,
        "target": 0.25,
        "series": [
            {
                "label": "<b>",
                "colour": "var(--c1)",  # of eight colours
                "run": 1,
                "smooth": True,
                "steps": [1, 2],
                "values": [0.5, 0.12346],
                "low": [0.4, 0.1],
                "high": [0.6, 0.2],
            }
        ],
    }


def test_a_long_series_has_means_of_equal_parts() -> None:
    points = [(step, float(step % 2)) for step in range(1, 2 * MOST_POINTS + 2)]  # one more than fits twice
    (shown,) = panel_data(Panel("p", "p", [Series("a", points)]))["series"]
    assert shown["every"] == 3
    assert shown["steps"][:2] == [3, 6]
    assert shown["values"][:2] == [0.66667, 0.33333]  # of 1, 0, 1 and of 0, 1, 0
    assert shown["steps"][-1] == 2 * MOST_POINTS + 1
    (short,) = panel_data(Panel("p", "p", [Series("a", points[:MOST_POINTS])]))["series"]
    assert "every" not in short
    assert len(short["values"]) == MOST_POINTS


def test_axes_are_what_was_spent_until_each_step() -> None:
    rows = [
        {names.STEP: 0, names.EVALUATION_TIME: 1.5},
        {names.STEP: 1, names.STEP_TIME: 2.0, names.TOKENS: 10.0},
        {names.STEP: 2, names.STEP_TIME: 3.0, names.EVALUATION_TIME: 1.0},
        {names.STEP: 3, names.STEP_TIME: float("nan"), names.TOKENS: 30},
    ]
    assert axes(rows) == {"step": [0, 1, 2, 3], "seconds": [1.5, 3.5, 7.5, 7.5], "tokens": [0, 10, 10, 30]}
    sparse = [{names.STEP: step, names.STEP_TIME: 2.0} for step in (10, 20, 23)]  # means of 10, 10 and 3 steps
    assert axes(sparse)["seconds"] == [20.0, 40.0, 46.0]
    resumed = [{names.STEP: step, names.STEP_TIME: 2.0} for step in (51, 52)]  # earlier rows are elsewhere
    assert axes(resumed)["seconds"] == [2.0, 4.0]
    assert axes([{names.STEP: 4}]) == {"step": [4], "seconds": [], "tokens": []}
    assert axes([]) == {"step": [], "seconds": [], "tokens": []}


def test_curves_of_several_runs_name_their_run(tmp_path: Path) -> None:
    records = [load_run(make_run(tmp_path / str(seed), steps=3 + seed, seed=seed)) for seed in (0, 1)]
    found = chart_data(overlaid(records, ["a", "b"]), [record.rows for record in records])
    assert [one["seconds"][-1] for one in found["axes"]] == [6.0, 8.0]
    (reward,) = (panel for _, panels in found["sections"] for panel in panels if panel["title"] == "Reward: mean")
    assert [(one["label"], one["run"], one["steps"][-1]) for one in reward["series"]] == [("a", 0, 3), ("b", 1, 4)]
