"""The curves of a run: drawn for any run with a row, and with what was logged.

The tests read the text of the SVG, and check the arithmetic behind the lines by hand.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from covey.errors import RunDirectoryError
from covey.report.charts.curves import draw_curves, spread
from covey.report.panels import running_mean
from covey.runlog import MetricsWriter, Value, names

Rows = dict[int, dict[str, Value]]


def _texts(run: Path, rows: Rows) -> list[str]:
    """The texts in a run's curves as SVG (matplotlib writes each as a comment before its outlines)."""
    writer = MetricsWriter(run / "metrics.jsonl", None)
    for step, values in rows.items():
        writer.add(step, values)
    writer.flush()
    picture = draw_curves(run, run / "curves.svg")
    return re.findall(r"<!-- (.*?) -->", picture.read_text(encoding="utf-8"), re.DOTALL)


def _training(step: int) -> dict[str, Value]:
    return {
        names.REWARD: 0.5,
        names.reward_mean("exact_match"): 0.25,
        names.reward_mean("format"): 0.75,
        names.COMPLETION_LENGTH: 10.0 + step,
        names.ENTROPY: 0.625,
    }


def test_everything_logged_is_named_with_its_last_value(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("model: {name: starter}\ndataset: {task: arithmetic, id: null}\n")
    rows: Rows = {step: _training(step) | {names.KL: 0.01 * step} for step in (1, 2)}
    evaluation: dict[str, Value] = {names.EVAL_ACCURACY_LOW: 0.3, names.EVAL_ACCURACY_HIGH: 0.5}
    rows[2] |= evaluation | {names.EVAL_ACCURACY: 0.4, names.EVAL_HARD_ACCURACY: 0.05}
    texts = "|".join(_texts(tmp_path, rows))
    assert "starter on arithmetic" in texts
    for expected in ("held-out", "40.0%", "harder set", "5.0%", "exact match", "0.25", "format", "0.75", "12", "0.02"):
        assert expected in texts
    assert "KL to the reference model" in texts
    assert "Entropy" not in texts
    assert "no evaluation" not in texts


def test_a_run_without_evaluation_without_kl_without_config(tmp_path: Path) -> None:
    texts = _texts(tmp_path / "my-run", {step: _training(step) for step in range(1, 60)})
    assert "my-run" in texts
    assert "no evaluation in this run" in texts
    assert "Entropy per token" in texts
    assert "pale: every step, bold: mean of 5 steps" in texts
    assert "68" in texts  # lengths end with 67, 68, 69: the label is where the bold line ends
    assert not any("95%" in text for text in texts)


def test_one_row_makes_a_picture_of_the_promised_size(tmp_path: Path) -> None:
    MetricsWriter(tmp_path / "metrics.jsonl", None).flush()
    with pytest.raises(RunDirectoryError, match="holds no rows yet"):
        draw_curves(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "eval/accuracy": 0.5}\n')
    picture = draw_curves(tmp_path)
    assert picture == tmp_path / "curves.png"
    header = picture.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    assert (int.from_bytes(header[16:20], "big"), int.from_bytes(header[20:24], "big")) == (1200, 800)


def test_a_directory_without_metrics_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"metrics\.jsonl does not exist"):
        draw_curves(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_running_mean_takes_what_is_there_at_the_ends() -> None:
    assert running_mean([0.0, 3.0, 6.0, 0.0], 3) == [1.5, 3.0, 3.0, 3.0]


def test_labels_move_apart_and_keep_their_order() -> None:
    assert spread([0.5, 0.1], 0.1) == [0.5, 0.1]
    assert spread([0.52, 0.5, 0.9], 0.1) == pytest.approx([0.56, 0.46, 0.9])
    assert spread([0.5, 0.5, 0.6], 0.1) == pytest.approx([0.5333333 - 0.1, 0.5333333, 0.6333333])
