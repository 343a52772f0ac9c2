"""The run directory.

Pinned here:
- metric names, from TRL's log and from an evaluation;
- one row per step, no duplicates after a resume; floats round-trip exactly;
- only the last line may be incomplete;
- a checkpoint is complete only with its marker, and files are written atomically;
- a full disk is reported in one paragraph, whichever library hits it, and other errors pass.
"""

from __future__ import annotations

import errno
import json
import math
import sys
from pathlib import Path

import pytest

from completed import completed
from covey.errors import RunDirectoryError
from covey.runlog import (
    CHECKPOINT_MARKER,
    MetricsWriter,
    RunDirectory,
    drop_completions_after,
    guard_disk,
    is_complete,
    mark_complete,
    names,
    read_completions,
    read_metrics,
    series,
    unmark,
    write_atomically,
    write_completions,
)


def test_names_of_what_trl_logs() -> None:
    logs = {
        "loss": 0.5,
        "rewards/exact_match/mean": 0.25,
        "step_time": 1.5,
        "profiling/Time taken: GRPOTrainer.transformers.generate": 0.75,
        "eval_reward": 0.5,
        "eval_runtime": 3.0,
        "grader/timed_out": 1,
        "epoch": 0.01,
    }
    assert names.train_row(logs) == {
        "train/loss": 0.5,
        "train/rewards/exact_match/mean": 0.25,
        "time/step": 1.5,
        "time/transformers.generate": 0.75,
        "eval/reward": 0.5,
        "time/eval_runtime": 3.0,
        "grader/timed_out": 1,
        "train/epoch": 0.01,
    }


def test_the_trainers_totals_belong_to_no_step() -> None:
    closing = {"train_runtime": 9.0, "train_samples_per_second": 2.0, "train_loss": 0.1, "total_flos": 1.0}
    assert names.train_row(closing) == {}


def test_evaluation_sets_and_rewards_are_parsed_from_names() -> None:
    assert names.eval_name("test", names.ACCURACY) == names.EVAL_ACCURACY == "eval/accuracy"
    assert names.eval_name("hard", names.ACCURACY) == names.EVAL_HARD_ACCURACY == "eval_hard/accuracy"
    assert [names.evaluated_set(name) for name in ("eval/accuracy", "eval_hard/accuracy", "eval/accuracy_low")] == [
        "test",
        "hard",
        None,
    ]
    assert names.held_out_sets([{"step": 0, "eval_hard/accuracy": 0.0}, {"eval/accuracy": 0.0}]) == ["test", "hard"]
    assert names.rewarded(names.reward_mean("exact_match")) == "exact_match"
    assert names.rewarded("train/reward") is None


def test_one_row_per_step_and_exact_numbers(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    writer = MetricsWriter(path, None)
    writer.add(0, {"eval/accuracy": 0.1 + 0.2})
    writer.add(1, {"train/loss": math.nan, "train/kl": math.inf, "train/epoch": None})
    writer.add(1, {"eval/accuracy": 1 / 3})
    writer.flush()
    writer.add(1, {"time/evaluation": 2.5})  # after a flush, still the same row
    writer.add(2, {"train/loss": -1e-300})
    writer.flush()
    assert read_metrics(path) == [
        {"step": 0, "eval/accuracy": 0.30000000000000004},
        {"step": 1, "train/loss": None, "train/kl": None, "train/epoch": None, "eval/accuracy": 1 / 3}
        | {"time/evaluation": 2.5},
        {"step": 2, "train/loss": -1e-300},
    ]
    assert all(line.startswith('{"step": ') for line in path.read_text().splitlines())
    assert series(read_metrics(path), "eval/accuracy") == [(0, 0.30000000000000004), (1, 1 / 3)]
    with pytest.raises(ValueError, match="step 1 after step 2"):
        writer.add(1, {})


def test_a_shorter_rewrite_leaves_nothing_of_the_longer_row(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path, None)
    writer.add(1, {"train/loss": 0.12345678901234})
    writer.flush()
    writer.add(1, {"train/loss": 0.5})
    writer.flush()
    assert path.read_text() == '{"step": 1, "train/loss": 0.5}\n'


@pytest.mark.parametrize("tail", ["", '{"step": 4, "train/lo', '{"step": 4}', "\0\0\0\0\n"])
def test_a_resumed_run_has_no_row_twice(tmp_path: Path, tail: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"step": {step}, "train/loss": {step}.5}}\n' for step in range(1, 4)) + tail)
    writer = MetricsWriter(path, keep_until=2)
    assert [row["step"] for row in read_metrics(path)] == [1, 2]
    writer.add(2, {"eval/accuracy": 1.0})  # the evaluation of the step that the run resumes from
    writer.add(3, {"train/loss": 9.5})
    writer.flush()
    assert read_metrics(path) == [
        {"step": 1, "train/loss": 1.5},
        {"step": 2, "train/loss": 2.5, "eval/accuracy": 1.0},
        {"step": 3, "train/loss": 9.5},
    ]


