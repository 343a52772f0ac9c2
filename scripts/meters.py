"""Measure how much code a change meets: `make meters` prints every meter beside its ceiling, and lowers the ceilings.

Held by `tests/repository/test_meters.py` at the figures of `tests/repository/ceilings.yaml`: lines of `src/`; files and
named functions that one training step enters (`objective=maxent`, β = 0.04, main thread); files that composing one key
enters; import cycles; attributes that training replaces for a while ("swaps"); what light commands load: modules of
Covey, and whose packages of others. Only printed: modules, the longest file, imports of `hydra._internal`, files that
name an objective, lines of each folder of tests. How long tests take says `make test ARGS=--durations=50`.

python scripts/meters.py [--keep]     --keep leaves the ceilings as they are
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "covey"
CEILINGS = ROOT / "tests" / "repository" / "ceilings.yaml"
sys.path.insert(0, str(ROOT / "tests" / "support"))

LIGHT = ("--help", "config", "runs RUNS", "report RUN", "compare RUN OTHER", "launch --dry-run", "view --help")
"""Commands that must stay light; RUN and OTHER are directories of runs, and RUNS holds both."""
HEAVY = {"torch", "transformers", "trl", "datasets", "accelerate", "peft", "vllm"}


class Entered:
    """A profiler that notes the functions entered below `src/covey`, without bodies of modules and classes."""

    def __init__(self) -> None:
        self.functions: set[tuple[str, str]] = set()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code, caller = frame.f_code, frame.f_back
        if caller is not None and caller.f_code.co_filename.startswith("<frozen importlib"):
            return  # Python asks a finder of modules
        if event == "call" and code.co_filename.startswith(f"{PACKAGE}{os.sep}") and code.co_flags & 3 == 3:
            self.functions.add((code.co_filename.removeprefix(f"{PACKAGE}{os.sep}"), code.co_qualname))

    @property
    def files(self) -> list[str]:
        return sorted({file for file, _ in self.functions})

    @property
    def named(self) -> int:
        """Functions with a name: no comprehension, generator expression or lambda."""
        return sum(not name.rpartition(".")[2].startswith("<") for _, name in self.functions)


def _step() -> dict[str, Any]:
    import covey
    from covey.cli.main import main

    entered = Entered()
    training_step = covey.GRPOTrainer.training_step

    def followed(*args: Any, **kwargs: Any) -> Any:
        sys.setprofile(entered)
        try:
            return training_step(*args, **kwargs)
        finally:
            sys.setprofile(None)

    covey.GRPOTrainer.training_step = followed  # type: ignore[method-assign]
    words = ["train", "objective=maxent", "training.beta=0.04", "training.max_steps=2"]
    with tempfile.TemporaryDirectory() as folder:
        code = main([*words, f"output_dir={folder}/run"])
    if code or not entered.functions:
        raise SystemExit(f"the run ended with {code}")
    return {"files": entered.files, "functions": entered.named}


def _key() -> dict[str, Any]:
    from covey.config import compose

    entered = Entered()
    sys.setprofile(entered)
    try:
        compose(["training.beta=0.04"])
    finally:
        sys.setprofile(None)
    return {"files": entered.files}


def _start(command: str) -> dict[str, Any]:
    from covey.cli.main import main

    with tempfile.TemporaryDirectory() as folder:
        words = command.split()
        if {"RUN", "RUNS"} & set(words):
            _child("made_runs", folder)
        try:
            code = main(
                [{"RUNS": folder, "RUN": f"{folder}/a", "OTHER": f"{folder}/b"}.get(word, word) for word in words]
            )
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
    if code:
        raise SystemExit(f"`covey {command}` ended with {code}")
    others = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names - {"covey"}
    files = {name: str(getattr(sys.modules[name], "__file__", None) or "") for name in others if name in sys.modules}
    return {
        "modules": sum(name == "covey" or name.startswith("covey.") for name in sys.modules),
        "packages": sorted(name for name, file in files.items() if "site-packages" in file and name[0] != "_"),
    }


def _child(*words: str) -> Any:
    """What a fresh process of this script measures, or raise with what it said."""
    env = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, __file__, "--measure", *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the meter {' '.join(words)} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(name: str) -> Any:
    """The figures of one meter in a fresh process: `step`, `key` or a command of `LIGHT`."""
    return _child(name)


def shape() -> dict[str, int]:
    """The meters that are read from the sources."""
    from architecture import Tree

    texts = {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    named = {word: re.compile(rf"(?<![a-z]){word}(?![a-z])", re.IGNORECASE) for word in ("xdr", "passk")}
    return {
        "lines": sum(text.count("\n") for text in texts.values()),
        "cycles": len(Tree(PACKAGE).cycles()),
        "swaps": sum(_swaps(path.relative_to(PACKAGE).as_posix(), tree) for path, tree in trees.items()),
        "modules": len(texts),
        "longest file": max(text.count("\n") for text in texts.values()),
        "imports of hydra._internal": sum(text.count("from hydra._internal") for text in texts.values()),
        **{
            f"files naming {word}": sum(bool(pattern.search(text)) for text in texts.values())
            for word, pattern in named.items()
        },
    }


def _swaps(file: str, tree: ast.Module) -> int:
    """Calls that replace an attribute for a while."""
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = [call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "") for call in calls]
    swaps = sum(name in {"replaced", "patch", "swapped"} for name in names) * file.startswith("training/")
    return swaps + names.count("setattr") * file.startswith("training/trl/")


def held() -> Iterator[tuple[str, Any]]:
    """Every meter that has a ceiling, by its name there: a number, or the packages that a command may load."""
    yield from ((name, value) for name, value in shape().items() if name in {"lines", "cycles", "swaps"})
    step, key = measure("step"), measure("key")
    yield "files of a step", len(step["files"])
    yield "functions of a step", step["functions"]
    yield "files of a key", len(key["files"])
    for command in LIGHT:
        start = measure(command)
        yield f"modules of `covey {command}`", start["modules"]
        yield f"packages of `covey {command}`", start["packages"]


def above(value: Any, ceiling: Any) -> bool:
    """Whether a meter is above its ceiling; of packages, whether one is new."""
    return bool(set(value) - set(ceiling)) if isinstance(value, list) else value > ceiling


def main(keep: bool) -> None:
    ceilings: dict[str, Any] = yaml.safe_load(CEILINGS.read_text(encoding="utf-8"))
    text = CEILINGS.read_text(encoding="utf-8")
    for name, value in held():
        ceiling = ceilings[name]
        shown = (", ".join(value), "") if isinstance(value, list) else (value, f"ceiling {ceiling}")
        print(f"{name:38} {shown[0]}  {shown[1]}{'  ABOVE' * above(value, ceiling)}", flush=True)
        if not keep and not above(value, ceiling):
            text = text.replace(
                f"{json.dumps(name)}: {json.dumps(ceiling)}", f"{json.dumps(name)}: {json.dumps(value)}"
            )
    if not keep:
        CEILINGS.write_text(text, encoding="utf-8")
    print("\nnot held:")
    for name, value in shape().items():
        if name not in ceilings:
            print(f"{name:38} {value}")
    for folder in sorted(path for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name != "__pycache__"):
        lines = sum(path.read_text(encoding="utf-8").count("\n") for path in folder.rglob("*.py"))
        print(f"{f'lines of tests/{folder.name}':38} {lines}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            if sys.argv[2] == "made_runs":
                from made_run import make_run, write_evaluation

                for name in "ab":
                    write_evaluation(make_run(Path(sys.argv[3], name), steps=4), 4, [0.0, 1.0, 1.0, 0.0])
                found: dict[str, Any] = {}
            else:
                found = {"step": _step, "key": _key}.get(sys.argv[2], lambda: _start(sys.argv[2]))()
        print(json.dumps(found))
    else:
        main("--keep" in sys.argv)
