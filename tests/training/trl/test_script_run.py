"""The run directory that a script's `train()` leaves, and what the commands make of it."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from datasets import Dataset
from peft import LoraConfig
from transformers import TrainerCallback

from completed import completed
from covey import GRPOTrainer, MaxEnt
from covey.cli.main import main
from covey.errors import RunDirectoryError
from covey.evaluation.stored import find_target
from covey.report.live import LiveReport
from covey.report.panels import STAGES
from covey.runlog import RunDirectory, read_completions, read_metrics
from covey.view.runs import RunStore, run_page
from fake_hub import TOKEN, Hub, hub
from made_run import make_run
from tool_trainers import TOOLS, ScriptedCovey, asked, tool_trainer
from trainers import build_trainer, question

RECORDS = ["completions", "config.yaml", "curves.png", "environment.json", "metrics.jsonl", "report.html"]
MAIN = getattr(sys.modules["__main__"], "__file__", "notebook")  # pytest-xdist has none
WARNING = "This training goes on without a record"


def script(model: str, folder: Path, *, more: dict[str, Any] | None = None, **settings: Any) -> GRPOTrainer:
    """A trainer as a script makes it, of four steps."""
    arguments = {"prompts": 4, "max_steps": 4, "save_strategy": "no", **settings}
    found = build_trainer(GRPOTrainer, model, folder, more={"run_directory": True, **(more or {})}, **arguments)
    assert isinstance(found, GRPOTrainer)
    return found


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def listed(folder: Path) -> dict[str, dict[str, Any]]:
    return {entry.id: entry.as_json() for entry in RunStore(folder).entries()}


class At(TrainerCallback):
    """Does something at the end of a step."""

    def __init__(self, step: int, job: Callable[[Any], object]) -> None:
        self.step, self.job = step, job

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            self.job(control)


def stop(control: Any) -> None:
    control.should_training_stop = control.should_save = True


def fail(error: BaseException) -> Callable[[Any], object]:
    def job(control: Any) -> None:
        raise error

    return job


@pytest.fixture(scope="module")
def trained(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that logs every third step, and evaluates every second by TRL's own evaluation."""
    folder = tmp_path_factory.mktemp("scripts") / "mine"
    held_out = Dataset.from_list([question(number) for number in (50, 51)])
    trainer = script(
        tiny_model,
        folder,
        more={"eval_dataset": held_out, "objective": MaxEnt(tau=0.3)},
        **{"logging_steps": 3, "eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 4},
        **{"save_strategy": "steps", "save_steps": 4, "max_completion_length": 7},
    )
    assert not folder.exists() or not list(folder.iterdir())  # nothing at construction
    trainer.train()
    trainer.save_model()
    return folder


def test_a_script_leaves_a_run_directory(trained: Path) -> None:
    assert {*RECORDS, "summary.json", "checkpoint-4"} <= {*names(trained)}
    assert "Finished after 4 steps" in (trained / "report.html").read_text()
    assert not {".lock", "train.log", "final_model", "code"} & {*names(trained)}
    config = yaml.safe_load((trained / "config.yaml").read_text())
    assert config["script"] == MAIN
    assert config["objective"]["name"] == "maxent"
    assert config["objective"]["maxent_tau"] == 0.3
    assert config["rewards"] == {"funcs": ["trainers:variety"]}
    assert config["dataset"] == {"id": None, "rows": 4, "eval_rows": 2}
    training = config["training"]
    assert training["learning_rate"] == 0.01
    assert training["max_completion_length"] == 7
    assert training["max_steps"] == 4
    assert training["loss_type"] == "dapo"  # recorded at its default
    assert not {"output_dir", "weight_decay", "seed"} & training.keys()
    assert json.loads((trained / "summary.json").read_text())["reason"] == "all steps are done"
    assert json.loads((trained / "environment.json").read_text())["packages"]["trl"]


def test_the_rows_hold_every_log_and_the_last_steps(trained: Path) -> None:
    rows = {row["step"]: row for row in read_metrics(trained / "metrics.jsonl")}
    assert sorted(rows) == [2, 3, 4]  # evaluated at 2 and 4, logged at 3, and at the end although 4 is no third step
    assert [step for step, row in rows.items() if "train/loss" in row] == [3, 4]
    assert [step for step, row in rows.items() if "eval/reward" in row] == [2, 4]
    assert "train/rewards/variety/mean" in rows[4]
    assert "time/generation" in rows[4]
    assert "time/generation" not in rows[2]  # of an evaluation
    for step in (3, 4):  # the stages are means of the row's steps too, without the evaluation between them
        stages = [value for name, value in rows[step].items() if name in {metric for _, metric in STAGES}]
        assert 0 < sum(stages) <= 1.1 * rows[step]["time/step"]  # of three steps it would be three times as much
    for step in (3, 4):
        completions = read_completions(trained / "completions" / f"step-{step:06d}.parquet")
        asked = {one["prompt"][-1]["content"] for one in completions}
        assert len(completions) == 4
        assert asked <= {question(number)["prompt"][0]["content"] for number in range(4)}  # none of the evaluation
        assert all(one["variety"] == len(set(one["completion"][0]["content"])) for one in completions)
        assert {one["length"] for one in completions} <= set(range(1, 8))
    assert names(trained / "completions") == ["step-000003.parquet", "step-000004.parquet"]
    last = read_completions(trained / "completions" / "step-000004.parquet")
    assert rows[4]["train/reward"] == pytest.approx(sum(one["variety"] for one in last) / 4)


def test_runs_view_and_report_read_it(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(trained.parent), "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    expected = {"id": "mine", "kind": "run", "status": "finished", "step": 4, "max_steps": 4, "metric": "reward"}
    assert {key: entry[key] for key in expected} == expected
    rows = read_metrics(trained / "metrics.jsonl")
    assert (entry["value"], entry["low"], entry["data"]) == (rows[-1]["eval/reward"], None, "4 rows")
    page = run_page(RunStore(trained.parent).record("mine"))
    assert dict(page["settings"])["script"] == MAIN
    assert page["ended"].startswith("Finished after 4 steps")
    assert page["changes"][0]["test"] == "no paired test: the completions of step 2 are not there"
    (trained / "report.html").unlink()
    assert main(["report", str(trained)]) == 0
    assert "trainers:variety" in (trained / "report.html").read_text()


def test_training_is_the_same_with_and_without_a_record(tiny_model: str, tmp_path: Path) -> None:
    trainers, drawn = [], []
    for name, recorded in (("a", True), ("b", False)):
        trainers.append(script(tiny_model, tmp_path / name, more={"run_directory": recorded}))
        trainers[-1].train()
        drawn.append((random.random(), np.random.random(), float(torch.rand(()))))
    one, two = trainers
    assert drawn[0] == drawn[1]  # what the script draws afterwards is the same too
    assert not (tmp_path / "b").exists() or not names(tmp_path / "b")
    for ours, theirs in zip(one.model.parameters(), two.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert len(one.callback_handler.callbacks) == len(two.callback_handler.callbacks)
    logs = [[entry for entry in trainer.state.log_history if "loss" in entry] for trainer in (one, two)]
    for with_record, without in zip(*logs, strict=True):
        assert {"completions/empty", "completions/repeats_prompt"} == with_record.keys() - without.keys()
        assert {key: with_record[key] for key in without if key != "step_time"} == {
            key: value for key, value in without.items() if key != "step_time"
        }


def test_a_second_training_keeps_the_record_of_the_first(tiny_model: str, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    trainer = script(tiny_model, folder, max_steps=2)
    (folder / "completions").mkdir(parents=True)
    (folder / "completions" / "completions_00001.parquet").write_bytes(b"TRL's own")
    trainer.train()
    kept = [*RECORDS[1:], "completions/step-000002.parquet"]
    first = {name: (folder / name).read_bytes() for name in kept}
    (folder / "evaluation" / "by-hand").mkdir(parents=True)
    trainer.train()
    script(tiny_model, folder, max_steps=1).train()
    assert {name: (folder / "former-1" / name).read_bytes() for name in kept} == first
    assert (folder / "former-1" / "evaluation" / "by-hand").is_dir()
    entries = listed(tmp_path)
    assert {name: entry["step"] for name, entry in entries.items()} == {
        **{"mine": 1, "mine/former-1": 2, "mine/former-2": 2}
    }
    assert names(folder / "completions") == ["completions_00001.parquet", "step-000001.parquet"]


def test_a_resumed_training_goes_on_with_its_record(tiny_model: str, tmp_path: Path) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    script(tiny_model, whole).train()
    saving = {"save_strategy": "steps", "save_steps": 3}
    script(tiny_model, part, more={"callbacks": [At(2, stop)]}, **saving).train()
    assert "a callback ended it at step 2 of 4" in (part / "summary.json").read_text()
    started = json.loads((part / "environment.json").read_text())["started"]
    with (part / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "train/loss": 7.0}\n')  # of a process that was killed after its checkpoint
    script(tiny_model, part, **saving).train(resume_from_checkpoint=True)

    def figures(folder: Path) -> list[dict[str, Any]]:
        rows = read_metrics(folder / "metrics.jsonl")
        return [{key: v for key, v in row.items() if not key.startswith(("time/", "memory/"))} for row in rows]

    assert figures(part) == figures(whole)
    assert names(part / "completions") == names(whole / "completions")
    assert not list(part.glob("former-*"))
    assert json.loads((part / "environment.json").read_text())["started"] == started
    # From a checkpoint of another folder: a run of its own.
    other = tmp_path / "other"
    script(tiny_model, other, max_steps=1).train()
    script(tiny_model, other).train(resume_from_checkpoint=str(part / "checkpoint-3"))
    assert [row["step"] for row in read_metrics(other / "metrics.jsonl")] == [4]
    assert [row["step"] for row in read_metrics(other / "former-1" / "metrics.jsonl")] == [1]


def test_a_checkpoint_of_trl_brings_its_log_along(tiny_model: str, tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 2}
    script(tiny_model, tmp_path / "mine", more={"run_directory": False}, **saving, max_steps=2).train()
    script(tiny_model, tmp_path / "mine", **saving).train(resume_from_checkpoint=True)
    rows = read_metrics(tmp_path / "mine" / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert all("train/reward" in row for row in rows)


@pytest.mark.parametrize(
    ("error", "status", "ended"),
    [
        (ValueError("no such\nthing"), "failed", "Failed after step 2 of 4: ValueError: no such thing."),
        (KeyboardInterrupt(), "stopped", "Stopped after step 2 of 4. The script resumes from checkpoint-2 with train("),
    ],
)
def test_how_it_ended_is_recorded(
    tiny_model: str, tmp_path: Path, error: BaseException, status: str, ended: str
) -> None:
    callbacks = [At(3, fail(error))]
    trainer = script(tiny_model, tmp_path / "mine", more={"callbacks": callbacks}, save_strategy="steps", save_steps=2)
    with pytest.raises(type(error)):
        trainer.train()
    assert listed(tmp_path)["mine"]["status"] == status
    assert run_page(RunStore(tmp_path).record("mine"))["ended"].startswith(ended)
    assert ended.partition(":")[0] in (tmp_path / "mine" / "report.html").read_text()
    assert not (tmp_path / "mine" / ".lock").exists()


def test_it_is_training_while_it_trains(tiny_model: str, tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    script(tiny_model, tmp_path, more={"callbacks": [At(3, lambda _: seen.append(listed(tmp_path)["."]))]}).train()
    assert (seen[0]["status"], seen[0]["max_steps"]) == ("training", 4)


@pytest.mark.slow
def test_the_report_is_refreshed_while_it_trains(
    tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Waits(LiveReport):
        def refresh(self) -> bool:
            started = super().refresh()
            self.close()
            return started

    monkeypatch.setattr("covey.training.trl.script_run.LiveReport", partial(Waits, least_seconds=0))
    seen: list[str] = []
    read = At(3, lambda _: seen.append((tmp_path / "report.html").read_text()))
    script(tiny_model, tmp_path, more={"callbacks": [read]}).train()
    assert "At step 2 of 4 when this page was written" in seen[0]
    assert not (tmp_path / "train.log").exists()


def broken(*_: Any, **__: Any) -> None:
    raise OSError(28, "No space left on device")


def foreign(folder: Path, _: pytest.MonkeyPatch) -> str:
    folder.mkdir()
    (folder / "config.yaml").write_text("lr: 1\n")
    return f"{folder} holds config.yaml, which no script's training has written"


def of_covey(folder: Path, _: pytest.MonkeyPatch) -> str:
    make_run(folder, steps=2)
    return "environment.json, metrics.jsonl"


def full(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("covey.training.callbacks.write_completions", broken)
    return "No space left on device"


def locked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    holder = RunDirectory(folder).lock()
    holder.__enter__()
    monkeypatch.setattr(RunDirectory, "_holder", holder, raising=False)  # alive until the test ends
    return "is being written by another process. Give each script an output_dir of its own"


@pytest.mark.parametrize("spoil", [foreign, of_covey, full, locked])
def test_what_cannot_be_recorded_is_one_warning(
    tiny_model: str,
    tmp_path: Path,
    spoil: Callable[[Path, pytest.MonkeyPatch], str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = tmp_path / "mine"
    expected = spoil(folder, monkeypatch)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} if folder.exists() else {}
    with caplog.at_level(logging.WARNING, logger="covey"):
        trainer = script(tiny_model, folder)
        trainer.train()
    assert trainer.state.global_step == 4
    (warning,) = [one.getMessage() for one in caplog.records if WARNING in one.getMessage()]
    assert expected in warning
    assert all(path.read_bytes() == content for path, content in before.items())


def test_a_folder_that_is_deleted_stays_so(tiny_model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    delete = At(2, lambda _: shutil.rmtree(tmp_path / "mine"))
    with caplog.at_level(logging.WARNING, logger="covey"):
        script(tiny_model, tmp_path / "mine", more={"callbacks": [delete]}).train()
    assert sum(WARNING in one.getMessage() for one in caplog.records) == 1
    assert not (tmp_path / "mine" / "config.yaml").exists()


def test_several_sets_are_told_apart(tiny_model: str, tmp_path: Path) -> None:
    sets = {name: Dataset.from_list([question(number)]) for name, number in (("easy", 7), ("hard_ones", 8))}
    trainer = script(
        *(tiny_model, tmp_path),
        more={"eval_dataset": sets},
        **{"max_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4},
    )
    trainer.train()
    row = read_metrics(tmp_path / "metrics.jsonl")[-1]
    rewards = {entry["eval_reward"] for entry in trainer.state.log_history if "eval_reward" in entry}
    assert {row["eval_easy/reward"], row["eval_hard_ones/reward"]} == rewards
    assert "eval/reward" not in row
    assert {"time/eval_easy_runtime", "time/eval_hard_ones_runtime"} <= row.keys()


def test_completions_that_trl_uploads_are_not_recorded(tiny_model: str, tmp_path: Path) -> None:
    trainer = script(tiny_model, tmp_path, max_steps=1)
    trainer.args.log_completions_hub_repo = "me/completions"  # given to its constructor, it asks the hub
    trainer.train()
    assert not (tmp_path / "completions").exists()


def test_tools_and_adapters_are_recorded(tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    tool_trainer(ScriptedCovey, tmp_path / "tools", asked("one,answer,two,wrong"), more={"run_directory": True}).train()
    config = yaml.safe_load((tmp_path / "tools" / "config.yaml").read_text())
    assert config["environment"]["tools"] == [tool.__name__ for tool in TOOLS]
    completions = read_completions(tmp_path / "tools" / "completions")
    assert {one["episode"] for one in completions} <= {"answered", "truncated", "max_turns"}
    adapters = {"peft_config": LoraConfig(r=3, target_modules="all-linear")}
    trainer = script(tiny_model, tmp_path / "lora", more=adapters, max_steps=1)
    trainer.train()
    trainer.save_model()
    assert yaml.safe_load((tmp_path / "lora" / "config.yaml").read_text())["model"]["lora"] == {"rank": 3}
    target = find_target(str(tmp_path / "lora"))
    assert (target.source, target.adapter, target.state) == (tiny_model, tmp_path / "lora", "final")


def test_the_name_of_a_dataset_of_the_hub_is_recorded(tiny_model: str, tmp_path: Path) -> None:
    cache = tmp_path / "datasets" / "me___my_maths" / "default"  # as `load_dataset("me/my_maths")` keeps it
    Dataset.from_list([question(number) for number in range(4)]).save_to_disk(cache)
    rows = Dataset.from_file(str(next(cache.glob("*.arrow"))))
    script(tiny_model, tmp_path / "mine", prompts=rows, max_steps=1).train()
    assert listed(tmp_path)["mine"]["data"] == "me/my_maths"


ROWS = [{"question": f"What is {number} + 1?", "answer": f"#### {number + 1}"} for number in range(6)]


def test_eval_asks_for_problems_and_compare_compares(
    trained: Path, tmp_path: Path, tiny_model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def covey(*words: str) -> tuple[int, str, str]:
        code = main(list(words))
        captured = capsys.readouterr()
        return code, captured.out, " ".join(captured.err.split())

    first, second, rows = tmp_path / "first", tmp_path / "second", tmp_path / "rows.jsonl"
    shutil.copytree(trained, first)
    settings = {"save_strategy": "steps", "save_steps": 1, "max_completion_length": 7}
    script(tiny_model, second, max_steps=1, **settings).train()
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    for key in (), ("dataset.seed=1",):  # which names no problems
        code, _, err = covey("eval", str(first), *key)
        assert code == 2
    assert f"{first} was trained by a script" in err
    assert f"`covey eval {first} dataset=gsm8k`" in err
    code, _, err = covey("compare", str(first), str(second))
    assert code == 1
    assert f"covey eval {first} dataset.path=FILE" in err
    words = ("dataset=gsm8k", f"dataset.path={rows}", "--all")
    for run in (first, second):  # its weights lie in its folder; in a checkpoint
        code, out, err = covey("eval", str(run), *words, "--json")
        assert code == 0, err
        assert "covey: Graded by exact_match, as the rewards of a script are not Covey's" in err
        (found,) = json.loads(out)
        assert found["path"] == str(run / "evaluation" / "all-final-sampled")
        assert found["settings"]["sampling"]["max_completion_length"] == 7  # the script's
        assert found["settings"]["data"]["problems"] == 6
    code, out, err = covey("compare", str(first), str(second), "--json")
    assert code == 0, err
    assert json.loads(out)["differences"][0]["problems"] == 6
    evaluations = run_page(RunStore(first).record("."))["evaluations"]
    assert [(one["problems"], one["weights"]) for one in evaluations] == [(6, "final")]


def test_real_problems_are_evaluated(
    trained: Path, tmp_path: Path, shared_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "mine"
    shutil.copytree(trained, run)
    words = ("dataset=gsm8k", f"dataset.path={shared_data / 'gsm8k_test.jsonl'}", "evaluation.max_problems=3")
    assert main(["eval", str(run), *words, "--all", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["settings"]["data"]["problems"], found["metrics"]["accuracy"]["value"]) == (3, 0.0)


def test_the_newest_weights_since_its_start_are_evaluated(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "mine"
    shutil.copytree(trained, run)
    weights, checkpoint = run / "model.safetensors", run / "checkpoint-4"
    started = RunDirectory(run).started
    for path, after in ((weights, 20), (checkpoint, 10)):
        os.utime(path, (started + after, started + after))
    target = find_target(str(run))
    assert (target.source, target.state, target.run) == (str(run), "final", run)
    os.utime(weights, (started + 5, started + 5))
    target = find_target(str(run))
    assert (target.source, target.state) == (str(checkpoint), "final")
    (run / "summary.json").unlink()  # it was stopped
    assert find_target(str(run)).state == "checkpoint-4"
    assert find_target(str(run), "4").recipe is None  # a record is no recipe
    for path in (weights, checkpoint):
        os.utime(path, (started - 5, started - 5))  # of a training before
    with pytest.raises(RunDirectoryError, match=r"a script that has saved no model there: trainer\.save_model"):
        find_target(str(run))


@pytest.mark.parametrize("words", [["--config", "RUN/config.yaml"], ["RUN"], ["output_dir=OUT", "run_name=mine"]])
def test_it_is_no_recipe(trained: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    before = names(trained)
    places = {"RUN": str(trained), "OUT": str(trained.parent)}
    filled = [word.replace("RUN", places["RUN"]).replace("OUT", places["OUT"]) for word in words]
    for more in ([], ["overwrite=true"]):
        code = main(["train", *filled, *more])
        err = " ".join(capsys.readouterr().err.split())
        assert code in (1, 2)
        assert f"the script {MAIN} " in err
        assert "Traceback" not in err
    assert names(trained) == before


@pytest.fixture
def served() -> Iterator[Hub]:
    with hub() as found:
        yield found


PUSHES = """
import sys
from datasets import Dataset
from peft import LoraConfig
from covey import GRPOConfig, GRPOTrainer

def variety(completions, **_):
    return [float(len(set(text))) for text in completions]

settings = dict(per_device_train_batch_size=4, num_generations=4, max_completion_length=6, use_cpu=True, bf16=False)
hub = dict(push_to_hub=True, hub_model_id="me/mine", hub_strategy="all_checkpoints", hub_always_push=True)
args = GRPOConfig(output_dir=sys.argv[2], report_to="none", max_steps=2, save_steps=1, **settings, **hub)
rows = Dataset.from_dict({"prompt": ["What is 1 + 1?"] * 8})
trainer = GRPOTrainer(model=sys.argv[1], reward_funcs=variety, args=args, train_dataset=rows)
trainer.train()
trainer.train()
trainer.push_to_hub()
"""


@pytest.mark.slow
@pytest.mark.long
def test_nothing_of_it_is_pushed(served: Hub, tiny_model: str, tmp_path: Path) -> None:
    source = Path(__file__).parents[3] / "src"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
        **{"PYTHONPATH": str(source), "HF_ENDPOINT": served.address, "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "*"},
        "HF_TOKEN": TOKEN,
    }
    (tmp_path / "train.py").write_text(PUSHES)
    folder = tmp_path / "mine"
    command = [sys.executable, str(tmp_path / "train.py"), tiny_model, str(folder)]
    done = completed(command, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    assert f"Recorded in {folder}: covey view {folder} shows it." in done.stderr
    assert {*RECORDS, "former-1"} <= {*names(folder)}
    pushed = {name.partition("/")[0] for name in served.branches["me/mine"]["main"]}
    assert {"README.md", "config.json", "model.safetensors", "checkpoint-2"} <= pushed
    assert not {*RECORDS, "former-1", "summary.json", "evaluation", ".lock"} & pushed
    done = completed([sys.executable, "-m", "covey.cli.main", "push", str(folder), "me/card"], env=environment)
    assert done.returncode == 0, done.stderr
    files = served.branches["me/card"]["main"]
    assert {"README.md", "config.json", "model.safetensors"} <= files.keys()
    assert not any(name.startswith((*RECORDS, "former-1", "checkpoint-")) for name in files)
    assert "runs it again" not in files["README.md"].decode()
