"""Calls between two processes that do not trust each other, and share plain data only.

Messages are lines of JSON. An object that is no plain data crosses as a number, which counts in the process that has
the object; the other one holds a handle. The side of the tests does nothing with its objects that leads from them into
its interpreter, decodes to exact plain types, and decides itself which handles are of classes that the tests name.
"""

import builtins
import collections
import json
import socket
import types
from collections.abc import Sequence
from functools import partial
from typing import Any

from covey.sandbox import plain
from covey.sandbox.handles import OPERATIONS, Handle, Items, Object, Pending

_LONGEST = 1 << 26  # bytes of a message
_BUILTIN = {name: kind for name, kind in vars(builtins).items() if isinstance(kind, type)}
_INNER = ("_", "gi_", "cr_", "ag_", "f_", "tb_", "co_", "func_")
"""How attributes begin that lead from an object of the tests into their interpreter."""


class Peer:
    """One of the two processes.

    Args:
        channel: to the other one.
        module: the tested code, of which the other one may ask; without it, this is the side of the tests.
    """

    def __init__(self, channel: socket.socket, module: types.ModuleType | None = None) -> None:
        self._channel, self._lines, self.guarded = channel, channel.makefile("rb"), module is None
        self.module = Handle(self, 0)
        self.classes: set[int] = set()
        """Numbers of the classes that the tests name."""
        self._types: dict[int, list[str]] = {}
        """Of classes of the other one, the names if they are of exceptions."""
        self._kept: list[Any] = [module]
        self._numbers: dict[int, int] = {}
        self._errors: dict[str, type[Exception]] = {}
        self._found: dict[int, Any] = {}
        self._encode = partial(plain.encode, other=self._encode_other)

    def ask(self, operation: str, args: Sequence[Any], named: dict[str, Any] | None = None, made: bool = False) -> Any:
        """Have the other process do something; raises what it raises there.

        `made` says that the tests make what comes back, if it is of a class that they name.
        """
        values = [*args, *(named or {}).values()]
        sent = [self._encode(value) for value in values]
        self._send({"do": operation, "args": sent, "named": list(named or ())})
        answer = self.serve()
        for value, before, after in zip(values, sent, answer.get("after", ()), strict=False):
            if not _is_mutable(value) or after == before or type(found := self._decode(after)) is not type(value):
                continue
            if hasattr(value, "shape"):
                value[...] = found
            else:
                value.clear()
                (value.extend if hasattr(value, "extend") else value.update)(found)
        if "error" in answer:
            kinds, details, fields = answer["error"]
            error = self._exception(kinds)(*self._decode(details))
            vars(error).update(self._decode(fields))
            raise error
        return values[answer["same"]] if "same" in answer else self._decode(answer["value"], made)

    def named(self, name: str) -> Any:
        """What the tested code has under a name."""
        return self.as_class(self.ask("getattr", [self.module, name]), name)

    def as_class(self, found: Any, name: str) -> Any:
        """Remember a class that the tests name, as classes are named: with a capital."""
        if not isinstance(found, Handle) or found._number not in self._types:
            return found
        if kinds := self._types[found._number]:
            return self._exception(kinds)
        if name.lstrip("_")[:1].isupper():
            self.classes.add(found._number)
            return Object(self, found._number)
        return found

    def serve(self) -> dict[str, Any]:
        """Do what the other process asks for, until it answers the own request; EOFError once it has ended."""
        while True:
            try:
                message = dict(json.loads(self._lines.readline(_LONGEST)))
            except (ValueError, TypeError, RecursionError):
                raise EOFError("the other process has ended, or sent something else") from None
            if "do" not in message:
                return message
            self._send(self._do(**message))

    def _do(self, do: str, args: list[Any], named: list[str]) -> dict[str, Any]:
        answer: dict[str, Any] = {}
        values: list[Any] = []
        try:
            values = [self._decode(value) for value in args]
            if self.guarded and args[0].get("is") != "yours":
                raise TypeError("the tested code may use only what it was given")
            if self.guarded and do.endswith("attr") and values[1].startswith(_INNER) and values[1] != "__name__":
                raise AttributeError(values[1])
            count = len(values) - len(named)
            found = OPERATIONS[do](*values[:count], **dict(zip(named, values[count:], strict=True)))
            same = [at for at, value in enumerate(values) if value is found and _is_mutable(value)]
            answer |= {"same": same[0]} if same else {"value": self._encode(found)}
        except BaseException as error:
            answer["error"] = _described(error)
        try:
            answer["after"] = [self._encode(value) if _is_mutable(value) else None for value in values]
        except RecursionError as error:
            answer = {"error": _described(error)}
        return answer

    def _encode_other(self, value: Any) -> dict[str, Any]:
        kind = type(value)
        if issubclass(kind, Handle):
            return {"is": "yours", "of": value._number}
        if kind is type and value in _BUILTIN.values():
            return {"is": "type", "of": value.__name__}
        number = self._numbers.setdefault(id(value), len(self._kept))
        self._kept += [value] if number == len(self._kept) else []
        found: dict[str, Any] = {"is": "handle", "of": number}
        if kind is types.CoroutineType or (hasattr(kind, "__next__") and kind.__module__ in ("builtins", "itertools")):
            found["is"] = "coroutine" if kind is types.CoroutineType else "iterator"
        elif issubclass(kind, type):
            found["class"] = [one.__name__ for one in value.__mro__] if issubclass(value, Exception) else []
        else:
            found["classes"] = [self._numbers[id(one)] for one in kind.__mro__ if id(one) in self._numbers]
            if (base := plain.base(kind)) is not None:
                found["plain"] = self._encode(value, kind=base)
        return found

    def _decode(self, value: Any, made: bool = False) -> Any:
        return plain.decode(value, partial(self._decode_other, made))

    def _decode_other(self, made: bool, value: dict[str, Any]) -> Any:
        name, number = value["is"], value["of"]
        if name == "yours":
            return self._kept[number]
        if name == "type":
            return _BUILTIN[number]
        if "class" in value:
            self._types[number] = value["class"]
        if name in ("iterator", "coroutine"):
            return (Items if name == "iterator" else Pending)(self, number)
        if not self.guarded:  # where `is` must tell that two are the same
            found = self._exception(value["class"]) if value.get("class") else Object(self, number, {-1})
            return self._found.setdefault(number, found)
        classes = self.classes.intersection(value.get("classes", ()))
        if made and classes:
            return Object(self, number, classes)
        return self._decode(value["plain"]) if "plain" in value else Handle(self, number, classes)

    def _exception(self, names: list[str]) -> type[Exception]:
        """The first of the names that is Python's own, or a class here that derives from it by way of those before."""
        own = next(at for at, name in enumerate(names) if name in _BUILTIN)
        kind = _BUILTIN[names[own]]
        if not issubclass(kind, Exception):
            raise TypeError(f"{kind} is not an exception")
        for name in reversed(names[:own]):
            kind = self._errors.setdefault(name, type(name, (kind,), {}))
        return kind

    def _send(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        if len(data) > _LONGEST:
            raise ValueError("the values are too large to be passed on")
        self._channel.sendall(data)


def _described(error: BaseException) -> list[Any]:
    """The names of an exception's class and its bases, its arguments, and its attributes."""
    if not isinstance(error, Exception):  # SystemExit, say, must not end the other process
        error = RuntimeError(f"it raised {type(error).__name__}")
    names = [one.__name__ for one in type(error).__mro__]
    return [names, plain.encode(list(error.args), repr), plain.encode(vars(error), repr)]


def _is_mutable(value: Any) -> bool:
    return type(value) in (list, dict, set, bytearray, collections.deque) or type(value).__name__ == "ndarray"
