"""Objects of the other process, as handles.

No test passes by what the tested code says of a handle: it can be called, its attributes can be read, and that is all.
An object is more than that only if the tests made it, by calling a class of the tested code by its name.

Also runs inside sandboxes, so it imports the standard library and `plain` only.
"""

import builtins
import collections.abc
import copy
import operator
from collections.abc import Iterator
from typing import Any

from covey.sandbox import plain

_ORDER = ("lt", "le", "gt", "ge")
_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lshift", "rshift", "and", "or", "xor")
_ARITHMETIC = [f"{side}{name}" for name in _BINARY for side in ("", "r", "i")]
_OTHERS = "len iter next bool int float complex index abs neg pos invert round reversed format contains getitem setitem"
SPECIAL = [*_ORDER, *_ARITHMETIC, *_OTHERS.split(), "delitem", "enter", "exit", "copy", "deepcopy"]
"""Special methods, without their underscores, of objects that the tests made."""


class Handle:
    """An object of the other process: no plain data, and nothing that a test may take for it."""

    __slots__ = ("_classes", "_number", "_of", "_peer")

    def __init__(self, peer: Any, number: int, classes: frozenset[int]) -> None:
        """Of an object of classes that the tests name; `_of` are those of the object that it is an attribute of."""
        for name, value in (("_peer", peer), ("_number", number), ("_classes", classes), ("_of", frozenset())):
            object.__setattr__(self, name, value)

    def __call__(self, *args: Any, **named: Any) -> Any:
        found = self._peer.ask("call", [self, *args], named, made=self._number in self._peer.classes)
        own = isinstance(found, Part) and self._of & found._classes  # `Solution().f(2)` may be the solution itself
        return self._peer.handle(Handle, found) if own else found

    def __getattr__(self, name: str) -> Any:
        peer, free = self._peer, isinstance(self, Object)
        if name.startswith("__array") or (name in plain.FIELDS and not free):
            raise AttributeError(name)
        found = peer.ask("getattr" if free else "declared", [self, name], made=self._number in peer.classes)
        if name in plain.METHODS and isinstance(found, Handle) and not free:
            raise AttributeError(f"{name} of an object of the tested code is not that of plain data")
        if self._number in peer.classes:
            return peer.as_class(found, name)
        if type(found) is Handle and isinstance(self, Part):
            found = peer.handle(Part, found)
            object.__setattr__(found, "_of", self._classes)
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        self._peer.ask("setattr", [self, name, value])

    def __delattr__(self, name: str) -> None:
        self._peer.ask("delattr", [self, name])

    def __bool__(self) -> bool:
        raise TypeError("whether an object of the tested code is true says nothing")

    def __eq__(self, other: object) -> Any:
        if other is None:
            return False
        if not isinstance(other, Handle):
            raise TypeError("an object of the tested code is not compared with plain data")
        if self._number != other._number and not (self._classes and other._classes):
            raise TypeError("objects of the tested code are compared only if the tests name their class")
        return self._number == other._number or self._peer.ask("eq", [self, other])

    def __ne__(self, other: object) -> Any:
        return not self == other

    def __hash__(self) -> int:
        return hash((Handle, self._peer.ask("hash", [self]) if self._classes else self._number))

    def __repr__(self) -> str:
        return self._text("repr")

    def __str__(self) -> str:
        return self._text("str")

    def _text(self, operation: str) -> str:
        if not self._classes:
            raise TypeError("an object of the tested code has a text only if the tests name its class")
        return str(self._peer.ask(operation, [self]))

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


class Pending(Handle):
    """A coroutine, which runs to its end in the other process."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def send(self, _: None) -> Any:
        raise StopIteration(self._peer.ask("await", [self]))

    def __await__(self) -> Any:
        yield from ()
        return self._peer.ask("await", [self])


collections.abc.Coroutine.register(Pending)


class Part(Handle):
    """An object of a class that the tests name, or an attribute of one: it is true, as an object is by default."""

    def __bool__(self) -> bool:
        return True


class Object(Part):
    """An object that the tests made; for the tested code, any object of the tests."""

    def __eq__(self, other: object) -> Any:
        if not self._peer.guarded:
            return self._peer.ask("eq", [self, other])
        if other is None or isinstance(other, Handle):
            return super().__eq__(other)
        try:
            return self._peer.ask("plain", [self]) == other
        except TypeError:
            return False

    __hash__ = Handle.__hash__


def _special(name: str) -> Any:
    def method(self: Any, *args: Any) -> Any:
        """With plain data, an order is that of its own plain base, and so is a result that is plain data."""
        found = None
        alone = self._peer.guarded and args and not isinstance(args[0], Handle)
        if not (alone and name in _ORDER):
            found = self._peer.ask(name, [self, *args], made=True)
        if alone and name in (*_ORDER, *_ARITHMETIC) and not isinstance(found, Handle):
            return perform(name, self._peer.ask("plain", [self]), *args)
        return found

    return method


for _name in SPECIAL:
    setattr(Object, f"__{_name}__", _special(_name))


def perform(name: str, value: Any, *args: Any, **named: Any) -> Any:
    """What an operation does with an object of this process."""
    word = f"__{name}__"
    if name == "call":
        return value(*args, **named)
    if name == "declared":  # what `__getattr__` makes up for any name is not
        import inspect

        inspect.getattr_static(value, args[0])
        return getattr(value, args[0])
    if name in ("isinstance", "issubclass"):
        kind = type(args[0]) if name == "isinstance" else args[0]
        return any(value is one for one in kind.__mro__)
    if name in ("eq", "lt", "gt"):
        first = getattr(operator, name)(value, args[0])
        if bool(first) and (value != args[0] if name == "eq" else getattr(operator, name)(args[0], value)):
            raise TypeError(f"{type(value).__name__} contradicts itself")
        return first
    if name == "iter":
        return (item for item in value)
    if name == "await":
        import asyncio

        return asyncio.run(value)
    if name in ("copy", "deepcopy"):
        return getattr(copy, name)(value)
    if word in vars(operator):
        return getattr(operator, word)(value, *args)
    if name in vars(builtins) and name != "exit":
        return getattr(builtins, name)(value, *args)
    if name[1:] in _BINARY:
        return perform(name[1:], args[0], value)
    return getattr(type(value), word)(value, *args)


def is_same(one: Any, other: Any) -> bool:
    """Whether two names stand for one object."""
    return one is other or (isinstance(one, Handle) and isinstance(other, Handle) and one._number == other._number)
