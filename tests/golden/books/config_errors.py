"""The message of every error in `config/`: each `raise` there is reached, or listed with the reason.

`config_errors.yaml` holds the cases, and under `unreached` the statements that none of them reaches. A statement is
known by its function and its text, whatever file it lies in.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from config_cases import compose_case, in_place, name_of, reached, read_case
from covey.config import TrainingConfig, build, compose, document
from covey.config.groups.mesh import check_axis, check_mesh
from covey.config.groups.objectives import XDRSettings
from covey.config.values import BadKeyError
from covey.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]
CONFIG = ROOT / "src" / "covey" / "config"
LISTED = ROOT / "tests" / "golden" / "config_errors.yaml"

LARGE = {
    "a name of 50,000 letters": ["dataset.id=" + "x" * 50_000],
    "a path of 300 letters": ["dataset.path=" + "x" * 300],
    "a key of 5,000 letters": ["x" * 5000 + "=1"],
    "an override of 60 levels": ["training.generation_kwargs=" + "[" * 60 + "]" * 60],
    "a flag of 60 levels": ["--model_init_kwargs=" + "[" * 60 + "]" * 60],
    "a flag of 6,000,000 letters": ["--model_init_kwargs={" + "x" * 6_000_000],
    "a flag of 20,001 values": ["--model_init_kwargs=[" + "1, " * 20_001 + "]"],
}


def naming_places() -> None:
    with compose(["model.lora.rank=4"]).naming_places():
        raise BadKeyError("model.lora.rank", "=4 is refused later.")


CALLS = {
    "document training.beta.x": partial(document, "training.beta.x"),
    "document nothing": partial(document, "nothing"),
    "document training.eval_steps": partial(document, "training.eval_steps"),
    "document training.model_init_kwargs.a": partial(document, "training.model_init_kwargs.a"),
    "build a dotted key in a group": partial(build, {"training": {"a.b": 1}}),
    "build a group that is a text": partial(build, {"model": "starter"}),
    "a training config with a key that it does not read": partial(TrainingConfig, {"eval_steps": 3}),
    "a training config with an unknown key": partial(TrainingConfig, {"nothing": 3}),
    "xDR without either limit": lambda: XDRSettings(tau=math.inf, reference=math.inf).check_run(
        loss_type="grpo", num_generations=4, max_completion_length=None, beta=0.1
    ),
    "a mesh of two axes in one process": partial(check_mesh, [[2, 2], ["dp", "fsdp"]], 1),
    "a mesh of two axes in two processes": partial(check_mesh, [[2, 2], ["dp", "fsdp"]], 2),
    "an axis of an accelerate config": partial(check_axis, "cp", 2, "my.yaml"),
    "merging sharded adapters": lambda: compose(
        ["model.lora.rank=4", "model.lora.merge=true"]
    ).config.model.lora.check_merge(sharded=True),
    "a field that training has not": lambda: compose().config.training.nothing,
    "a key whose value is refused after composing": naming_places,
}
"""What no command line reaches while it is composed."""


def statements() -> Iterator[tuple[str, Path, ast.Raise]]:
    """Every `raise` of an error in the package: its function with its text, and where it is."""

    def visit(node: ast.AST, function: str) -> Iterator[tuple[str, ast.Raise]]:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            function = f"{function}.{node.name}".lstrip(".")
        if isinstance(node, ast.Raise) and node.exc is not None:
            yield f"{function}: {ast.unparse(node)}", node
        for child in ast.iter_child_nodes(node):
            yield from visit(child, function)

    for path in sorted(CONFIG.rglob("*.py")):
        for name, node in visit(ast.parse(path.read_text(encoding="utf-8")), ""):
            yield name, path, node


def cases(folder: Path) -> dict[str, Any]:
    listed = yaml.safe_load(LISTED.read_text(encoding="utf-8"))
    found: dict[str, str] = {}
    lines: set[tuple[str, int]] = set()

    def note(name: str, make: Any) -> None:
        assert name not in found, name
        try:
            make()
        except (ConfigError, AttributeError) as error:
            found[name] = str(error)
            lines.update(reached(error))
        else:
            raise AssertionError(f"{name} is no error any more")

    for case in map(read_case, listed["cases"]):
        with in_place(case, folder / "work"):
            note(name_of(case), partial(compose_case, case))
    for name, words in LARGE.items():
        note(name, partial(compose_case, {"words": words}))
    for name, call in CALLS.items():
        note(name, call)

    left = {
        name
        for name, path, node in statements()
        if not any((str(path), line) in lines for line in range(node.lineno, (node.end_lineno or node.lineno) + 1))
    }
    assert left == listed["unreached"].keys(), (
        f"reached by no case: {sorted(left - listed['unreached'].keys())}; listed as unreached, and not so: "
        f"{sorted(listed['unreached'].keys() - left)}"
    )
    return found
