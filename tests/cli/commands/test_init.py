"""`covey init ROWS` and `covey train ROWS`: what is printed, written and refused."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from covey.cli.main import main
from covey.config import load
from covey.config.named_code import STUB
from covey.runlog.metrics import read_metrics
from data_files import write_jsonl

Covey = Callable[..., tuple[int, str, str]]
SMALL = (
    *("training.max_steps=2", "training.max_completion_length=8", "evaluation.every_steps=0"),
    *("training.num_generations=4", "training.per_device_train_batch_size=8", "training.gradient_accumulation_steps=1"),
)


@pytest.fixture(autouse=True)
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_jsonl(
        tmp_path / "apples.jsonl",
        [{"question": f"Anna has {i} apples, and eats one?", "answer": i - 1} for i in range(24)],
    )
    write_jsonl(
        tmp_path / "poems.jsonl",
        [{"prompt": f"Write of {i} towns.", "answer": f"So many towns, and {i} of them I know."} for i in range(24)],
    )
    write_jsonl(tmp_path / "sums.jsonl", [{"question": f"What is {i} + {i}?", "answer": 2 * i} for i in range(24)])


@pytest.fixture
def covey(capsys: pytest.CaptureFixture[str]) -> Covey:
    """Run a command; returns exit code, stdout, and stderr as one line."""

    def call(*words: str) -> tuple[int, str, str]:
        code = main(list(words))
        captured = capsys.readouterr()
        return code, captured.out, " ".join(captured.err.split())

    return call


def test_it_shows_the_rows_and_writes_a_recipe_that_trains(covey: Covey, tiny_model: str) -> None:
    code, out, err = covey("init", "apples.jsonl", "--model", tiny_model, "--out", "new/my.yaml")
    assert (code, err) == (0, "")
    assert "rows     20 to train on, 4 held out" in out
    assert "columns  prompt 'question', answer 'answer'" in out
    assert "answers  numbers 100%" in out
    assert "scripts  Latin 100%" in out
    assert "lengths  prompts " in out
    assert out.count("a prompt, as the model will see it; its answer: ") == 3
    assert all(f"Anna has {i} apples" in out for i in (0, 12, 23))
    assert "0 wrong" in out
    assert "Next:\n  covey train new/my.yaml\n  covey view" in out
    text = Path("new/my.yaml").read_text(encoding="utf-8")
    keys = [line for line in text.splitlines() if line.startswith("  ") and not line.startswith("  #")]
    assert 10 < len(keys) < 16
    code, _, err = covey("train", "new/my.yaml", *SMALL, "run_name=run")
    assert (code, err) == (0, "")
    assert [row["step"] for row in read_metrics(Path("out/run/metrics.jsonl"))] == [1, 2]
    assert not Path("out/run/recipe.yaml").exists()


def test_rows_in_place_of_a_recipe_train_with_what_init_would_write(covey: Covey) -> None:
    code, _, _ = covey("init", "sums.jsonl")
    assert code == 0
    recipe = Path("sums.yaml").read_text(encoding="utf-8")
    assert load(recipe="sums.yaml").model.name == "starter"
    code, _, err = covey("train", "sums.jsonl", "run_name=run", "stop_after_steps=1", "training.top_k=5")
    assert (code, err) == (0, "")
    kept = Path("out/run/recipe.yaml").read_text(encoding="utf-8")
    assert kept == f"{recipe}\n# As given on the command line.\ntraining.top_k: 5\n"
    assert load(recipe="out/run/recipe.yaml").training.top_k == 5
    assert [row["step"] for row in read_metrics(Path("out/run/metrics.jsonl"))] == [0, 1]
    code, out, _ = covey("train", "sums.jsonl", "run_name=run", "stop_after_steps=1", "training.top_k=5")
    assert code == 0
    assert "Resuming from checkpoint-1 of out/run" in out


def test_a_reward_of_ones_own_lies_beside_the_recipe(covey: Covey, tiny_model: str) -> None:
    code, out, _ = covey("init", "poems.jsonl", "--model", tiny_model)
    assert code == 0
    assert "Written: poems.yaml, and poems_reward.py: no rule can check such answers" in out
    assert "a trial call with 16 completions gave " in out
    assert Path("poems_reward.py").read_bytes() == STUB.read_bytes()
    assert load(recipe="poems.yaml").rewards.funcs == ("poems_reward.py:my_reward",)
    code, out, _ = covey("doctor", "poems.yaml", "--json")
    checks = [one["check"] for one in json.loads(out)["findings"]]
    assert (code, "skipped" in checks) == (0, False)
    assert {"reward poems_reward.py:my_reward", "own reward"} <= {*checks}
    Path("poems_reward.py").write_bytes(STUB.read_bytes() + b"open('ran', 'w')\n")
    code, out, _ = covey("doctor", "poems.yaml", "--json")
    checks = [one["check"] for one in json.loads(out)["findings"]]
    assert ("skipped" in checks, "own reward" in checks) == (True, False)
    assert not Path("ran").exists()


def test_what_train_lacks_is_told_with_the_command_that_works(covey: Covey, tiny_model: str) -> None:
    code, _, err = covey("train", "apples.jsonl")
    assert code == 2
    assert "covey init apples.jsonl --model Qwen/Qwen2.5-0.5B-Instruct" in err
    code, _, err = covey("train", "poems.jsonl", f"model.name={tiny_model}")
    assert code == 2
    assert "the reward has to be yours" in err
    assert covey(*shlex.split(err.split("`")[1])[1:])[0] == 0
    assert Path("poems_reward.py").is_file()
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("init apples.jsonl --model starter", "apples.jsonl holds other things than sums and their results (its first"),
        ("init apples.jsonl --model nowhere/at/all", "there is nothing at"),
        ("init", "covey init needs rows"),
        ("init gone.jsonl", "there is no such file"),
        ("init sums.jsonl --out apples.jsonl", "apples.jsonl is there already, and is not overwritten"),
        ("init poems.jsonl --model starter --out taken.yaml", "taken_reward.py is there already"),
        ("init sums.jsonl dataset=gsm8k", "takes no groups, as in dataset=gsm8k"),
        ("init sums.jsonl training.max_step=3", "training.max_steps"),
        ("init sums.jsonl environment.tools=[calculator]", "With an environment"),
        ("doctor sums.jsonl", "sums.jsonl holds rows, not a recipe. `covey init sums.jsonl` writes a recipe"),
        ("config sums.jsonl", "holds rows, not a recipe"),
    ],
)
def test_what_is_refused(words: str, says: str, covey: Covey) -> None:
    Path("taken_reward.py").touch()
    before = sorted(Path().iterdir())
    code, _, err = covey(*words.split())
    assert code in (1, 2)
    assert says in err
    assert "Traceback" not in err
    assert sorted(Path().iterdir()) == before


def test_a_recipe_in_json_is_still_one(covey: Covey) -> None:
    Path("recipe.json").write_text('{"seed": 5}', encoding="utf-8")
    code, out, _ = covey("config", "recipe.json")
    assert code == 0
    assert "seed: 5" in out
    Path("rows.json").write_text('[{"question": "1 + 1", "answer": 2}]', encoding="utf-8")
    assert covey("config", "rows.json")[0] == 2
