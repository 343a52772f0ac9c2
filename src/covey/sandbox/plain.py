"""Plain data as JSON, and back: what crosses between two processes that do not trust each other.

Only exact types of the table below come out of `decode`. An object of a type derived from one of them is written by
the base's own methods, whatever its class overrides. Arrays and data frames cross as their values, where numpy and
pandas are installed.
"""

import collections
import importlib
import sys
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

_TYPES: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    **{kind: (kind.hex, kind.fromhex) for kind in (bytes, bytearray)},
    **{kind: (kind.isoformat, kind.fromisoformat) for kind in (datetime, date, time)},
    **{kind: (kind.__str__, kind) for kind in (Decimal, Fraction)},
    **{kind: (kind.__iter__, kind) for kind in (tuple, set, frozenset, collections.deque)},
    **{kind: (kind.items, kind) for kind in (dict, collections.OrderedDict)},
    complex: (complex.__repr__, complex),
    int: (lambda value: int.__format__(value, "x"), lambda text: int(text, 16)),
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
_KINDS = (str, float, list, *_TYPES)
FIELDS = frozenset(["real", "imag", "numerator", "denominator", "shape", "ndim", "dtype", "T", "empty"])
"""Attributes of numbers and arrays by which a test may take an object for one."""
METHODS = {name for kind in _KINDS for name in dir(kind) if callable(getattr(kind, name))}
METHODS |= {"all", "any", "equals", "item", "tolist"}
"""Methods of plain data, likewise."""


def encode(value: Any, other: Callable[[Any], Any], kind: type | None = None) -> Any:
    """A value as JSON data; `other` writes what is no plain data. With a kind, as a value of that base."""
    kind = kind or type(value)
    if value is None or kind is bool:
        return value
    if kind in (str, float):
        return str.__str__(value) if kind is str else float.__float__(value)
    if kind is int and int.bit_length(value) < 64:  # the decimal digits of larger ones are limited
        return int.__int__(value)
    if kind is list:
        return [encode(part, other) for part in list.__iter__(value)]
    if kind is tuple and "_fields" in vars(type(value)):
        named = [type(value).__name__, list(map(str, type(value)._fields)), list(tuple.__iter__(value))]
        return {"is": "named", "of": encode(named, other)}
    if kind in _TYPES:
        found = _TYPES[kind][0](value)
        return {"is": kind.__name__, "of": encode(found if isinstance(found, str) else list(found), other)}
    name, parts = _array(value, kind)
    return {"is": name, "of": encode(parts, other)} if name else other(value)


def base(kind: type) -> type | None:
    """The plain type that a class derives from, if any."""
    return next((one for one in kind.__mro__[1:] if one in _KINDS), None)


def decode(value: Any, other: Callable[[dict[str, Any]], Any]) -> Any:
    """The value that `encode` wrote; `other` reads what another `other` wrote."""
    if isinstance(value, list):
        return [decode(part, other) for part in value]
    if not isinstance(value, dict):
        return value
    name, content = value["is"], value["of"]
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
    if pandas and issubclass(kind, pandas.DataFrame):
        return "frame", [[_column(value.iloc[:, at]) for at in range(value.shape[1])], value.columns, value.index]
    if pandas and issubclass(kind, pandas.Series):
        return "series", [[_column(value)], [value.name], value.index]
    if pandas and issubclass(kind, pandas.Index):
        return "index", [[_column(value.get_level_values(at)) for at in range(value.nlevels)], list(value.names), None]
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
    columns, names, index = content
    series = [library.Series(values, index, dtype) for values, dtype in columns]
    if name == "series":
        return series[0].rename(names[0])
    if name == "index":
        index = library.MultiIndex.from_arrays(series, names=names)
        return index if len(series) > 1 else library.Index(series[0], name=names[0])
    return library.DataFrame(dict(enumerate(series)), index).set_axis(names, axis=1)
