"""The architecture rules, checked by reading the sources: what may import what, where. See `support/architecture.py`.

Pinned here: imports between packages point to lower layers; no import cycle between modules; which packages never see
torch; who may import vLLM and TRL and name TRL's private methods; how many lines a file may have; no file called utils;
no test imports another test, and tests mirror the source. The checker itself is tested on planted trees, so that it
cannot pass by seeing nothing. The drawn map is that of the sources.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from architecture import LAYERS, Tree, violations, violations_of_tests
from load_scripts import load_script


def test_the_sources_keep_the_rules(root: Path) -> None:
    package = root / "src" / "covey"
    assert len(Tree(package).edges()) > 300
    found = violations(package)
    assert not found, "\n".join(found)


def test_the_tests_keep_the_rules(root: Path) -> None:
    found = violations_of_tests(root / "tests", root / "src" / "covey")
    assert not found, "\n".join(found)


def test_the_guide_has_the_same_layers(root: Path) -> None:
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", (root / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE)
    listed = {name: int(layer) for layer, names in rows for name in re.findall(r"`(\w+)", names)}
    there = {path.stem for path in (root / "src" / "covey").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert listed == {name: LAYERS[name] for name in there & LAYERS.keys() if not name.startswith("_")}


def plant(folder: Path, files: dict[str, str]) -> Path:
    for name, source in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(source, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("file", "source", "expected"),
    [
        ("data/a.py", "from covey.evaluation import run", "on layer 6, from layer 3"),
        ("data/a.py", "def f():\n    import covey.rewards.library", "on layer 3, from layer 3"),
        ("data/a.py", "from covey import rewards", "imports covey, on layer 3"),
        ("data/a.py", "from ..training.run import main", "imports covey.training.run, on layer 8"),
        ("data/a.py", "from .. import GRPOTrainer", "imports covey, on layer 10"),
        ("data/a.py", "import importlib\nimportlib.import_module('covey.cli.main')", "imports covey.cli.main"),
        ("runlog/a.py", "from covey.answers import grade_math", "on layer 2, from layer 2"),
        ("model/a.py", "if TYPE_CHECKING:\n    from covey.rollout import Engine", "on layer 5, from layer 4"),
        ("model/a.py", "from covey import GRPOTrainer", "imports covey, on layer 10"),
        ("cli/a.py", "from covey import __version__", "imports covey, on layer 10"),
        ("model/a.py", "from covey.helpers import x", "which has no layer"),
        ("helpers/a.py", "", "'helpers' has no layer"),
        ("runlog/a.py", "def f():\n    from torch import nn", "never imports torch"),
        ("view/a.py", "import transformers.utils", "never imports torch"),
        ("evaluation/a.py", "from trl import GRPOTrainer", "only training/trl/ may"),
        ("training/trainer.py", "from trl import GRPOTrainer", "only training/trl/ may"),
        ("training/trl_names.py", "if TYPE_CHECKING:\n    import trl.trainer", "only training/trl/ may"),
        ("training/scoring/a.py", "import vllm", "only rollout/vllm/ and training/trl/ may"),
        (
            "rollout/vllm_engine.py",
            "def f():\n    from vllm.v1 import engine",
            "only rollout/vllm/ and training/trl/ may",
        ),
        ("training/loss.py", "def f(t):\n    return t._compute_loss", "_compute_loss is TRL's private method"),
        ("training/trainer.py", "class T:\n    def _generate(self): ...", "only training/trl/ may name it"),
        ("rollout/a.py", "getattr(t, '_tool_call_loop')", "_tool_call_loop is TRL's private method"),
        ("model/utils.py", "", "not 'utils'"),
        ("cli/long.py", "pass\n" * 601, "601 lines; at most 600"),
    ],
)
def test_a_planted_breach_is_caught(tmp_path: Path, file: str, source: str, expected: str) -> None:
    found = violations(plant(tmp_path, {file: source}))
    assert len(found) == 1, found
    assert found[0].startswith(file)
    assert expected in found[0]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"data/a.py": "\nfrom covey.data.b import f", "data/b.py": "import covey.data.a"},
            "covey.data.a (data/a.py:2) → covey.data.b (data/b.py:1) → covey.data.a",
        ),
        (
            {"data/a.py": "from . import b", "data/b.py": "if typing.TYPE_CHECKING:\n    from .a import A"},
            "covey.data.a (data/a.py:1) → covey.data.b (data/b.py:2, type checking) → covey.data.a",
        ),
        (
            {
                "data/a.py": "from covey.data.b import f",
                "data/b.py": "from covey.data import c",
                "data/c.py": "def f():\n    import_module('covey.data.a')",
            },
            "covey.data.a (data/a.py:1) → covey.data.b (data/b.py:1) → covey.data.c (data/c.py:2, in a function) → "
            "covey.data.a",
        ),
        (  # a module takes from its own package what that package takes from it
            {"data/__init__.py": "from covey.data.a import A\nB = 1", "data/a.py": "from covey.data import B"},
            "covey.data (data/__init__.py:1) → covey.data.a (data/a.py:1) → covey.data",
        ),
        (  # the name comes from a module two packages further down, which imports the module that asks for it
            {
                "data/__init__.py": "from covey.data.files import F",
                "data/files/__init__.py": "from covey.data.files.one import F",
                "data/files/one.py": "from covey.data.rows import R",
                "data/rows.py": "from covey.data.files import F",
            },
            "covey.data.files (data/files/__init__.py:1) → covey.data.files.one (data/files/one.py:1) → "
            "covey.data.rows (data/rows.py:1) → covey.data.files",
        ),
        (
            {"__init__.py": "_HOMES = {'A': 'covey.__main__'}", "__main__.py": "from covey import A"},
            "covey (__init__.py:1, in a function) → covey.__main__ (__main__.py:1) → covey",
        ),
    ],
    ids=["direct", "type checking", "in a function", "own package", "through packages", "front door"],
)
def test_a_planted_cycle_is_caught(tmp_path: Path, files: dict[str, str], expected: str) -> None:
    found = [line for line in violations(plant(tmp_path, files)) if line.startswith("import cycle")]
    assert f"import cycle: {expected}" in found, found


def test_a_name_counts_as_an_import_of_the_module_that_it_comes_from(tmp_path: Path) -> None:
    files = {
        "data/__init__.py": "from covey.data.files import F\nfrom covey.data import rows",
        "data/files/__init__.py": "from covey.data.files.one import F",
        "data/files/one.py": "F = 1",
        "data/rows.py": "",
        "model/a.py": "from covey.data import F, rows, NAME",
    }
    found = {edge.target for edge in Tree(plant(tmp_path, files)).edges() if edge.source == "covey.model.a"}
    assert found == {"covey.data", "covey.data.files.one", "covey.data.rows"}


@pytest.mark.parametrize(
    "files",
    [
        {"errors.py": "import ast"},
        {"data/a.py": "import datasets\nfrom covey.answers import EXTRACTORS\nfrom . import b\nfrom .b import c"},
        {"rollout/vllm/a.py": "import vllm\nimport torch"},
        {"training/trl/trainer.py": "import trl\nclass T:\n    def _compute_loss(self): ..."},
        {"training/trl/client/a.py": "from vllm import SamplingParams"},
        {"training/trainer.py": "from covey.training.trl.trainer import GRPOTrainer", "training/trl/trainer.py": ""},
        {"cli/a.py": "from covey import config\nfrom covey._version import __version__\nimport covey.training.run"},
        {"__init__.py": "from covey.training.trainer import GRPOTrainer"},
        # That `a.b` runs `a/__init__` is not an import of it, and neighbours may share a third module.
        {"data/__init__.py": "from covey.data.a import A", "data/a.py": "from covey.data.b import B", "data/b.py": ""},
        {"data/a.py": "from covey.data.c import C", "data/b.py": "from covey.data.c import C\nimport covey.data.a"},
    ],
    ids=lambda files: next(iter(files)),
)
def test_what_is_allowed_passes(tmp_path: Path, files: dict[str, str]) -> None:
    assert violations(plant(tmp_path, files)) == []


def test_planted_breaches_among_the_tests_are_caught(tmp_path: Path) -> None:
    package = plant(tmp_path / "covey", {"data/__init__.py": "", "data/files/__init__.py": ""})
    tests = {
        "data/test_a.py": "from covey.data import test_rows\nimport trainers",
        "data/files/test_a.py": "from test_b import f",
        "real_vllm/test_a.py": "",
        "repository/test_a.py": "def f():\n    import data.test_a",
        "rows/test_a.py": "",
        "support/trainers.py": "from data import test_a",
    }
    assert violations_of_tests(plant(tmp_path / "tests", tests), package) == [
        "data/files/test_a.py:1: imports test_b.f from a test; what tests share lies in tests/support",
        "repository/test_a.py:2: imports data.test_a from a test; what tests share lies in tests/support",
        "support/trainers.py:1: imports data.test_a from a test; what tests share lies in tests/support",
        "rows/: mirrors no package in src/covey",
    ]


@pytest.fixture
def draw() -> Callable[[Path], str]:
    return load_script("scripts/draw_map.py").drawing


def test_the_map_is_current(root: Path, draw: Callable[[Path], str]) -> None:
    drawn = (root / "docs" / "images" / "map.svg").read_text(encoding="utf-8")
    assert drawn == draw(root / "src" / "covey"), "run: python scripts/draw_map.py"


def test_the_map_shows_what_is_there(tmp_path: Path, draw: Callable[[Path], str]) -> None:
    files = {
        "errors.py": '"""The exception tree. More."""',
        "training/__init__.py": '"""Training: the run & what it needs."""',
        "training/trl/__init__.py": '"""All knowledge of TRL."""',
        "training/trl/client/__init__.py": "import trl",
    }
    shown = re.findall(r"<(?:text|title)[^>]*>([^<]*)<", draw(plant(tmp_path, files)))
    assert shown[:-3] == [
        *("8", "training/", "The run &amp; what it needs"),
        *("All knowledge of TRL", "trl · imports trl", "", "trl/client · imports trl"),
        *("0", "errors", "The exception tree"),
    ]
