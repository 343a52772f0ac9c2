"""Signals that ask a run for a clean stop, and handlers for a while."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that ask a run for a clean stop; SIGHUP comes from a terminal that was closed."""


@contextmanager
def signal_handler(numbers: Iterable[int], handler: Any) -> Iterator[None]:
    """Context manager: these signals have another handler; in another thread than the main one, nothing changes. A
    SIGHUP that is ignored (`nohup`) stays so."""
    if threading.current_thread() is not threading.main_thread():  # where Python sets no handlers
        yield
        return
    ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else set()
    before = {number: signal.signal(number, handler) for number in numbers if number not in ignored}
    try:
        yield
    finally:
        for number, own in before.items():
            signal.signal(number, own)
