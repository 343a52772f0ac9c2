"""Stage times, the columns of completions, and what trackers get, checked on real runs."""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from covey import GRPOTrainer
from covey.answers import Tags
from covey.cli.main import main
from covey.config import Config, compose
from covey.errors import ConfigError
from covey.runlog import names, read_completions, read_metrics
from covey.training.checks.trackers import tracker_environment, trackers
from covey.training.recording import CompletionRecorder, batch_columns
from covey.training.trl.step_timer import StepTimer
from trainers import build_trainer


def test_a_stage_within_another_counts_for_itself_only() -> None:
    times = iter([0.0, 1.0, 3.0, 6.0, 10.0, 15.0])
    timer = StepTimer(lambda: next(times))
    timer.enter("outer")  # at 0
    timer.enter("inner")  # at 1
    timer.leave()  # at 3
    timer.leave()  # at 6
    timer.enter("inner")  # at 10
    timer.leave()  # at 15
    assert timer.take() == {"outer": 1.0 + 3.0, "inner": 2.0 + 5.0}
    assert timer.take() == {}


def test_the_recorder_logs_columns() -> None:
    logged: dict[str, list[Any]] = {}
    rows = [{"prompt": "p", "answer": 4}, {"prompt": "p", "answer": None}]
    ids = [[5, 0], [5, 6, 7]]
    CompletionRecorder({0}).log(logged.__setitem__, rows, ids)
    assert logged == {"length": [2, 3], "truncated": [False, True], "answer": ["4", None]}
    logged.clear()
    CompletionRecorder(keeps_ids=True).log(logged.__setitem__, [{"prompt": "p"}] * 2, ids)
    assert logged == {"length": [2, 3], "completion_ids": ids}
    logged.clear()
    CompletionRecorder({0}).log(logged.__setitem__, [{"prompt": "p"}], [[]])
    assert logged == {"length": [0], "truncated": [True]}


def test_the_recorder_takes_the_columns_of_episodes() -> None:
    """Their length counts the model's tokens, and one that the environment ended is not truncated."""
    logged: dict[str, list[Any]] = {}
    episodes = {"length": [1, 2], "episode": ["timed_out", "truncated"], "turns": [1, 2]}
    CompletionRecorder({0}).log(logged.__setitem__, [{"prompt": "p"}] * 2, [[5, 6], [5, 6, 7]], episodes)
    assert logged == {**episodes, "truncated": [False, True]}


def test_a_recorded_prompt_is_not_rendered_again() -> None:
    columns = {"prompt": ["p"] * 3, "completion": ["c"] * 3, "rendered_prompt": ["as the model saw it"] * 3}
    assert batch_columns(columns, None, None, 2) == {"group": [0, 0, 1]}  # type: ignore[arg-type]


class Scorer:
    """Whose bound method is a reward."""

    def lengths(self, completions: list[Any], **_: Any) -> list[float]:
        return [float(len(completion[0]["content"])) for completion in completions]


@pytest.mark.parametrize("resample_groups", [0, 2])
def test_any_first_reward_has_the_columns(tiny_model: str, tmp_path: Path, resample_groups: int) -> None:
    """Also a bound method, and in a batch with groups that were replaced."""
    trainer = build_trainer(
        GRPOTrainer,
        tiny_model,
        tmp_path,
        prompts=6,
        reward=Scorer().lengths,
        more={"resample_groups": resample_groups},
        max_steps=1,
        save_strategy="no",
    )
    trainer.recorder = CompletionRecorder(set(trainer.eos_token_ids), keeps_ids=True)
    trainer.train()
    found = trainer.latest_completions
    assert list(found) == ["prompt", "completion", "lengths", "completion_ids", "length", "truncated", "advantage"]
    assert len(found["length"]) == 4
    assert found["length"] == list(map(len, found["completion_ids"]))
    ended = [ids[-1] in trainer.eos_token_ids for ids in found["completion_ids"]]
    assert found["truncated"] == [not one for one in ended]
    for ids, completion in zip(found["completion_ids"], found["completion"], strict=True):
        assert trainer.processing_class.decode(ids, skip_special_tokens=True) == completion[0]["content"]


