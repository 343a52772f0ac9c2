"""Conversations with tools in the terminal: calls and results as they happen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from covey.environments.episodes import Episode

_WIDEST = 400
"""Letters of a call or result that are shown."""


class ShownMessages:
    """Prints the calls and results of an episode, each once; `watch` of `ChatModel.of`.

    Args:
        console: prints them, plainly where it is no terminal.
        texts: whether what the model writes besides its calls is printed too, all but its last message.
    """

    def __init__(self, console: Console, *, texts: bool) -> None:
        self._console = console
        self._texts = texts
        self._episode: Any = None
        self._count = 0

    def __call__(self, episodes: Sequence[Episode]) -> None:
        for episode in episodes[:1]:
            if episode is not self._episode:
                self._episode, self._count = episode, 0
            new = episode.completion[self._count :]
            self._count = max(self._count, len(episode.completion))
            for message in new:
                self._show(message)

    def _show(self, message: dict[str, Any]) -> None:
        from covey.evaluation.played import call_text, calls_of, content_text

        if message["role"] == "tool":
            self._print("← ", content_text(message["content"]), "dim")
            return
        calls = calls_of(message)
        if calls and self._texts and (text := content_text(message.get("content")).strip()):
            self._print("", text, "")
        for call in calls:
            self._print("→ ", call_text(call), "cyan")

    def _print(self, mark: str, text: str, style: str) -> None:
        from covey.training.terminal import fit, readable

        self._console.print(Text(mark + fit(readable(text), _WIDEST), style=style), soft_wrap=True)
