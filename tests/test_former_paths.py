"""Former paths of modules: the table is sound; imports, `python -m` and names that runs recorded follow it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import covey
from covey.config import compose, differences
from covey.errors import CoveyError
from covey.former_paths import current
from covey.importing import import_object

LINES = Path(covey.__file__).with_name("former_paths.txt").read_text(encoding="utf-8").splitlines()
TABLE = dict(line.split() for line in LINES)


def is_importable(path: str) -> bool:
    """Whether Python looks into the package of a former path: it is one today."""
    package = path.rpartition(".")[0]
    try:
        return getattr(find_spec(package), "submodule_search_locations", None) is not None
    except ModuleNotFoundError:
        return False


def test_the_table_leads_from_modules_that_are_gone_to_modules_that_are_there() -> None:
    assert len(LINES) == len(TABLE) > 200
    assert sorted(LINES) == LINES
    folder = Path(covey.__file__).parents[1]
    files = {".".join(path.relative_to(folder).with_suffix("").parts) for path in folder.rglob("*.py")}
    there = files | {name.removesuffix(".__init__") for name in files}
    assert not TABLE.keys() & there
    assert set(TABLE.values()) <= there


def test_a_former_path_is_the_module_of_today() -> None:
    """But for one that needs vLLM itself."""
    imported = [path for path, today in TABLE.items() if is_importable(path) and today != "covey.rollout.vllm.thinking"]
    assert len(imported) > 100
    for path in imported:
        assert import_module(path) is import_module(TABLE[path])
        assert import_module(TABLE[path]).__spec__.name == TABLE[path]


def test_names_below_a_package_that_is_gone_resolve() -> None:
    assert current("covey.training.callbacks.early_stopping:EarlyStopping") == "covey.training.callbacks:EarlyStopping"
    assert current("covey.objective:GRPO") == "covey.objective:GRPO"
    assert current("mine.objective.grpo:GRPO") == "mine.objective.grpo:GRPO"
    found = import_object("covey.environments.library.number_guess:NumberGuess", "environment.factory", CoveyError)
    assert found is import_module("covey.environments.library").NumberGuess


def test_a_config_with_a_former_path_is_the_same_config() -> None:
    now = compose(["objective.name=covey.objective.by_rewards:GRPO"]).config
    then = replace(now, objective=replace(now.objective, name="covey.objective.grpo:GRPO"))
    other = replace(now, objective=replace(now.objective, name="covey.objective.grpo:Other"))
    assert differences(then, now) == []
    assert [key for key, *_ in differences(other, now)] == ["objective.name"]


@pytest.mark.parametrize("path", ["covey.rollout.vllm_serve", "covey.rollout.vllm.serve"])
def test_a_former_program_runs(path: str) -> None:
    done = subprocess.run([sys.executable, "-m", path, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: python -m covey.rollout.vllm.serve")
