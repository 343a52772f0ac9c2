"""Evaluation in training with rewards of the user's own, on rows without answers: from the metrics to the best model.

The reward `planned` gives every completion of a step the same value, so that figures are known by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerState

from covey.cli.main import main
from covey.runlog.evaluations import read_evaluation
from covey.runlog.metrics import read_metrics
from same_run import without_times

REWARDS = """
PLAN = {0: 5.0, 1: 1.0, 2: 3.0, 3: 2.0, 4: 3.0, 5: 0.0, 6: 0.0}

def planned(completions, trainer_state, log_metric, log_extra, **kwargs):
    log_metric("rows", len(completions))
    log_extra("seen", ["yes"] * len(completions))
    return [PLAN[trainer_state.global_step] for _ in completions]

def on_some(completions, kind, **kwargs):
    return [float(len(c[-1]["content"]) % 5) if k == "a" else None for c, k in zip(completions, kind)]

def ends(completions, **kwargs):
    return [0.25 if "0" in c[-1]["content"] else 0.75 for c in completions]
"""

Train = Callable[..., Path]


@pytest.fixture
def train(tiny_model: str, tmp_path: Path) -> Train:
    file, data = tmp_path / "mine.py", tmp_path / "prompts.jsonl"
    file.write_text(REWARDS, encoding="utf-8")
    rows = [{"prompt": f"Write line {n}.", "kind": "ab"[n % 2]} for n in range(20)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def call(name: str, *words: str, code: int = 0) -> Path:
        settings = (
            *("model=starter", f"model.name={tiny_model}", f"output_dir={tmp_path}", f"run_name={name}"),
            *("dataset.task=null", f"dataset.path={data}", f"rewards.funcs=['{file}:planned','{file}:on_some']"),
            *("training.per_device_train_batch_size=4", "training.gradient_accumulation_steps=1"),
            *("training.num_generations=4", "training.max_completion_length=4", "training.max_steps=6"),
            *("training.reward_weights=[1, 0]", "training.save_steps=3", "evaluation.every_steps=1"),
        )
        assert main(["train", *settings, *words]) == code
        return tmp_path / name

    return call


def evaluations(run: Path, *metrics: str) -> list[tuple[Any, ...]]:
    rows = [row for row in read_metrics(run / "metrics.jsonl") if "eval/reward" in row]
    return [(row["step"], *(row.get(metric) for metric in metrics)) for row in rows]


def test_a_run_with_own_rewards_on_prompts_without_answers(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    run = train("run")
    plan = [5.0, 1.0, 3.0, 2.0, 3.0, 0.0, 0.0]
    assert evaluations(run, "eval/reward", "eval/reward/planned") == [(n, v, v) for n, v in enumerate(plan)]
    rows = read_metrics(run / "metrics.jsonl")
    assert not any("accuracy" in name or name.startswith("grader/") for row in rows for name in row)
    assert [row.get("train/rows") for row in rows] == [None, *[4.0] * 6]  # of the training batches only
    records = [json.loads(line) for line in (run / "evaluation" / "test-step-000002.jsonl").read_text().splitlines()]
    assert len(records) == 4
    assert {(one["answer"], one["outcome"], one["reward"]) for one in records} == {(None, None, 3.0)}
    some = [one["rewards"]["on_some"] for one in records]
    assert any(value is None for value in some)  # it applies to half of the rows
    known = [value for value in some if value is not None]
    assert rows[2].get("eval/reward/on_some") == pytest.approx(sum(known) / len(known))
    out = " ".join(capsys.readouterr().out.split())
    assert "step 0/6 held-out reward 5" in out
    assert "accuracy" not in out
    # The best of the steps, though none is better than the model before training: so it is not announced.
    assert (run / "best_model").readlink() == Path("checkpoint-2")
    assert "best, at step" not in out
    state = TrainerState.load_from_json(str(run / "checkpoint-6" / "trainer_state.json"))
    assert (state.best_metric, state.best_global_step) == (3.0, 2)
    assert [entry for entry in state.log_history if "eval_reward" in entry] == [
        {"eval_reward": value, "step": step} for step, value in enumerate(plan)
    ]


def test_it_resumes_to_the_same_run(train: Train) -> None:
    straight = train("straight")
    train("stopped", "stop_after_steps=3")
    stopped = train("stopped")
    assert without_times(stopped) == without_times(straight)
    for file in sorted((straight / "evaluation").iterdir()):
        assert (stopped / "evaluation" / file.name).read_bytes() == file.read_bytes()
    assert (stopped / "best_model").readlink() == (straight / "best_model").readlink()


def test_early_stopping_follows_the_reward(train: Train) -> None:
    run = train("run", "callbacks=[early_stopping]", "evaluation.early_stopping_patience=2")
    assert [step for step, *_ in evaluations(run)] == [0, 1, 2]  # neither beats the first one
    later = train(
        *("later", "callbacks=[early_stopping]", "evaluation.early_stopping_patience=2"),
        *("evaluation.before_training=false", "evaluation.early_stopping_threshold=1.5"),
    )
    assert [step for step, *_ in evaluations(later)] == [1, 2, 3, 4]  # 3 beats 1 by 2; 2 and 3 do not beat 3


def test_best_by_another_metric(train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a grader there is an accuracy, here always 1; `best_by` decides by the reward all the same."""
    listener = tmp_path / "listener.py"
    listener.write_text(_LISTENER)
    grader = f"evaluation.grader='{tmp_path / 'mine.py'}:ends'"
    run = train(
        *("run", grader, "evaluation.right_at=0.25", "evaluation.best_by=reward/planned"),
        *("training.max_steps=3", f"callbacks=['{listener}:Listener']"),
    )
    assert evaluations(run, "eval/accuracy") == [(step, 1.0) for step in range(4)]
    assert (run / "best_model").readlink() == Path("checkpoint-2")
    state = TrainerState.load_from_json(str(run / "checkpoint-3" / "trainer_state.json"))
    assert [entry["eval_reward/planned"] for entry in state.log_history if "eval_reward/planned" in entry] == [
        5,
        1,
        3,
        2,
    ]
    assert "held-out planned 3" in " ".join(capsys.readouterr().out.split())
    heard = json.loads((tmp_path / "heard.json").read_text())
    assert [(one["eval_accuracy"], one["eval_reward"]) for one in heard] == [
        (1.0, 5.0),
        (1.0, 1.0),
        (1.0, 3.0),
        (1.0, 2.0),
    ]
    strict = train("strict", grader, "training.max_steps=1")  # ends() gives at most 0.75, and right_at is 1
    assert evaluations(strict, "eval/accuracy") == [(0, 0.0), (1, 0.0)]


