"""What redraws the display: in a notebook one output of the cell, which is replaced, and escapes what it shows."""

from __future__ import annotations

import io
import threading
from typing import Any

import pytest
from rich.console import Console
from rich.live import Live
from rich.text import Text

from covey.training import terminal
from covey.training.terminal import NotebookConsole, NotebookLive, live


class _Outputs:
    """Stands for IPython's display: the outputs of a cell, each with all that it has shown."""

    def __init__(self) -> None:
        self.shown: list[list[str]] = []
        self.drawn = threading.Event()

    def display(self, content: Any, display_id: bool = False) -> Any:
        self.shown.append([])
        at = len(self.shown) - 1

        class Handle:
            def update(_, content: Any) -> None:  # noqa: N805
                self.shown[at].append(content._repr_mimebundle_((), ())["text/html"])
                if len(self.shown[at]) > 2:
                    self.drawn.set()

        Handle().update(content)
        return Handle()


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> _Outputs:
    made = _Outputs()
    monkeypatch.setattr("IPython.display.display", made.display)
    return made


def test_a_status_and_the_panel_share_one_output_that_escapes(outputs: _Outputs) -> None:
    console = NotebookConsole()
    with console.status("Reading …") as status:
        status.update("Checking <b> …")
    redrawn = live(Text("step <img src=x>"), console)
    assert isinstance(redrawn, NotebookLive)
    redrawn.start()
    redrawn.stop()
    (one,) = outputs.shown
    assert "Reading" in one[0]
    assert "Checking &lt;b&gt;" in one[1]
    assert "Checking" not in one[2], "a status that has ended is not shown any more"
    assert "step &lt;img src=x&gt;" in one[-1]
    assert not any("<img" in html or "<b>" in html for html in one)


def test_the_panel_is_redrawn_until_it_is_stopped(outputs: _Outputs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "_REDRAW_EVERY", 0.001)
    redrawn = NotebookLive(Text("now"), NotebookConsole())
    assert not redrawn.is_started
    redrawn.start()
    assert redrawn.is_started
    assert outputs.drawn.wait(60)
    redrawn.stop()
    assert not redrawn.is_started
    count = len(outputs.shown[0])
    assert not [thread for thread in threading.enumerate() if thread.name == "covey-notebook"]
    assert len(outputs.shown[0]) == count


def test_terminals_are_redrawn_and_files_are_not() -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    assert live(Text(""), Console(file=io.StringIO())) is None
    assert live(Text(""), Console(file=terminal, force_terminal=True, force_interactive=False)) is None
    utf8 = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    utf8.isatty = lambda: True  # type: ignore[method-assign]
    assert isinstance(live(Text(""), Console(file=utf8, force_terminal=True, force_interactive=True)), Live)
