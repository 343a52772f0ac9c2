"""What a shell offers after a line, and the scripts in the shells themselves."""

from __future__ import annotations

import os
import pty
import select
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from completed import completed
from covey.cli.completion import candidates
from covey.cli.main import main, parsers
from covey.config import known_keys
from covey.config.keys import GROUPS


def words(line: str) -> list[str]:
    return [word for word, _ in candidates(line, parsers()[0])]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("covey tr", ["train"]),
        (".venv/bin/covey exp", ["export", "expand-vocab"]),
        ("covey train --multi", ["--multirun"]),
        ("covey eval out/a --check", ["--checkpoint"]),
        ("covey export --dtype ", ["float32", "bfloat16", "float16"]),
        ("covey completion ", ["bash", "zsh", "fish"]),
        ("covey runs ", ["tail", "rm", "path"]),
        ("covey train obj", ["objective=", "objective."]),
        ("covey train dataset.diff", ["dataset.difficulty."]),
        ("covey train dataset.difficulty.max_d", ["dataset.difficulty.max_digits="]),
        ("covey train training.num_gen", ["training.num_generations=", "training.num_generations_eval="]),
        ("covey train evaluation=gr", ["evaluation=greedy"]),
        ("covey train +experiment=quick", ["+experiment=quick_test"]),
        ("covey train --multirun evaluation=greedy,li", ["evaluation=greedy,liberal"]),
        ("covey train speed.shared_prefill=", ["speed.shared_prefill=true", "speed.shared_prefill=false"]),
        (
            "covey train 'dataset.mixture.weights=",
            ["dataset.mixture.weights=share", "dataset.mixture.weights=fraction"],
        ),
        (
            "covey train dataset.difficulty.operators=[+,",
            [f"dataset.difficulty.operators=[+,{sign}" for sign in "+-*/"],
        ),
        ("covey config --doc rewards.code.mem", ["rewards.code.memory_mb"]),
        ("covey train dataset.path=", []),
        ("covey report ", []),
        ("covey nonsense ", []),
        ("covey train no_such.", []),
    ],
)
def test_what_is_offered(line: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert words(line) == expected


def test_every_key_can_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found: list[str] = []
    queue = ["covey train "]
    while queue:
        line = queue.pop()
        for word in words(line):
            if word.endswith("."):
                queue.append(f"covey train {word}")
            found.append(word)
    assert {word.removesuffix("=") for word in found if word.endswith("=")} >= set(known_keys())
    assert {word.removesuffix(".") for word in found if word.endswith(".")} == set(GROUPS)


def test_groups_of_ones_own_and_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "mine.yaml").write_text("# My model. It is small.\nname: org/mine\n")
    (tmp_path / "recipe.yaml").touch()
    (tmp_path / "two words.yaml").touch()
    (tmp_path / ".hidden").mkdir()
    monkeypatch.chdir(tmp_path)
    (mine,) = candidates("covey train --config-dir conf model=mi", parsers()[0])
    assert mine == ("model=mine", "My model")
    assert words("covey train --config-dir=conf rec") == ["recipe.yaml"]
    assert words("covey train conf/mod") == ["conf/model/"]
    assert "recipe.yaml" not in words("covey train recipe.yaml ")
    (tmp_path / "rows.jsonl.gz").touch()
    offered = {command: words(f"covey {command} ro") for command in ("train", "init", "doctor")}
    assert offered == {
        "train": ["rows.jsonl.gz", "rollout."],
        "init": ["rows.jsonl.gz", "rollout."],
        "doctor": ["rollout."],
    }
    assert not [word for word in words("covey train ") if word in (".hidden/", "two words.yaml")]


def test_an_explanation_stands_beside_each_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish", "--line", "covey train training.beta"]) == 0
    word, about = capsys.readouterr().out.rstrip("\n").split("\t")
    assert word == "training.beta="
    assert about
    assert main(["completion", "bash", "--line", "covey train training.beta"]) == 0
    assert capsys.readouterr().out == "training.beta=\n"


def test_completing_needs_no_pytorch() -> None:
    code = (
        "import sys; from covey.cli.main import main; main(['completion', 'zsh', '--line', 'covey train model=']); "
        "sys.exit('torch' in sys.modules)"
    )
    done = completed([sys.executable, "-c", code])
    assert done.returncode == 0
    assert "model=starter" in done.stdout


# --- in the shells ------------------------------------------------------------------------------------------------

STARTS = {
    "bash": (["--norc", "-i"], "source <(covey completion bash)"),
    "zsh": (["-f", "-i"], "autoload -U compinit; compinit -u -D; source <(covey completion zsh)"),
    "fish": (["--no-config", "-i"], "covey completion fish | source"),
}
COVEY = """#!/bin/sh
if [ "$1" = completion ]; then exec '{python}' -m covey.cli.main "$@"; fi
printf 'given:'; printf ' <%s>' "$@"; echo .
"""


LINES = {
    "covey tra→seed=1": "<train> <seed=1>",
    "covey train evaluation=gr→seed=1": "<train> <evaluation=greedy> <seed=1>",
    "covey train dataset.diff→max_d→3": "<train> <dataset.difficulty.max_digits=3>",
    "covey eval zo→first --checkp→best": "<eval> <zoo/first> <--checkpoint> <best>",
    "covey train dataset.path=da→": "<train> <dataset.path=data.jsonl>",
}
"""What is typed, with a tab for every `→`, and what `covey` is given."""


class Terminal:
    """A shell in a terminal of its own, with a `covey` that completes and otherwise prints its arguments."""

    def __init__(self, shell: str, folder: Path) -> None:
        arguments, setup = STARTS[shell]
        (folder / "bin").mkdir()
        (folder / "bin" / "covey").write_text(COVEY.format(python=sys.executable))
        (folder / "bin" / "covey").chmod(0o755)
        environ = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "HOME": str(folder), "TERM": "dumb"}
        self._process, self._file = pty.fork()
        if self._process == 0:
            os.chdir(folder)
            os.execvpe(shell, [shell, *arguments], environ)
        self.type(f"{setup}; echo rea''dy\n", "ready")

    def type(self, text: str, end: str) -> str:
        """Type a text; returns what is shown until `end`."""
        os.write(self._file, text.encode())
        shown, until = "", time.monotonic() + 60
        while end not in shown and time.monotonic() < until:
            if select.select([self._file], [], [], 1)[0]:
                shown += os.read(self._file, 4096).decode(errors="replace")
        return shown

    def close(self) -> None:
        os.close(self._file)
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)


@pytest.mark.slow
@pytest.mark.parametrize("shell", STARTS)
def test_a_shell_completes(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "data.jsonl").touch()
    (tmp_path / "zoo").mkdir()
    terminal = Terminal(shell, tmp_path)
    try:
        for line, expected in LINES.items():
            shown = terminal.type(line.replace("→", "\t") + "\n", ">.")
            assert shown.partition("given: ")[2].partition(".\r")[0].removesuffix(".") == expected, line
    finally:
        terminal.close()
