"""`--json`: one document on stdout, whatever the values are."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from commands import TINY
from completed import completed
from covey.cli.json_output import json_alone, print_json
from covey.cli.main import main, parsers
from plans import SERVE

TABLES = ("train", "launch", "eval", "compare", "runs", "vocab", "config", "doctor", "starter")
"""The commands that show tables."""


@dataclass(frozen=True)
class Figure:
    value: float
    path: Path


def test_every_value_has_a_form(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "abcdefgh12345678")
    content = {"a": (Figure(math.nan, Path("x/y")), [math.inf, 0.1]), 3: "is abcdefgh12345678", "api_key": "secret"}
    print_json(content)
    found = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(name))
    assert found == {
        "a": [{"value": None, "path": "x/y"}, [None, 0.1]],
        **{"3": "is ***", "api_key": "***"},
    }
    print_json({"text": "é\ud800"})
    assert json.loads(capsys.readouterr().out) == {"text": "é?"}


def test_what_else_prints_is_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    script = """
import os, subprocess
from covey.cli.json_output import json_alone, print_json
with json_alone():
    print("a print", flush=True)
    os.write(1, b"a library\\n")
    subprocess.run(["echo", "a process"], check=True)
    print_json({"a": 1})
    print("at the end")
print("after it")
"""
    done = completed([sys.executable, "-c", script], check=True, timeout=120)
    assert done.stdout == '{\n  "a": 1\n}\nafter it\n'
    assert done.stderr == "a print\na library\na process\nat the end\n"
    with json_alone():
        print("a print")
        print_json([])
    assert capsys.readouterr() == ("[]\n", "a print\n")


def test_a_users_file_may_print(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("print('imported')\ndef reward(completions, level, **kwargs): return []\n")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1 + 1", "answer": "2"}\n{"prompt": "1 + 2", "answer": "3"}\n')
    words = [f"dataset.path={tmp_path / 'rows.jsonl'}", f"rewards.funcs=['{tmp_path / 'own.py'}:reward']"]
    words += ["dataset.test_size=0"]
    assert main(["train", *words, f"output_dir={tmp_path / 'out'}", "--json"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "imported" in err
    assert "needs level" in err


@pytest.mark.parametrize("command", TABLES)
def test_commands_with_tables_take_it(command: str) -> None:
    assert "--json" in parsers()[1][command]._option_string_actions


def test_config_as_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    words = ["config", "seed=3", "training.hub_token=hf_abcdefghijklmnopqrstuvwxyz0123456789", "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["seed"], found["model"]["name"]) == (3, "starter")
    assert "hub_token" not in found["training"]
    assert main([*words, "--diff"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"key": "seed", "before": 0, "here": 3},
        {"key": "training.hub_token", "before": None, "here": "***"},
    ]
    assert main(["config", "--diff", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert main(["config", "--doc", "seed", "--json"]) == 2
    assert "--json goes with the config and with --diff" in capsys.readouterr().err


def test_a_plan_as_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.chdir(tmp_path)
    assert main(["launch", "--plan", "--json", "launch.gpus=4", "run_name=a", *SERVE]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["run"], found["nodes"], found["gpus_per_node"]) == ("out/a", 1, 4)
    roles = {one["name"]: (one["gpus"], one["role"]) for one in found["processes"]}
    assert roles["server"] == (["3"], "samples (vLLM server)")
    assert (found["times"], found["expected"]) == (None, [])
    assert main(["launch", "--json", "launch.gpus=4"]) == 2
    assert "--json goes with --plan" in capsys.readouterr().err


@pytest.mark.slow
def test_training_and_what_follows_as_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.chdir(tmp_path)

    def printed(*words: str) -> Any:
        assert main([*words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    found = printed("doctor", *TINY)
    assert {"severity", "check", "result", "advice"} == found["findings"][0].keys()
    found = printed("train", "run_name=a", *TINY)
    assert (found["run"], found["finished"], found["step"]) == ("out/a", True, 2)
    assert found["summary"] == json.loads(Path("out/a/summary.json").read_text())
    (found,) = printed("eval", "out/a", "evaluation.max_problems=4")
    assert found["metrics"]["accuracy"].keys() == {"value", "low", "high"}
    assert found["settings"] == json.loads(Path(found["path"], "settings.json").read_text())
