"""The charts in a real browser: they show what Python computes from the same rows, and all of it can be reached."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import browser, missing, open_page, resize
from covey.report.load import RunRecord, load_run
from covey.report.page import write_report
from covey.report.panels import Panel, drawn, format_value, make_panels, running_mean
from covey.runlog import names
from made_run import make_run

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing() or "-")]
STEPS = 80


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with tokens, and with clipped tokens that are 0 throughout."""
    root = make_run(tmp_path_factory.mktemp("charts") / "made", steps=STEPS, per_step=8)
    rows = [json.loads(line) for line in (root / "metrics.jsonl").read_text().splitlines()]
    for row in rows[1:]:
        row |= {names.TOKENS: 1000.0 * row["step"], names.CLIP_LOW: 0, names.CLIP_HIGH: 0, names.CLIP_REGION: 0}
    (root / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_report(root)
    return root


@pytest.fixture(scope="module")
def record(run: Path) -> RunRecord:
    return load_run(run)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as started:
        yield started


@pytest.fixture
def page(chromium: Any, run: Path) -> Iterator[Any]:
    resize(chromium)
    chromium.get_log("browser")
    open_page(chromium, run / "report.html")
    yield chromium
    chromium.execute_script("localStorage.clear()")
    assert chromium.get_log("browser") == []


def _panel(record: RunRecord, key: str) -> Panel:
    return next(panel for panel in make_panels(record.rows, record.config) if panel.key == key)


def _all(page: Any, css: str) -> list[Any]:
    found: list[Any] = page.find_elements("css selector", css)
    return found


def _one(page: Any, css: str) -> Any:
    return page.find_element("css selector", css)


def _choose(page: Any, label: str, value: str) -> None:
    """Choose an option of the charts' controls."""
    script = "const f = [...document.querySelectorAll('.chart-controls label')].find((l) => l.textContent.startsWith("
    script += "arguments[0])).querySelector('select'); f.value = arguments[1]; f.dispatchEvent(new Event('change'));"
    page.execute_script(script + "return f.value", label, value)


def _hover(page: Any, key: str, share: float, kind: str = "pointermove") -> None:
    """Move the pointer to a share of the axes' width."""
    script = (
        "const p = document.querySelector(`[data-panel=${arguments[0]}] .plot`); p.scrollIntoView({block: 'center'});"
    )
    script += (
        "const b = p.querySelector('svg').getBoundingClientRect(), x = b.left + 54 + arguments[1] * (b.width - 66);"
    )
    script += (
        "p.dispatchEvent(new PointerEvent(arguments[2], {clientX: x, clientY: b.top + 9, button: 0, bubbles: true}))"
    )
    page.execute_script(script, key, share, kind)


def _settled(page: Any) -> None:
    page.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0], 150))")


def _legend(page: Any, key: str) -> list[str]:
    return [one.text for one in _all(page, f"[data-panel={key}] .legend b")]


def _ticks(page: Any, key: str, axis: str) -> list[str]:
    return [one.text for one in _all(page, f"[data-panel={key}] .tick.{axis}")]


def test_legends_have_the_last_value_of_the_line_that_is_drawn(page: Any, record: RunRecord) -> None:
    for key in ("accuracy", "reward", "length", "kl", "grad_norm"):
        panel = _panel(record, key)
        assert _legend(page, key) == [format_value(drawn(one, panel)[-1], panel.unit) for one in panel.series], key
    assert "Mean of 7 steps, pale: every step." in _one(page, "[data-panel=reward] figcaption").text
    assert "Mean of" not in _one(page, "[data-panel=accuracy] figcaption").text  # evaluations are not smoothed


def test_the_smoothing_is_chosen_stated_and_kept(page: Any, run: Path, record: RunRecord) -> None:
    values = [value for _, value in _panel(record, "reward").series[0].points]
    _choose(page, "smoothing", "25")
    assert _legend(page, "reward")[0] == format_value(running_mean(values, 25)[-1], "number")
    assert "Mean of 25 steps" in _one(page, "[data-panel=reward] figcaption").text
    open_page(page, run / "report.html")
    assert "Mean of 25 steps" in _one(page, "[data-panel=reward] figcaption").text
    _choose(page, "smoothing", "off")
    assert _legend(page, "reward")[0] == format_value(values[-1], "number")
    assert not _all(page, "[data-panel=reward] .pale")


def test_the_cursor_is_at_one_step_in_all_panels(page: Any, record: RunRecord) -> None:
    _hover(page, "reward", 0.5)
    _settled(page)
    _hover(page, "reward", 0.5)
    assert {one.text for one in _all(page, "[data-panel=reward] .at, [data-panel=components] .at")} == {"step 40"}
    one, panel = _panel(record, "reward").series[0], _panel(record, "reward")
    at = [step for step, _ in one.points].index(40)
    shown = f"{format_value(one.points[at][1], 'number')} · mean {format_value(drawn(one, panel)[at], 'number')}"
    assert _legend(page, "reward")[0] == shown
    accuracy = _panel(record, "accuracy").series[0]
    (low,), (high,) = ([value for step, value in end if step == 40] for end in (accuracy.low, accuracy.high))
    (value,) = (value for step, value in accuracy.points if step == 40)
    texts = [format_value(one, "percent") for one in (value, low, high)]
    assert _legend(page, "accuracy")[0] == "{} [{} to {}]".format(*texts)
    _hover(page, "reward", 0.5, "pointerleave")
    assert _one(page, "[data-panel=reward] .at").text == ""


