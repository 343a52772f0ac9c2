"""`covey eval`, `covey generate` and `covey chat` with environments and tools in processes of their own."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from chat_templates import make_tokenizer
from covey.cli.main import main
from covey.config import compose, to_yaml
from covey.runlog.evaluations import read_evaluation
from fake_environments import Guesser

ENGINE = f"{Path(__file__).parents[2] / 'support' / 'fake_environments.py'}:Guesser"
GAME = ("environment=number_guess", "dataset.test_size=4", "training.max_completion_length=600")
TOOL = '''
def double(number: int) -> int:
    """
    Double a number.

    Args:
        number: It.
    """
    return 2 * number
'''


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny model with random weights whose chat template can do tools."""
    folder, tokenizer = tmp_path_factory.mktemp("caller") / "model", make_tokenizer("qwen2_5")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = Qwen2Config(
        vocab_size=len(tokenizer), num_key_value_heads=1, max_position_embeddings=4096, **sizes, **ends
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def evaluate(model: str, out: Path, *words: str, code: int = 0) -> None:
    settings = (f"evaluation.engine='{ENGINE}'", "evaluation.batch_size=3", "evaluation.num_samples=2")
    assert main(["eval", model, *GAME, *settings, *words, "--out", str(out)]) == code


def completions(folder: Path) -> list[dict[str, Any]]:
    """Without times."""
    return [
        {k: v for k, v in one.items() if k != "environment_seconds"} for one in read_evaluation(folder).completions()
    ]


def test_an_evaluation_plays_the_environment_and_resumes_exactly(
    caller: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate(caller, tmp_path / "whole")
    whole, made = read_evaluation(tmp_path / "whole"), completions(tmp_path / "whole")
    assert whole.summary["accuracy"]["value"] == whole.summary["reward/NumberGuess"]["value"] == 1.0
    assert whole.settings["grader"] == "environment"
    assert whole.settings["episodes"] == {
        "environments": [{"name": None, "factory": "number_guess", "settings": {}}],
        "tools": [],
        "max_turns": 16,
    }
    told = [[m["content"] for m in one["messages"] if m["role"] == "tool"] for one in made]
    assert told[::2] == told[1::2]  # the samples of a problem meet the same number, which halving finds alike
    assert len({texts[-1] for texts in told}) > 1
    assert [one["tool_calls"] for one in made] == [len(texts) for texts in told]
    assert {one["episode"] for one in made} == {"answered"}
    out = capsys.readouterr().out
    assert "accuracy = avg@2 = pass@1 (grader: environment)" in " ".join(out.split())
    assert "episode/crashed" not in out
    assert not [name for name in whole.summary if name.startswith("maj@")]
    cut = tmp_path / "cut"
    shutil.copytree(tmp_path / "whole", cut)
    (cut / "summary.json").unlink()
    lines = (cut / "completions.jsonl").read_text().splitlines(keepends=True)
    (cut / "completions.jsonl").write_text("".join(lines[:4]))  # one of the second batch
    evaluate(caller, cut)
    assert completions(cut) == made


def test_evaluations_of_other_environments_are_not_mixed_up(
    caller: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate(caller, tmp_path / "one")
    evaluate(caller, tmp_path / "one", "environment.max_turns=3", code=1)
    assert "episodes.max_turns: 16 there, 3 here" in capsys.readouterr().err
    evaluate(caller, tmp_path / "other", "environment.settings.guesses=3")
    assert read_evaluation(tmp_path / "other").summary["episode/answered"]["value"] < 1
    assert main(["compare", str(tmp_path / "one"), str(tmp_path / "other")]) == 1
    says = capsys.readouterr().err
    assert "the environment and tools (“number_guess, at most 16 turns” and “number_guess, {'guesses': 3}," in says
    evaluate(caller, tmp_path / "seeded", "dataset.seed=3")
    assert main(["compare", str(tmp_path / "one"), str(tmp_path / "seeded")]) == 1
    assert "give `covey eval` one dataset.seed=N for both" in capsys.readouterr().err


def test_another_seed_meets_the_same_episodes(caller: str, tmp_path: Path) -> None:
    """Halving tells the hidden number, which an environment draws when it starts."""
    told = []
    for name, words in {"one": ("seed=1",), "two": ("seed=2",), "other": ("dataset.seed=2",)}.items():
        evaluate(caller, tmp_path / name, *words)
        texts = [[m["content"] for m in one["messages"] if m["role"] == "tool"] for one in completions(tmp_path / name)]
        told.append((texts, read_evaluation(tmp_path / name).settings["data"]["problems_fingerprint"]))
    assert told[0] == told[1]
    assert told[0][0] != told[2][0]
    assert told[0][1] != told[2][1]
    assert main(["compare", str(tmp_path / "one"), str(tmp_path / "two")]) == 0


def test_the_share_that_reaches_a_value(caller: str, tmp_path: Path) -> None:
    """With five guesses halving narrows 100 numbers down to at most 3: 1 - log 3 / log 100 is 0.76, and half of it."""
    evaluate(caller, tmp_path / "out", "environment.settings.guesses=5", "evaluation.right_at=0.38")
    found = read_evaluation(tmp_path / "out")
    assert found.summary["accuracy"]["value"] == 1.0
    assert found.summary["reward"]["value"] < 1.0
    assert found.settings["right_at"] == 0.38
    assert {one["outcome"] for one in found.completions()} == {"right"}


def test_benchmarks_get_the_tools_but_no_environment_with_a_task_of_its_own(
    caller: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tool, rows = tmp_path / "own.py", tmp_path / "gsm8k.jsonl"
    tool.write_text(TOOL)
    rows.write_text('{"question": "Guess.", "answer": "#### 7"}\n{"question": "Again.", "answer": "#### 8"}\n')
    benchmark = ("evaluation.benchmarks=[gsm8k]", f"evaluation.benchmark_paths={{gsm8k: '{rows}'}}")
    evaluate(caller, tmp_path / "with", *benchmark, f"environment.tools=['{tool}:double']")
    found = read_evaluation(tmp_path / "with")
    assert (
        "the environment is not played, because it rewards a task of its own: the tools alone are used" in caplog.text
    )
    assert found.settings["grader"] == "accuracy"
    assert found.settings["episodes"]["environments"] == []
    assert found.settings["episodes"]["tools"] == [f"{tool}:double"]
    assert list(found.settings["code"]) == [f"{tool}:double"]
    first = next(found.completions())
    assert first["tool_calls"] == first["tool_failures"] == first["turns"] - 1 > 0  # guess is no tool here
    evaluate(caller, tmp_path / "without", *benchmark)
    plain = read_evaluation(tmp_path / "without")
    assert "episodes" not in plain.settings
    assert "turns" not in next(plain.completions())


SET_OF_TOOLS = """
class Notes:
    def reset(self, **row):
        self.answer = row["answer"]

    def guess(self, number: int) -> str:
        '''
        Guess.

        Args:
            number: It.
        '''
        return f"{self.answer} is right. The game is over."
"""


def test_an_environment_that_is_a_set_of_tools_is_played_on_a_benchmark_that_fits(
    caller: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own, rows = tmp_path / "own.py", tmp_path / "gsm8k.jsonl"
    own.write_text(SET_OF_TOOLS)
    rows.write_text('{"question": "Guess.", "answer": "#### 7"}\n')
    words = (
        *("evaluation.benchmarks=[gsm8k]", f"evaluation.benchmark_paths={{gsm8k: '{rows}'}}"),
        *(f"environment.factory='{own}:Notes'", "rewards.funcs=[format]"),
    )
    evaluate(caller, tmp_path / "fits", *words)
    found = read_evaluation(tmp_path / "fits")
    *_, told, said = next(found.completions())["messages"]
    assert (told["role"], said["content"]) == ("tool", "Found it.")
    assert told["content"].endswith("7 is right. The game is over.")
    assert found.settings["grader"] == "accuracy"
    assert [one["factory"] for one in found.settings["episodes"]["environments"]] == [f"{own}:Notes"]
    own.write_text(SET_OF_TOOLS.replace("**row", "secret, answer=None"))
    evaluate(caller, tmp_path / "other", *words)
    assert "is not played, because its reset needs secret, which the rows lack" in caplog.text
    assert "episodes" not in read_evaluation(tmp_path / "other").settings


HOSTILE = """
import os, time

class Hostile:
    def reset(self, kind, **row):
        self.kind = kind
        if kind == "no start":
            raise ValueError(kind)

    def guess(self, number: int) -> str:
        '''
        Guess.

        Args:
            number: It.
        '''
        if self.kind == "hangs":
            time.sleep(60)
        if self.kind == "dies":
            os._exit(3)
        return "50 is right. The game is over."

    def get_reward(self):
        return "much" if self.kind == "no number" else 0.5
"""


def test_what_an_environment_does_wrong_costs_its_own_episode(caller: str, tmp_path: Path) -> None:
    own, rows = tmp_path / "own.py", tmp_path / "rows.jsonl"
    own.write_text(HOSTILE)
    kinds = ("fine", "no start", "hangs", "dies", "no number")
    rows.write_text("".join(json.dumps({"prompt": "Guess.", "kind": kind}) + "\n" for kind in kinds))
    words = (f"environment.factory='{own}:Hostile'", f"dataset.path='{rows}'", "environment.timeout=2", "--all")
    evaluate(caller, tmp_path / "out", *words, "evaluation.num_samples=1")
    found = read_evaluation(tmp_path / "out")
    assert {
        one["row"]["kind"]: (one["episode"], one["outcome"], one["rewards"]["Hostile"]) for one in found.completions()
    } == {
        "fine": ("answered", "wrong", 0.5),
        "no start": ("crashed", "crashed", None),
        "hangs": ("timed_out", "wrong", 0.0),
        "dies": ("crashed", "wrong", 0.0),
        "no number": ("crashed", "crashed", None),
    }
    assert found.summary["accuracy"]["value"] == 0.1  # 0.5 of 5: no reward counts as 0
    assert found.summary["reward"]["value"] == pytest.approx(0.5 / 3)
    assert found.summary["grader/crashed"]["value"] == 0.4
    assert found.summary["episode/timed_out"]["value"] == 0.2


@pytest.fixture
def run(caller: str, tmp_path: Path) -> Path:
    """A run directory of the game, with a final model."""
    shutil.copytree(caller, tmp_path / "run" / "final_model")
    config = compose([*GAME, f"model.name={caller}", "dataset.system_prompt=Play."]).config
    (tmp_path / "run" / "config.yaml").write_text(to_yaml(config))
    return tmp_path / "run"


@pytest.fixture
def guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chats are with a model that can play."""
    monkeypatch.setattr(
        "covey.evaluation.run.engine_of", lambda config, target, tokenizer, *_, **__: Guesser("", tokenizer)
    )


@pytest.mark.usefixtures("guesses")
def test_generate_runs_the_tools(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text('{"prompt": "Now. ", "secret": 50}\n{"prompt": "Now. ", "secret": 25, "low": 1}\n')
    assert main(["generate", str(run), str(file)]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["prompt"], one["completion"]) for one in rows] == [("Now. ", "Found it.")] * 2
    assert [(one["turns"], one["tool_calls"], one["episode"]) for one in rows] == [
        (2, 1, "answered"),
        (3, 2, "answered"),
    ]
    assert [one["role"] for one in rows[0]["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert rows[0]["messages"][1]["content"].startswith("Now. I have hidden")
    assert main(["generate", str(run), "--prompt", "Go. "]) == 0
    captured = capsys.readouterr()
    assert captured.out == "Found it.\n"
    calls = [line for line in captured.err.splitlines() if line.startswith(("→", "←"))]
    assert calls[0] == "→ guess(number=50)"
    assert len(calls) % 2 == 0
    assert calls[-1].startswith("← ")
    assert "is right" in calls[-1]


@pytest.mark.usefixtures("guesses")
def test_chat_shows_calls_and_keeps_the_environment(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Really?\n/new\n"))
    assert main(["chat", str(run)]) == 0
    lines = " ".join(capsys.readouterr().out.split())
    assert lines.count("I have hidden a whole number from 1 to 100.") == 2  # of both conversations
    assert lines.count("→ guess(number=50)") == 2  # not played again for the user's line
    assert lines.count("Found it.") == 3


def test_an_environment_that_needs_a_row_says_so(caller: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = (run / "config.yaml").read_text()
    own = run.parent / "needy.py"
    own.write_text(
        "class Needy:\n    def reset(self, target, **row):\n        return target\n"
        "    def get_reward(self):\n        return 0.0\n"
    )
    (run / "config.yaml").write_text(config.replace("number_guess", f"{own}:Needy"))
    assert main(["chat", str(run)]) == 2
    assert "did not start without a row of data" in " ".join(capsys.readouterr().err.split())
