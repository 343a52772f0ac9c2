"""The report of a run: its content, escaping, and errors for bad directories."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from covey.cli.main import main
from covey.report.charts.curves import draw_curves, main_panels
from covey.report.compare import differences, labels_of
from covey.report.completions import Packed
from covey.report.live import LiveReport
from covey.report.load import load_run
from covey.report.model_card import model_card
from covey.report.page import as_json, render_report, render_vocabulary, write_report
from covey.report.panels import make_sections
from covey.report.summary import before_and_after, changes, how_it_ended, key_settings, write_summary
from covey.report.tables import modes_rows
from covey.runlog import MetricsWriter, RunDirectory, names
from covey.runlog.checkpoint import mark_complete
from made_run import CONFIG, make_run, write_evaluation


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("report") / "made", steps=40)


@pytest.fixture(scope="module")
def page(run: Path) -> str:
    return write_report(run).read_text(encoding="utf-8")


def test_the_page_is_self_contained(page: str) -> None:
    assert not re.findall(r"""(?:src|href)=["']?(?!data:|#)[a-z/.]""", page)
    assert "@import" not in page
    assert "url(" not in re.sub(r"url\(#", "", page)  # only clip paths of the drawings
    assert "default-src 'none'" in page


def test_the_page_describes_the_run(page: str) -> None:
    for expected in (
        "Finished after 40 steps",
        "25.0%</span>",
        "no_signal",
        "Held-out accuracy (grader: exact_match)",
        "Reward by function",
        "Grader outcomes",
        "Effective completions",
        "Step time by stage",
        "All 640 completions.",
    ):
        assert expected in page, expected


def test_names_from_the_config_are_escaped(page: str) -> None:
    assert "<script>window.pwned" not in page
    assert "&lt;script&gt;window.pwned = 3" in page
    assert len(re.findall(r"<script[ >]", page)) == len(re.findall(r"</script>", page)) == 7


def test_every_group_of_curves_has_its_panels(run: Path) -> None:
    record = load_run(run)
    sections = dict(make_sections(record.rows, record.config))
    keys = {heading: [panel.key for panel in panels] for heading, panels in sections.items()}
    assert keys == {
        "Learning": ["accuracy", "reward", "components"],
        "Completion statistics": ["outcomes", "signal", "format", "length", "truncated", "entropy"],
        "Policy update": ["kl", "beta", "clip", "grad_norm", "loss", "learning_rate"],
        "Objective": ["target_entropy", "effective", "weight"],
        "Speed and memory": ["stages", "throughput", "memory"],
    }
    own = dict(make_sections([{**row, "train/objective/mine": 2.0} for row in record.rows], record.config))
    assert [panel.title for panel in own["Objective"]][3:] == ["mine"]
    assert sections["Policy update"][0].target == 0.05
    stages = {one.label: one.points[0] for one in sections["Speed and memory"][0].series}
    assert sum(value for _, value in stages.values()) == pytest.approx(2.0)  # what is in no stage is "other"


def test_a_run_with_tools_has_their_panels_and_settings(tmp_path: Path) -> None:
    record = load_run(make_run(tmp_path / "tools", steps=10, tools=True))
    panels = dict(make_sections(record.rows, record.config))["Tools and environment"]
    assert [panel.key for panel in panels] == [
        *("calls", "call_failures", "turns", "environment_seconds", "lost_episodes", "ends")
    ]
    assert [one.label for one in panels[0].series] == ["training", "held-out"]
    assert [one.label for one in panels[-1].series] == ["answered", "truncated", "max turns", "timed out", "crashed"]
    assert dict(panels[-1].series[0].points)[0] == 0.7
    settings = dict(key_settings(record))
    assert (settings["environment"], settings["tools"], settings["most turns"]) == ("b>.py:Doors", "calculator", "4")
    assert record.grader == "exact_match"
    rewarded = replace(record, rows=[*record.rows, {"step": 11, "eval/accuracy": 0.5, "eval/reward/Doors": 0.5}])
    assert rewarded.grader == "environment"  # Doors is none of the run's functions
    assert "It was trained with `b>.py:Doors`, `calculator`: give" in model_card(record)
    plain = load_run(make_run(tmp_path / "plain", steps=2))
    assert "environment" not in dict(key_settings(plain))
    assert "It was trained with" not in model_card(plain)


