"""Results that are made again only when what they were made from has changed."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Cache(Generic[T]):
    """The newest results, each with the state it was made from; may be used by several threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[Hashable, tuple[object, T]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, state: object, make: Callable[[], T]) -> T:
        """The result, made if there is none or its state is another one, such as the signatures of files."""
        with self._lock:
            before = self._kept.get(key)
            if before is not None and before[0] == state:
                self._kept.move_to_end(key)
                return before[1]
        made = make()
        with self._lock:
            self._kept[key] = (state, made)
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return made
