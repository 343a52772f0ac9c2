"""Results as a notebook shows them: the figures of the terminal, and hostile text that stays text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import covey
from covey.report.results import Evaluation, Evaluations, GeneratedText, GeneratedTexts, run_html
from covey.runlog.directory import RunDirectory
from made_run import make_run, write_evaluation

HOSTILE = "<script>window.pwned = 1</script>"


def test_a_run_shows_its_change_its_test_and_its_curves(tmp_path: Path) -> None:
    root = make_run(tmp_path / "mine<b>", steps=10)
    run = RunDirectory(root)
    write_evaluation(root, 0, [0.0] * 10)
    write_evaluation(root, 10, [1.0] * 8 + [0.0] * 2)
    html = run_html(run)
    assert "<img" not in html
    run.curves.write_bytes(b"PNG")
    html = run_html(run)
    assert html.count("<img") == 1
    assert 'src="data:image/png;base64,UE5H"' in html
    assert "mine&lt;b&gt;: starter &lt;/title&gt;&lt;script&gt;" in html
    assert "<script" not in html
    assert "80.0 points" in html, "8 of 10 problems were gained, whatever the metrics say"
    assert "p = 0.00781" in html, "McNemar's exact test: 2 / 2^8"
    assert "25.0% [21.0 to 29.0]" in html


def test_a_run_without_a_step_says_so(tmp_path: Path) -> None:
    assert "does not exist" in run_html(RunDirectory(tmp_path / "none"))


def _stored(folder: Path, right: list[bool], name: str = "test") -> Evaluation:
    settings = {
        "format": 1,
        "name": name,
        "num_samples": 1,
        "grader": "exact_match",
        "data": {"problems": len(right), "problems_fingerprint": "same"},
        "sampling": {"temperature": 0.0},
    }
    share = sum(right) / len(right)
    figures = {
        "accuracy": {"value": share, "low": 0.0, "high": 1.0},
        "truncated": {"value": 0.0, "low": 0.0, "high": 0.1},
    }
    folder.mkdir(parents=True)
    rows = [{"problem": at, "sample": 0, "outcome": "right" if one else "wrong"} for at, one in enumerate(right)]
    (folder / "completions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "summary.json").write_text(json.dumps({"format": 1, "metrics": figures}))
    return Evaluation(folder, settings, figures)


def test_evaluations_and_their_comparison_are_tables(tmp_path: Path) -> None:
    first = _stored(tmp_path / "a", [False] * 8, HOSTILE)
    other = _stored(tmp_path / "b", [True] * 6 + [False] * 2, HOSTILE)
    html = Evaluations([first, other])._repr_html_()
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "75.0%" in html
    assert "0.0% – 100.0%" in html
    assert "truncated" not in html, "a share that is 0 is left out"
    assert html.count("<tr>") == 3
    assert first._repr_html_() == Evaluations([first])._repr_html_()
    assert ">held-out<" in _stored(tmp_path / "d", [True])._repr_html_()

    compared = covey.compare(tmp_path / "a", other)
    (result,) = compared.results
    assert (result.difference, result.p_value) == (0.75, pytest.approx(2 / 2**6))
    assert compared.metric == "accuracy"
    html = compared._repr_html_()
    assert "<td" in html
    for text in ("accuracy (grader: exact_match)", "+75.0", "0.0312", ">6<", ">0<", "on 8 problems"):
        assert text in html, text
    assert "Holm" not in html
    assert repr(compared).splitlines()[1].startswith(f"{tmp_path.name}/b: 75.0%, +75.0 points (95% interval")
    assert repr(other) == f"<{tmp_path.name}/b: accuracy (grader: exact_match) 75.0% [0.0 to 100.0]>"
    several = covey.compare(first, other, _stored(tmp_path / "c", [True] * 8))
    assert "Holm" in several._repr_html_()
    assert several.corrected == pytest.approx([2 / 2**6, 2 * 2 / 2**8])


def test_completions_are_texts_that_show_their_prompts() -> None:
    text = GeneratedText.of(HOSTILE, "2 + <b>2</b>", None)
    assert text == HOSTILE
    assert isinstance(text, str)
    html = text._repr_html_()
    assert "<script" not in html
    assert "2 + &lt;b&gt;2&lt;/b&gt;" in html
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    html = GeneratedTexts([text, GeneratedText.of("ho", messages, None)])._repr_html_()
    assert "system: Be brief.\nuser: hi" in html
    assert "2 completions" in html