def test_covey_eval_reports_the_same(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    run = train("run", "training.max_steps=1", "training.reward_weights=[0, 1]")
    capsys.readouterr()
    assert main(["eval", str(run)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    found = read_evaluation(run / "evaluation" / "test-final-sampled")
    ((_, reward, low, some),) = evaluations(run, "eval/reward", "eval/reward_low", "eval/reward/on_some")[1:]
    figure = found.summary["reward"]
    assert (figure["value"], figure["low"]) == (reward, low)
    assert found.summary["reward/on_some"]["value"] == some
    assert found.summary["reward/planned"]["value"] == 5.0  # its trainer_state is that of a new run
    assert found.settings["grader"] is None
    assert found.settings["rewards"]["weights"] == [0, 1]
    assert "right_at" not in found.settings
    assert "accuracy" not in found.summary
    assert not any(name.startswith(("grader/", "pass@", "maj@")) for name in found.summary)
    assert "reward/on_some" in out
    assert (
        main(["eval", str(run), f"evaluation.grader='{run.parent / 'mine.py'}:ends'", "evaluation.right_at=0.5"]) == 1
    )
    capsys.readouterr()
    other = run.parent / "graded"
    words = [f"evaluation.grader='{run.parent / 'mine.py'}:ends'", "evaluation.right_at=0.5", "--out", str(other)]
    assert main(["eval", str(run), *words]) == 0
    assert read_evaluation(other).settings["right_at"] == 0.5
    assert f"accuracy (grader: {run.parent / 'mine.py'}:ends)" in capsys.readouterr().out.replace("\n", "")


def test_what_needs_answers_says_so(train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train("run", "rewards.funcs=[accuracy]", "~training.reward_weights", code=1)
    assert "looks like the answer" in (text := " ".join(capsys.readouterr().err.split()))
    assert "which the reward accuracy needs" in text
    train("run", "evaluation.grader=exact_match", code=1)
    assert "which the grader exact_match (evaluation.grader) needs" in " ".join(capsys.readouterr().err.split())
    train("run", "evaluation.grader=exact_mach", code=1)
    assert "Did you mean exact_match?" in capsys.readouterr().err
    (tmp_path / "other.py").write_text("def planned(completions, sort, **kwargs): return [1.0 for _ in completions]\n")
    train("run", f"rewards.funcs=['{tmp_path / 'other.py'}:planned']", "~training.reward_weights", code=1)
    assert "planned needs sort, but the data has no such column; it has kind" in " ".join(
        capsys.readouterr().err.split()
    )
    assert not (tmp_path / "run" / "config.yaml").exists()


_LISTENER = """
import json
from pathlib import Path
from transformers import TrainerCallback

class Listener(TrainerCallback):
    heard = []

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        self.heard.append(metrics)
        Path(__file__).with_name("heard.json").write_text(json.dumps(self.heard))
"""
