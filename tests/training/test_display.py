"""The live display: its text, its safety against completions, and its size.

The clock is a variable and the consoles are recorded, so every figure is checked by hand.
"""

from __future__ import annotations

import io
import math
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from covey.evaluation.comparison import PairedResult
from covey.evaluation.estimators import Estimate
from covey.evaluation.paired import compare
from covey.report.completion_findings import Finding
from covey.report.summary import Change
from covey.runlog import names
from covey.training.display import Display, before_after_table, print_findings, print_summary
from covey.training.terminal import duration, fit, readable, sparkline

NASTY = {
    "prompt": "What is 2 + 2?",
    "completion": "[red]four[/] [/nothing]\x1b[31m\x07\u202e\n<answer>4</answer>",
    "answer": "4",
    "reward": 1.2,
    "right": True,
}
WRONG = {"prompt": "漢字" * 50, "completion": "hm " * 200 + "<answer>5</answer>", "answer": "6", "right": False}


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


MakeDisplay = Callable[..., Display]


@pytest.fixture
def make(tmp_path: Path, clock: _Clock) -> MakeDisplay:
    def make_display(file: io.StringIO, max_steps: int = 100, **options: int) -> Display:
        console = Console(file=file, width=100, height=40, force_terminal=file.isatty() or None)
        return Display("starter on [b]", max_steps, console=console, log_path=tmp_path / "log", clock=clock, **options)

    return make_display


def _panel(display: Display, width: int = 100, height: int = 40) -> str:
    console = Console(file=io.StringIO(), width=width, height=height, record=True)
    console.print(display)
    text = console.export_text()
    assert all(cell_len(line) == width for line in text.splitlines()), "the frame is broken"
    assert len(text.splitlines()) < height, "the panel is higher than the terminal"
    return text


def _training(reward: float, length: float = 30.0) -> dict[str, float]:
    return {
        names.REWARD: reward,
        names.COMPLETION_LENGTH: length,
        names.KL: 0.0123,
        names.COMPLETIONS_PER_SECOND: 58.4,
    }


def _run_three_steps(display: Display, clock: _Clock) -> None:
    """An evaluation of 30 seconds, then steps of 2, 2 and 5 seconds, the last one with an evaluation."""
    clock.now = 30.0
    display.completions([NASTY, WRONG])
    display.update(0, {names.EVAL_ACCURACY: 0.301, names.EVAL_HARD_ACCURACY: 0.05})
    for step, now in ((1, 32.0), (2, 34.0)):
        clock.now = now
        display.update(step, _training(0.5, 20.0))
    clock.now = 39.0
    display.update(3, {names.EVAL_ACCURACY: 0.422, names.EVAL_HARD_ACCURACY: math.nan})
    display.update(3, _training(0.51, 31.4))


def test_the_panel_shows_the_figures_and_the_samples_as_they_are(make: MakeDisplay, clock: _Clock) -> None:
    terminal = _Terminal()
    with make(terminal) as display:
        _run_three_steps(display, clock)
        display.status("evaluating on 256 held-out problems")
        text = _panel(display)
    assert "starter on [b]" in text
    assert "step 3/100   3%" in text
    assert "elapsed 0:39   left 4:51" in text  # 97 steps at (2 + 2 + 5) / 3 seconds
    rows = {line[2:20].strip(): line[20:].split() for line in text.splitlines()}
    assert rows["held-out accuracy"][:2] == ["42.2%", "+12.1"]
    assert rows["held-out accuracy"][2] == "▁▁▁█"
    assert rows["harder set"][0] == "5.0%"
    assert rows["reward"][:3] == ["0.51", "+0.01", "▁▁█"]
    assert rows["completion length"][:2] == ["31.4", "+11.4"]
    assert rows["KL"][0] == "0.0123"
    assert rows["completions/s"][0] == "58"
    assert "✓ What is 2 + 2?" in text
    assert "[red]four[/] [/nothing][31m <answer>4</answer>" in text
    assert "answer 4  reward 1.20" in text
    assert "✗ 漢字" in text
    assert "<answer>5</answer>" in text  # a long completion loses its middle, not its end
    assert "evaluating on 256 held-out problems" in text
    assert "\x07" not in terminal.getvalue()
    assert "\u202e" not in terminal.getvalue()


