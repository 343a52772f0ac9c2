"""Plain data as JSON, and back: what crosses between two processes that do not trust each other.

Only exact types of the tables below come out of `decode`. An object of a type derived from one of them is written by
the base's own methods, whatever its class overrides. Arrays and data frames cross as their buffers, where numpy and
pandas are installed.

Also runs inside sandboxes, so it imports the standard library only.
"""

import collections
import datetime
import decimal
import fractions
import importlib
import sys
from collections.abc import Callable
from typing import Any

_WIDE = 1 << 63  # larger integers are written in hexadecimal: their decimal digits are limited
_TEXTS: dict[type, tuple[str, Callable[[Any], str], Callable[[str], Any]]] = {
    bytes: ("bytes", bytes.hex, bytes.fromhex),
    bytearray: ("bytearray", bytearray.hex, bytearray.fromhex),
    complex: ("complex", complex.__repr__, complex),
    decimal.Decimal: ("decimal", decimal.Decimal.__str__, decimal.Decimal),
    fractions.Fraction: ("fraction", fractions.Fraction.__str__, fractions.Fraction),
    datetime.datetime: ("datetime", datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    datetime.date: ("date", datetime.date.isoformat, datetime.date.fromisoformat),
    datetime.time: ("time", datetime.time.isoformat, datetime.time.fromisoformat),
}
"""Types with a text of their own: a name, and functions to and from the text."""
_PARTS: dict[type, tuple[str, Callable[[Any], Any], Callable[[list[Any]], Any]]] = {
    **{kind: (kind.__name__, kind.__iter__, kind) for kind in (tuple, set, frozenset, collections.deque)},
    range: ("range", lambda value: (value.start, value.stop, value.step), lambda parts: range(*parts)),
    datetime.timedelta: (
        "timedelta",
        lambda value: (value.days, value.seconds, value.microseconds),
        lambda parts: datetime.timedelta(*parts),
    ),
    dict: ("dict", dict.items, dict),
    collections.OrderedDict: ("ordered", collections.OrderedDict.items, collections.OrderedDict),
    collections.Counter: ("counter", dict.items, lambda parts: collections.Counter(dict(parts))),
    collections.defaultdict: ("default", dict.items, lambda parts: collections.defaultdict(None, parts)),
    type({}.keys()): ("keys", iter, lambda parts: dict.fromkeys(parts).keys()),
    type({}.values()): ("values", iter, lambda parts: dict(enumerate(parts)).values()),
    type({}.items()): ("items", iter, lambda parts: dict(parts).items()),
}
"""Types that hold others: a name, the parts of a value, and the value of parts."""
_MADE = {name: make for table in (_TEXTS, _PARTS) for name, _, make in table.values()}
_KINDS = (str, int, float, list, *_TEXTS, *_PARTS)
FIELDS = frozenset(["real", "imag", "numerator", "denominator", "shape", "ndim", "dtype", "T", "empty"])
"""Attributes of numbers and arrays by which a test may take an object for one."""
METHODS = {name for kind in _KINDS for name in dir(kind) if callable(getattr(kind, name))}
METHODS |= {"all", "any", "equals", "item", "tolist"}
"""Methods of plain data, likewise."""


def encode(value: Any, other: Callable[[Any], Any], kind: type | None = None) -> Any:
    """A value as JSON data; `other` writes what is no plain data. With a kind, as a value of that base."""
    derived, kind = kind is not None, kind or type(value)
    if value is None or kind is bool:
        return value
    if kind in (str, float):
        return str.__str__(value) if kind is str else float.__float__(value)
    if kind is int:
        whole = int.__int__(value)
        return whole if -_WIDE < whole < _WIDE else {"is": "int", "of": hex(whole)}
    if kind is list:
        return [encode(part, other) for part in list.__iter__(value)]
    if kind in _TEXTS:
        return {"is": _TEXTS[kind][0], "of": _TEXTS[kind][1](value)}
    if kind in _PARTS:
        return {"is": _PARTS[kind][0], "of": [encode(part, other) for part in _PARTS[kind][1](value)]}
    if derived and "_fields" in vars(kind):
        parts = [encode(part, other) for part in tuple.__iter__(value)]
        return {"is": "named", "of": [kind.__name__, list(map(str, vars(kind)["_fields"])), parts]}
    return _encode_array(value, kind, other)


def base(kind: type) -> type | None:
    """The plain type that a class derives from, if any; for a named tuple, the class itself."""
    if "_fields" in vars(kind) and kind.__mro__[1:2] == (tuple,):
        return kind
    return next((one for one in kind.__mro__[1:] if one in _KINDS), None)


def decode(value: Any, other: Callable[[dict[str, Any]], Any]) -> Any:
    """The value that `encode` wrote; `other` reads what another `other` wrote."""
    if isinstance(value, list):
        return [decode(part, other) for part in value]
    if not isinstance(value, dict):
        return value
    name, content = value["is"], value["of"]
    if name == "int":
        return int(content, 16)
    if name in _MADE:
        return _MADE[name](decode(content, other))
    if name == "named":
        return collections.namedtuple(content[0], content[1])(*decode(content[2], other))
    if name in ("array", "series", "index", "frame"):
        return _decode_array(name, decode(content, other))
    return other(value)


def _encode_array(value: Any, kind: type, other: Callable[[Any], Any]) -> Any:
    numpy, pandas = sys.modules.get("numpy"), sys.modules.get("pandas")
    found: list[Any] = []
    name = "array"
    if numpy and issubclass(kind, (numpy.ndarray, numpy.generic)):
        array = numpy.asarray(value)
        if array.dtype.kind in "biufcSUmMO":
            data = array.ravel().tolist() if array.dtype.kind == "O" else array.tobytes()
            found = [array.dtype.str, array.shape, data, issubclass(kind, numpy.generic)]
    elif pandas and issubclass(kind, pandas.DataFrame):
        columns = [_column(value.iloc[:, at]) for at in range(value.shape[1])]
        name, found = "frame", [value.columns, value.index, columns]
    elif pandas and issubclass(kind, (pandas.Series, pandas.Index)):
        name = "series" if issubclass(kind, pandas.Series) else "index"
        found = [*_column(value), *([value.index, value.name] if name == "series" else [list(value.names)])]
    return {"is": name, "of": encode(found, other)} if found else other(value)


def _column(data: Any) -> list[Any]:
    """Values and their type: an array, or a list for a type of pandas' own."""
    numpy, pandas = sys.modules["numpy"], sys.modules["pandas"]
    if isinstance(data.dtype, numpy.dtype):
        return [data.to_numpy(), str(data.dtype)]
    values = data.astype(str) if data.dtype.kind == "M" else data
    return [[None if one is pandas.NA else one for one in values.tolist()], str(data.dtype)]


def _decode_array(name: str, content: list[Any]) -> Any:
    library: Any = importlib.import_module("numpy" if name == "array" else "pandas")
    if name == "array":
        dtype, shape, data, scalar = content
        array = library.empty(len(data), object) if dtype == "|O" else library.frombuffer(data, dtype).copy()
        if dtype == "|O":
            array[:] = data
        return array.reshape(shape)[()] if scalar else array.reshape(shape)
    if name == "series":
        return library.Series(content[0], dtype=content[1], index=content[2], name=content[3])
    if name == "index" and len(content[2]) > 1:
        return library.MultiIndex.from_tuples(content[0], names=content[2])
    if name == "index":
        return library.Index(content[0], dtype=content[1], name=content[2][0])
    series = [library.Series(values, dtype=dtype, index=content[1]) for values, dtype in content[2]]
    frame = library.DataFrame(dict(enumerate(series)), index=content[1])
    frame.columns = content[0]
    return frame
