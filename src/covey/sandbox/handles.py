"""Objects of the other process, as handles.

No test passes by what the tested code says of a handle: it can be called, its attributes can be read, and that is all.
An object is more than that only if the tests made it, by calling a class of the tested code by its name. Then Python's
operators and protocols reach it by one mechanism: each special method asks the other process for an operation.
"""

import copy
import importlib
import operator
from collections.abc import Callable, Coroutine, Iterator, Set
from functools import partial, partialmethod
from typing import Any

from covey.sandbox import plain

_OPERATORS = {name[2:-2]: one for name, one in vars(operator).items() if name.startswith("__") and callable(one)}
_BINARY = [name for name in _OPERATORS if f"i{name}" in _OPERATORS]
_ORDER = ("lt", "le", "gt", "ge")
_WITH_PLAIN = {*_ORDER, *(f"{side}{name}" for name in _BINARY for side in ("", "r", "i"))}


def _compare(name: str, opposite: str, value: Any, other: Any) -> Any:
    found = _OPERATORS[name](value, other)
    if found and _OPERATORS[opposite](value, other):
        raise TypeError(f"{type(value).__name__} contradicts itself")
    return found


_SPECIAL: dict[str, Callable[..., Any]] = {
    **{one.__name__: one for one in (len, next, bool, int, float, complex, round, reversed, format, delattr)},
    **_OPERATORS,
    **{f"r{name}": lambda value, other, do=_OPERATORS[name]: do(other, value) for name in _BINARY},
    **{name: partial(_compare, name, other) for name, other in (("eq", "ne"), ("lt", "gt"), ("gt", "lt"))},
    "iter": lambda value: (item for item in value),
    "enter": lambda value: type(value).__enter__(value),
    "exit": lambda value, *error: type(value).__exit__(value, *error),
    **{one.__name__: lambda value, *_, one=one: one(value) for one in (copy.copy, copy.deepcopy)},
}
OPERATIONS: dict[str, Callable[..., Any]] = {
    **_SPECIAL,
    **{one.__name__: one for one in (getattr, setattr, str, repr, hash, dir)},
    "self": lambda value: value,
    "isinstance": lambda kind, value: any(kind is one for one in type(value).__mro__),
    "issubclass": lambda kind, value: any(kind is one for one in value.__mro__),
    "await": lambda value: importlib.import_module("asyncio").run(value),
    "declared attr": lambda *args: (importlib.import_module("inspect").getattr_static(*args), getattr(*args))[1],
}
"""What one process may ask the other to do with an object: special methods, without their underscores, and more."""


class Handle:
    """An object of the other process: no plain data, and nothing that a test may take for it.

    It has a `number` there, and `classes` are the numbers of its classes that the tests name.
    """

    __slots__ = ("_classes", "_number", "_owners", "_peer", "_true")

    def __init__(self, peer: Any, number: int, classes: Set[int] = frozenset()) -> None:
        self._peer, self._number, self._classes = peer, number, classes
        self._owners: Set[int] = frozenset()  # the classes of what it is an attribute of
        self._true = bool(classes)  # as objects are by default

    def __call__(self, *args: Any, **named: Any) -> Any:
        found = self._peer.ask("call", [self, *args], named, made=self._number in self._peer.classes)
        if isinstance(found, Handle) and self._owners & found._classes:
            found._true = False  # `Solution().f(2)` may be the solution itself
        return found

    def __getattr__(self, name: str) -> Any:
        free, named = isinstance(self, Object), self._number in self._peer.classes
        if name.startswith("__array") or (name in plain.FIELDS and not free):
            raise AttributeError(name)
        try:
            found = self._peer.ask("declared attr", [self, name], made=named)
        except AttributeError:  # what `__getattr__` makes up is plain data, of an object that the tests made
            if not free:
                raise
            found = self._peer.ask("getattr", [self, name])
            if isinstance(found, Handle) and self._peer.guarded:
                raise
        if name in plain.METHODS and isinstance(found, Handle) and not free:
            raise AttributeError(f"{name} of an object of the tested code is not that of plain data")
        if type(found) is Handle and self._true:
            found._owners, found._true = self._classes, True
        return self._peer.as_class(found, name) if named else found

    def __setattr__(self, name: str, value: Any) -> None:
        if name in Handle.__slots__:
            object.__setattr__(self, name, value)
        else:
            self._peer.ask("setattr", [self, name, value])

    def __bool__(self) -> bool:
        if not self._true:
            raise TypeError("whether an object of the tested code is true says nothing")
        return True

    def __eq__(self, other: object) -> Any:
        if not self._peer.guarded:
            return self._peer.ask("eq", [self, other])
        if other is None:
            return False
        if isinstance(other, Handle):
            if self._number != other._number and not (self._classes and other._classes):
                raise TypeError("objects of the tested code are compared only if the tests name their class")
            return self._number == other._number or self._peer.ask("eq", [self, other])
        if not isinstance(self, Object):
            raise TypeError("an object of the tested code is not compared with plain data")
        found = self._peer.ask("self", [self])
        return not isinstance(found, Handle) and found == other

    def __hash__(self) -> int:
        return hash((Handle, self._peer.ask("hash", [self]) if self._classes else self._number))

    def __repr__(self, operation: str = "repr") -> str:
        if not self._classes:
            raise TypeError("an object of the tested code has a text only if the tests name its class")
        return str(self._peer.ask(operation, [self]))

    def __str__(self) -> str:
        return self.__repr__("str")

    def __instancecheck__(self, value: object) -> Any:
        return isinstance(value, Handle) and self._peer.ask("isinstance", [self, value])

    def __subclasscheck__(self, kind: object) -> Any:
        return isinstance(kind, Handle) and self._peer.ask("issubclass", [self, kind])


class Items(Handle):
    """A generator, or another iterator of Python's own."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._peer.ask("next", [self])


@Coroutine.register
class Pending(Handle):
    """A coroutine, which runs to its end in the other process."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def send(self, _: None) -> Any:
        raise StopIteration(self._peer.ask("await", [self]))

    def __await__(self) -> Any:
        yield from ()
        return self._peer.ask("await", [self])


class Object(Handle):
    """An object that the tests made; for the tested code, any object of the tests."""


def _special(self: Any, name: str, *args: Any) -> Any:
    """With plain data, an order is that of its own plain base, and so is a result that is plain data."""
    alone = self._peer.guarded and name in _WITH_PLAIN and not isinstance(args[0], Handle)
    if not (alone and name in _ORDER):
        found = self._peer.ask(name, [self, *args], made=True)
        if name == "exit" and isinstance(args[1], AssertionError):  # no context manager hides that a test failed
            return False
        if not alone or isinstance(found, Handle):
            return found
    return _SPECIAL[name](self._peer.ask("self", [self]), *args)


for _name in _SPECIAL.keys() - {"eq", "ne", "call"}:
    setattr(Object, f"__{_name}__", partialmethod(_special, _name))


def is_same(one: Any, other: Any) -> bool:
    """Whether two names stand for one object."""
    return one is other or (isinstance(one, Handle) and isinstance(other, Handle) and one._number == other._number)
