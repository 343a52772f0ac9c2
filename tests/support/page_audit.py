"""What is wrong on a page in a browser, for its readers: contrast, sizes, overflow, headings and names of controls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CHECKS = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
NAMED = {
    *(
        "button",
        "link",
        "textbox",
        "searchbox",
        "combobox",
        "checkbox",
        "slider",
        "tab",
        "tablist",
        "listbox",
        "option",
    ),
    *("option", "dialog", "navigation", "region", "progressbar", "image", "img", "heading", "columnheader"),
    "DisclosureTriangle",
}
"""Roles that say nothing without a name."""


def faults(driver: Any) -> list[str]:
    """What is wrong on the page that is shown."""
    return [*map(str, driver.execute_script(CHECKS)), *unnamed(driver)]


def unnamed(driver: Any) -> list[str]:
    """What a screen reader would announce by its role alone."""
    driver.execute_cdp_cmd("Accessibility.enable", {})
    found = []
    for node in driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]:
        role = node.get("role", {}).get("value")
        if role in NAMED and not node["ignored"] and not str(node.get("name", {}).get("value", "")).strip():
            about = driver.execute_cdp_cmd("DOM.describeNode", {"backendNodeId": node["backendDOMNodeId"]})["node"]
            found.append(f"no name: {role} {about['nodeName']} {about.get('attributes')}")
    return found
