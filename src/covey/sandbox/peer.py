"""Calls between two processes that do not trust each other, and share plain data only.

Also runs inside sandboxes, so it imports the standard library and its neighbours only.
"""

import builtins
import collections
import json
import socket
import struct
import types
from collections.abc import Sequence
from typing import Any

from covey.sandbox import plain
from covey.sandbox.handles import SPECIAL, Handle, Items, Object, Part, Pending, perform

_LONGEST = 1 << 26  # bytes of a message
_MUTABLE = (list, dict, set, bytearray, collections.deque)
_SERVED = {*SPECIAL, "call", "getattr", "setattr", "delattr", "str", "repr", "hash", "eq", "isinstance", "await"}
"""What the tested code may do with an object of the tests."""
_INNER = ("_", "gi_", "cr_", "ag_", "f_", "tb_", "co_", "func_")
"""How attributes begin that lead from an object of the tests into their interpreter."""


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
        sent = [self._encode(value) for value in args]
        words = {key: self._encode(value) for key, value in named.items()}
        self._send({"do": operation, "args": sent, "named": words})
        answer = self._serve()
        for value, after in zip(mutable, answer.get("after", ()), strict=False):
            if after not in (*sent, *words.values()):
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
        return self._handles.setdefault((found._number, kind), kind(self, found._number, found._classes))

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
        return perform(operation, *args, **named)

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
        classes = frozenset(value.get("classes", ()))
        classes = classes & self.classes if self.guarded else frozenset({-1})
        kind: type[Handle] = {"iterator": Items, "coroutine": Pending}.get(name) or (Part if classes else Handle)
        if name == "handle" and (not self.guarded or (made and classes)):
            kind = Object
        elif "plain" in value:
            return self._decode(value["plain"])
        if "class" in value:
            self._types.add(number)
        return self._handles.setdefault((number, kind), kind(self, number, classes))

    def _describe(self, error: BaseException) -> dict[str, Any]:
        known = (None.__class__, bool, int, float, str)
        args = [self._encode(arg) if type(arg) in known else self._encode(repr(arg)) for arg in error.args]
        if not isinstance(error, Exception):  # SystemExit, say, must not end the other process
            return {"kinds": ["RuntimeError"], "args": [f"it raised {type(error).__name__}"]}
        fields = {name: self._encode(one) for name, one in vars(error).items() if type(one) in known}
        return {"kinds": self._kinds(type(error)), "args": args, "fields": fields}

    def _kinds(self, kind: type) -> list[str]:
        """The names of an exception's class and its bases, up to one of Python's own."""
        names = [one.__name__ for one in kind.__mro__]
        own = next(at for at, one in enumerate(kind.__mro__) if vars(builtins).get(one.__name__) is one)
        return names[: own + 1]

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
