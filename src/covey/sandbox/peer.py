"""Calls between two processes that do not trust each other, and share plain data only.

What is no plain data crosses as a handle. No test passes by what the tested code says of a handle: it can be called,
its attributes can be read, and that is all. An object is more than that only if the tests made it, by calling a class
of the tested code by its name: its operators are the class's own.

Also runs inside sandboxes, so it imports the standard library and `plain` only.
"""

import builtins
import collections
import collections.abc
import copy
import json
import operator
import socket
import struct
import types
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from covey.sandbox import plain

_LONGEST = 1 << 26  # bytes of a message
_MUTABLE = (list, dict, set, bytearray, collections.deque)
_ORDER = ("lt", "le", "gt", "ge")
_BINARY = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift divmod".split()
_ARITHMETIC = [f"{side}{name}" for name in _BINARY for side in ("", "r", "i")]
_OTHERS = "len iter next bool int float complex index abs neg pos invert round reversed format contains getitem setitem"
_SPECIAL = [*_ORDER, *_ARITHMETIC, *_OTHERS.split(), "delitem", "enter", "exit", "copy", "deepcopy"]
"""Special methods, without their underscores, of objects that the tests made."""
_SERVED = {*_SPECIAL, "call", "getattr", "setattr", "delattr", "str", "repr", "hash", "eq", "isinstance", "await"}
"""What the tested code may do with an object of the tests."""
_INNER = ("_", "gi_", "cr_", "ag_", "f_", "tb_", "co_", "func_")
"""How attributes begin that lead from an object of the tests into their interpreter."""
_TOLD = ("__name__", "__qualname__", "__doc__", "__dict__", "__wrapped__", "__annotations__")


class Handle:
    """An object of the other process: no plain data, and nothing that a test may take for it."""

    __slots__ = ("_named", "_number", "_peer")

    def __init__(self, peer: "Peer", number: int, named: bool) -> None:
        for name, value in (("_peer", peer), ("_number", number), ("_named", named)):
            object.__setattr__(self, name, value)

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._peer.ask("call", [self, *args], named, made=self._number in self._peer.classes)

    def __getattr__(self, name: str) -> Any:
        peer, free = self._peer, isinstance(self, Object)
        if name.startswith("__") and name not in _TOLD:
            raise AttributeError(name)
        fields, methods = ((), ()) if free else plain.fields_and_methods()
        if name in fields:
            raise AttributeError(f"{name} of an object of the tested code is not plain data's")
        found = peer.ask("getattr" if free else "declared", [self, name], made=self._number in peer.classes)
        if name in methods and isinstance(found, Handle):
            raise AttributeError(f"{name} of an object of the tested code is not plain data's")
        if self._number in peer.classes:
            return peer.as_class(found, name)
        return peer.handle(Part, found) if type(found) is Handle and isinstance(self, Part) else found

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
        if self._number != other._number and not (self._named and other._named):
            raise TypeError("objects of the tested code are compared only if the tests name their class")
        return self._number == other._number or self._peer.ask("eq", [self, other])

    def __ne__(self, other: object) -> Any:
        return not self == other

    def __hash__(self) -> int:
        return int(self._peer.ask("hash", [self])) if self._named else hash(self._number)

    def __repr__(self) -> str:
        raise TypeError("an object of the tested code has no text")

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

    def throw(self, error: BaseException) -> Any:
        raise error

    def close(self) -> None:
        pass

    def __await__(self) -> Any:
        yield from ()
        return self._peer.ask("await", [self])


collections.abc.Coroutine.register(Pending)


class Part(Handle):
    """An object of a class that the tests name, or an attribute of one: it is true, as an object is by default."""

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        return str(self._peer.ask("str", [self]))

    def __repr__(self) -> str:
        return str(self._peer.ask("repr", [self]))


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
            return _perform(name, self._peer.ask("plain", [self]), *args)
        return found

    return method


for _name in _SPECIAL:
    setattr(Object, f"__{_name}__", _special(_name))


def _perform(name: str, value: Any, *args: Any, **named: Any) -> Any:
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
    if name == "eq":
        return bool(value == args[0]) and not value != args[0]
    if name in ("lt", "gt"):
        return getattr(operator, name)(value, args[0]) and not getattr(operator, name)(args[0], value)
    if name == "iter":
        return (item for item in value)
    if name == "await":
        import asyncio

        return asyncio.run(value)
    if name in ("copy", "deepcopy"):
        return getattr(copy, name)(value)
    if word in vars(operator):
        return getattr(operator, word)(value, *args)
    if name in vars(builtins):
        return getattr(builtins, name)(value, *args)
    if name[1:] in _BINARY:
        return _perform(name[1:], args[0], value)
    return getattr(type(value), word)(value, *args)


