"""Calls between two processes that do not trust each other, and share plain data only.

Also runs inside sandboxes, so it imports the standard library only.
"""

import builtins
import collections
import copy
import datetime
import decimal
import fractions
import json
import operator
import socket
import struct
import types
from collections.abc import Callable
from typing import Any

_LONGEST = 1 << 26  # bytes of a message
_WIDE = 1 << 63  # larger integers are written in hexadecimal
_SINGLE: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    bytes: ("bytes", bytes.hex, bytes.fromhex),
    bytearray: ("bytearray", bytearray.hex, bytearray.fromhex),
    complex: ("complex", repr, complex),
    decimal.Decimal: ("decimal", str, decimal.Decimal),
    fractions.Fraction: ("fraction", str, fractions.Fraction),
    datetime.date: ("date", datetime.date.isoformat, datetime.date.fromisoformat),
    datetime.time: ("time", datetime.time.isoformat, datetime.time.fromisoformat),
    datetime.datetime: ("datetime", datetime.datetime.isoformat, datetime.datetime.fromisoformat),
}
"""Types of a single value: their names, and functions to and from text."""
_SEVERAL: dict[type, str] = {
    list: "list",
    tuple: "tuple",
    set: "set",
    frozenset: "frozenset",
    collections.deque: "deque",
    range: "range",
    datetime.timedelta: "timedelta",
}
_PAIRS: dict[type, str] = {
    dict: "dict",
    collections.OrderedDict: "ordered",
    collections.Counter: "counter",
    collections.defaultdict: "default",
}
_BY_NAME: dict[str, Any] = {name: kind for kind, (name, _, _) in _SINGLE.items()}
_BY_NAME |= {name: kind for kind, name in (*_SEVERAL.items(), *_PAIRS.items())}
_NUMBERS = (int, float, complex, decimal.Decimal, fractions.Fraction)
_BASES = (*_SEVERAL, *_PAIRS, *_NUMBERS, str, bytes, bytearray)
_MUTABLE = (list, dict, set, bytearray, collections.deque)
_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor", "lshift", "rshift")
_ORDER = ("lt", "le", "gt", "ge")
_UNARY = ("abs", "int", "float", "round", "neg", "pos", "bool", "index")


def _swapped(operation: str) -> Callable[[Any, Any], Any]:
    return lambda right, left: getattr(operator, operation)(left, right)


def _await(coroutine: Any) -> Any:
    import asyncio

    return asyncio.run(coroutine)


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda function, *args, **named: function(*args, **named),
    "getattr": getattr,
    "setattr": setattr,
    "next": next,
    "hash": hash,
    "isinstance": lambda kind, value: isinstance(value, kind),
    **{name: getattr(builtins, name) for name in ("len", "iter", "str", "repr", "bool")},
    **{name: getattr(builtins, name) for name in ("abs", "int", "float", "round")},
    **{name: getattr(operator, name) for name in ("getitem", "setitem", "delitem", "contains", "neg", "pos", "invert")},
    **{name: getattr(operator, name) for name in ("eq", "ne", "index", *_ORDER, *_BINARY)},
    **{f"r{name}": _swapped(name) for name in _BINARY},
    **{f"i{name}": getattr(operator, f"i{name.rstrip('_')}") for name in _BINARY},
    **{"divmod": divmod, "reversed": reversed, "format": format, "deepcopy": lambda value, _: copy.deepcopy(value)},
    **{
        "copy": copy.copy,
        "delattr": delattr,
        "issubclass": lambda kind, value: issubclass(value, kind),
        "await": _await,
    },
    "enter": lambda context: type(context).__enter__(context),
    "exit": lambda context, *_: type(context).__exit__(context, None, None, None),
}
_SPECIAL = {
    **{
        name: name for name in ("len", "iter", "next", "str", "repr", "hash", "call", "enter", "exit", *_UNARY, *_ORDER)
    },
    **{name: name for name in ("getitem", "setitem", "delitem", "contains", "invert", "divmod", "reversed", "format")},
    **{name: name for name in ("copy", "deepcopy", "delattr")},
    **{f"{side}{name.rstrip('_')}": f"{side}{name}" for name in _BINARY for side in ("", "r", "i")},
    "subclasscheck": "issubclass",
}
"""Special methods, without their underscores, and the operations that they stand for."""
_INNER = ("_", "gi_", "cr_", "ag_", "f_", "tb_", "co_", "func_")
"""How attributes begin that lead from an object of the tests into their interpreter."""