def test_none_replaces_the_file_and_a_step_may_find_nothing(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n')
    MetricsWriter(path, None)
    assert read_metrics(path) == []
    path.unlink()
    MetricsWriter(path, keep_until=5)
    assert read_metrics(path) == []


def test_a_damaged_line_before_the_last_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": \n{"step": 3}\n')
    with pytest.raises(RunDirectoryError, match=r"metrics\.jsonl, line 2, is not a row"):
        read_metrics(path)
    with pytest.raises(RunDirectoryError, match="does not exist"):
        read_metrics(tmp_path / "none.jsonl")


def test_checkpoints_are_complete_only_with_their_marker(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    assert not run.exists()
    assert run.is_empty()
    assert run.newest_checkpoint() is None
    for step in (100, 5, 20):
        (run.checkpoint(step) / "deep").mkdir(parents=True)
        (run.checkpoint(step) / "deep" / "weights").write_bytes(b"1")
        if step != 20:
            mark_complete(run.checkpoint(step), step)
    marker = json.loads((run.checkpoint(5) / CHECKPOINT_MARKER).read_text())
    assert marker.pop("marker_sha256")
    of_one = "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"  # printf 1 | sha256sum
    assert marker == {"step": 5, "format": 1, "bytes": {"deep/weights": 1}, "sha256": {"deep/weights": of_one}}
    assert run.complete_checkpoints() == [(5, run.root / "checkpoint-5"), (100, run.root / "checkpoint-100")]
    assert [step for step, _ in run.checkpoints()] == [5, 20, 100]
    assert run.exists()
    assert run.newest_checkpoint() == run.checkpoint(100)

    unmark(run.checkpoint(100))
    unmark(run.checkpoint(100))  # without a marker it does nothing
    assert run.newest_checkpoint() == run.checkpoint(5)
    run.checkpoint(5).rename(run.checkpoint(7))  # the marker of another step
    assert not is_complete(run.checkpoint(7))


def test_a_checkpoint_with_lost_files_is_not_complete(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint-4"
    write_atomically(checkpoint / "weights", "12345")
    write_atomically(checkpoint / "optimizer", "12")
    mark_complete(checkpoint, 4)
    write_atomically(checkpoint / "a note of somebody's", "x")
    assert is_complete(checkpoint)
    write_atomically(checkpoint / "weights", "1234")
    assert not is_complete(checkpoint)
    write_atomically(checkpoint / "weights", "12345")
    (checkpoint / "optimizer").unlink()
    assert not is_complete(checkpoint)
    assert RunDirectory(tmp_path).complete_checkpoints() == []


def test_a_checkpoint_of_a_later_format_is_an_error(tmp_path: Path) -> None:
    checkpoint = RunDirectory(tmp_path).checkpoint(3)
    write_atomically(checkpoint / CHECKPOINT_MARKER, json.dumps({"step": 3, "format": 2}))
    with pytest.raises(RunDirectoryError, match="format 2, but this version of Covey reads format 1"):
        RunDirectory(tmp_path).complete_checkpoints()


def test_clear_deletes_only_the_files_of_the_run(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for path in (run.config, run.metrics, run.checkpoint(3) / "w", run.completions / "c", tmp_path / "thesis.tex"):
        write_atomically(path, "x")
    run.clear()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    assert not run.exists()


def test_a_locked_run_is_refused_to_other_processes(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    with run.lock():
        code = "import pathlib, sys; from covey.runlog import RunDirectory\n"
        code += "with RunDirectory(pathlib.Path(sys.argv[1])).lock(): pass"
        other = completed([sys.executable, "-c", code, run.root])
        assert "RunDirectoryError" in other.stderr
        assert "is being written by another process" in other.stderr
        assert run.is_empty()  # the lock does not count
    assert not run.root.exists()  # created for the lock, and still empty
    run.root.mkdir()
    with run.lock():
        pass
    assert list(run.root.iterdir()) == []


def test_the_environment_names_versions_and_command(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.write_environment()
    written = json.loads(run.environment.read_text())
    assert written["python"] == ".".join(map(str, sys.version_info[:3]))
    assert set(written["packages"]) == {"covey", "torch", "transformers", "trl", "accelerate", "peft", "datasets"}
    assert {"command", "platform", "cpu_count", "memory_bytes", "git_commit", "git_modified"} < set(written)


def test_a_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.yaml"
    write_atomically(path, "old: ä\n")

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    assert [(p.name, p.read_text(encoding="utf-8")) for p in tmp_path.iterdir()] == [("config.yaml", "old: ä\n")]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_error_names_place_fix_and_checkpoint(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    for step in (25, 50):
        run.checkpoint(step).mkdir(parents=True)
        mark_complete(run.checkpoint(step), step)
    with pytest.raises(RunDirectoryError) as caught, run.guard("checkpoint-75"), open("/dev/full", "w") as full:  # noqa: PTH123
        full.write("x")
    message = str(caught.value)
    assert message.startswith(f"Could not write checkpoint-75 in {run.root}: the disk is full (")
    assert "free some space, and run the same command again: it resumes from checkpoint-50;" in message
    assert f"resume={run.checkpoint(50)}" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "the disk quota is used up"),
        (OSError(errno.EROFS, "Read-only file system"), "the file system is read-only"),
        (PermissionError(errno.EACCES, "Permission denied"), "no permission to write"),
        # What safetensors and torch raise on a full disk; the last one is from torch.save.
        (Exception("Error while serializing: I/O error: No space left on device (os error 28)"), "the disk is full"),
        (RuntimeError("write(): fd 3 failed with No space left on device"), "the disk is full"),
        (RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"), "the disk is full"),
    ],
)
def test_the_disk_errors_of_libraries_are_recognised(tmp_path: Path, error: Exception, cause: str) -> None:
    with pytest.raises(RunDirectoryError, match=cause), guard_disk("the model", tmp_path / "not" / "yet"):
        raise error


@pytest.mark.parametrize("error", [FileNotFoundError(errno.ENOENT, "gone"), ValueError("a bug"), KeyboardInterrupt()])
def test_other_errors_pass(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, guard_disk("the model", tmp_path):
        raise error
    assert caught.value is error


def test_completions_read_back_as_written(tmp_path: Path) -> None:
    folder = tmp_path / "completions"
    messages = [{"role": "user", "content": "What is 1 + 2?"}]
    write_completions(folder, 10, {"prompt": ["1 + 1", "2 + 2"], "exact_match": [1.0, None], "level": [1, "hard"]})
    path = write_completions(folder, 2, {"prompt": [messages, None], "exact_match": [0.1, 1], "big": [2**70, 1]})
    assert path.name == "step-000002.parquet"
    assert read_completions(path) == [
        {"step": 2, "prompt": messages, "exact_match": 0.1, "big": 2**70},
        {"step": 2, "prompt": None, "exact_match": 1.0, "big": 1},
    ]
    assert [row["step"] for row in read_completions(folder)] == [2, 2, 10, 10]
    assert read_completions(folder)[3] == {"step": 10, "prompt": "2 + 2", "exact_match": None, "level": "hard"}

    drop_completions_after(folder, 2)
    assert [row["step"] for row in read_completions(folder)] == [2, 2]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(RunDirectoryError, match=r"step-000002\.parquet is not a complete Parquet file"):
        read_completions(folder)
    with pytest.raises(ValueError, match="differ in length"):
        write_completions(folder, 3, {"prompt": ["a"], "completion": []})


def test_a_name_changed_in_a_row_is_restored_from_the_copy_and_a_later_evaluation_is_kept(tmp_path: Path) -> None:
    path, copy = tmp_path / "metrics.jsonl", tmp_path / "copy.jsonl"
    copy.write_text('{"step": 1, "loss": 1.0}\n{"step": 2, "loss": 0.5}\n')
    path.write_text(
        '{"step": 1, "lmss": 1.0}\n{"step": 2, "loss": 0.5, "eval/accuracy": 0.3}\n{"step": 3, "loss": 0.2}\n'
    )
    writer = MetricsWriter(path, 2, copy=copy)
    assert len(writer.repairs) == 1
    assert path.read_text() == '{"step": 1, "loss": 1.0}\n{"step": 2, "loss": 0.5, "eval/accuracy": 0.3}\n'
