"""What has changed in the folder, as server-sent events: the folder is looked at once a second, for all pages together.

`changed` names the runs whose files have changed, `runs` says that runs have appeared or gone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping

from covey.view.runs import RunStore, Signature

EVERY = 1.0  # seconds
KEEP_ALIVE = 15  # seconds: a comment shows that the connection stands


class Changes:
    """Watches the runs while any page listens."""

    def __init__(self, store: RunStore, ending: Callable[[], bool]) -> None:
        """Nothing is watched yet.

        Args:
            ending: whether the server is about to end, which ends the streams.
        """
        self._store = store
        self._ending = ending
        self._listeners: set[asyncio.Queue[str]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._begun = asyncio.Event()

    async def stream(self) -> AsyncIterator[str]:
        """The events from now on, for one page."""
        events: asyncio.Queue[str] = asyncio.Queue()
        self._listeners.add(events)
        if self._watching is None or self._watching.done():
            self._begun.clear()
            self._watching = asyncio.create_task(self._watch())
        quiet = 0.0
        try:
            await self._begun.wait()
            yield "retry: 2000\n\n"
            while not self._ending():
                try:
                    yield await asyncio.wait_for(events.get(), EVERY)
                    quiet = 0
                except TimeoutError:
                    quiet += EVERY
                if quiet >= KEEP_ALIVE:
                    yield ": still here\n\n"
                    quiet = 0
        finally:
            self._listeners.discard(events)

    async def _watch(self) -> None:
        try:
            before = await asyncio.to_thread(self._store.signatures)
        finally:
            self._begun.set()
        while self._listeners:
            await asyncio.sleep(EVERY)
            now = await asyncio.to_thread(self._store.signatures)
            for event in events_between(before, now):
                for listener in self._listeners:
                    listener.put_nowait(event)
            before = now


def events_between(before: Mapping[str, Signature], now: Mapping[str, Signature]) -> list[str]:
    """The events for two looks at the folder."""
    found = []
    if before.keys() != now.keys():
        found.append("event: runs\ndata: {}\n\n")
    if changed := sorted(identity for identity in before.keys() & now.keys() if before[identity] != now[identity]):
        found.append(f"event: changed\ndata: {json.dumps({'runs': changed})}\n\n")
    return found
