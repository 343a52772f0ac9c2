"""Run TRL's own tests of `GRPOTrainer` on TRL's class and on Covey's, and show where the outcomes differ.

    python scripts/trl_suite.py TRL_SOURCE [--speed on|off] [--epochs N] [-k EXPRESSION]

TRL_SOURCE is a checkout of TRL at the installed version; its tests are not part of its package, and none are copied
into this repository. Use a release's tag, and review it before you run it: tests are code. Only the test file and
`testing_utils.py` are used, not its `conftest.py`; they run offline and without the environment variables of this shell
that they do not need.

The models and the dataset that the tests name are made here, small and random (`trl_fakes.py`). Tests that need a
GPU, vLLM, Liger, pictures or the hub skip on both classes. The exit code is 1 when a test passes on TRL's class and not
on Covey's.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import trl_fakes

SCRIPTS = Path(__file__).resolve().parent
FILES = ("__init__.py", "testing_utils.py", "test_grpo_trainer.py")
KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH")
"""Environment variables that the tests get. Access tokens are not among them."""


def main() -> int:
    """Run both, print the table; returns the exit code."""
    parser = argparse.ArgumentParser(description="Run TRL's own tests of GRPOTrainer on TRL's class and on Covey's.")
    parser.add_argument("source", type=Path, help="a checkout of TRL, at the installed version")
    parser.add_argument("-k", default="", metavar="EXPRESSION", help="only the tests that match, as for pytest")
    parser.add_argument("--speed", choices=("on", "off"), default="on", help="whether Covey's fast paths are on")
    parser.add_argument(
        "--epochs", type=float, default=3.0, help="where a test names none; below 3, tests that count steps fail"
    )
    parser.add_argument("--only", choices=("stock", "covey"), help="run one of the two classes, and compare nothing")
    arguments = parser.parse_args()
    if missing := [name for name in FILES[1:] if not (arguments.source / "tests" / name).is_file()]:
        parser.error(f"{arguments.source / 'tests'} has no {' and no '.join(missing)}")
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        trl_fakes.make_models(folder / "home")
        for name in FILES:
            source, copy = arguments.source / "tests" / name, folder / "tests" / name
            copy.parent.mkdir(exist_ok=True)
            copy.touch()
            if source.is_file():
                shutil.copyfile(source, copy)
        classes = [arguments.only] if arguments.only else ["stock", "covey"]
        outcomes = {kind: run(folder, kind, arguments) for kind in classes}
    return 0 if arguments.only else compare(outcomes["stock"], outcomes["covey"])


def run(folder: Path, kind: str, arguments: argparse.Namespace) -> dict[str, str]:
    """The outcome of each test on one class."""
    file = folder / f"{kind}.json"
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    environment |= {
        "PYTHONPATH": os.pathsep.join([str(SCRIPTS), *(path for path in sys.path if path)]),
        "HF_HOME": str(folder / "home"),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        trl_fakes.CLASS: kind,
        trl_fakes.SPEED: arguments.speed,
        trl_fakes.EPOCHS: str(arguments.epochs),
        trl_fakes.OUTCOMES: str(file),
    }
    options = ["--noconftest", "-p", trl_fakes.__name__, "-p", "no:cacheprovider", "-v", "--tb=short", "-W", "ignore"]
    command = [sys.executable, "-m", "pytest", *options, "-k", arguments.k, f"tests/{FILES[-1]}"]
    print(f"# {kind}", flush=True)
    subprocess.run(command, cwd=folder, env=environment, check=False)
    if not file.is_file():
        sys.exit(f"The tests could not be run on the class of {kind}; see pytest's output above.")
    return dict(json.loads(file.read_text(encoding="utf-8")))


def compare(stock: dict[str, str], covey: dict[str, str]) -> int:
    """Print the outcomes that differ, and the counts; 1 if Covey's class fails where TRL's does not."""
    names = sorted(stock.keys() | covey.keys())
    table = [(name, stock.get(name, "not run"), covey.get(name, "not run")) for name in names]
    different = [row for row in table if row[1] != row[2]]
    print(f"\n{'stock':10} {'covey':10} test")
    for name, one, two in different:
        print(f"{one:10} {two:10} {name}")
    if not different:
        print("the same in every test")
    for kind, outcomes in (("stock", stock), ("covey", covey)):
        counts = Counter(outcomes.values())
        print(f"{kind}: {', '.join(f'{count} {outcome}' for outcome, count in sorted(counts.items()))}")
    return int(any(one == "passed" and two != "passed" for _, one, two in different))


if __name__ == "__main__":
    sys.exit(main())
