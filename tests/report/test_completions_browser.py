"""The report in a real browser: it renders, its filters work, and what a model wrote stays text."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import browser, missing, open_page, resize
from covey.report.compare import write_comparison
from covey.report.page import write_report
from covey.runlog import RunDirectory, write_completions
from made_run import UGLY, make_run

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing() or "-")]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(make_run(tmp_path_factory.mktemp("browser") / "made", steps=30))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as started:
        yield started


@pytest.fixture
def shared_browser(chromium: Any) -> Iterator[Any]:
    """The browser that all tests share, reset."""
    resize(chromium)
    _console(chromium)  # left by a failed test
    yield chromium
    chromium.execute_script("localStorage.clear()")


@pytest.fixture
def driver(shared_browser: Any, page: Path) -> Any:
    open_page(shared_browser, page)
    return shared_browser


def _console(driver: Any) -> list[str]:
    return [entry["message"] for entry in driver.get_log("browser")]


def _run(driver: Any, script: str, *arguments: Any) -> Any:
    return driver.execute_script(f"return {script}", *arguments)


def _set(driver: Any, name: str, value: str) -> None:
    script = "const f = document.querySelector(`#completions-browser [name=${arguments[0]}]`); const v = arguments[1];"
    script += "if (f.type === 'checkbox') f.checked = v === 'on'; else f.value = v;"
    script += "f.dispatchEvent(new Event(f.type === 'search' ? 'input' : 'change'))"
    driver.execute_script(script, name, value)


def _count(driver: Any) -> int:
    from selenium.webdriver.support.ui import WebDriverWait

    element = driver.find_element("css selector", "#completions-browser .count")
    before = element.text
    if driver.execute_script("return document.querySelector('#completions-browser [name=search]').value"):
        WebDriverWait(driver, 5).until(lambda _: element.text != before or _waited(driver))
    return int(element.text.split(" of ")[0].replace(",", ""))


def _waited(driver: Any) -> bool:
    return bool(driver.execute_async_script("setTimeout(() => arguments[0](true), 400)"))


def _content(page: Path) -> dict[str, Any]:
    packed = re.search(r'id="completions-data">([^<]*)<', page.read_text())
    assert packed is not None
    content: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(packed[1])))
    return content


def _all(page: Path) -> list[dict[str, Any]]:
    """Every completion in a page, in its order."""
    return [one for group in _content(page)["groups"] for one in group["completions"]]


def test_what_a_model_wrote_stays_text(driver: Any) -> None:
    for number in range(len(UGLY)):
        driver.execute_script(f"document.querySelectorAll('.line')[{number}].click()")
        shown = driver.find_element("css selector", ".card.chosen .body").get_attribute("textContent")
        visible = UGLY[number].replace("\x00", "\u2400").replace("\x1b", "\u241b")
        assert shown.startswith(visible)
    assert _run(driver, "window.pwned") is None
    assert _run(driver, "document.querySelectorAll('main img, main script').length") == 0
    assert _run(driver, "document.title").startswith("starter </title><script>")
    assert _console(driver) == []


def test_lone_surrogates_and_all_that_json_can_hold(
    shared_browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from covey.report import completions

    root = make_run(tmp_path / "made", steps=2)
    real = completions.read_completions
    ugly = {"completion": "a\ud800b"}
    monkeypatch.setattr(completions, "read_completions", lambda path: [row | ugly for row in real(path)])
    page = write_report(root)
    open_page(shared_browser, page)
    codes = "[...document.querySelector('.card .body').textContent].map((c) => c.codePointAt(0))"
    assert _run(shared_browser, codes) == [ord("a"), 0xD800, ord("b")]
    assert _console(shared_browser) == []


def test_filters(driver: Any, page: Path) -> None:
    every = _all(page)
    total = len(every)
    right = sum(one["outcome"] == "right" for one in every)
    assert _count(driver) == total == 480
    _set(driver, "outcome", "right")
    assert _count(driver) == right
    _set(driver, "outcome", "not right")
    assert _count(driver) == total - right
    _set(driver, "outcome", "")
    _set(driver, "truncated", "on")
    assert _count(driver) == sum(one["truncated"] for one in every)
    _set(driver, "truncated", "off")
    _set(driver, "step", "7")
    assert _count(driver) == 16
    assert {line.text for line in driver.find_elements("css selector", ".line .head > span:nth-child(2)")} == {"step 7"}
    _set(driver, "step", "")
    _set(driver, "search", "NEVER closed")
    assert _count(driver) == 30
    _set(driver, "search", "no such words anywhere")
    assert _count(driver) == 0
    assert _console(driver) == []


def test_enter_in_the_search_keeps_the_results(driver: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    driver.find_element("css selector", "#completions-browser [name=search]").send_keys("never closed", Keys.ENTER)
    assert _count(driver) == 30
    assert "search=" not in driver.current_url
    assert _console(driver) == []


def test_sorting(driver: Any, page: Path) -> None:
    every = _all(page)
    for order, best in (("advantage-down", max), ("advantage-up", min)):
        _set(driver, "sort", order)
        first = int(driver.find_element("css selector", ".line").get_attribute("data-row"))
        assert every[first]["advantage"] == best(one["advantage"] for one in every)


@pytest.fixture(scope="module")
def tool_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(make_run(tmp_path_factory.mktemp("tools") / "made", steps=12, tools=True))


def _choose(driver: Any, place: int) -> Any:
    driver.execute_script(f"document.querySelectorAll('.line')[{place}].click()")
    return driver.find_element("css selector", ".card.chosen")


def test_turns_calls_and_results(shared_browser: Any, tool_page: Path) -> None:
    """Completions 1 and 3 of the first group: one call and an answer, and three calls without one."""
    open_page(shared_browser, tool_page)
    card = _choose(shared_browser, 1)
    kinds = [one.get_attribute("class") for one in card.find_elements("css selector", ".turns > li")]
    assert kinds == ["turn", "result", "turn"]
    (call,) = card.find_elements("css selector", ".call")
    arguments = json.dumps(f"0 + {UGLY[1]}", ensure_ascii=False)
    assert call.get_attribute("textContent") == f"calculator(expression={arguments}, exact=true)"
    result = card.find_element("css selector", ".result .text").get_attribute("textContent")
    assert result == UGLY[0]  # the second of the results
    labels = {one.text: one.find_element("xpath", "../dd").text for one in card.find_elements("css selector", "dt")}
    assert (labels["turns"], labels["tool calls"]) == ("2", "1")
    assert not card.find_elements("css selector", ".cut")
    cut = _choose(shared_browser, 3)
    assert [one.text for one in cut.find_elements("css selector", ".cut")] == ["max turns"]
    assert len(cut.find_elements("css selector", ".turn")) == 3
    assert cut.find_element("css selector", ".call b").get_attribute("textContent") == UGLY[0]  # the name of a tool
    assert _run(shared_browser, "window.pwned") is None
    assert _run(shared_browser, "document.querySelectorAll('main img, main script').length") == 0
    assert _console(shared_browser) == []


def test_filters_of_episodes(shared_browser: Any, tool_page: Path) -> None:
    """Of 16 completions of a step, 4 each have 0, 1, 2 and 3 calls; the last kind fails once and does not answer."""
    open_page(shared_browser, tool_page)
    for kind, of_sixteen in (
        *(("", 16), ("called", 12), ("uncalled", 4), ("failed", 4), ("unanswered", 4), ("=timed_out", 1)),
        *(("=crashed", 1), ("=max_turns", 1), ("=truncated", 1), ("=answered", 12)),
    ):
        _set(shared_browser, "episode", kind)
        assert _count(shared_browser) == 12 * of_sixteen, kind
    _set(shared_browser, "episode", "")
    _set(shared_browser, "sort", "calls-down")
    first = shared_browser.find_element("css selector", ".line")
    assert "3 calls" in first.text
    _set(shared_browser, "search", "division by zero")  # in a result
    assert 0 < _count(shared_browser) < 192
    assert _console(shared_browser) == []


def test_a_page_without_episodes_has_no_filter_for_them(driver: Any) -> None:
    assert not driver.find_element("css selector", "[name=episode]").is_displayed()
    assert not driver.find_elements("css selector", "[name=sort] [value=calls-down], .turns")


def test_a_group_side_by_side(driver: Any, page: Path) -> None:
    driver.execute_script("document.querySelectorAll('.line')[4].click()")
    cards = driver.find_elements("css selector", ".card")
    assert len(cards) == 8
    assert "chosen" in cards[4].get_attribute("class")
    labels = [one.text for one in cards[4].find_elements("css selector", "dt")]
    assert labels == ["reward", "exact match", "format", "advantage", "weight in target"]
    prompt = driver.find_element("css selector", ".prompt pre").get_attribute("textContent")
    assert prompt == _content(page)["groups"][0]["prompt"]
    assert driver.find_element("css selector", ".line .question").text == _content(page)["groups"][0]["question"]
    answer = driver.find_element("css selector", ".card:nth-child(5) .body .answer:not(.tag)").text
    assert f"<answer>{answer}</answer>" in _all(page)[4]["text"]
    thinking = driver.find_element("css selector", ".card:nth-child(5) .body .thinking:not(.tag)").text
    assert f"<think>{thinking}</think>" in _all(page)[4]["text"]


def test_everything_is_reached_by_keyboard(driver: Any) -> None:
    """Tab to a legend, a panel's values, the filters and the list; with labels for screen readers."""
    from selenium.webdriver.common.keys import Keys

    focused = driver.switch_to

    def tab_to(css: str) -> Any:
        for _ in range(200):
            if driver.execute_script("return document.activeElement.matches(arguments[0])", css):
                return focused.active_element
            focused.active_element.send_keys(Keys.TAB)
        pytest.fail(f"Tab never reaches {css}")

    theme = tab_to("#theme")
    theme.send_keys(Keys.ENTER)
    assert theme.get_attribute("aria-label") == "Switch to light"
    large = tab_to(".enlarge")
    large.send_keys(Keys.ENTER)
    assert driver.execute_script("return document.querySelector('dialog.large').matches(':modal')")
    focused.active_element.send_keys(Keys.ESCAPE)
    assert not driver.find_elements("css selector", "dialog[open]")
    assert focused.active_element == large
    plot = tab_to(".plot")
    assert plot.get_attribute("aria-label").startswith("Held-out accuracy")
    plot.send_keys(Keys.HOME)
    first = plot.get_attribute("aria-valuetext")
    plot.send_keys(Keys.ARROW_RIGHT)
    assert first.startswith("step 0: held-out ")
    assert int(plot.get_attribute("aria-valuenow")) > 0
    curve = tab_to(".legend button")
    curve.send_keys(Keys.SPACE)
    assert curve.get_attribute("aria-pressed") == "false"
    search = driver.find_element("css selector", "[name=search]")
    driver.execute_script("arguments[0].focus()", search)  # past the other panels, which are like the first
    search.send_keys("what is")
    outcome = tab_to("[name=outcome]")
    outcome.send_keys("right")
    listed = tab_to(".list")
    for key in (Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_UP):
        listed.send_keys(key)
    active = driver.find_element("id", listed.get_attribute("aria-activedescendant"))
    assert (active.get_attribute("aria-selected"), active.get_attribute("aria-posinset")) == ("true", "2")
    assert driver.execute_script("return document.activeElement.className") == "list"
    listed.send_keys(Keys.ENTER)
    assert driver.execute_script("return document.activeElement.className") == "detail"
    assert driver.get_log("browser") == []
    unnamed = """return [...document.querySelectorAll("button, input, select, [tabindex]")].filter((one) =>
        !(one.ariaLabel || one.textContent.trim() || one.closest("label"))).length"""
    assert driver.execute_script(unnamed) == 0


