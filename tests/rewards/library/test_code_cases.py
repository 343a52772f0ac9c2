# ruff: noqa: E501  rows
"""Reading tests in the formats of data sets, by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from covey.errors import RewardError
from covey.rewards.library.code import Cases, read_cases

PAIRS = [{"input": "1 2", "output": "3"}, {"input": "4", "output": "5"}]
READ = Cases(pairs=(("1 2", "3"), ("4", "5")))
CALLS = Cases(source="assert f(*[1, 2]) == 3\nassert f(*['a']) == 'b'")
EITHER = Cases(source="assert f(*[1, 2]) in (3, [3])\nassert f(*['a']) in ('b', ['b'])")


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        ({"tests": PAIRS}, READ),
        ({"tests": json.dumps(PAIRS)}, READ),
        ({"tests": {"inputs": ["1 2", "4"], "outputs": ["3", "5"]}}, READ),
        ({"verification_info": {"language": "Python", "test_cases": [{**PAIRS[0], "type": "stdin_stdout"}, PAIRS[1]]}}, READ),
        ({"verification_info": json.dumps({"language": "cpp", "test_cases": PAIRS})}, Cases("cpp", READ.pairs)),
        ({"tests": PAIRS, "language": "Go"}, Cases("go", READ.pairs)),
        ({"tests": [{"input": ["1", "2"], "output": 3}]}, Cases(pairs=(("1\n2", "3"),))),
        ({"tests": [{"output": "x"}]}, Cases(pairs=(("", "x"),))),
        ({"tests": "assert f(1) == 2"}, Cases(source="assert f(1) == 2")),
        ({"test_list": ["assert f(1) == 2", "assert f(2) == 3"]}, Cases(source="assert f(1) == 2\nassert f(2) == 3")),
        ({"tests": {"fn_name": "f", "inputs": [[1, 2], ["a"]], "outputs": [[3], ["b"]]}}, EITHER),
        ({"tests": {"fn_name": "f", "inputs": [[1, 2], ["a"]], "outputs": [3, "b"]}}, CALLS),
        ({"tests": [{"fn_name": "f", "input": "1\n2", "output": "3"}, {"fn_name": "f", "input": '"a"', "output": '"b"'}]}, CALLS),
        ({"tests": None, "test_list": ["assert f(1) == 2"]}, Cases(source="assert f(1) == 2")),
        ({"official_tests": PAIRS, "generated_checker": None, "input_mode": "stdio", "language": "python"}, READ),
        ({"official_tests": PAIRS, "generated_checker": "import sys"}, None),
        ({"official_tests": PAIRS, "input_mode": "file"}, None),
        ({"test_names": ["a", "b"], "test_cases": [["1 2", "3"], ["4", "5"]], "grader_files": []}, READ),
        ({"test_cases": {"a": ["1 2", "3"], "b": ["4", "5"]}}, READ),
        ({"test_cases": [["1 2", "3"]], "grader_files": [["grader.cpp", "int main() {}"]]}, None),
        ({"tests": {"a": "x = 1", "b": "y = 2"}}, None),
        ({"tests": None}, None),
        ({"tests": []}, None),
        ({"tests": "not code at all"}, None),
        ({"tests": 7}, None),
        ({"tests": [{"input": "1"}]}, None),
        ({"tests": {"inputs": ["1"], "outputs": []}}, None),
        ({"tests": [{"fn_name": "os.system", "input": "1", "output": "3"}]}, None),
        ({"tests": [{"fn_name": "f", "input": "not json", "output": "3"}]}, None),
    ],
)  # fmt: skip
def test_formats(row: dict[str, Any], wanted: Cases | None) -> None:
    assert read_cases(row) == wanted


def test_the_language_of_rows_that_name_none() -> None:
    assert read_cases({"tests": PAIRS}, "cpp") == Cases("cpp", READ.pairs)
    assert read_cases({"tests": PAIRS, "language": "python"}, "cpp") == READ


def test_a_row_without_the_columns_is_a_mistake() -> None:
    with pytest.raises(RewardError, match=r"the data must have a column tests .*verification_info"):
        read_cases({"answer": "2", "prompt": "p"})
