"""`code`, `binary_code` and `code_format`: values by hand, alone and in worker processes."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from covey.answers import Outcome, Tags
from covey.errors import RewardError
from covey.rewards import RewardSettings, get_reward
from covey.rewards.library.code import code, code_format, extract_code
from covey.rewards.reward import CodeSettings
from covey.rewards.runner import RewardRunner

SETTINGS = RewardSettings(code=CodeSettings(timeout=2.0, commands=(("sh", "sh {file}"),)))
DOUBLE = "Twice it is.\n```python\nprint(2 * int(input()))\n```"
PAIRS = [{"input": "2", "output": "4\n"}, {"input": "5\n", "output": "10"}, {"input": "1", "output": "3"}]


def test_the_share_of_the_tests() -> None:
    found = code(DOUBLE, {"tests": PAIRS}, SETTINGS)
    assert found.value == pytest.approx(2 / 3)
    assert (found.outcome, found.detail) == (Outcome.WRONG, "2 right, 1 wrong")
    assert code(DOUBLE, {"tests": PAIRS[:2]}, SETTINGS).outcome is Outcome.RIGHT


def test_every_kind_of_outcome_is_told() -> None:
    source = (
        "n = int(input())\n"
        "if n == 1: print(1)\nif n == 2: print(3)\nif n == 3: 1 / 0\n"
        "if n == 4: x = [0] * 10 ** 9\nif n == 5:\n    while True: print('x' * 10 ** 5)\n"
        "if n == 6:\n    while True: pass"
    )
    tests = [{"input": str(n), "output": "1"} for n in range(1, 7)]
    found = code(f"```python\n{source}\n```", {"tests": tests}, SETTINGS)
    assert found.value == pytest.approx(1 / 6)
    assert sorted(found.detail.split(", ")) == sorted(
        ["1 right", "1 wrong", "1 failed", "1 out_of_memory", "1 too_much_output", "1 timed_out"]
    )


@pytest.mark.parametrize(
    ("printed", "wanted", "right"),
    [
        ("1 2\n3\n", "1 2\n3", True),
        (" 1 2 \r\n3\n\n", "1 2\n3", True),
        ("1  2\n3", "1 2\n3", False),
        ("12\n3", "1 2\n3", False),
    ],
)  # fmt: skip
def test_lines_are_compared_without_spaces_at_their_ends(printed: str, wanted: str, right: bool) -> None:
    source = f"import sys\nsys.stdout.write({printed!r})"
    found = code(f"```python\n{source}\n```", {"tests": [{"input": "", "output": wanted}]}, SETTINGS)
    assert found.value == float(right)


def test_asserts_and_calls() -> None:
    text = "```python\ndef add(a, b):\n    return a + b\n```"
    assert code(text, {"tests": "assert add(1, 2) == 3\nassert add(1, 2) == 4"}, SETTINGS).value == 0.5
    assert code(text, {"tests": {"fn_name": "add", "inputs": [[1, 2]], "outputs": [[3]]}}, SETTINGS).value == 1.0
    never = "```python\ndef add(a, b):\n    while True: pass\n```"
    assert code(never, {"tests": "assert add(1, 2) == 3"}, SETTINGS).detail == "1 timed_out"


@pytest.mark.parametrize(
    ("result", "value"),
    [("[0] * n", 1.0), ("list(range(n))", 0.5), ("0 if n == 1 else [0] * n", 1.0), ("0", 0.5), ("[]", 0.0)],
)
def test_an_expected_list_of_one_is_the_value_or_its_element(result: str, value: float) -> None:
    text = f"```python\ndef count(n):\n    return {result}\n```"
    tests = {"fn_name": "count", "inputs": [[1], [2]], "outputs": [[0], [0, 0]]}
    assert code(text, {"tests": tests}, SETTINGS).value == value


def test_what_cannot_be_graded() -> None:
    assert code("no program", {"tests": PAIRS}, SETTINGS).outcome is Outcome.UNPARSABLE_PREDICTION
    assert code("<think>\n" + DOUBLE + "\n</think>\nDone.", {"tests": PAIRS}, SETTINGS).value == 0.0
    none = code(DOUBLE, {"tests": None}, SETTINGS)
    assert (none.value, none.outcome) == (None, Outcome.UNPARSABLE_GOLD)


def test_another_language_by_its_command() -> None:
    text = "```sh\nread n\necho $((2 * n))\n```"
    row = {"tests": PAIRS, "language": "sh"}
    assert code(text, row, SETTINGS).value == pytest.approx(2 / 3)
    with pytest.raises(RewardError, match=r"programs in go, .*rewards\.code\.commands\.go"):
        code("```go\nx\n```", {**row, "language": "go"}, SETTINGS)


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\na\n```\n```python\nb\n```", "b\n"),
        ("```\na\n```", "a\n"),
        ("```py title=x\na\n```", "a\n"),
        ("```cpp\na\n```", None),
        ("```python\n\n```", None),
        ("<think>```python\na\n```</think>", None),
        ("print(1)", None),
        ("<answer>print(1)</answer>", "print(1)"),
        ("<answer>a</answer> ```cpp\nb\n```", None),
    ],
)
def test_the_last_block_after_thinking(text: str, program: str | None) -> None:
    assert extract_code(text, "python", Tags()) == program


def test_the_form_alone() -> None:
    assert code_format("```python\nx\n```", SETTINGS) == 1.0
    assert code_format("```\nx\n```", SETTINGS) == 0.0
    assert code_format("<think>```python\nx\n```</think> x", SETTINGS) == 0.0


def test_called_directly_with_columns() -> None:
    completions = [[{"role": "assistant", "content": text}] for text in (DOUBLE, "none")]
    columns: dict[str, Any] = {"tests": [PAIRS, PAIRS], "trainer_state": None}
    assert get_reward("code")(prompts=["p"] * 2, completions=completions, **columns) == pytest.approx([2 / 3, 0.0])
    assert get_reward("binary_code")(prompts=["p"], completions=[DOUBLE], tests=[PAIRS[:2]]) == [1.0]
    with pytest.raises(RewardError, match="one value of tests per completion"):
        get_reward("code")(prompts=["p"], completions=[DOUBLE], tests=PAIRS)


def test_codeforces_problems_as_open_r1_scores_them() -> None:
    """1 for all tests, plus a tenth of the share; -1 without a program; None where a checker decides."""
    completions = [DOUBLE, DOUBLE, "```python\nprint(0)\n```", "none", DOUBLE]
    tests = [PAIRS[:2], PAIRS, PAIRS, PAIRS, PAIRS]
    checkers = [None, "", None, None, "import sys"]
    found = get_reward("cf_code", SETTINGS)(
        prompts=["p"] * 5, completions=completions, official_tests=tests, generated_checker=checkers
    )
    assert found == [pytest.approx(1.1), pytest.approx(0.2 / 3), 0.0, -1.0, None]
    assert get_reward("cf_code_reward", SETTINGS).__name__ == "cf_code"


def test_ioi_problems_count_whole() -> None:
    tests = [[["2", "4"], ["5", "10"]], [["2", "4"], ["5", "11"]]]
    found = get_reward("ioi_code", SETTINGS)(prompts=["p"] * 2, completions=[DOUBLE] * 2, test_cases=tests)
    assert found == [1.0, 0.0]


CPP = "```cpp\n#include <iostream>\nint main() { int n; std::cin >> n; std::cout << 2 * n; }\n```"


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_programs_in_cpp_are_compiled_in_the_sandbox() -> None:
    settings = RewardSettings(code=CodeSettings(language="cpp", timeout=20.0))
    row = {"tests": [{"input": "2", "output": "4"}, {"input": "2", "output": "5"}]}
    assert code(CPP, row, settings).detail == "1 right, 1 wrong"
    assert code("```cpp\nint main({}\n```", row, settings).detail == "2 failed"
    assert code(DOUBLE, row, settings).outcome is Outcome.UNPARSABLE_PREDICTION


def test_a_language_without_a_command_is_refused_at_once() -> None:
    with pytest.raises(
        RewardError, match=r"programs in go, and there is no command for it: set rewards\.code\.commands"
    ):
        get_reward("code", RewardSettings(code=CodeSettings(language="go")))
    get_reward("code", RewardSettings(code=CodeSettings(language="go", commands=(("go", "go run {file}"),))))


def test_in_worker_processes_one_run_serves_both_rewards() -> None:
    logged: dict[str, Any] = {}
    columns = {"tests": [PAIRS, PAIRS[:2], None], "log_extra": logged.__setitem__, "log_metric": logged.__setitem__}
    with RewardRunner(["code", "binary_code", "code_format"], SETTINGS, workers=2) as runner:
        completions = [DOUBLE, DOUBLE + " ", DOUBLE]
        share, binary, form = (function(["p"] * 3, completions, **columns) for function in runner.functions)
        assert runner.pool.counts["graded"] == 3
    assert share == [pytest.approx(2 / 3), 1.0, None]
    assert binary == [0.0, 1.0, None]
    assert form == [1.0, 1.0, 1.0]
    assert logged["code_tests"] == ["2 right, 1 wrong", "2 right", ""]
    assert logged["grader/right"] == pytest.approx(1 / 3)


def test_columns_that_are_missing_are_named() -> None:
    with RewardRunner(["code"], SETTINGS) as runner, pytest.raises(RewardError, match=r"a column tests \(or "):
        runner.functions[0](["p"], [DOUBLE], answer=["2"])