def test_ten_thousand_completions_keep_a_small_page(shared_browser: Any, tmp_path: Path) -> None:
    root = make_run(tmp_path / "long", steps=500, per_step=8)
    for step in range(1, 501):  # 64 in place of the 8
        text = [f"<think>{step} {n} " + "carry the one, " * 20 + f"</think><answer>{n}</answer>" for n in range(64)]
        columns: dict[str, Any] = {"prompt": ["p"] * 64, "completion": text, "group": [n // 8 for n in range(64)]}
        columns |= {"exact_match": [1.0] * 64, "format": [1.0] * 64}
        write_completions(RunDirectory(root).completions, step, columns)
    page = write_report(root)
    assert page.stat().st_size < 5e6
    open_page(shared_browser, page)
    assert _count(shared_browser) == 12_000
    assert "12,000 of 32,000 shown" in shared_browser.find_element("id", "completions-head").text
    assert len(shared_browser.find_elements("css selector", ".line")) < 40  # only visible items are rendered
    shared_browser.execute_script("document.querySelector('.list').scrollTop = 1e9")
    _waited(shared_browser)
    assert shared_browser.find_elements("css selector", ".line")[-1].get_attribute("data-at") == "11999"
    assert _console(shared_browser) == []


def test_episodes_fit_a_narrow_screen(shared_browser: Any, tool_page: Path) -> None:
    resize(shared_browser, 390)
    open_page(shared_browser, tool_page)
    _choose(shared_browser, 3)
    assert _run(shared_browser, "document.documentElement.scrollWidth") <= 390
    wide = "[...document.querySelectorAll('.card')].filter((one) => one.scrollWidth > one.clientWidth).length"
    assert _run(shared_browser, wide) == 0


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_both_themes_and_two_widths(shared_browser: Any, page: Path, width: int, dark: bool) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    resize(shared_browser, width, dark=dark)
    open_page(shared_browser, page)
    assert _run(shared_browser, "document.documentElement.scrollWidth") <= width  # no horizontal overflow
    paper = "getComputedStyle(document.body).backgroundColor"
    seen = _run(shared_browser, paper)
    light = sum(int(part) for part in re.findall(r"\d+", seen)[:3]) > 3 * 128
    assert light is not dark
    shared_browser.find_element("id", "theme").click()
    assert _run(shared_browser, paper) != seen

    def is_kept(driver: Any) -> bool:
        driver.refresh()
        return bool(_run(driver, paper) != seen)

    WebDriverWait(shared_browser, 120).until(is_kept)  # on a busy machine the browser stores the choice late
    stroke = "getComputedStyle(document.querySelector('.plot path.bold')).stroke"
    assert _run(shared_browser, stroke).startswith("rgb")  # the page's variable was understood
    if width < 600:
        shared_browser.execute_script("document.querySelector('.line').click()")
        assert shared_browser.find_element("css selector", ".card").is_displayed()
        assert not shared_browser.find_element("css selector", ".list").is_displayed()
        shared_browser.execute_script("document.querySelector('.back').click()")
        assert shared_browser.find_element("css selector", ".list").is_displayed()
    assert _console(shared_browser) == []


def test_a_comparison_renders(shared_browser: Any, page: Path, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", steps=10, seed=5)
    compared = write_comparison([page.parent, other], tmp_path / "comparison.html")
    resize(shared_browser, 390)
    open_page(shared_browser, compared)
    assert _run(shared_browser, "document.documentElement.scrollWidth") <= 390
    assert len(shared_browser.find_elements("css selector", "figure.panel svg")) > 20
    assert _run(shared_browser, "window.pwned") is None
    assert _console(shared_browser) == []