class Peer:
    """One of the two processes.

    Args:
        channel: to the other one.
        names: what the other one may look up by name.
        guarded: whether this is the side of the tests, which trusts nothing of the other.
    """

    def __init__(self, channel: socket.socket, names: dict[str, Any], *, guarded: bool) -> None:
        self._channel, self._names, self.guarded = channel, names, guarded
        self.classes: set[int] = set()
        """Numbers of the classes that the tests name."""
        self._types: set[int] = set()
        self._kept: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}
        self._errors: dict[str, type[Exception]] = {}
        self._handles: dict[tuple[int, type], Handle] = {}

    def ask(self, operation: str, args: Sequence[Any], named: dict[str, Any] | None = None, made: bool = False) -> Any:
        """Have the other process do something with objects; raises what it raises there.

        Args:
            made: whether the tests make what comes back, if it is of a class that they name.
        """
        named = named or {}
        mutable = [value for value in (*args, *named.values()) if _is_mutable(value)]
        words = {key: self._encode(value) for key, value in named.items()}
        before = [self._encode(value) for value in mutable]
        self._send({"do": operation, "args": [self._encode(value) for value in args], "named": words})
        answer = self._serve()
        for value, sent, after in zip(mutable, before, answer.get("after", ()), strict=False):
            if after != sent:
                _become(value, self._decode(after))
        if "error" in answer:
            raise self._error(answer["error"])
        if answer.get("same") in range(len(mutable)):
            return mutable[answer["same"]]
        return self._decode(answer.get("value"), made)

    def look_up(self, name: str) -> Any:
        """What the other process has under a name."""
        return self.as_class(self.ask("name", [name]), name)

    def as_class(self, found: Any, name: str) -> Any:
        """Remember a class that the tests name, as classes are named: with a capital."""
        if isinstance(found, Handle) and found._number in self._types and name.lstrip("_")[:1].isupper():
            self.classes.add(found._number)
            return found if name.isupper() else self.handle(Object, found)
        return found

    def handle(self, kind: type[Handle], found: Handle) -> Handle:
        """Another view of an object of the other process."""
        return self._handles.setdefault((found._number, kind), kind(self, found._number, found._named))

    def serve(self) -> None:
        """Do what the other process asks for, until it ends."""
        try:
            self._serve()
        except EOFError:
            return

    def _serve(self) -> dict[str, Any]:
        """Serve requests until the answer to the own one comes."""
        while True:
            message = self._receive()
            if "do" not in message:
                return message
            self._send(self._do(message))

    def _do(self, message: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = {}
        args: list[Any] = []
        named: dict[str, Any] = {}
        try:
            args = [self._decode(value) for value in message["args"]]
            named = {key: self._decode(value) for key, value in message["named"].items()}
            if self.guarded and (message["do"] not in _SERVED or message["args"][0].get("is") != "yours"):
                raise TypeError("the tested code may use only what it was given")
            found = self._operate(message["do"], args, named)
            mutable = [value for value in (*args, *named.values()) if _is_mutable(value)]
            answer["same"] = next((at for at, value in enumerate(mutable) if value is found), None)
            answer["value"] = None if answer["same"] is not None else self._encode(found)
            if message["do"] == "call" and isinstance(answer["value"], dict):
                answer["value"].pop("exception", None)  # a class is one by name, not as a result
        except BaseException as error:
            answer["error"] = self._describe(error)
        try:
            answer["after"] = [self._encode(value) for value in (*args, *named.values()) if _is_mutable(value)]
        except RecursionError as error:
            answer = {"error": self._describe(error)}
        return answer

    def _operate(self, operation: str, args: list[Any], named: dict[str, Any]) -> Any:
        if operation == "name":
            return self._names[args[0]]
        if operation == "names":
            return [name for name in self._names if not name.startswith("__")]
        if operation == "plain":
            kind = plain.base(type(args[0]))
            if kind is None:
                raise TypeError(f"{type(args[0]).__name__} is no plain data")
            return plain.decode(plain.encode(args[0], self._encode_other, kind), self._decode_other)
        if self.guarded and operation.endswith("attr") and str(args[1]).startswith(_INNER) and args[1] != "__name__":
            raise AttributeError(args[1])
        return _perform(operation, *args, **named)

    def _encode(self, value: Any) -> Any:
        return plain.encode(value, self._encode_other)

    def _encode_other(self, value: Any) -> dict[str, Any]:
        kind = type(value)
        if issubclass(kind, Handle):
            return {"is": "yours", "of": value._number}
        called = getattr(value, "__name__", "") if kind is type else ""
        if called and vars(builtins).get(called) is value:
            return {"is": "type", "of": called}
        number = self._numbers.setdefault(id(value), len(self._numbers))
        self._kept[number] = value
        found: dict[str, Any] = {"is": "handle", "of": number}
        if kind is types.CoroutineType:
            found["is"] = "coroutine"
        elif hasattr(kind, "__next__") and kind.__module__ in ("builtins", "itertools"):
            found["is"] = "iterator"
        elif issubclass(kind, type):
            found["class"] = True
            if issubclass(value, Exception):
                found["exception"] = self._kinds(value)
        else:
            found["classes"] = [self._numbers[id(one)] for one in kind.__mro__ if id(one) in self._numbers]
            if (base := plain.base(kind)) is not None:
                found["plain"] = plain.encode(value, self._encode_other, base)
        return found

    def _decode(self, value: Any, made: bool = False) -> Any:
        if isinstance(value, dict) and value.get("is") == "handle":
            return self._decode_other(value, made)
        return plain.decode(value, self._decode_other)

    def _decode_other(self, value: dict[str, Any], made: bool = False) -> Any:
        name, number = value["is"], value["of"]
        if name == "yours":
            return self._kept[number]
        if name == "type":
            return next(kind for kind in (getattr(builtins, str(number)),) if isinstance(kind, type))
        if "exception" in value:
            return self._exception(value["exception"])
        named = not self.classes.isdisjoint(value.get("classes", ()))
        kind: type[Handle] = {"iterator": Items, "coroutine": Pending}.get(name, Part if named else Handle)
        if name == "handle" and (not self.guarded or (made and named)):
            kind = Object
        elif "plain" in value:
            return self._decode(value["plain"])
        if "class" in value:
            self._types.add(number)
        return self._handles.setdefault((number, kind), kind(self, number, named))

    def _describe(self, error: BaseException) -> dict[str, Any]:
        known = (None.__class__, bool, int, float, str)
        args = [self._encode(arg) if type(arg) in known else self._encode(repr(arg)) for arg in error.args]
        if not isinstance(error, Exception):  # SystemExit, say, must not end the other process
            return {"kinds": ["RuntimeError"], "args": [f"it raised {type(error).__name__}"]}
        fields = {name: self._encode(one) for name, one in vars(error).items() if type(one) in known}
        return {"kinds": self._kinds(type(error)), "args": args, "fields": fields}

    def _kinds(self, kind: type) -> list[str]:
        """The names of an exception's class and its bases, up to one of Python's own."""
        names = []
        for one in kind.__mro__:
            names.append(one.__name__)
            if getattr(builtins, one.__name__, None) is one:
                break
        return names

    def _error(self, described: dict[str, Any]) -> Exception:
        try:
            error = self._exception(described["kinds"])(*map(self._decode, described["args"]))
            for name, value in described.get("fields", {}).items():
                if not name.startswith("_"):
                    setattr(error, name, self._decode(value))
            return error
        except Exception as problem:
            return RuntimeError(f"an exception that cannot be told ({type(problem).__name__})")

    def _exception(self, kinds: list[str]) -> type[Exception]:
        """Python's exception of this name, or a class of the same name and bases here."""
        own = getattr(builtins, kinds[0], None)
        if isinstance(own, type) and issubclass(own, Exception) and len(kinds) == 1:
            return own
        if kinds[0] not in self._errors:
            self._errors[kinds[0]] = type(str(kinds[0]), (self._exception(kinds[1:]),), {})
        return self._errors[kinds[0]]

    def _send(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode()
        if len(data) > _LONGEST:
            raise ValueError("the values are too large to be passed on")
        self._channel.sendall(struct.pack("!I", len(data)) + data)

    def _receive(self) -> dict[str, Any]:
        (size,) = struct.unpack("!I", self._exactly(4))
        if size > _LONGEST:
            raise EOFError
        try:
            message = json.loads(self._exactly(size))
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise EOFError("the tested code has sent something else")
        return message

    def _exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            data = self._channel.recv(min(count - len(parts), 1 << 20))
            if not data:
                raise EOFError("the tested code has ended")
            parts += data
        return bytes(parts)


def is_same(one: Any, other: Any) -> bool:
    """Whether two handles stand for one object."""
    return isinstance(one, Handle) and isinstance(other, Handle) and bool(one._number == other._number)


def _is_mutable(value: Any) -> bool:
    return type(value) in _MUTABLE or type(value).__name__ == "ndarray"


def _become(value: Any, after: Any) -> None:
    """Give a container the content of another of its type: the tested code has changed its copy."""
    if type(value) is not type(after):
        return
    if isinstance(value, list | bytearray):
        value[:] = after
    elif type(value) in _MUTABLE:
        value.clear()
        (value.extend if isinstance(value, collections.deque) else value.update)(after)
    elif value.shape == after.shape:
        value[...] = after