def test_json_cannot_close_a_script_tag_or_break_the_file() -> None:
    ugly = "</script><!-- \u2028 \x00 \ud800"
    text = as_json({"a": ugly})
    assert "<" not in text
    assert text.isascii()
    assert json.loads(text) == {"a": ugly}


def _evaluated(root: Path, figures: Mapping[int, Mapping[str, float]], config: str = "") -> Path:
    """A run with these evaluations' metrics, by step."""
    root.mkdir()
    (root / "config.yaml").write_text(config or "rewards: {funcs: [exact_match]}\ndataset: {task: arithmetic}\n")
    writer = MetricsWriter(root / "metrics.jsonl", None)
    for step, metrics in figures.items():
        writer.add(step, {f"eval/{name}": value for name, value in metrics.items()} | {names.REWARD: 0.5})
    writer.flush()
    return root


def _accuracy(value: float, half: float) -> dict[str, float]:
    return {"accuracy": value, "accuracy_low": value - half, "accuracy_high": value + half}


def test_a_paired_gain_is_stated_where_intervals_overlap(tmp_path: Path) -> None:
    run = _evaluated(tmp_path / "run", {0: _accuracy(0.30, 0.09), 9: _accuracy(0.42, 0.09)})
    (untested,) = changes(load_run(run))
    assert (untested.verdict, untested.paired.reason) == (0, "the completions of step 0 are not there")
    write_evaluation(run, 0, [1.0] * 30 + [0.0] * 70)
    write_evaluation(run, 9, [0.0] + [1.0] * 29 + [1.0] * 13 + [0.0] * 57)  # 13 gained, 1 lost
    (change,) = changes(load_run(run))
    found = change.paired.found
    assert found is not None
    # McNemar: 2 * (1 + 14) / 2^14. Bonett and Price: 14 and 2 of 102, 0.117647 ± 1.959964 * sqrt(0.143022 / 102).
    assert found.p_value == 2 * 15 / 2**14
    assert (found.low, found.high) == (pytest.approx(0.044254, abs=1e-5), pytest.approx(0.191040, abs=1e-5))
    assert (change.verdict, change.steps, change.values) == (1, (0, 9), ("30.0%", "42.0%", "+12.0"))
    page = write_report(run).read_text()
    assert "Held-out accuracy (grader: exact_match) rose" in page
    assert "+12.0 points (95% interval +4.4 to +19.1), p = 0.00183" in page
    assert 'class="change up"' in page
    card = model_card(load_run(run))
    assert "| held-out accuracy (grader: exact_match) | 30.0% [21.0 to 39.0] | 42.0% [33.0 to 51.0] | +12.0 " in card


def test_a_run_without_accuracy_is_shown_by_its_reward(tmp_path: Path) -> None:
    figures = {step: {"reward": 0.25 * step, "reward/own": 0.25 * step} for step in (0, 4, 8)}
    run = _evaluated(tmp_path / "run", figures, "rewards: {funcs: ['mine.py:own']}\ndataset: {task: arithmetic}\n")
    write_evaluation(run, 0, [0.0] * 8)
    write_evaluation(run, 8, [2.0] * 8)
    record = load_run(run)
    (change,) = before_and_after(record.run)
    assert (change.metric, change.grader, change.label, change.verdict) == ("reward", None, "held-out reward", 1)
    assert change.values == ("0.000", "2.000", "+2.000")
    write_summary(record.run, [change], 1.0, 0)
    (held_out,) = json.loads(record.run.summary.read_text())["held_out"]
    assert (held_out["before"]["reward"], held_out["after"]["reward"]) == (0.0, 2.0)
    assert held_out["paired"]["p_value"] == 2 / 2**8  # all 8 signs alike
    page, card = write_report(run).read_text(), model_card(record)
    assert "Held-out reward rose" in page
    for text in (page, card):
        assert not re.search("accuracy", text.partition("<main>")[2].partition('id="config"')[0] or text)
    assert "| held-out reward | 0.000 | 2.000 | +2.000 (95% interval +2.000 to +2.000), p = 0.00781" in card
    assert "type: reward" in card
    pictured = [panel.title for panel in main_panels(record.rows, record.config)]
    assert pictured[0] == "Held-out reward"
    assert draw_curves(run).is_file()