def test_offline_trackers_send_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def config(*words: str) -> Config:
        return compose([*words, "logging.mode=offline"]).config

    monkeypatch.setenv("TRACKIO_SPACE_ID", "me/space")
    with tracker_environment(config("training.report_to=tensorboard")):
        assert "TRACKIO_SPACE_ID" not in os.environ
        assert os.environ["WANDB_MODE"] == "offline"
    assert os.environ["TRACKIO_SPACE_ID"] == "me/space"
    assert "WANDB_MODE" not in os.environ
    with pytest.raises(ConfigError, match="how to keep comet_ml from uploading"):
        trackers(config("training.report_to=comet_ml"))
    with pytest.raises(ConfigError, match=r"training.trackio_space_id=me/space makes Trackio upload"):
        trackers(config("training.report_to=trackio", "training.trackio_space_id=me/space"))
    assert trackers(compose(["training.report_to=comet_ml", "logging.mode=disabled"]).config) == []


def _train(folder: Path, model: str, *more: str) -> Path:
    words = [f"output_dir={folder}", "run_name=r", f"model.name={model}", "training.max_steps=2", "seed=3"]
    words += ["evaluation.every_steps=2", "evaluation.max_problems=4", "dataset.test_size=4", "dataset.hard_size=4"]
    words += ["training.per_device_train_batch_size=8", "training.num_generations=4", "rewards.workers=0"]
    words += ["training.max_completion_length=8", "training.gradient_accumulation_steps=1", *more]
    assert main(["train", *words]) == 0
    return folder / "r"


@pytest.mark.slow
def test_a_run_records_all_that_its_report_shows(tiny_model: str, tmp_path: Path) -> None:
    run = _train(tmp_path, tiny_model, "objective=maxent")
    row = read_metrics(run / "metrics.jsonl")[1]
    stages = [names.GENERATION_TIME, names.SCORING_TIME, names.REWARDS_TIME, names.FORWARD_TIME, names.BACKWARD_TIME]
    assert all(row[name] > 0 for name in stages)
    assert sum(row[name] for name in stages) <= 1.1 * row[names.STEP_TIME]
    assert row[names.PROCESS_MEMORY] > 1e7
    rows = read_completions(run / "completions")
    assert len(rows) == 16
    assert [one[names.COLUMN_GROUP] for one in rows[:8]] == [0] * 4 + [1] * 4
    for one in rows:
        turns = [f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in one[names.COLUMN_PROMPT]]
        assert one[names.COLUMN_RENDERED] == "".join(turns) + "<|im_start|>assistant\n"
        assert one[names.COLUMN_OUTCOME] in {"right", "wrong", "unparsable_prediction"}
        assert 1 <= one[names.COLUMN_LENGTH] <= 8
        assert one[names.COLUMN_TRUNCATED] <= (one[names.COLUMN_LENGTH] == 8)
    weights = [one[names.COLUMN_WEIGHT] for one in rows]
    for start in range(0, 16, 4):
        assert sum(weights[start : start + 4]) == pytest.approx(1)
    share = sum(one[names.COLUMN_TRUNCATED] for one in rows[:8]) / 8
    assert share == row[names.CLIPPED_RATIO]
    assert (run / "report.html").is_file()
    assert '<span class="badge finished">' in (run / "report.html").read_text()


