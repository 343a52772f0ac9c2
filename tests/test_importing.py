"""Importing by name: what a message says about a name that is not there, and about the user's own failures."""

from __future__ import annotations

import importlib.util
import py_compile
import re
from pathlib import Path

import pytest

from covey.errors import ConfigError, EngineError
from covey.importing import import_object, user_errors


@pytest.mark.parametrize(
    ("count", "listed"),
    [
        (0, r"nothing of its own"),
        (1, r"name_0"),
        (12, r"name_\d+(, name_\d+){11}"),
        (13, r"name_\d+(, name_\d+){4} among others \(13 in all\)"),
    ],
)
def test_a_missing_name_lists_all_names_or_says_that_there_are_more(tmp_path: Path, count: int, listed: str) -> None:
    (tmp_path / "mine.py").write_text("\n".join(f"def name_{n}(): ..." for n in range(count)))
    with pytest.raises(ConfigError) as caught:
        import_object(f"{tmp_path / 'mine.py'}:nmae", "key", ConfigError)
    assert re.search(rf"mine\.py has no nmae; it has {listed}\.$", str(caught.value))


def test_failures_of_the_users_code_name_the_line_and_coveys_own_errors_pass() -> None:
    with (
        pytest.raises(
            EngineError, match=r"^It failed: ValueError: a b \(.*test_importing\.py, line \d+\)\.$"
        ) as caught,
        user_errors("It failed", EngineError),
    ):
        raise ValueError("a\nb")
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(ConfigError, match=r"^as it is$"), user_errors("It failed", EngineError):
        raise ConfigError("as it is")


def test_a_compiled_copy_beside_a_file_is_not_run(tmp_path: Path) -> None:
    """One that says it needs no check against its source comes with a folder from others as easily as a recipe."""
    (tmp_path / "evil.py").write_text("VALUE = 'compiled'")
    copy = Path(importlib.util.cache_from_source(str(tmp_path / "mine.py")))
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(tmp_path / "evil.py"), str(copy), invalidation_mode=unchecked)
    (tmp_path / "mine.py").write_text("VALUE = 'source'")
    assert import_object(f"{tmp_path / 'mine.py'}:VALUE", "key", ConfigError) == "source"
