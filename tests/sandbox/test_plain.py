"""What crosses between test code and tested code: exact plain types, whatever a derived type says of itself."""

from __future__ import annotations

import collections
import datetime
import json
from decimal import Decimal
from fractions import Fraction
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import pytest

from covey.sandbox.plain import base, decode, encode

Point = collections.namedtuple("Point", "x y")


def _refused(value: Any) -> NoReturn:
    raise TypeError(type(value).__name__)


def _crossed(value: Any, kind: type | None = None) -> Any:
    return decode(json.loads(json.dumps(encode(value, _refused, kind))), _refused)


VALUES = [
    *(
        None,
        True,
        False,
        0,
        -(2**63),
        2**63,
        -(9**300),
        0.1,
        -0.0,
        float("inf"),
        "",
        "a\ud800\n",
        b"\x00\xff",
        bytearray(b"x"),
    ),
    *([], [[1], (2,)], (1, [2]), {1, "a"}, frozenset({1}), {1: {2: 3}, (1,): None}, 1 - 2j),
    *(Fraction(-1, 3), Decimal("1.50"), range(1, 9, 2), collections.deque([1, [2]])),
    *(collections.OrderedDict(b=1, a=2), collections.Counter("aab"), collections.defaultdict(None, {1: [2]})),
    *(datetime.date(2020, 2, 29), datetime.time(1, 2, 3, 4), datetime.timedelta(days=-1, microseconds=5)),
    datetime.datetime(2020, 1, 2, 3, tzinfo=datetime.UTC),
]


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_a_value_is_itself_afterwards(value: Any) -> None:
    found = _crossed(value)
    assert type(found) is type(value)
    assert found == value
    assert repr(found) == repr(value)


def test_what_has_no_text_or_is_equal_to_nothing() -> None:
    assert _crossed(7**6000) == 7**6000
    assert np.isnan(_crossed(float("nan")))
    assert _crossed(Decimal("NaN")).is_nan()


def test_the_views_of_a_dictionary() -> None:
    numbers = {"a": 1, "b": 2}
    assert _crossed(numbers.keys()) == numbers.keys()
    assert _crossed(numbers.items()) == numbers.items()
    assert list(_crossed(numbers.values())) == [1, 2]


@pytest.mark.parametrize(
    "kind", [int, float, str, bytes, list, tuple, dict, set, frozenset, Fraction, Decimal, complex]
)
def test_a_derived_type_crosses_as_its_base_only(kind: type) -> None:
    def lies(*_: object) -> NoReturn:
        raise AssertionError

    names = "__iter__ __str__ __repr__ __int__ __float__ __index__ __len__ items keys hex __getitem__ __eq__ __bool__"
    derived = type(
        "Derived", (kind,), dict.fromkeys(set(names.split()) - ({"__str__"} if kind is Fraction else set()), lies)
    )
    plain: Any = {int: 3, float: 2.5, str: "x", bytes: b"x", dict: {1: 2}, complex: 1j}.get(kind)
    plain = kind([1, 2] if kind in (list, tuple, set, frozenset) else "1.5") if plain is None else plain
    value = derived(plain)
    with pytest.raises(TypeError, match="Derived"):
        _crossed(value)
    assert base(derived) is kind
    found = _crossed(value, kind)
    assert type(found) is kind
    assert found == plain


def test_a_named_tuple_keeps_its_names() -> None:
    found = _crossed(Point(1, [2]), base(Point))
    assert found == (1, [2])
    assert (found.x, found.y) == (1, [2])
    assert base(object) is None


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6).reshape(2, 3),
        np.arange(6.0).reshape(2, 3).T,
        np.zeros((0, 2), np.float32),
        np.array(["a", "bc"]),
        np.array([True, False]),
        np.array([1 + 2j]),
        np.array(["2020-01-01"], "M8[D]"),
        np.array([1, "x", None, (2, 3)], object),
        np.array(5),
        np.float64(0.1),
        np.int8(-3),
        np.bool_(True),
        np.str_("x"),
    ],
    ids=repr,
)
def test_arrays(array: Any) -> None:
    found = _crossed(array)
    assert type(found) is type(array)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(found, array)


def test_an_array_of_a_derived_type_is_an_array() -> None:
    class Yes(np.ndarray[Any, Any]):
        def __eq__(self, other: object) -> Any:
            return True

    found = _crossed(np.arange(3).view(Yes))
    assert type(found) is np.ndarray
    with pytest.raises(TypeError):
        _crossed(np.zeros(2, [("a", int)]))


FRAME = pd.DataFrame(
    {
        "i": [1, 2],
        "f": [0.5, np.nan],
        "s": ["x", None],
        "n": pd.array([1, None], "Int64"),
        "c": pd.Categorical(["u", "v"]),
        "t": pd.to_datetime(["2020-01-01", None]),
        "z": pd.to_datetime(["2020-01-01", "2021-01-01"], utc=True),
        "b": [True, False],
    }
)


@pytest.mark.parametrize(
    "frame",
    [
        FRAME,
        FRAME.set_index("s"),
        FRAME.set_index(["i", "b"]),
        FRAME[["i"]].T,
        pd.DataFrame(),
        FRAME.groupby("b")[["i"]].sum(),
    ],
)
def test_data_frames(frame: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(_crossed(frame), frame, check_column_type=False)


@pytest.mark.parametrize("name", FRAME.columns)
def test_series(name: str) -> None:
    pd.testing.assert_series_equal(_crossed(FRAME[name]), FRAME[name])
