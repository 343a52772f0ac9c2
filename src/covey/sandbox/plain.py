"""Plain data as JSON, and back: what crosses between two processes that do not trust each other.

Only exact types of the table below come out of `decode`. An object of a type derived from one of them is written by
the base's own methods, whatever its class overrides. Arrays and data frames cross as their values, where numpy and
pandas are installed.

Also runs inside sandboxes, so it imports the standard library only.
"""

import collections
import importlib
import sys
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

_WIDE = 1 << 63  # larger integers are written in hexadecimal: their decimal digits are limited
_TYPES: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    **{kind: (kind.hex, kind.fromhex) for kind in (bytes, bytearray)},
    **{kind: (kind.isoformat, kind.fromisoformat) for kind in (datetime, date, time)},
    **{kind: (kind.__str__, kind) for kind in (Decimal, Fraction)},
    **{kind: (kind.__iter__, kind) for kind in (tuple, set, frozenset, collections.deque)},
    **{kind: (kind.items, kind) for kind in (dict, collections.OrderedDict)},
    complex: (complex.__repr__, complex),
    range: (lambda value: (value.start, value.stop, value.step), lambda parts: range(*parts)),
    timedelta: (lambda value: (value.days, value.seconds, value.microseconds), lambda parts: timedelta(*parts)),
    collections.Counter: (dict.items, lambda parts: collections.Counter(dict(parts))),
    collections.defaultdict: (dict.items, lambda parts: collections.defaultdict(None, parts)),
    type({}.keys()): (iter, lambda parts: dict.fromkeys(parts).keys()),
    type({}.values()): (iter, lambda parts: dict(enumerate(parts)).values()),
    type({}.items()): (iter, lambda parts: dict(parts).items()),
}
"""Types, and functions to and from a text or the parts of a value."""
_MADE = {kind.__name__: make for kind, (_, make) in _TYPES.items()}
_KINDS = (str, int, float, list, *_TYPES)
FIELDS = frozenset(["real", "imag", "numerator", "denominator", "shape", "ndim", "dtype", "T", "empty"])
"""Attributes of numbers and arrays by which a test may take an object for one."""
METHODS = {name for kind in _KINDS for name in dir(kind) if callable(getattr(kind, name))}
METHODS |= {"all", "any", "equals", "item", "tolist"}
"""Methods of plain data, likewise."""


def encode(value: Any, other: Callable[[Any], Any], kind: type | None = None) -> Any:
    """A value as JSON data; `other` writes what is no plain data. With a kind, as a value of that base."""
    name, found, derived = "", None, kind is not None
    kind = kind or type(value)
    if value is None or kind is bool:
        return value
    if kind in (str, float):
        return str.__str__(value) if kind is str else float.__float__(value)
    if kind is int:
        whole = int.__int__(value)
        return whole if -_WIDE < whole < _WIDE else {"is": "int", "of": hex(whole)}
    if kind is list:
        return [encode(part, other) for part in list.__iter__(value)]
    if kind in _TYPES:
        found = _TYPES[kind][0](value)
        name, found = kind.__name__, found if isinstance(found, str) else list(found)
    elif derived:
        name, found = "named", [kind.__name__, list(map(str, vars(kind)["_fields"])), list(tuple.__iter__(value))]
    else:
        name, found = _array(value, kind)
    return {"is": name, "of": encode(found, other)} if name else other(value)


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
        return _decode_array(name, *decode(content, other))
    return other(value)


def _array(value: Any, kind: type) -> tuple[str, list[Any]]:
    """The name and the parts of an array or of a data frame, and of nothing else."""
    numpy, pandas = sys.modules.get("numpy"), sys.modules.get("pandas")
    if numpy and issubclass(kind, (numpy.ndarray, numpy.generic)):
        array = numpy.asarray(value)
        if array.dtype.kind in "biufcSUmMO":
            data = array.ravel().tolist() if array.dtype.kind == "O" else bytearray(array.tobytes())
            return "array", [array.dtype.str, array.shape, data, issubclass(kind, numpy.generic)]
    elif pandas and issubclass(kind, pandas.DataFrame):
        columns = [_column(value.iloc[:, at]) for at in range(value.shape[1])]
        return "frame", [columns, value.index, value.columns]
    elif pandas and issubclass(kind, pandas.Series):
        return "series", [_column(value), value.index, value.name]
    elif pandas and issubclass(kind, pandas.Index):
        return "index", [[_column(value.get_level_values(at)) for at in range(value.nlevels)], list(value.names)]
    return "", []


def _column(data: Any) -> list[Any]:
    """Its values as plain data, and their type."""
    values = (data.astype(str) if data.dtype.kind in "mM" else data).tolist()
    return [[None if one is sys.modules["pandas"].NA else one for one in values], str(data.dtype)]


def _decode_array(name: str, *content: Any) -> Any:
    library: Any = importlib.import_module("numpy" if name == "array" else "pandas")
    if name == "array":
        dtype, shape, data, scalar = content
        array = (library.fromiter if dtype == "|O" else library.frombuffer)(data, dtype).reshape(shape)
        return array[()] if scalar else array
    columns, index, *named = content
    if name == "series":
        return library.Series(columns[0], index, columns[1], name=named[0])
    if name == "index":
        levels = [library.Index(values, dtype) for values, dtype in columns]
        return library.MultiIndex.from_arrays(levels, names=index) if len(levels) > 1 else levels[0].rename(index[0])
    parts = {at: library.Series(values, index, dtype) for at, (values, dtype) in enumerate(columns)}
    return library.DataFrame(parts, index).set_axis(named[0], axis=1)