def test_what_is_best_follows_best_by_and_is_above_the_first(tmp_path: Path) -> None:
    figures = {
        0: _accuracy(0.5, 0.1) | {"reward": 1.0},
        4: _accuracy(0.4, 0.1) | {"reward": 3.0},
        8: _accuracy(0.4, 0.1) | {"reward": 2.0},
    }
    run = _evaluated(tmp_path / "run", figures)
    checkpoint = RunDirectory(run).checkpoint(4)
    checkpoint.mkdir()
    mark_complete(checkpoint, 4)
    RunDirectory(run).link_best(4)
    assert [change.label for change in before_and_after(RunDirectory(run))] == ["held-out accuracy"]
    assert "best checkpoint" not in dict(key_settings(load_run(run)))
    (run / "config.yaml").write_text("evaluation: {best_by: reward}\n")
    labels = {change.label: change.values for change in before_and_after(RunDirectory(run))}
    assert labels == {
        "held-out reward": ("1.000", "2.000", "+1.000"),
        "best, at step 4": ("1.000", "3.000", "+2.000"),
    }
    assert dict(key_settings(load_run(run)))["best checkpoint"] == "step 4: 3.000 held-out reward"


def test_the_status_of_a_run(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    writer = MetricsWriter(run.metrics, None)
    writer.add(3, {names.REWARD: 0.5})
    writer.flush()
    run.config.write_text("training: {max_steps: 8}")
    assert how_it_ended(load_run(tmp_path))[0] == "stopped"
    with run.lock():
        assert how_it_ended(load_run(tmp_path)) == ("running", "At step 3 of 8 when this page was written.")
    run.summary.write_text('{"training_seconds": 75.0}')
    assert how_it_ended(load_run(tmp_path)) == ("finished", "Finished after 3 steps in 1 min 15 s.")


def _broken(tmp_path: Path, what: str) -> Path:
    run = RunDirectory(tmp_path / what)
    if what == "nothing":
        return run.root
    run.root.mkdir()
    if what == "no run":
        (run.root / "notes.txt").write_text("hello")
    elif what == "not begun":
        run.config.write_text("seed: 0")
    elif what == "no rows":
        run.metrics.write_text("")
    elif what == "damaged":
        run.metrics.write_text('nonsense\n{"step": 1}\n')
    else:
        run.metrics.write_text('{"step": 1, "train/reward": 0.5}\n{"step": 2, "tr')  # a torn last line is none
    if what == "newer":
        run.environment.write_text('{"format": 99, "packages": {"covey": "9.1"}}')
    elif what == "cut config":
        run.config.write_text("a: [1, 2")
    elif what == "odd environment":
        run.environment.write_text("[1]")
    return run.root


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("nothing", "does not exist"),
        ("no run", "is not a run directory"),
        ("not begun", "has not begun to train"),
        ("no rows", "holds no rows yet"),
        ("damaged", "line 1, is not a row"),
        ("newer", "newer version of Covey (9.1: run format 99"),
        ("cut config", "cannot be read"),
    ],
)
def test_a_bad_directory_is_reported_in_one_paragraph(
    what: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(_broken(tmp_path, what))]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.rglob("report.html"))


def test_a_damaged_environment_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert main(["report", str(_broken(tmp_path, "odd environment"))]) == 0
    assert "environment.json cannot be read (it should hold a mapping" in caplog.text


def test_a_run_that_was_killed_has_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = _broken(tmp_path, "killed")
    target = tmp_path / "elsewhere.html"
    assert main(["report", str(root), "--out", str(target)]) == 0
    assert capsys.readouterr().out == f"{target}\n"
    assert "Stopped after step 1" in target.read_text()


def test_live_reports_are_at_least_a_minute_apart(run: Path) -> None:
    now = [0.0]
    live = LiveReport(RunDirectory(run), clock=lambda: now[0])
    assert not live.refresh()  # the run has just begun
    now[0] = 61
    before = RunDirectory(run).report
    before.unlink(missing_ok=True)
    assert live.refresh()
    assert not live.refresh()  # one is being made, or has just been
    live.close()
    assert before.is_file()
    now[0] = 100
    assert not live.refresh()


# Several runs.


def test_config_differences() -> None:
    one = {"run_name": "a", "seed": 0, "model": {"name": "m", "lora": {"rank": None}}}
    two = {"run_name": "b", "seed": 1, "model": {"name": "m", "lora": {"rank": 8}}, "more": True}
    assert differences([one, two]) == [
        ("seed", ["0", "1"]),
        ("model.lora.rank", ["null", "8"]),
        ("more", ["–", "true"]),
    ]