class Handle:
    """An object of the other process."""

    __slots__ = ("_base", "_differs", "_number", "_peer")

    def __init__(self, peer: "Peer", number: int) -> None:
        for name, value in (("_peer", peer), ("_number", number), ("_base", None), ("_differs", False)):
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        return self._peer.ask("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._peer.ask("setattr", self, name, value)

    def __eq__(self, other: object) -> Any:
        if isinstance(other, Handle) or not self._peer.guarded:
            return self._peer.ask("eq", self, other)
        return self._base is not None and self._base == other

    def _computed(self, operation: str, number: Any, found: Any) -> Any:
        """What the tested code says to come of this and a number, which may be the expected one of a test."""
        if isinstance(found, Handle):
            if "sub" in operation:
                object.__setattr__(found, "_differs", True)
            return found
        if isinstance(self._base, _NUMBERS):
            return _OPERATIONS[operation](self._base, number)
        raise TypeError("an object of the tested code is no number")

    def __ne__(self, other: object) -> Any:
        return not self == other

    def __instancecheck__(self, value: object) -> Any:
        return isinstance(value, Handle) and self._peer.ask("isinstance", self, value)

    __hash__ = None  # type: ignore[assignment]  # set below


_COMPUTING = {*_ORDER, *_UNARY, *(f"{side}{name}" for name in _BINARY for side in ("", "r", "i"))}


def _special(operation: str) -> Any:
    def method(self: Handle, *args: Any, **named: Any) -> Any:
        if operation == "exit":
            args = ()
        number = args[0] if args and isinstance(args[0], _NUMBERS) else None
        if not self._peer.guarded or operation not in _COMPUTING:
            return self._peer.ask(operation, self, *args, **named)
        if self._differs and (number is not None or operation in _UNARY):
            raise TypeError("what the tested code says to be the difference from a number counts as no number")
        if number is not None and operation in _ORDER and isinstance(self._base, _NUMBERS):
            return _OPERATIONS[operation](self._base, number)
        found = self._peer.ask(operation, self, *args, **named)
        if number is not None and operation not in (*_ORDER, *_UNARY):
            found = self._computed(operation, number, found)
        return found

    return method


for _name, _operation in _SPECIAL.items():
    setattr(Handle, f"__{_name}__", _special(_operation))


class Peer:
    """One of the two processes.

    Args:
        channel: to the other one.
        names: what the other one may look up by name.
        guarded: whether this is the side of the tests, which trusts nothing of the other.
    """

    def __init__(self, channel: socket.socket, names: dict[str, Any], *, guarded: bool) -> None:
        self._channel, self._names, self.guarded = channel, names, guarded
        self._kept: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}
        self._errors: dict[str, type[Exception]] = {}
        self._handles: dict[int, Handle] = {}

    def ask(self, operation: str, *args: Any, **named: Any) -> Any:
        """Have the other process do something with objects; raises what it raises there."""
        mutable = [value for value in (*args, *named.values()) if type(value) in _MUTABLE]
        words = {key: self._encode(value) for key, value in named.items()}
        self._send({"do": operation, "args": [self._encode(value) for value in args], "named": words})
        answer = self._serve()
        for value, after in zip(mutable, answer.get("after", ()), strict=False):
            _become(value, self._decode(after))
        if "error" in answer:
            raise self._error(answer["error"])
        if answer.get("same") in range(len(mutable)):
            return mutable[answer["same"]]
        return self._decode(answer.get("value"))

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
            if self.guarded and message["args"][0].get("is") != "yours":
                raise TypeError("the tested code may use only what it was given")
            found = self._operate(message["do"], args, named)
            mutable = [value for value in (*args, *named.values()) if type(value) in _MUTABLE]
            answer["same"] = next((at for at, value in enumerate(mutable) if value is found), None)
            answer["value"] = None if answer["same"] is not None else self._encode(found)
        except BaseException as error:
            answer["error"] = self._describe(error)
        try:
            answer["after"] = [self._encode(value) for value in (*args, *named.values()) if type(value) in _MUTABLE]
        except RecursionError as error:
            answer = {"error": self._describe(error)}
        return answer

    def _operate(self, operation: str, args: list[Any], named: dict[str, Any]) -> Any:
        if operation == "name":
            return self._names[args[0]]
        if operation == "names":
            return [name for name in self._names if not name.startswith("__")]
        if self.guarded and operation.endswith("attr") and str(args[1]).startswith(_INNER):
            raise AttributeError(args[1])
        return _OPERATIONS[operation](*args, **named)

    def _encode(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind in (bool, str):
            return value
        if kind is int:
            return value if -_WIDE < value < _WIDE else {"is": "int", "of": hex(value)}
        if kind is float:
            return {"is": "float", "of": value.hex()}
        if kind in _SINGLE:
            name, write, _ = _SINGLE[kind]
            return {"is": name, "of": write(value)}
        if kind in _SEVERAL:
            parts: Any = value
            if kind is range:
                parts = (value.start, value.stop, value.step)
            elif kind is datetime.timedelta:
                parts = (value.days, value.seconds, value.microseconds)
            return {"is": _SEVERAL[kind], "of": [self._encode(part) for part in parts]}
        if kind in _PAIRS:
            return {"is": _PAIRS[kind], "of": [[self._encode(a), self._encode(b)] for a, b in value.items()]}
        if kind is Handle:
            return {"is": "yours", "of": value._number}
        called = getattr(value, "__name__", "") if kind is type else ""
        if called and vars(builtins).get(called) is value:
            return {"is": "type", "of": called}
        number = self._numbers.setdefault(id(value), len(self._numbers))
        self._kept[number] = value
        found = {"is": "handle", "of": number}
        base: Any = next((b for b in kind.__mro__[1:] if b in _BASES and b not in (range, datetime.timedelta)), None)
        if kind in (type({}.keys()), type({}.items())):
            base = set
        if base is not None:
            found["base"] = self._encode(_plain(base, value))
        if kind is types.CoroutineType:
            found["coroutine"] = True
        if isinstance(value, type) and issubclass(value, Exception):
            found["exception"] = self._kinds(value)
        return found

    def _decode(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        name, content = value["is"], value["of"]
        if name == "int":
            return int(content, 16)
        if name == "float":
            return float.fromhex(content)
        if name == "yours":
            return self._kept[content]
        if name == "type":
            return next(kind for kind in (getattr(builtins, str(content)),) if isinstance(kind, type))
        if name == "handle":
            if "exception" in value:
                return self._exception(value["exception"])
            handle = self._handles.setdefault(content, Handle(self, content))
            object.__setattr__(handle, "_base", self._decode(value["base"]) if "base" in value else None)
            return self._coroutine(handle) if "coroutine" in value else handle
        kind = _BY_NAME[name]
        if kind in _SINGLE:
            return _SINGLE[kind][2](content)
        if kind in _SEVERAL:
            parts = [self._decode(part) for part in content]
            return kind(*parts) if kind in (range, datetime.timedelta) else kind(parts)
        pairs = {self._decode(a): self._decode(b) for a, b in content}
        return collections.defaultdict(None, pairs) if kind is collections.defaultdict else kind(pairs)

    async def _coroutine(self, handle: Handle) -> Any:
        """Stands for a coroutine of the other process, which runs to its end there."""
        return self.ask("await", handle)

    def _describe(self, error: BaseException) -> dict[str, Any]:
        plain = (None.__class__, bool, int, float, str)
        args = [self._encode(arg) if type(arg) in plain else self._encode(repr(arg)) for arg in error.args]
        if not isinstance(error, Exception):  # SystemExit, say, must not end the other process
            return {"kinds": ["RuntimeError"], "args": [f"it raised {type(error).__name__}"]}
        fields = {name: self._encode(one) for name, one in vars(error).items() if type(one) in plain}
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


def _plain(base: Any, value: Any) -> Any:
    """A value of a derived type as one of its base, whatever its own methods say."""
    if base is str:
        return str.__str__(value)
    if base in (int, float):
        return base.__add__(value, base(0))
    return base(value)


def _become(value: Any, after: Any) -> None:
    """Give a container the content of another of its type: the tested code has changed its copy."""
    if type(value) is not type(after) or value == after:
        return
    if isinstance(value, list | bytearray):
        value[:] = after
    else:
        value.clear()
        (value.extend if isinstance(value, collections.deque) else value.update)(after)