def _same(logged: dict[tuple[str, int], float], run: Path) -> None:
    """The tracker has all metrics, with the same values."""
    rows = read_metrics(run / "metrics.jsonl")
    wanted = {
        (name if name.startswith(("train/", "eval/")) else f"train/{name}", row[names.STEP]): value
        for row in rows
        for name, value in row.items()
        if name.startswith(("train/", "eval/")) or name in (names.GENERATION_TIME, names.PROCESS_MEMORY)
    }
    assert {"train/reward", "eval/accuracy", "train/time/generation"} <= {name for name, _ in wanted}
    assert {key: logged.get(key) for key in wanted} == pytest.approx(wanted, rel=1e-6)  # event files hold float32


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_has_the_values_of_the_metrics(tiny_model: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra covey[tensorboard]")
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    run = _train(tmp_path, tiny_model, "training.report_to=tensorboard")
    files = list(run.rglob("events.out.tfevents.*"))
    assert files
    logged = {}
    for file in files:
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                if value.HasField("tensor") and value.tensor.float_val:
                    logged[value.tag, event.step] = value.tensor.float_val[0]
    _same(logged, run)


def _log_records(content: bytes) -> Iterator[bytes]:
    """The records of a log in LevelDB's format after W&B's own 7 bytes: checksum, length, kind; blocks of 32 KiB."""
    at, begun = 7, b""
    while at + 7 <= len(content):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        begun += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield begun
            begun = b""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_wandb_offline_has_the_values_of_the_metrics(
    tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb", reason="needs the extra covey[wandb]")
    from wandb.proto import wandb_internal_pb2

    for name, value in {"WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    run = _train(tmp_path, tiny_model, "training.report_to=wandb", "logging.mode=offline")
    wandb.finish()  # otherwise done at process exit
    (file,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    logged: dict[tuple[str, int], float] = {}
    for data in _log_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        step = items.get("train/global_step")
        logged |= {(name, step): value for name, value in items.items() if isinstance(value, int | float)}
    _same(logged, run)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_trackio_has_the_values_of_the_metrics(
    tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trackio", reason="needs the extra covey[trackio]")
    import sqlite3

    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    for name, module in list(sys.modules.items()):  # which read it on import
        if name.partition(".")[0] == "trackio" and hasattr(module, "TRACKIO_DIR"):
            monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")
    run = _train(tmp_path, tiny_model, "training.report_to=trackio", "logging.project=made", "logging.mode=offline")
    logged: dict[tuple[str, int], float] = {}
    for file in (tmp_path / "trackio").rglob("*.db"):
        for (text,) in sqlite3.connect(file).execute("select metrics from metrics"):
            items = json.loads(text)
            step = items.get("train/global_step")
            logged |= {(name, step): value for name, value in items.items() if isinstance(value, int | float)}
    _same(logged, run)


@pytest.mark.parametrize(
    ("completion", "empty"),
    [
        ("", True),
        (" \n", True),
        ("<think></think>", True),
        ("<think>a</think>\n<answer> </answer>", True),
        ("<think>", True),
        ("5", False),
        ("<think>a", False),  # cut off
        ("<think>a</think> 5", False),
        ([{"role": "assistant", "content": "<think>a</think>"}], True),
        ([{"role": "assistant", "content": None}], True),
        ([{"role": "assistant", "content": "", "tool_calls": [{}]}], False),
        ([{"role": "assistant", "content": "", "tool_calls": [{}]}, {"role": "tool", "content": "5"}], False),
    ],
)
def test_the_share_of_empty_completions(completion: Any, empty: bool) -> None:
    logged: dict[str, float] = {}
    CompletionRecorder().watch(logged.__setitem__, [{"prompt": "p"}] * 2, [completion, "5"])
    assert logged == {"completions/repeats_prompt": 0.0, "completions/empty": empty / 2}


def test_empty_completions_between_tags_of_the_run() -> None:
    recorder = CompletionRecorder(tags=Tags("reasoning", "result"))
    texts = [
        "<reasoning>a</reasoning><result></result>",
        "<think>a</think>",
        "<reasoning>a</reasoning><answer></answer>",
    ]
    logged: dict[str, float] = {}
    recorder.watch(logged.__setitem__, [{"prompt": "p"}] * 3, texts)
    assert logged["completions/empty"] == 1 / 3
