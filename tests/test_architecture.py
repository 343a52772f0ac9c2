"""The house rules, held by reading the sources: what may import what, and where.

Pinned here: floors point down only; which packages never see torch; who may import vLLM and TRL and name TRL's private
methods; no file called utils; files that can be read in one go; and, in fresh processes, that light commands stay
light. The checker itself is tested on a planted tree, so that it cannot pass by seeing nothing.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

FLOORS = {
    "_version": 0,
    "errors": 0,
    "importing": 1,
    "config": 1,
    "answers": 2,
    "data": 3,
    "rewards": 3,
    "objective": 3,
    "runlog": 3,
    "model": 4,
    "rollout": 5,
    "evaluation": 6,
    "report": 7,
    "training": 8,
    "launch": 8,
    "cli": 9,
    "api": 9,
    "__main__": 10,
    "__init__": 10,  # `import covey`: the front door, which hands out the public names
}
WITHOUT_TORCH = {"_version", "errors", "importing", "config"} | {
    "answers",
    "data",
    "rewards",
    "runlog",
    "report",
    "launch",
}
TORCH_FAMILY = {"torch", "transformers", "trl", "accelerate", "peft", "vllm", "bitsandbytes", "deepspeed"}
ONLY_IN = {"vllm": "rollout", "trl": "training"}
NEVER_SEES = {"objective": {"config"}}
TRL_PRIVATE = {
    "_calculate_rewards",
    "_compute_loss",
    "_generate",
    "_generate_and_score_completions",
    "_generate_single_turn",
    "_get_per_token_logps_and_entropies",
    "_prepare_inputs",
}
TRL_SHELLS = Path("training/trainer.py")
MAX_LINES = 450


@dataclass(frozen=True)
class Import:
    """One imported module, by its full name, and where it stands."""

    module: str
    line: int


def imports(path: Path, package: Path) -> Iterator[Import]:
    """Every import of a file, wherever it stands: at the top, in a function, for type checking, or by import_module."""
    here = ("covey", *path.relative_to(package).parts)[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else ()
            module = ".".join((*base, *(node.module or "").split("."))).strip(".")
            if module == "covey":  # `from covey import data` imports a package; anything else comes from the front door
                for alias in node.names:
                    name = "_version" if alias.name == "__version__" else alias.name
                    yield Import(f"covey.{name}" if name in FLOORS else "covey", node.lineno)
            else:
                yield Import(module, node.lineno)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in {
            "import_module",
            "__import__",
        }:
            yield from (Import(a.value, node.lineno) for a in node.args if _is_text(a))


def violations(package: Path) -> list[str]:
    """Every breach of the house rules below `package`, each with its file and line."""
    found = []
    for path in sorted(package.rglob("*.py")):
        relative = path.relative_to(package)
        own = relative.parts[0].removesuffix(".py")
        if own not in FLOORS:
            found.append(f"{relative}: the package '{own}' has no floor: give it one in FLOORS and in the design")
            continue
        found += _bad_imports(path, package, own)
        if path.stem in {"utils", "util"}:
            found.append(f"{relative}: name a file after what it holds, not '{path.stem}'")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > MAX_LINES:
            found.append(f"{relative}: {lines} lines; files stay under about 400, so split it by what it does")
        if relative != TRL_SHELLS:
            found += [
                f"{relative}:{line}: {name} is TRL's private method; only {TRL_SHELLS} may name it"
                for name, line in _names(path)
                if name in TRL_PRIVATE
            ]
    return found


def _bad_imports(path: Path, package: Path, own: str) -> Iterator[str]:
    for found in imports(path, package):
        where = f"{path.relative_to(package)}:{found.line}: imports {found.module}"
        first, _, rest = found.module.partition(".")
        if first == "covey":
            target = rest.split(".")[0] or "__init__"
            if target not in FLOORS:
                yield f"{where}, which has no floor"
            elif target != own and FLOORS[target] >= FLOORS[own]:
                yield f"{where}, on floor {FLOORS[target]}, from floor {FLOORS[own]}: imports point down only"
            elif target in NEVER_SEES.get(own, set()):
                yield f"{where}: {own}/ never sees {target}/; hand it plain values"
        elif first in TORCH_FAMILY and own in WITHOUT_TORCH:
            yield f"{where}: {own} never imports torch or what brings it"
        elif first in ONLY_IN and own != ONLY_IN[first]:
            yield f"{where}: only {ONLY_IN[first]}/ may"


def _names(path: Path) -> Iterator[tuple[str, int]]:
    """Attribute names, function names and strings: the ways of naming a method."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            yield node.attr, node.lineno
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno
        elif _is_text(node):
            yield node.value, node.lineno


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_the_house_keeps_its_rules(root: Path) -> None:
    package = root / "src" / "covey"
    assert len(list(package.rglob("*.py"))) > 10
    found = violations(package)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("file", "source", "expected"),
    [
        ("data/a.py", "from covey.evaluation import run", "on floor 6, from floor 3"),
        ("data/a.py", "def f():\n    import covey.rewards.library", "on floor 3, from floor 3"),
        ("data/a.py", "from covey import rewards", "imports covey.rewards, on floor 3"),
        ("data/a.py", "from ..training.run import main", "imports covey.training.run, on floor 8"),
        ("data/a.py", "from .. import GRPOTrainer", "imports covey, on floor 10"),
        ("data/a.py", "import importlib\nimportlib.import_module('covey.cli.main')", "imports covey.cli.main"),
        ("model/a.py", "if TYPE_CHECKING:\n    from covey.rollout import Engine", "on floor 5, from floor 4"),
        ("model/a.py", "from covey import GRPOTrainer", "imports covey, on floor 10"),
        ("model/a.py", "from covey.helpers import x", "which has no floor"),
        ("helpers/a.py", "", "'helpers' has no floor"),
        ("runlog/a.py", "def f():\n    from torch import nn", "never imports torch"),
        ("rewards/a.py", "import transformers.utils", "never imports torch"),
        ("evaluation/a.py", "from trl import GRPOTrainer", "only training/ may"),
        ("training/a.py", "import vllm", "only rollout/ may"),
        ("objective/a.py", "from covey.config import Config", "never sees config/"),
        ("training/loss.py", "def f(t):\n    return t._compute_loss", "_compute_loss is TRL's private method"),
        ("model/utils.py", "", "not 'utils'"),
        ("cli/long.py", "pass\n" * 451, "451 lines"),
    ],
)
def test_a_planted_breach_is_caught(tmp_path: Path, file: str, source: str, expected: str) -> None:
    path = tmp_path / file
    path.parent.mkdir()
    path.write_text(source, encoding="utf-8")
    found = violations(tmp_path)
    assert len(found) == 1, found
    assert expected in found[0]


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("errors.py", "import ast"),
        ("data/a.py", "import datasets\nfrom covey.answers import EXTRACTORS\nfrom . import b\nfrom .b import c"),
        ("rollout/a.py", "import vllm\nimport torch"),
        ("training/trainer.py", "import trl\nclass T:\n    def _compute_loss(self): ..."),
        ("cli/a.py", "from covey import config\nfrom covey import __version__\nimport covey.training.run"),
        ("__init__.py", "from covey.training.trainer import GRPOTrainer"),
    ],
)
def test_what_is_allowed_passes(tmp_path: Path, file: str, source: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(source, encoding="utf-8")
    assert violations(tmp_path) == []


@pytest.mark.parametrize("argv", [None, ["--help"], ["--version"], ["config"]])
def test_light_commands_stay_light(argv: list[str] | None, root: Path, tmp_path: Path) -> None:
    heavy = {"torch", "transformers", "trl", "datasets"}
    call = "import covey" if argv is None else f"from covey.cli.main import main; code = main({argv})"
    script = (
        f"import sys\ncode = 0\ntry:\n    {call}\nexcept SystemExit as end:\n    code = end.code\n"
        f"assert not code, code\nprint(sorted({heavy} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip().splitlines()[-1] == "[]"
