"""The repository around the package: what is declared, what is packed, and what the two commands of the README do.

The set-up scripts run for real, in a copy, with a fake Python that makes no environment and downloads nothing: it
records the calls of pip, and installs a `covey` that prints its arguments.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from completed import completed

TOOLS = (
    *("bash", "cat", "cksum", "cp", "cut", "dirname", "flock", "grep"),
    *("mkdir", "mv", "readlink", "rm", "sleep", "tail", "touch"),
)
FAKE_PYTHON = """#!/usr/bin/env bash
set -eu
if [[ $1 == -I ]]; then shift; fi
case $1 in
  -c) exec '{real}' -I -c "import sys; ${{BROKEN:-pass}}; $2" ;;
  -m)
    case $2 in
      venv) mkdir -p "${{@: -1}}/bin" && cp "$0" "${{@: -1}}/bin/python" ;;
      pip)
        echo "$*" >>"$PIP_CALLS"
        if [[ -n ${{PIP_ERROR:-}} ]]; then echo "ERROR: $PIP_ERROR"; exit 1; fi
        sleep "${{PIP_SECONDS:-0}}"
        printf '#!/usr/bin/env bash\\nprintf "%%s\\\\n" "$PWD" "$@"\\n' >"$(dirname "$0")/covey"
        {chmod} +x "$(dirname "$0")/covey" ;;
    esac ;;
