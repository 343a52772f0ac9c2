"""The Python API: the same runs and results as the commands.

`import covey` and its names; `covey.train` writes the run of `covey train`, step for step; `covey.evaluate` gives the
figures of `covey eval`; values in overrides.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

import covey
from completed import completed
from covey.api import compare, evaluate, generate, train
from covey.api.arguments import ArgumentError, Words
from covey.cli.main import main
from covey.config import compose
from covey.errors import ConfigError
from covey.runlog.metrics import read_metrics

TINY: Mapping[str, Any] = {
    "training.per_device_train_batch_size": 8,
    "training.gradient_accumulation_steps": 1,
    "training.num_generations": 4,
    "training.max_completion_length": 40,
    "training.max_steps": 2,
    "dataset.train_size": 12,
    "dataset.test_size": 16,
    "dataset.hard_size": 0,
    "evaluation.every_steps": 2,
}


def test_what_the_package_exports() -> None:
    from covey.training.trl.trainer import GRPOConfig, GRPOTrainer

    assert set(covey.__all__) <= set(dir(covey))
    assert all(getattr(covey, name) is not None for name in covey.__all__)
    assert (covey.GRPOTrainer, covey.GRPOConfig) == (GRPOTrainer, GRPOConfig)
    assert (covey.train, covey.evaluate) == (train, evaluate)
    assert (covey.compare, covey.generate) == (compare, generate)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = covey.nothing


@pytest.mark.parametrize(
    "value",
    [
        "plain",
        "it's",
        "a, b=c",
        "007",
        "null",
        "C:\\dir\\",
        "a\\'b",
        "",
        "[x]",
        True,
        None,
        3,
        1e-6,
        [1, "a,b"],
        {"k": 1},
    ],
)
def test_values_survive_the_override_grammar(value: Any) -> None:
    (word,) = Words("covey.train").of({"key": value})
    read = OverridesParser.create().parse_override(word).value()
    plain = [getattr(item, "text", item) for item in read] if isinstance(read, list) else getattr(read, "text", read)
    assert plain == value


def test_groups_and_keys_in_one_mapping() -> None:
    words = Words("covey.train").of
    chosen = words({"objective": "maxent", "objective.maxent_tau": 0.7, "run_name": "007"})
    config = compose(chosen).config
    assert (config.objective.name, config.objective.maxent_tau, config.run_name) == ("maxent", 0.7, "007")
    assert words(["seed=1"]) == ["seed=1"]
    with pytest.raises(TypeError, match="is a string"):
        words("seed=1")
    with pytest.raises(ConfigError, match=r"training\.max_steps"):
        train(overrides={"training.max_step": 3})


def test_train_and_evaluate_do_what_the_commands_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {**TINY, "output_dir": str(tmp_path)}
    result = train(overrides={**settings, "run_name": "called"})
    assert capsys.readouterr().out == ""
    assert (result.finished, result.trained, result.step) == (True, True, 2)
    words = Words("covey.train").of
    assert main(["train", *words({**settings, "run_name": "typed"})]) == 0

    def rows(name: str) -> list[dict[str, Any]]:
        found = read_metrics(tmp_path / name / "metrics.jsonl")
        return [{k: v for k, v in row.items() if not k.startswith(("time/", "memory/"))} for row in found]

    assert rows("called") == rows("typed")
    for file in ("report.html", "curves.png", "summary.json", "final_model/model.safetensors"):
        assert (tmp_path / "called" / file).is_file(), file
    weights = [(tmp_path / name / "final_model" / "model.safetensors").read_bytes() for name in ("called", "typed")]
    assert weights[0] == weights[1]
    assert train(overrides={**settings, "run_name": "called"}).trained is False

    calls: list[tuple[str, int, int]] = []
    (evaluation,) = evaluate(tmp_path / "called", {"evaluation.num_samples": 2}, progress=lambda *a: calls.append(a))
    assert calls[-1] == ("test", 32, 32)
    assert main(["eval", str(tmp_path / "typed"), "evaluation.num_samples=2"]) == 0
    (typed,) = (tmp_path / "typed" / "evaluation").glob("*/summary.json")
    assert evaluation.summary["accuracy"]["value"] > 0
    assert json.loads(typed.read_text())["metrics"]["accuracy"]["value"] == evaluation.summary["accuracy"]["value"]
    assert len(list(evaluation.completions())) == 32


def test_functions_and_rows_of_ones_own_from_training_to_comparing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[int] = []

    def long(completions: Any, answer: Any, **columns: Any) -> list[float]:
        calls.append(len(completions))
        return [min(1.0, len(messages[-1]["content"]) / 100) for messages in completions]

    rows = [{"prompt": f"What is {n} + 12?", "answer": str(n + 12)} for n in range(10, 30)]
    given = {name: value for name, value in TINY.items() if not name.startswith("dataset.")}
    data = {"train": rows[:16], "test": rows[16:]}
    keys = {"output_dir": tmp_path, "run_name": "own"}
    result = train(overrides=given, data=data, rewards=[long, "format"], show=True, **keys)
    assert "step 2/2" in capsys.readouterr().out
    assert result.finished
    assert calls == [8, 4, 8, 8, 4], "a trial, held-out problems, two steps, held-out problems"
    config = compose(recipe=result.run.root).config
    assert config.rewards.funcs == (f"{__name__}:{long.__qualname__}", "format")
    assert [json.loads(line) for line in Path(config.dataset.path or "").read_text().splitlines()] == rows[:16]
    assert {"eval/reward/long", "eval/reward/format"} <= read_metrics(result.run.metrics)[-1].keys()
    assert train(overrides=given, data=data, rewards=[long, "format"], **keys).trained is False
    assert "eval" in result._repr_html_() or "held-out reward" in result._repr_html_()

    text = generate(result, "What is 12 + 30?", max_tokens=5)
    assert isinstance(text, str)
    assert (text.prompt, text.episode) == ("What is 12 + 30?", None)
    several = generate(result, ["What is 12 + 30?", [{"role": "user", "content": "What is 12 + 30?"}]], max_tokens=5)
    assert several == [text, text], "greedy, and the same conversation"
    assert several[1].prompt == [{"role": "user", "content": "What is 12 + 30?"}]

    ours, theirs = evaluate(result)[0], evaluate(result, checkpoint=2, out=tmp_path / "again")[0]
    found = compare(ours, theirs)
    assert (found.metric, found.results[0].difference, found.results[0].problems) == ("reward", 0.0, 4)
    with pytest.raises(ConfigError, match="is given twice"):
        compare(result, result)
    assert main(["eval", str(result.run.root), f"output_dir={tmp_path}"]) == 0, "this process has the function"


def test_a_class_of_ones_own_is_an_environment(tmp_path: Path) -> None:
    class Doors:
        """Hides a prize behind one of two doors."""

        def reset(self, **row: Any) -> str:
            self.opened = 0
            return "Open door 2."

        def open(self, door: int) -> str:
            """Open a door.

            Args:
                door: Its number.
            """
            self.opened = door
            return "done"

        def get_reward(self) -> float:
            return float(self.opened == 2)

    settings = {**TINY, "dataset": "none", "dataset.train_size": 8, "dataset.test_size": 4, "output_dir": tmp_path}
    settings.pop("dataset.hard_size")
    result = train(overrides={**settings, "training.max_steps": 1, "run_name": "doors"}, environment_factory=Doors)
    assert result.finished
    assert compose(recipe=result.run.root).config.environment.factory == f"{__name__}:{Doors.__qualname__}"
    assert "train/rewards/Doors/mean" in read_metrics(result.run.metrics)[-1]


def test_training_in_another_thread_than_the_main_one(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as thread:
        settings = {**TINY, "output_dir": tmp_path, "run_name": "threaded", "training.max_steps": 1}
        assert thread.submit(train, overrides=settings).result().finished


WRONG = {
    "empty": (([],), {}, r"prompts=\[\] has no prompt"),
    "blank": ((" ",), {}, r"prompts\[0\] has no prompt"),
    "number": ((3,), {}, "prompts=3 is neither text nor a list"),
    "text as temperature": (("x",), {"temperature": "hot"}, "temperature='hot'"),
    "cold": (("x",), {"temperature": -1}, "temperature=-1"),
    "nan": (("x",), {"temperature": float("nan")}, "temperature=nan"),
    "no tokens": (("x",), {"max_tokens": 0}, "max_tokens=0"),
    "half a token": (("x",), {"max_tokens": 1.5}, "max_tokens=1.5"),
    "seed": (("x",), {"seed": "a"}, "seed='a'"),
    "system": (("x",), {"system": 3}, "system=3"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_of_generate_are_refused_first(case: str) -> None:
    words, keys, message = WRONG[case]
    with pytest.raises(ArgumentError, match=message):
        generate("no/model", *words, **keys)


def test_a_missing_run_is_found_without_pytorch(tmp_path: Path) -> None:
    (tmp_path / "out" / "first").mkdir(parents=True)
    (tmp_path / "out" / "first" / "config.yaml").touch()
    script = """
import sys
import covey
from covey.cli.main import main
for act in (lambda: covey.generate("out/frist", "x"), lambda: covey.evaluate("out/frist")):
    try:
        act()
    except covey.CoveyError as error:
        assert "Did you mean out/first" in str(error)
for words in (["generate", "out/frist", "--prompt", "x"], ["chat", "out/frist"]):
    assert main(words) == 1
assert "torch" not in sys.modules
"""
    done = completed([sys.executable, "-c", script], cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
