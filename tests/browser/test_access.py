"""Every page of `covey view` for every reader: phones and zoom, both themes, keys alone, screen readers, live runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import missing, open_address, resize
from covey.report.compare import write_comparison
from covey.report.page import write_report
from covey.runlog import names
from made_run import make_run
from page_audit import faults
from view_pages import go, view, wait

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing() or "-")]
PAGES = {
    "list": "#/?baseline=first",
    "run": "#/run?id=first",
    "completions": "#/run?id=first&tab=completions",
    "episodes": "#/run?id=deep%2Fepisodes&tab=completions",
    "config": "#/run?id=first&tab=config",
    "comparison": "#/compare?id=first&id=second%20%3Cb%3E",
    "curves": "#/compare?id=first&id=second%20%3Cb%3E&tab=curves",
    "problems": "#/compare?id=first&id=second%20%3Cb%3E&tab=problems",
    "search": "#/search?q=never%20closed",
}
SIZES = {"wide": (1400, 900), "narrow": (1000, 800), "phone": (390, 844), "zoomed": (700, 450)}
"""Windows; the last one is 1400 by 900 with everything at twice its size."""


@pytest.fixture
def page(chromium: Any, address: str) -> Iterator[Any]:
    resize(chromium, 1400, 900)
    chromium.get("about:blank")
    open_address(chromium, address)
    yield chromium
    chromium.execute_script("localStorage.clear()")
    chromium.get_log("browser")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_pages_are_readable_and_their_controls_have_names(page: Any, size: str, dark: bool) -> None:
    resize(page, *SIZES[size], dark=dark)
    found = {}
    for name, place in PAGES.items():
        go(page, place)
        found[name] = faults(page)
    assert not any(found.values()), found


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_reports_are_readable_and_their_controls_have_names(
    chromium: Any, made: Path, tmp_path: Path, dark: bool
) -> None:
    pages = [write_report(made / "first", tmp_path / "report.html"), tmp_path / "comparison.html"]
    write_comparison([made / "first", made / "second <b>"], pages[1])
    for size in ("wide", "phone"):
        resize(chromium, *SIZES[size], dark=dark)
        for one in pages:
            open_address(chromium, one.as_uri())
            assert faults(chromium) == [], (size, one.name)


def test_tab_goes_through_every_control_in_its_order_and_shows_where_it_is(page: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    for place in ("#/", "#/run?id=first&tab=completions", "#/search?q=never%20closed"):
        go(page, place)
        page.execute_script("document.querySelector('.skip').focus()")
        expected = page.execute_script(
            """return [...document.querySelectorAll("a[href], button, input, select, summary, [tabindex='0']")]
            .filter((one) => one.checkVisibility() && !one.disabled && one.tabIndex >= 0)
            .map((one, at) => one.dataset.at_ = String(at)).length"""
        )
        seen = [0]
        for _ in range(expected - 1):
            page.switch_to.active_element.send_keys(Keys.TAB)
            at, outline = page.execute_script(
                """const one = document.activeElement, style = getComputedStyle(one);
                const shown = style.outlineStyle !== "none" && parseInt(style.outlineWidth) > 1;
                return [Number(one.dataset.at_ ?? -1), shown];"""
            )
            assert outline, (place, at, page.execute_script("return document.activeElement.outerHTML.slice(0, 80)"))
            seen.append(at)
        assert seen == list(range(expected)), place


def test_the_skip_link_goes_to_the_content_and_not_to_another_page(page: Any) -> None:
    go(page, "#/run?id=first&tab=config")
    page.execute_script("document.querySelector('.skip').click()")
    assert page.execute_script("return document.activeElement.id") == "main"
    assert "tab=config" in page.current_url
    current = [one.text for one in page.find_elements("css selector", "nav [aria-current]")]
    assert current == []
    go(page, "#/search")
    (here,) = page.find_elements("css selector", "nav [aria-current=page]")
    assert here.text == "Search"
    assert page.find_element("id", "main").get_attribute("aria-label") == "Search"


def test_single_keys_can_be_turned_off(page: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    go(page, "#/")
    page.execute_script("document.getElementById('keys').click()")
    page.find_element("css selector", "dialog input[type=checkbox]").click()
    page.switch_to.active_element.send_keys(Keys.ESCAPE)
    page.find_element("id", "main").send_keys("s?")
    assert not page.find_elements("css selector", "dialog[open]")
    assert "search" not in page.current_url


def test_escape_closes_a_group_on_a_phone(page: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    resize(page, 390, 844)
    go(page, PAGES["completions"])
    page.execute_script("document.querySelector('.line').click()")
    wait(page, lambda: page.execute_script("return document.activeElement.className") == "back")
    page.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert page.find_element("css selector", ".list").is_displayed()
    assert page.execute_script("return document.activeElement.className") == "list"


def test_what_is_open_and_where_one_is_stays_while_a_run_trains(chromium: Any, tmp_path: Path) -> None:
    """A new chart and more completions move nothing, and a screen reader is told of neither."""
    run = make_run(tmp_path / "live", steps=20)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for row in rows[1:]:
        row |= dict.fromkeys((names.CLIP_LOW, names.CLIP_HIGH, names.CLIP_REGION), 0)
        row.pop(names.ENTROPY)
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with view(tmp_path) as address:
        resize(chromium, 1400, 900)
        open_address(chromium, address)
        go(chromium, "#/run?id=live")
        place = chromium.execute_script(
            """document.querySelector(".zero").open = true;
            const kept = document.querySelector("[data-panel=grad_norm]");
            kept.dataset.kept = "yes";
            kept.querySelector(".plot").focus();
            scrollTo({top: scrollY + kept.getBoundingClientRect().top - 200, behavior: "instant"});
            window.spoken = [];
            const live = "[role=status], [role=alert], [aria-live=polite], output:not([aria-live=off])";
            new MutationObserver((all) => all.forEach(({target}) => (target.closest ? target : target.parentElement)
              .closest(live) && window.spoken.push(target.textContent))).observe(document.body,
              {subtree: true, childList: true, characterData: true});
            return kept.getBoundingClientRect().top"""
        )
        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(rows[-1] | {"step": 21, names.ENTROPY: 0.3}) + "\n")
        wait(chromium, lambda: chromium.find_elements("css selector", "[data-panel=entropy] .dot"))
        kept = chromium.find_element("css selector", "[data-panel=grad_norm]")
        assert kept.get_attribute("data-kept") == "yes"
        assert chromium.execute_script("return document.activeElement === arguments[0].querySelector('.plot')", kept)
        assert chromium.execute_script("return arguments[0].getBoundingClientRect().top", kept) == pytest.approx(
            place, abs=1
        )
        assert chromium.find_element("css selector", ".zero").get_attribute("open") is not None
        assert chromium.execute_script("return window.spoken") == []
    chromium.get_log("browser")


def test_a_deleted_run_and_a_server_that_has_ended_are_said(chromium: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "gone", steps=3)
    make_run(tmp_path / "other", steps=3)
    with view(tmp_path) as address:
        open_address(chromium, address)
        go(chromium, "#/run?id=gone")
        run.rename(tmp_path.parent / f"{tmp_path.name}-away")
        wait(chromium, lambda: "no run 'gone'" in chromium.find_element("id", "connection").text)
        with (tmp_path / "other" / "metrics.jsonl").open("a") as file:
            file.write("\n")  # another run's change is no answer
    go(chromium, "#/run?id=other")
    assert "The server does not answer" in chromium.find_element("css selector", ".problem").text
    chromium.get_log("browser")


def test_an_address_without_its_token_says_so_in_a_sentence(chromium: Any, address: str) -> None:
    chromium.get(address.partition("?")[0] + "assets/report.css")  # of the server, and no page that asks it
    chromium.delete_all_cookies()
    chromium.get(address.partition("?")[0] + "?token=wrong")
    assert chromium.find_element("css selector", "body").text.startswith("Open the address that `covey view` printed")
    chromium.get_log("browser")