def _compare(roots: Sequence[Path], *more: str) -> int:
    return main(["report", *map(str, roots), *more])


def test_comparing_runs(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = make_run(tmp_path / "other" / "made", steps=20, seed=1)
    for root, marks in ((run, "110"), (other, "100")):
        write_evaluation(root, 20, [float(mark) for mark in marks])
    assert labels_of([load_run(run), load_run(other)])[1] == "other/made"
    assert _compare([run, other], "--out", str(tmp_path / "c.html")) == 0
    page = (tmp_path / "c.html").read_text()
    for expected in (
        "training.max_steps",
        "other/made",
        "−33.3",
        "0 / 1",
        "Held-out accuracy (grader: exact_match): held-out",
    ):
        assert expected in page, expected
    assert "<script>window.pwned" not in page
    (other / "config.yaml").write_text(CONFIG.replace("exact_match", "accuracy") % 20)
    assert _compare([run, other], "--out", str(tmp_path / "c.html")) == 0
    page = (tmp_path / "c.html").read_text()
    assert "not compared: the grader (“exact_match” and “accuracy”) differ" in page
    assert "The graders differ: these curves cannot be compared." in page
    assert "−33.3" not in page
    write_evaluation(other, 20, [1.0])
    (other / "evaluation" / "test-step-000020.jsonl").write_text('{"problem": 0}\n')
    assert _compare([run, other], "--out", str(tmp_path / "c.html")) == 0
    assert (
        "not compared: made/evaluation/test-step-000020.jsonl holds completions without"
        in (tmp_path / "c.html").read_text()
    )
    capsys.readouterr()
    assert _compare([run, run]) == 2
    assert "same run twice" in capsys.readouterr().err


def test_the_page_of_a_reasoning_vocabulary_shows_its_tokens(run: Path) -> None:
    tokens = [
        {
            "text": text,
            "copy": copy,
            "id": 512 + copy,
            "uses": copy,
            "share": copy / 3,
            "cosine_embedding": 0.5,
            "cosine_head": 0.25,
            "cosine_start_embedding": 1 - copy / 8,
            "cosine_start_head": None,
            "nearest": [{"text": "<answer>", "cosine": 0.125}],
        }
        for copy, text in enumerate(["unused", "<b>\n", "ü"])
    ]
    page = render_vocabulary(load_run(run), {"tokens": tokens, "counts": {}, "examples": []})
    used = page.split('id="used"')[1].split("</section>")[0]
    cells = [re.findall(r"<td>(.*?)</td>", row, re.DOTALL) for row in used.split("<tr>")[2:]]
    assert [[cell.strip() for cell in row[:4]] for row in cells] == [
        ["<code>&#34;ü&#34;</code>", "2", "514", "2"],
        ["<code>&#34;&lt;b&gt;\\n&#34;</code>", "1", "513", "1"],
    ]
    assert [cell.strip() for cell in cells[0][5:9]] == ["0.7500", "–", "0.5000", "0.2500"]
    assert "&lt;answer&gt;" in cells[0][9]


def test_several_right_answers_have_a_table_and_curves(tmp_path: Path) -> None:
    root = make_run(tmp_path / "modes", steps=4)
    rows = [json.loads(line) for line in (root / "metrics.jsonl").read_text().splitlines()]
    for at, row in enumerate(rows):
        if "eval/accuracy" in row:
            values = {
                "coverage@8": 0.125 * (at + 1),
                "coverage@2": 0.01,
                "distinct@8": 1.5,
                "distinct_if_solved@8": 2.0,
            }
            ends = {"coverage@8_low": 0.1, "coverage@8_high": 0.9}
            chance = {"chance/coverage@8": 0.0625, "chance/distinct@8": 0.25}
            row |= {f"eval/{name}": value for name, value in (values | ends | chance).items()}
    (root / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    record = load_run(root)
    first, *_ = modes_rows(record.rows)
    assert (first.set_name, first.figure, first.chance) == ("held-out", "coverage@8", "6.2%")
    assert first.first == "12.5% [10.0 to 90.0]"
    panels = {panel.key: panel for panel in dict(make_sections(record.rows, record.config))["Learning"]}
    assert panels["coverage"].target == 0.0625
    assert panels["coverage"].series[0].low
    assert panels["distinct"].title == "Different right answers (distinct@8)"
    page = render_report(record, Packed("", 0, 0))
    assert "Several right answers" in page
    assert "12.5% [10.0 to 90.0]" in page
