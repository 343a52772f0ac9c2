"""Objects of the other process, as handles.

No test passes by what the tested code says of a handle: it can be called, its attributes can be read, and that is all.
An object is more than that only if the tests made it, by calling a class of the tested code by its name. Then Python's
operators and protocols reach it by one mechanism: each special method asks the other process for what it does there.

Also runs inside sandboxes, so it imports the standard library and `plain` only.
"""

import collections.abc
import copy
import importlib
import operator
from collections.abc import Callable, Iterator, Set
from typing import Any

from covey.sandbox import plain


def _reflected(operate: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda value, other: operate(other, value)


def _consistent(operate: Callable[[Any, Any], Any], opposite: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def compare(value: Any, other: Any) -> Any:
        found = operate(value, other)
        if found and opposite(value, other):
            raise TypeError(f"{type(value).__name__} contradicts itself")
        return found

    return compare


_OPERATORS = {name[2:-2]: one for name, one in vars(operator).items() if name.startswith("__") and callable(one)}
_BINARY = [name for name in _OPERATORS if f"i{name}" in _OPERATORS]
_ORDER = ("lt", "le", "gt", "ge")
_WITH_PLAIN = {*_ORDER, *(f"{side}{name}" for name in _BINARY for side in ("", "r", "i"))}
_SPECIAL: dict[str, Callable[..., Any]] = {
    **{one.__name__: one for one in (len, next, bool, int, float, complex, round, reversed, format)},
    **_OPERATORS,
    **{f"r{name}": _reflected(_OPERATORS[name]) for name in _BINARY},
    **{a: _consistent(_OPERATORS[a], _OPERATORS[b]) for a, b in (("eq", "ne"), ("lt", "gt"), ("gt", "lt"))},
    "iter": lambda value: (item for item in value),
    "enter": lambda value: type(value).__enter__(value),
    "exit": lambda value, *error: type(value).__exit__(value, *error),
    "copy": copy.copy,
    "deepcopy": lambda value, _: copy.deepcopy(value),
}
OPERATIONS: dict[str, Callable[..., Any]] = {
    **_SPECIAL,
    **{one.__name__: one for one in (getattr, setattr, delattr, str, repr, hash, dir)},
    "self": lambda value: value,
    "isinstance": lambda kind, value: any(kind is one for one in type(value).__mro__),
    "issubclass": lambda kind, value: any(kind is one for one in value.__mro__),
    "await": lambda value: importlib.import_module("asyncio").run(value),
    "declared attr": lambda *args: (importlib.import_module("inspect").getattr_static(*args), getattr(*args))[1],
}
"""What one process may ask the other to do with an object: special methods, without their underscores, and more."""


class Handle:
    """An object of the other process: no plain data, and nothing that a test may take for it.

    Args:
        peer: asks the other process.
        number: of the object there.
        classes: numbers of its classes that the tests name.
    """

    __slots__ = ("_classes", "_number", "_owners", "_peer", "_true")

    def __init__(self, peer: Any, number: int, classes: Set[int]) -> None:
        self._set(_peer=peer, _number=number, _classes=classes, _owners=set(), _true=bool(classes))

    def _set(self, **fields: Any) -> Any:
        """`_owners`: the classes of what it is an attribute of; `_true`: as objects are whose class says nothing."""
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        return self

    def __call__(self, *args: Any, **named: Any) -> Any:
        found = self._peer.ask("call", [self, *args], named, made=self._number in self._peer.classes)
        if isinstance(found, Handle) and self._owners & found._classes:
            found._set(_true=False)  # `Solution().f(2)` may be the solution itself
        return found

    def __getattr__(self, name: str) -> Any:
        peer, free, named = self._peer, isinstance(self, Object), self._number in self._peer.classes
        if name.startswith("__array") or (name in plain.FIELDS and not free):
            raise AttributeError(name)
        found = peer.ask("getattr" if free else "declared attr", [self, name], made=named)
        if name in plain.METHODS and isinstance(found, Handle) and not free:
            raise AttributeError(f"{name} of an object of the tested code is not that of plain data")
        if named:
            return peer.as_class(found, name)
        return found._set(_owners=self._classes, _true=True) if type(found) is Handle and self._true else found

    def __setattr__(self, name: str, value: Any) -> None:
        self._peer.ask("setattr", [self, name, value])

    def __delattr__(self, name: str) -> None:
        self._peer.ask("delattr", [self, name])

    def __bool__(self) -> bool:
        if not self._true:
            raise TypeError("whether an object of the tested code is true says nothing")
        return True

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


class Object(Handle):
    """An object that the tests made; for the tested code, any object of the tests."""

    def __eq__(self, other: object) -> Any:
        if not self._peer.guarded:
            return self._peer.ask("eq", [self, other])
        if other is None or isinstance(other, Handle):
            return super().__eq__(other)
        found = self._peer.ask("self", [self])
        return not isinstance(found, Handle) and found == other

    __hash__ = Handle.__hash__


def _special(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any) -> Any:
        """With plain data, an order is that of its own plain base, and so is a result that is plain data."""
        alone = self._peer.guarded and name in _WITH_PLAIN and not isinstance(args[0], Handle)
        if not (alone and name in _ORDER):
            found = self._peer.ask(name, [self, *args], made=True)
            if not alone or isinstance(found, Handle):
                return found
        return _SPECIAL[name](self._peer.ask("self", [self]), *args)

    return method


for _name in _SPECIAL.keys() - {"eq", "ne", "call"}:
    setattr(Object, f"__{_name}__", _special(_name))


def is_same(one: Any, other: Any) -> bool:
    """Whether two names stand for one object."""
    return one is other or (isinstance(one, Handle) and isinstance(other, Handle) and one._number == other._number)
