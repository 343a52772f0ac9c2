"""A walk through `covey view` in a real browser while a run trains, and what hostile runs, keys and phones make of it.

The pictures that it takes are kept where `COVEY_PICTURES` names a folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import missing, open_address, resize
from covey.runlog import read_completions
from made_run import UGLY
from view_pages import command, go, view, wait

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing() or "-")]
TRAINING = (
    *("training.num_generations=4", "training.per_device_train_batch_size=16"),
    *("training.gradient_accumulation_steps=1", "evaluation.max_problems=32", "evaluation.every_steps=5"),
)


@pytest.fixture
def page(chromium: Any, address: str) -> Iterator[Any]:
    resize(chromium, 1400, 900)
    chromium.get("about:blank")
    chromium.get_log("browser")
    open_address(chromium, address)
    yield chromium
    assert chromium.execute_script("return window.pwned") is None
    assert chromium.get_log("browser") == []


def _all(page: Any, css: str) -> list[Any]:
    found: list[Any] = page.find_elements("css selector", css)
    return found


def _one(page: Any, css: str) -> Any:
    return page.find_element("css selector", css)


def _text(page: Any, css: str) -> str:
    return str(page.execute_script("return document.querySelector(arguments[0])?.textContent ?? ''", css))


def _click(page: Any, css: str) -> None:
    page.execute_script("arguments[0].click()", _one(page, css))


def _picture(page: Any, name: str) -> None:
    if folder := os.environ.get("COVEY_PICTURES"):
        for dark in (False, True):
            resize(page, 1400, 900, dark=dark)
            page.execute_script("scrollTo(0, 0)")
            page.save_screenshot(str(Path(folder) / f"{name}_{'dark' if dark else 'light'}.png"))
        resize(page, 1400, 900)


def _reward_path(page: Any) -> str:
    found = _all(page, "[data-panel=reward] .bold")
    return str(found[0].get_attribute("d")) if found else ""


def test_a_walk_while_a_run_trains(chromium: Any, tmp_path: Path) -> None:
    """The list, curves that move, a completion as it is on disk, and the comparison with an earlier run."""
    out = f"output_dir={tmp_path}"
    with command("train", out, "run_name=before", "training.max_steps=5", *TRAINING) as earlier:
        said, _ = earlier.communicate(timeout=900)
    assert earlier.returncode == 0, said
    words = ("train", out, "run_name=now", "training.temperature=0.9", "training.max_steps=12", *TRAINING)
    with view(tmp_path) as address, command(*words) as training:
        chromium.get_log("browser")
        open_address(chromium, address)
        now = 'tr[data-id="now"]'
        wait(chromium, lambda: _all(chromium, f"{now} .badge.training"))  # it has appeared by itself
        assert _one(chromium, 'tr[data-id="before"] .badge').text == "finished"
        _picture(chromium, "runs")

        _one(chromium, f"{now} td.name a").click()
        before = wait(chromium, lambda: _reward_path(chromium))
        steps = _one(chromium, ".run-top .steps").text
        wait(chromium, lambda: _reward_path(chromium) not in ("", before))
        assert _one(chromium, ".run-top .steps").text != steps
        _picture(chromium, "run")

        _click(chromium, "#tab-completions")
        wait(chromium, lambda: _all(chromium, "#completions-browser .line"))
        _click(chromium, "#completions-browser .line")
        body = ".card.chosen .body"  # drawn again with each step
        shown = wait(chromium, lambda: [one.get_attribute("textContent") for one in _all(chromium, body)])[0]
        (written,) = read_completions(tmp_path / "now" / "completions" / "step-000001.parquet")[0]["completion"]
        assert shown == written["content"]
        _picture(chromium, "completion")

        said, _ = training.communicate(timeout=900)
        assert training.returncode == 0, said
        wait(chromium, lambda: _one(chromium, ".run-top .badge").text == "finished")
        go(chromium, "#/")
        for name in ("before", "now"):
            _click(chromium, f'tr[data-id="{name}"] input')
        _one(chromium, ".picked .main-button").click()
        wait(chromium, lambda: "2 runs compared" in _one(chromium, "main").text)
        row = wait(chromium, lambda: _all(chromium, '[aria-label="Paired differences"] tbody tr'))[0].text
        assert "32" in row
        assert "p = " in row
        _click(chromium, "#tab-curves")
        wait(chromium, lambda: len(_all(chromium, ".charts .bold")) > 10)
        labels = {one.text.split()[0] for one in _all(chromium, "[data-panel=reward-0] .legend button")}
        assert labels == {"before", "now"}
        assert chromium.get_log("browser") == []


def test_the_token_leaves_the_address(page: Any, address: str) -> None:
    assert "token=" in address
    assert "token" not in page.current_url
    page.refresh()
    wait(page, lambda: _all(page, "tr[data-id]"))


def test_the_list_is_sorted_filtered_and_compared_with_a_baseline(page: Any) -> None:
    def names() -> list[str]:
        return [one.text for one in _all(page, "td.name a")]

    _click(page, "[data-sort=name]")
    assert names() == ["episodes", "first", "second <b>"]
    _click(page, "[data-sort=name]")
    assert names() == ["second <b>", "first", "episodes"]
    assert _one(page, "th.name").get_attribute("aria-sort") == "descending"
    search = _one(page, "input[type=search]")
    search.send_keys("SECOND")
    assert names() == ["second <b>"]
    assert _one(page, ".count").text == "1 of 3 runs"
    search.send_keys(" nothing")
    assert names() == []
    assert "No run matches" in _one(page, ".empty").text
    go(page, "#/?baseline=first&sort=name")
    difference = _one(page, 'tr[data-id="second <b>"] td.difference').text
    assert difference.startswith("+33.3 [")  # 20 of 30 instead of 10
    assert "p = 0.002" in difference
    assert "the baseline" in _one(page, 'tr[data-id="first"]').text


def test_tags_and_notes_are_edited_and_stored(page: Any, made: Path) -> None:
    _click(page, 'tr[data-id="first"] .edit')
    tags, note = (_one(page, f"dialog [name={name}]") for name in ("tags", "note"))
    tags.send_keys("good, <i>odd</i>, good")
    note.send_keys(UGLY[0])
    _click(page, "dialog .main-button")
    wait(page, lambda: not _all(page, "dialog"))
    shown = [one.text for one in _all(page, 'tr[data-id="first"] .tag-chip')]
    assert shown == ["good", "<i>odd</i>"]
    wait(page, lambda: UGLY[0] in _one(page, 'tr[data-id="first"]').text)
    page.refresh()
    wait(page, lambda: _all(page, 'tr[data-id="first"] .tag-chip'))
    assert [one.text for one in _all(page, 'tr[data-id="first"] .tag-chip')] == shown


def test_a_page_shows_what_the_report_shows(page: Any) -> None:
    go(page, "#/run?id=first")
    assert _one(page, "h1").text == "starter </title><script>window.pwned = 3</script> on arithmetic"
    for css in (".gain", ".findings li", ".facts dt", "[data-panel=accuracy] .band"):
        assert _all(page, css), css
    _click(page, "#tab-config")
    assert "max_steps: 20" in _one(page, "#config pre").text
    assert "tab=config" in page.current_url


def test_hostile_completions_stay_text_and_two_runs_answers_are_side_by_side(page: Any) -> None:
    go(page, "#/run?id=first&tab=completions")
    for place in range(len(UGLY)):
        page.execute_script(f"document.querySelectorAll('.line')[{place}].click()")
        ugly = UGLY[place].replace("\x00", "\u2400").replace("\x1b", "\u241b")
        wait(page, lambda ugly=ugly: _text(page, ".card.chosen .body").startswith(ugly))
    assert page.execute_script("return document.querySelectorAll('main img, main script').length") == 0
    go(page, "#/compare?id=first&id=second%20%3Cb%3E&tab=problems")
    assert "1 to 10 of 10 problems" in _one(page, ".count").text
    first = _one(page, ".pair")
    assert [one.text for one in first.find_elements("css selector", "h3")] == ["first", "second <b>"]
    marks = [one.get_attribute("title") for one in first.find_elements("css selector", ".mark")]
    assert marks == ["wrong", "right"]
    assert "What is 1 + 1?" in first.text


def test_search_over_all_runs_opens_the_completion(page: Any) -> None:
    go(page, "#/search?q=never%20closed")
    hits = wait(page, lambda: _all(page, ".hits a"))
    assert "<mark>" not in hits[0].text
    assert _one(page, ".hits mark").text == "never closed"
    page.execute_script("arguments[0].click()", hits[0])
    wait(page, lambda: "never closed" in _text(page, ".card.chosen"))


def test_everything_by_keyboard(page: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    def press(*keys: str) -> None:
        page.switch_to.active_element.send_keys(*keys)

    go(page, "#/?sort=name")
    press("j", "j")
    assert page.execute_script("return document.activeElement.textContent") == "first"
    press("x", "j", "x")
    assert _one(page, ".picked .main-button").text == "Compare 2"
    press("?")
    assert "Keys" in _one(page, "dialog[open]").text
    press(Keys.ESCAPE)
    press("/")
    assert page.execute_script("return document.activeElement.type") == "search"
    press("c")  # in a field, a key is a letter
    assert _one(page, "input[type=search]").get_attribute("value") == "c"
    press(Keys.BACKSPACE, Keys.ESCAPE)
    press("c")
    wait(page, lambda: "2 runs compared" in _one(page, "main").text)
    press("3")
    assert _one(page, "#tab-problems").get_attribute("aria-selected") == "true"
    press(Keys.ARROW_LEFT)
    assert _one(page, "#tab-curves").get_attribute("aria-selected") == "true"
    unnamed = """return [...document.querySelectorAll("button, input, select, [tabindex]")].filter((one) =>
        !(one.ariaLabel || one.textContent.trim() || one.closest("label") || one.id === "main")).length"""
    assert page.execute_script(unnamed) == 0


def test_a_phone_has_no_sideways_scrolling(page: Any) -> None:
    resize(page, 390, 800)
    for place in ("#/", "#/run?id=first", "#/run?id=first&tab=completions", "#/compare?id=first&id=second%20%3Cb%3E"):
        go(page, place)
        assert page.execute_script("return document.documentElement.scrollWidth") <= 390, place


def test_what_cannot_be_shown_is_said(page: Any) -> None:
    go(page, "#/run?id=nowhere")
    assert "nowhere" in _one(page, ".problem").text
    assert page.get_log("browser")  # the refused request
    go(page, "#/compare?id=first")
    assert "two runs" in _one(page, ".problem").text


def test_a_lost_connection_is_said(chromium: Any, made: Path) -> None:
    with view(made) as address:
        open_address(chromium, address)
    wait(chromium, lambda: "connection is lost" in _one(chromium, "#connection").text)
    chromium.get_log("browser")  # the lost connection