def test_time_and_tokens_as_the_axis(page: Any) -> None:
    """A step takes 2 s and 1,000 tokens."""
    assert _one(page, "[data-panel=reward] .axis").text == "training step"
    assert _ticks(page, "reward", "x")[:3] == ["0", "20", "40"]
    _choose(page, "x axis", "seconds")
    assert _ticks(page, "reward", "x")[:3] == ["0 s", "1 min", "2 min"]
    assert _one(page, "[data-panel=reward] .axis").text == "time in steps and evaluations"
    _choose(page, "x axis", "tokens")
    assert _ticks(page, "reward", "x")[:3] == ["0", "20K", "40K"]


def test_dragging_zooms_all_charts_and_back(page: Any) -> None:
    for share, kind in ((0.25, "pointerdown"), (0.6, "pointermove"), (0.75, "pointermove"), (0.75, "pointerup")):
        _hover(page, "kl", share, kind)
    for key in ("kl", "loss"):
        ticks = [int(text) for text in _ticks(page, key, "x")]
        assert ticks[0] >= 20 >= ticks[0] - 10, key
        assert ticks[-1] <= 60 <= ticks[-1] + 10, key
    kl = [float(text) for text in _ticks(page, "kl", "y")]
    assert kl[0] > 0  # the y axis has followed: KL grows from 0
    back = next(one for one in _all(page, ".chart-controls button") if one.text == "Reset zoom")
    back.click()
    assert not back.is_displayed()
    assert _ticks(page, "kl", "x")[0] == "0"


def test_keys_move_the_cursor_and_zoom(page: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    plot = _one(page, "[data-panel=kl] .plot")
    page.execute_script("arguments[0].focus()", plot)
    plot.send_keys(Keys.HOME)
    assert plot.get_attribute("aria-valuetext").startswith("step 1: KL ")
    plot.send_keys(*[Keys.ARROW_RIGHT] * 3)
    assert (plot.get_attribute("aria-valuenow"), plot.get_attribute("aria-valuemax")) == ("4", str(STEPS))
    plot.send_keys(*"+++")
    assert int(_ticks(page, "kl", "x")[-1]) <= 20
    plot.send_keys("0")
    assert int(_ticks(page, "kl", "x")[-1]) == STEPS


def test_a_chart_at_full_size_is_drawn_at_that_size(page: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    width = _one(page, "[data-panel=entropy] svg").size["width"]
    ticks = _ticks(page, "entropy", "x")
    _one(page, "[data-panel=entropy] .enlarge").send_keys(Keys.ENTER)
    _settled(page)
    svg = _one(page, "dialog[open] [data-panel=entropy] svg")
    assert svg.size["width"] > 2 * width
    assert int(svg.get_dom_attribute("viewBox").split()[2]) == svg.size["width"]  # letters keep their size
    assert len(_ticks(page, "entropy", "x")) > len(ticks)
    assert page.execute_script("return document.activeElement.className") == "plot"
    page.switch_to.active_element.send_keys(Keys.ESCAPE)
    _settled(page)
    assert not _all(page, "dialog[open]")
    assert _one(page, ".panels [data-panel=entropy] svg").size["width"] == width


def test_charts_of_nothing_but_zeros_are_one_line(page: Any) -> None:
    (folded,) = _all(page, "details.zero")
    assert folded.text == "0 throughout: Clipped tokens"
    page.execute_script("arguments[0].click()", folded.find_element("css selector", "summary"))
    _settled(page)
    assert len(_all(page, "[data-panel=clip] .bold")) == 3


def test_a_curve_is_hidden_by_its_name(page: Any) -> None:
    (first, second) = _all(page, "[data-panel=components] .legend button")
    before = _ticks(page, "components", "y")
    page.execute_script("arguments[0].click()", first)
    assert first.get_attribute("aria-pressed") == "false"
    shown = {one.get_attribute("data-series") for one in _all(page, "[data-panel=components] .bold")}
    assert shown == {"1"}
    assert _ticks(page, "components", "y") != before  # the axis fits what is left
    page.execute_script("arguments[0].click()", first)
    assert len(_all(page, "[data-panel=components] .bold")) == 2
    assert second.get_attribute("aria-pressed") == "true"


def test_a_phone_has_no_sideways_scrolling(page: Any) -> None:
    resize(page, 390)
    _settled(page)
    assert page.execute_script("return document.documentElement.scrollWidth") <= 390
