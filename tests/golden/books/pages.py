"""What the report and `covey view` show, as data: the text of the page, the JSON in its scripts, the server's answers.

Of a run of an older Covey, and of made-up runs with and without tools.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from covey.cli.main import main
from covey.view.app import make_app
from made_run import make_run, write_evaluation
from old_run import copied
from rounding import rounded

STEPS = 5
REQUESTS = (
    *("runs", "runs?baseline=a", "curves?id=a&id=b", "compare?a=a&b=b", "compare?a=old&b=old", "search?q=999"),
    *(f"{what}?id={run}" for what in ("run", "curves", "sources") for run in ("a", "old", "none")),
    *("completions?id=a&source=training&step=4", "completions?id=old&source=training&step=2"),
    *("completions?id=old&source=held-out/test&step=2", "completion?id=old&source=training&row=2:3"),
    *("completion?id=a&source=training&row=1:6", "search?id=old&q=573"),
)


class _Text(HTMLParser):
    """The text of a page, and the data in its scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.texts = "", []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.inside = tag

    def handle_data(self, data: str) -> None:
        if data.strip() and self.inside not in ("script", "style"):
            self.texts.append(" ".join(data.split()))


def cases(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for seed, (name, scores) in enumerate({"a": [0] * 6 + [1] * 4, "b": [1] * 7 + [0] * 3}.items()):
        made = make_run(folder / "out" / name, steps=STEPS, per_step=8, seed=seed, tools=name == "a")
        write_evaluation(made, STEPS, scores)
        (made / "environment.json").write_text(f'{{"started": "2026-01-0{seed + 1}T00:00:00+00:00"}}')
    copied(folder / "out" / "old")
    for run in ("a", "old"):
        with contextlib.redirect_stdout(io.StringIO()):
            assert main(["report", f"out/{run}", "--out", "report.html"]) == 0
        page = Path("report.html").read_text(encoding="utf-8")
        parser = _Text()
        parser.feed(page)
        found[f"report {run}: text"] = parser.texts
        for name, content in re.findall(r"<script([^>]*)>(.*?)</script>", page, re.DOTALL):
            if "application/json" in name:
                found[f"report {run}: {name}"] = json.loads(content)
            elif "type" in name:
                found[f"report {run}: {name}"] = json.loads(gzip.decompress(base64.b64decode(content)))
    view = TestClient(make_app(folder / "out", "token", "cookie"), "http://127.0.0.1:8420")
    for request in REQUESTS:
        answer = view.get(f"/api/{request}", headers={"authorization": "Bearer token"})
        data = answer.json()
        if isinstance(data, dict):
            data.pop("version", None)  # of the files, by their times
        found[f"view {request}"] = rounded([answer.status_code, data], 10)
    return found
