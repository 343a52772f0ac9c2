"""Calls in a child process whose files may not grow beyond a size; in pytest's own, that would hold for its files."""

from __future__ import annotations

import resource
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any


def call_limited(size: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """What `function` returns or raises under `ulimit -f` of this many bytes.

    Args:
        size: the limit.
        function: of a module's top level.
        arguments: of the function.
    """
    limit = (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    with ProcessPoolExecutor(
        1, get_context("spawn"), initializer=resource.setrlimit, initargs=(resource.RLIMIT_FSIZE, limit)
    ) as child:
        return child.submit(function, *arguments).result()