@pytest.mark.parametrize(("width", "height"), [(60, 24), (60, 16), (100, 14), (140, 60)])
def test_the_panel_fits_every_terminal(make: MakeDisplay, clock: _Clock, width: int, height: int) -> None:
    with make(_Terminal()) as display:
        _run_three_steps(display, clock)
        text = _panel(display, width, height)
    assert "42.2%" in text
    assert "completions/s" in text
    assert ("What is 2 + 2?" in text) == (height >= 16)


def _columns(text: str, label: str) -> tuple[int, int]:
    """Where a figure ends, and where its curve begins."""
    (line,) = [line for line in text.splitlines() if line[2:].startswith(label)]
    figure = re.search(r"[\d.]+%?", line)
    curve = re.search("[▁-█]", line)
    assert figure
    assert curve
    return figure.end(), curve.start()


def test_nothing_moves_when_a_figure_gets_another_digit(make: MakeDisplay, clock: _Clock) -> None:
    with make(_Terminal()) as display:
        display.update(0, {names.EVAL_ACCURACY: 0.095})
        display.update(1, _training(0.5, 9.5))
        before = _panel(display)
        display.update(2, {names.EVAL_ACCURACY: 1.0})
        display.update(2, _training(-10.25, 1200.5))
        after = _panel(display)
    for label in ("held-out accuracy", "reward", "completion length"):
        assert _columns(before, label) == _columns(after, label)


def test_the_panel_does_not_shrink_with_a_short_completion(make: MakeDisplay, clock: _Clock) -> None:
    with make(_Terminal()) as display:
        _run_three_steps(display, clock)
        lines = len(_panel(display).splitlines())
        display.completions([NASTY])
        assert len(_panel(display).splitlines()) == lines
        display.status("evaluating")  # in the place of the hint, or of a blank line
        assert len(_panel(display).splitlines()) == lines
        display.finish()
        assert len(_panel(display).splitlines()) < lines


def test_a_wide_terminal_has_the_completions_beside_the_figures(make: MakeDisplay, clock: _Clock) -> None:
    with make(_Terminal()) as display:
        _run_three_steps(display, clock)
        text = _panel(display, 160, 24)
    (line,) = [line for line in text.splitlines() if "held-out accuracy" in line]
    assert line.index("▁▁▁█") < line.index("completions")
    (line,) = [line for line in text.splitlines() if "harder set" in line]
    assert line.index("5.0%") < line.index("✓ What is 2 + 2?") < line.index("answer 4  reward 1.20")
    assert "<answer>5</answer>" in text


def test_the_panel_says_what_keys_do(make: MakeDisplay, clock: _Clock) -> None:
    from covey.training.callbacks import StopCallback

    with make(_Terminal()) as display:
        assert "Ctrl-C" not in _panel(display)
        with StopCallback(None).catching_signals(display):
            assert "Ctrl-C finishes the step, writes a checkpoint and stops" in _panel(display)
            os.kill(os.getpid(), signal.SIGINT)
            text = _panel(display, 140)
            assert "SIGINT: finishing this step, then writing a checkpoint" in text
            assert "Ctrl-C again stops at once" in text
        assert "Ctrl-C" not in _panel(display)


def test_the_panel_before_anything_is_known(make: MakeDisplay) -> None:
    with make(_Terminal()) as display:
        text = _panel(display)
    assert "step 0/100   0%" in text
    assert "left" not in text
    assert "accuracy" not in text


