"""The tool `python`: what the model reads of a program. The limits are tested with the runner."""

from __future__ import annotations

import pytest

from covey.environments.contract import check_environment, check_tool
from covey.environments.library import Python, python


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("print('a')\n6 * 7", "a\n42"),
        ("x = 1", "(no output)"),
        ("print('half', flush=True)\nimport os; os._exit(3)", "half"),
        ("import os; os._exit(3)", "error: it ended with exit code 3"),
        ("print('half', flush=True)\nimport os; os.kill(os.getpid(), 9)", "half\nerror: it was ended by SIGKILL"),
    ],
)
def test_what_the_model_reads(code: str, shown: str) -> None:
    assert python(code) == shown


def test_an_error_is_shown_as_python_shows_it() -> None:
    shown = python("def f():\n    return 1 / 0\nf()")
    assert "return 1 / 0" in shown
    assert shown.endswith("ZeroDivisionError: division by zero")
    assert "bootstrap" not in shown
    assert "<string>" not in shown


def test_a_program_that_never_ends_is_told_so() -> None:
    environment = Python(seconds=0.3)
    environment.reset(prompt="x")
    assert environment.python("print('begun', flush=True)\nwhile True: pass") == (
        "begun\nerror: it ran longer than 0.3 seconds"
    )


def test_nothing_is_kept_from_call_to_call() -> None:
    python("x = 5\nopen('file', 'w').write('1')")
    assert "NameError" in python("x")
    assert "FileNotFoundError" in python("open('file').read()")


def test_the_contract() -> None:
    schema = check_tool(python, "environment.tools")
    assert schema["function"]["parameters"]["properties"]["code"]["type"] == "string"
    check_environment(Python(), "environment.factory")


@pytest.mark.parametrize("settings", [{"seconds": 0}, {"memory_mb": -1}])
def test_impossible_limits(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="above zero"):
        Python(**settings)