esac
"""
CONDA = """#!/usr/bin/env bash
echo "conda $*" >>"$PIP_CALLS"
mkdir -p "$4/bin" && cp '{python}' "$4/bin/python"
"""


class Clone:
    """A copy of the scripts, on a PATH that holds a few tools and, if wanted, the fake Python."""

    def __init__(self, root: Path, tmp: Path) -> None:
        self.folder = tmp / "a clone"  # a folder with a blank in its name, as people have
        self.bin, self.away, self.calls = tmp / "bin", tmp / "away", tmp / "calls"
        (self.folder / "scripts").mkdir(parents=True)
        self.bin.mkdir()
        self.away.mkdir()
        self.calls.touch()
        for name in ("training.sh", "scripts/setup.sh", "pyproject.toml", "constraints.txt", "environment.yml"):
            shutil.copy(root / name, self.folder / name)
        for tool in TOOLS:
            if path := shutil.which(tool):
                (self.bin / tool).symlink_to(path)

    def add_python(self, name: str = "python3") -> Path:
        text = FAKE_PYTHON.format(real=sys.executable, chmod=shutil.which("chmod"))
        return self.add_program(name, text)

    def add_program(self, name: str, text: str) -> Path:
        path = self.bin / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
        return path

    def environ(self, extra: Mapping[str, str]) -> dict[str, str]:
        return {"PATH": f"{self.bin}:/nowhere", "PIP_CALLS": str(self.calls), **extra}

    def run(self, script: str, *args: str, **extra: str) -> subprocess.CompletedProcess[str]:
        """Run a script of the clone from somewhere else."""
        command = [str(self.bin / "bash"), str(self.folder / script), *args]
        return completed(command, cwd=self.away, env=self.environ(extra))

    def pip_calls(self) -> list[str]:
        return self.calls.read_text(encoding="utf-8").splitlines()


@pytest.fixture
def clone(root: Path, tmp_path: Path) -> Clone:
    return Clone(root, tmp_path)


def test_training_installs_once_and_passes_its_arguments_on(clone: Clone) -> None:
    clone.add_python()
    first = clone.run("training.sh", "recipe.yaml", "dataset.system_prompt='a, b'", "run_name=x")
    assert first.returncode == 0, first.stderr
    assert first.stdout.splitlines() == [
        str(clone.away), "launch", "recipe.yaml", "dataset.system_prompt='a, b'", "run_name=x"
    ]  # fmt: skip
    assert "a minute or two" in first.stderr
    assert [call.split()[-4:] for call in clone.pip_calls()] == [["-c", "constraints.txt", "-e", "."]]
    (clone.away / "link").symlink_to(clone.folder / "training.sh")
    (clone.away / "link of link").symlink_to("link")
    again = completed([clone.bin / "bash", clone.away / "link of link"], env=clone.environ({}), check=True)
    assert again.stdout.splitlines()[1:] == ["launch"]
    assert again.stderr == ""
    assert len(clone.pip_calls()) == 1


def test_developer_tools_satisfy_training_and_survive_new_dependencies(clone: Clone) -> None:
    clone.add_python()
    assert clone.run("training.sh").returncode == 0
    assert clone.run("scripts/setup.sh", "dev").returncode == 0
    assert clone.run("training.sh").returncode == 0
    assert [call.split()[-1] for call in clone.pip_calls()] == [".", ".[dev]"]
    with (clone.folder / "constraints.txt").open("a", encoding="utf-8") as file:
        file.write("# new\n")
    assert clone.run("training.sh").returncode == 0
    assert clone.run("scripts/setup.sh", "docs").returncode == 0
    assert clone.run("scripts/setup.sh", "dev").stderr == ""
    assert [call.split()[-1] for call in clone.pip_calls()] == [".", ".[dev]", ".[dev]", ".[dev,docs]"]


def test_a_broken_or_moved_environment_is_repaired(clone: Clone) -> None:
    clone.add_python()
    failed = clone.run("training.sh", PIP_ERROR="no matching distribution for torch")
    assert failed.returncode == 4
    assert failed.stdout == ""
    assert "no matching distribution for torch" in failed.stderr
    assert ".setup/install.log" in failed.stderr
    assert clone.run("training.sh").returncode == 0
    # A later installation that breaks off leaves `covey` in place, yet the environment counts as incomplete.
    full = clone.run("scripts/setup.sh", "dev", PIP_ERROR="[Errno 28] No space left on device")
    assert "The disk is full" in full.stderr
    assert clone.run("training.sh").returncode == 0
    assert len(clone.pip_calls()) == 4
    (clone.folder / ".venv" / "bin" / "python").unlink()
    assert clone.run("training.sh").returncode == 0
    assert len(clone.pip_calls()) == 5
    clone.folder = clone.folder.rename(clone.folder.with_name("moved"))
    assert "making .venv" in clone.run("training.sh").stderr
    assert len(clone.pip_calls()) == 6


def test_two_calls_at_once_install_once(clone: Clone) -> None:
    clone.add_python()
    if shutil.which("flock") is None:
        pytest.skip("no flock on this machine")
    command = [clone.bin / "bash", clone.folder / "training.sh"]
    both = [
        subprocess.Popen(command, env=clone.environ({"PIP_SECONDS": "0.3"}), stdout=subprocess.DEVNULL) for _ in "ab"
    ]
    assert [process.wait(120) for process in both] == [0, 0]
    assert len(clone.pip_calls()) == 1


@pytest.mark.parametrize(
    ("pythons", "extra", "expected"),
    [
        ([], {}, ["needs Python 3.11 or newer", "none on the PATH:"]),
        (["python3", "python"], {"BROKEN": "sys.version_info = (3, 10, 2)"}, ["python3 is 3.10, python is 3.10"]),
        (
            ["python3.12"],
            {"BROKEN": "sys.modules['ensurepip'] = None"},
            ["lacks the module venv or ensurepip", "-venv"],
        ),
        (["python3"], {"PYTHON": "python9"}, ["PYTHON names 'python9'"]),
        (["python3"], {"COVEY_ENV": "conda"}, ["none of mamba, micromamba and conda"]),
    ],
)
def test_what_is_missing_is_reported_in_one_paragraph(
    clone: Clone, pythons: list[str], extra: dict[str, str], expected: list[str]
) -> None:
    for name in pythons:
        clone.add_python(name)
    done = clone.run("training.sh", **extra)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert all(text in done.stderr for text in expected), done.stderr
    assert not (clone.folder / ".venv").exists()
    assert clone.pip_calls() == []


def test_conda_makes_its_own_environment_from_the_file(clone: Clone) -> None:
    python = clone.add_python()
    clone.add_program("conda", CONDA.format(python=python))
    for _ in range(2):
        done = clone.run("training.sh", "seed=1", COVEY_ENV="conda")
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[1:] == ["launch", "seed=1"]
    created, installed = clone.pip_calls()
    assert created == f"conda env create --prefix {clone.folder}/.conda --file environment.yml"
    assert installed.endswith("-c constraints.txt -e .")
    assert not (clone.folder / ".venv").exists()


def test_environment_variables_name_recipe_run_and_index(clone: Clone) -> None:
    clone.add_python()
    done = clone.run("training.sh", "seed=1", CONFIG="r.yaml", RUN_NAME="it's 7", COVEY_TORCH_INDEX="file:///torch")
    assert done.stdout.splitlines()[1:] == ["launch", "r.yaml", "run_name='it\\'s 7'", "seed=1"]
    assert "--extra-index-url file:///torch" in clone.pip_calls()[0]
    twice = clone.run("training.sh", "other.yaml", CONFIG="r.yaml")
    assert twice.returncode == 2
    assert "'r.yaml'" in twice.stderr
    assert "'other.yaml'" in twice.stderr
    assert clone.run("training.sh", COVEY_ENV="docker").returncode == 2


@pytest.mark.parametrize(
    "script",
    [
        "training.sh",
        "scripts/setup.sh",
        "scripts/try_wheel.sh",
        "scripts/real_model.sh",
        ".ci/run",
        "slurm/train_baseline.sh",
        "slurm/train_reasoning.sh",
    ],
)
def test_shell_scripts_are_clean(root: Path, script: str) -> None:
    assert os.access(root / script, os.X_OK)
    subprocess.run(["bash", "-n", root / script], check=True)
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed; bash itself has parsed the script")
    done = completed(["shellcheck", root / script])
    assert done.returncode == 0, done.stdout


def test_make_lists_every_command(root: Path) -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    command = ["make", "--no-print-directory"]  # the suite itself may run under make
    done = completed(command, cwd=root, check=True)
    listed = [line.split()[1] for line in done.stdout.splitlines()]
    assert listed == [
        "help",
        "setup",
        "test",
        "test-slow",
        "test-long",
        "test-vllm",
        "test-deepspeed",
        "test-ray",
        "test-adapters",
        "test-real",
        "golden",
        "same",
        "check",
        "train",
        "bench",
        "gpu-report",
        "docs",
        "meters",
        "wheel",
        "image",
        "tensorboard",
        "clean",
    ]


@pytest.fixture(scope="module")
def project(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def requirements(lines: list[str]) -> dict[str, Requirement]:
    return {canonicalize_name((found := Requirement(line)).name): found for line in lines}


_DISTRIBUTION = {"openenv": "openenv-core"}
"""Distributions of another name than their module, which need not be installed."""


def test_no_bytes_name_a_test(request: pytest.FixtureRequest) -> None:
    """Two processes must collect the same tests, and compressed bytes hold the time at which they were made."""
    from tests.conftest import pytest_make_parametrize_id

    items = [item for item in request.session.items if isinstance(item, pytest.Function) and hasattr(item, "callspec")]
    values = [(item.nodeid, value) for item in items for value in item.callspec.params.values()]
    packed = [(node, repr(value)[2:-1]) for node, value in values if isinstance(value, bytes)]
    made = [node for node, text in packed if "\\x" in text and text in node]
    assert made == []
    assert pytest_make_parametrize_id(b"\x1f\x8b", "data") == "data"
    assert pytest_make_parametrize_id("text", "data") is None


def test_everything_imported_is_declared(root: Path, project: dict[str, Any]) -> None:
    extras = [line for name, lines in project["optional-dependencies"].items() if name != "dev" for line in lines]
    declared = requirements(project["dependencies"] + extras)
    distributions = packages_distributions()
    for module, where in third_party_imports(root / "src" / "covey"):
        names = {canonicalize_name(name) for name in distributions.get(module, [_DISTRIBUTION.get(module, module)])}
        assert names & declared.keys(), f"{where} imports {module}, which pyproject.toml does not list"


def third_party_imports(package: Path) -> Iterator[tuple[str, Path]]:
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                modules = [node.module or ""]
            for module in {name.partition(".")[0] for name in modules} - {"covey", *sys.stdlib_module_names}:
                yield module, path.relative_to(package)


def test_tested_versions_lie_within_the_declared_ranges(root: Path, project: dict[str, Any]) -> None:
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = requirements([line for line in lines if line and not line.startswith("#")])
    tested = requirements(project["dependencies"] + project["optional-dependencies"]["dev"])
    for name, wanted in tested.items():
        assert name in pins, f"constraints.txt has no tested version of {name}"
        (pin,) = pins[name].specifier
        assert pin.operator == "=="
        assert wanted.specifier.contains(pin.version), f"{pins[name]} lies outside of {wanted}"


def test_conda_installs_the_same_project(root: Path, project: dict[str, Any]) -> None:
    dependencies = yaml.safe_load((root / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    python = Requirement(dependencies[0])
    assert python.name == "python"
    assert project["requires-python"] in str(python.specifier)
    assert not python.specifier.contains("3.10")
    assert dependencies[1:] == ["pip", {"pip": ["-c constraints.txt", "-e ."]}]


def test_the_wheel_holds_the_whole_package(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling builds the wheel; the extra `dev` brings it")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=root, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("covey/")}
        metadata = archive.read(next(n for n in archive.namelist() if n.endswith("METADATA"))).decode()
    source = root / "src"
    wanted = {str(path.relative_to(source)) for path in (source / "covey").rglob("*") if path.is_file()}
    assert packed == {name for name in wanted if "__pycache__" not in name}
    assert {"covey/py.typed", "covey/config/conf/config.yaml"} <= packed
    version = (root / "src" / "covey" / "_version.py").read_text(encoding="utf-8").split('"')[-2]
    assert f"\nVersion: {version}\n" in metadata