def test_plain_lines_join_the_metrics_of_a_step(make: MakeDisplay, clock: _Clock, tmp_path: Path) -> None:
    out = io.StringIO()
    with make(out, max_steps=4) as display:
        display.status("evaluating on held-out problems")
        _run_three_steps(display, clock)
        display.status("evaluating on held-out problems")
        display.warn("Odd: [it]")
    lines = out.getvalue().splitlines()
    assert lines[:3] == [
        "starter on [b]",
        "evaluating on held-out problems",
        "step 0/4  accuracy 30.1%  harder set 5.0%",
    ]
    assert lines[3].startswith("  ✓ What is 2 + 2?  answer 4  reward 1.20 | [red]four[/] [/nothing][31m")
    assert lines[4] == "step 1/4  reward 0.50  length 20.0  kl 0.0123  58 completions/s  left 0:06"
    assert lines[6] == (
        "step 3/4  reward 0.51  accuracy 42.2% (+12.1)  length 31.4  kl 0.0123  58 completions/s  left 0:03"
    )
    assert lines[-1] == "! Odd: [it]"
    assert lines.count("evaluating on held-out problems") == 1
    assert "\x1b" not in out.getvalue()
    log = (tmp_path / "log").read_text(encoding="utf-8")
    assert log.count("evaluating on held-out problems") == 2
    for part in ("step 2/4  reward 0.50", "accuracy 42.2% (+12.1)", "✗ 漢字"):
        assert part in log


def test_a_long_run_prints_every_tenth_step_and_every_evaluation(make: MakeDisplay) -> None:
    out = io.StringIO()
    with make(out, max_steps=35) as display:
        display.completions([WRONG])
        for step in range(1, 36):
            if step in (7, 35):
                display.update(step, {names.EVAL_ACCURACY: 0.5})
            if step != 35:
                display.update(step, _training(0.5))
    lines = out.getvalue().splitlines()
    printed = [line.split()[1] for line in lines if line.startswith("step")]
    assert printed == ["7/35", "10/35", "20/35", "30/35", "35/35"]
    samples = [line for line in lines if line.startswith("  ✗ ")]
    assert len(samples) == 2
    assert all(cell_len(line) <= 112 and line.endswith("<answer>5</answer>") for line in samples)
    assert all("  answer 6 | hm" in line for line in samples)  # whole, however long prompt and completion are


def test_a_resumed_run_shows_changes_since_its_start(make: MakeDisplay) -> None:
    out = io.StringIO()
    with make(out, start_step=50) as display:
        display.load_history([{"step": 0, names.EVAL_ACCURACY: 0.25}, {"step": 50, names.EVAL_ACCURACY: None}])
        display.update(60, {names.EVAL_ACCURACY: 0.75})
    assert "step 60/100  accuracy 75.0% (+50.0)" in out.getvalue()


def test_an_unsupported_character_does_not_end_the_run(make: MakeDisplay, tmp_path: Path) -> None:
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding="latin-1", write_through=True), width=100)
    with Display("t", 5, console=console, log_path=tmp_path / "log") as display:
        display.completions([NASTY | {"completion": "漢字 <answer>4</answer>"}])
        display.update(0, {names.EVAL_ACCURACY: 0.5})
    assert b"?? <answer>4</answer>" in raw.getvalue()
    assert "漢字" in (tmp_path / "log").read_text(encoding="utf-8")


def test_the_final_table_and_the_paths() -> None:
    nan = Estimate(math.nan, math.nan, math.nan)
    found = compare([[0.0]] * 8, [[1.0]] * 6 + [[0.0]] * 2)  # McNemar: 2 / 2^6

    def row(label: str, before: Estimate, after: Estimate, paired: PairedResult) -> Change:
        return Change("test", "accuracy", "countdown", (0, 9), before, after, paired, label)

    rows = [
        row("held-out [b]", Estimate(0.301, 0.25, 0.36), Estimate(0.883, 0.838, 0.917), PairedResult("", found=found)),
        row("harder", nan, Estimate(0.1, 0.0, 0.2), PairedResult("", reason="no files")),
    ]
    console = Console(file=io.StringIO(), width=100, record=True, force_terminal=True)
    print_summary(console, before_after_table(rows), [("model", Path("/a/" * 60)), ("log", Path("/b/train.log"))])
    styled = console.export_text(clear=False, styles=True)
    assert re.search(r"\x1b\[32m *\+58\.2", styled)  # green: told from chance
    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert "held-out [b] 30.1% [25.0 to 36.0] 88.3% [83.8 to 91.7] +58.2" in lines
    assert "harder n/a 10.0% [0.0 to 20.0] n/a" in lines
    assert "in brackets: 95% interval · grader: countdown" in lines
    text = " ".join(lines)
    assert "held-out [b]: +75.0 points (95% interval " in text
    assert "p = 0.0312, paired on 8 problems" in text
    assert f"model {Path('/a/' * 60)}" in lines
    assert "log /b/train.log" in lines


def test_the_final_table_fits_a_narrow_terminal() -> None:
    value = Estimate(0.301, 0.25, 0.36)
    row = Change("test", "accuracy", "g", (0, 9), value, value, PairedResult("", reason=""), "held-out accuracy")
    console = Console(file=io.StringIO(), width=50, record=True)
    console.print(before_after_table([row], console.width))
    text = console.export_text()
    assert all(cell_len(line) <= 50 for line in text.splitlines())
    assert "…" not in text
    words = text.split()
    assert [words.count(word) for word in ("held-out", "accuracy", "[25.0", "36.0]")] == [1, 1, 2, 2]


def test_the_findings_are_said_in_words_and_each_test_once() -> None:
    found = compare([[0.0]] * 8, [[1.0]] * 6 + [[0.0]] * 2)
    row = Change(
        "test", "accuracy", "g", (0, 9), Estimate(0.3, 0.2, 0.4), Estimate(0.9, 0.8, 1.0), PairedResult("", found=found)
    )
    findings = [
        Finding("good", "Held-out accuracy rose", row.test_text, "From [b]30%[/b] to 90%."),
        Finding("warn", "Truncated completions", "12% truncated", "long \x1b[2J " * 30),
    ]
    console = Console(file=io.StringIO(), width=80, record=True)
    print_findings(console, findings, [row])
    lines = console.export_text().splitlines()
    assert lines[0].rstrip() == "  ✓ Held-out accuracy rose. From [b]30%[/b] to 90%."
    assert lines[1].startswith("  ! Truncated completions (12% truncated). long [2J long")
    assert all(line.startswith("    long") or line.startswith("    [2J") for line in lines[2:] if line.strip())
    assert "p = " not in "".join(lines)
    print_findings(Console(file=io.TextIOWrapper(io.BytesIO(), "ascii"), width=80), findings)  # does not end the run


def test_text_for_the_terminal() -> None:
    assert readable(" a\tb\n\nc\x1b[2J\u200b\x00 ") == "a b c[2J"
    assert fit("abcdefghij", 10) == "abcdefghij"
    assert fit("abcdefghij", 7) == "abc…hij"
    assert cell_len(fit("漢字" * 10, 10)) <= 10
    assert [duration(seconds) for seconds in (0.4, 151, 3751)] == ["0:00", "2:31", "1:02:31"]


def test_a_sparkline_holds_a_value_until_the_next_and_averages_a_stretch() -> None:
    assert sparkline([(0, 0.0), (4, 7.0)], last_step=5, width=60) == "▁▁▁▁██"
    assert sparkline([(0, 0.0), (1, 2.0), (2, 3.0), (3, 5.0), (4, 7.0), (5, 9.0)], last_step=5, width=3) == "▁▄█"
    assert sparkline([(3, 1.0)], last_step=3, width=9) == "▁"
    assert sparkline([], last_step=3, width=9) == ""
