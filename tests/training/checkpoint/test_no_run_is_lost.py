"""200 random histories of a run: killed at any write, a disk that fails from any write on, clocks set back, files
damaged, concurrent invocations.

The trainer is a fake; lock, resume plan, records, checkpoints and rotation are Covey's own. All is compared byte for
byte with an undisturbed run.

Pinned here, after every history:
- the newest intact checkpoint is kept, and it is the one that is resumed from;
- no row of metrics, evaluation or file of completions is lost, however `metrics.jsonl` was damaged;
- a finished run is left as it is, and one that cannot be resumed is not touched;
- `best_model` links to the best checkpoint, and no more checkpoints stay than configured.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from covey.config import Config, DatasetConfig, to_yaml
from covey.errors import ConfigError, RunDirectoryError
from covey.runlog import RunDirectory, drop_completions_after, write_atomically, write_completions
from covey.runlog import directory as directory_module
from covey.training.checkpoint.resume import ResumePlan, plan_resume
from covey.training.checkpoint.write import Checkpoints, copy_records, link_best, open_metrics, relink_best
from covey.training.run import open_run_directory
from fake_disk import Disk, KilledError

STEPS = 7
BEST = {1: 0.1, 3: 0.5, 5: 0.3, 7: 0.4}
"""Held-out accuracy by step."""
SCENARIOS, BLOCKS = 200, 8
FAULTS = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EBUSY, errno.ENOSPC)

CONFIG = Config(dataset=DatasetConfig(task="arithmetic"))
Tree = dict[str, bytes]


class FakeBackground:
    """`InBackground` without a thread: a job runs at once, or at a check or wait."""

    draw = random.Random(0)

    def __init__(self) -> None:
        self._jobs: list[Callable[[], object]] = []

    def add(self, job: Callable[[], object]) -> None:
        self._jobs.append(job)
        self.check()

    def check(self) -> None:
        if self.draw.random() < 0.5:
            self.wait()

    def wait(self) -> None:
        while self._jobs:
            self._jobs.pop(0)()


def weights(step: int) -> bytes:
    return random.Random(step).randbytes(600)


def save(folder: Path, step: int) -> None:
    """Write a checkpoint as the libraries do, in several files and folders."""
    (folder / "ref").mkdir(parents=True)
    for name, content in {
        "model.safetensors": weights(step),
        "optimizer.pt": weights(-step),
        "ref/adapter.bin": b"reference",
        "trainer_state.json": b'{"global_step": %d}' % step,
    }.items():
        with (folder / name).open("wb") as file:
            file.write(content)


def train(run: RunDirectory, limit: int | None, between: Callable[[], None] = lambda: None) -> ResumePlan:
    """One invocation: what `covey train` does to the run directory."""
    with run.lock():
        start = plan_resume(CONFIG, run)
        if start.finished:
            return start
        if start.checkpoint is not None:
            assert (start.checkpoint / "model.safetensors").read_bytes() == weights(start.step)
        open_run_directory(CONFIG, run, start)
        writer, _ = open_metrics(run, start.step if start.checkpoint else None, start.checkpoint)
        drop_completions_after(run.completions, start.step)
        if start.step:
            relink_best(at(run, start.step), run)
        checkpoints, args = Checkpoints(), SimpleNamespace(should_save=True, save_total_limit=limit)

        def keep(folder: Path) -> None:
            writer.flush()
            copy_records(run, folder)

        checkpoints.before_marker.append(keep)
        checkpoints.after_marker.append(lambda step, is_best: link_best(run, step, is_best))
        for step in range(start.step + 1, STEPS + 1):
            between()
            checkpoints.check()
            state = at(run, step)
            writer.add(step, {"train/loss": 1 / step})
            if step in BEST:
                writer.add(step, {"eval/accuracy": BEST[step]})
                write_atomically(run.evaluation / f"test-step-{step:06d}.jsonl", f'{{"step": {step}}}\n')
            if step % 3 == 0:
                write_completions(run.completions, step, {"completion": [f"at {step}"]})
            if step % 2 or step == STEPS:
                with checkpoints.writing(run.root, args, state, lambda: None) as folder:
                    save(folder, step)
        checkpoints.wait()
        writer.flush()
        partial = run.final_model.with_name("final_model.part")
        shutil.rmtree(partial, ignore_errors=True)
        save(partial, STEPS)
        shutil.rmtree(run.final_model, ignore_errors=True)
        partial.rename(run.final_model)
        write_atomically(run.summary, "{}")
        return start


def at(run: RunDirectory, step: int) -> Any:
    """The trainer's state after a step."""
    best = max((s for s in BEST if s <= step), key=lambda s: BEST[s])
    path = str(run.checkpoint(best)) if best != step else None
    return SimpleNamespace(
        global_step=step, best_global_step=best, best_model_checkpoint=path, is_world_process_zero=True
    )


def tree(folder: Path) -> Tree:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@dataclass
class History:
    """One run, the events, and the undisturbed run."""

    seed: int
    run: RunDirectory
    straight: RunDirectory
    disk: Disk
    draw: random.Random = field(init=False)
    events: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.draw = FakeBackground.draw = random.Random(self.seed)
        self.limit = self.draw.choice([None, 1, 1, 2, 3])
        self.steps = [step for step, _ in self.straight.checkpoints()]
        self.expected = {step: tree(self.straight.checkpoint(step)) for step in self.steps}

    def intact(self) -> list[int]:
        """By their bytes."""
        return [step for step, path in self.run.checkpoints() if tree(path) == self.expected[step]]

    def begin(self, kill_in: int | None) -> None:
        """One invocation, killed or not; the newest intact checkpoint is resumed from and survives."""
        before, intact = tree(self.run.root), self.intact()
        fault = None if kill_in is None else random.Random(f"{self.seed} {kill_in}").choice([None, None, *FAULTS])
        self.events.append(f"begin, killed in {kill_in}, fault {fault}, intact {intact}")
        self.disk.kill_in(kill_in, fault)
        start, refused = None, ""
        try:
            start = train(self.run, self.limit, self.concurrent)
        except KilledError:
            pass
        except RunDirectoryError as error:
            refused = str(error)
            if self.disk.dead:
                assert "Could not write" in refused
                refused = ""
        self.disk.kill_in(None)
        if refused:
            assert not intact, refused
            assert "Nothing was touched" in refused
            assert tree(self.run.root) == before
            for step, path in self.run.checkpoints():  # as the message advises: restore copies
                if step in self.steps:
                    shutil.rmtree(path)
                    shutil.copytree(self.straight.checkpoint(step), path)
            self.events.append("refused, and restored")
        if start is not None and not start.finished:
            assert start.step == max(intact, default=0)
        assert max(self.intact(), default=0) >= max(intact, default=0), "the newest intact checkpoint is gone"

    def concurrent(self) -> None:
        """Another invocation starts while one is running."""
        if self.draw.random() < 0.1 and not self.disk.dead:
            with pytest.raises(RunDirectoryError, match="being written by another process"):
                train(self.run, self.limit)

    def clock(self) -> None:
        """Older checkpoints get later times."""
        for _, path in self.run.checkpoints():
            time = self.draw.randrange(2**31)
            os.utime(path, (time, time))
        self.events.append("clock")

    def damage(self) -> None:
        """One file of a checkpoint, marker and records included, or one of the run's own. Not of a finished run,
        which is never repaired."""
        whole = self.intact() if not self.run.summary.exists() else []
        own = [self.run.metrics, self.run.config, self.run.environment, *self.run.completions.glob("*")]
        if whole and self.draw.random() < 0.6:
            folder = self.run.checkpoint(whole[-1] if self.draw.random() < 0.7 else self.draw.choice(whole))
            file = self.draw.choice([path for path in sorted(folder.rglob("*")) if path.is_file()])
        elif whole:
            file = self.draw.choice(own)
        else:
            return
        how = self.draw.choice(["flip", "cut", "remove"])
        self.events.append(f"{how} {file.relative_to(self.run.root)}")
        spoil(file, how, self.draw)

    def finish(self) -> None:
        """The run ends, equals the undisturbed one, and stays unchanged."""
        completions = {path.name for path in self.run.completions.glob("*.parquet")}
        self.begin(None)
        if not self.run.summary.exists():
            self.begin(None)
        for name in ("metrics.jsonl", "config.yaml"):
            assert (self.run.root / name).read_bytes() == (self.straight.root / name).read_bytes(), name
        for name in ("evaluation", "final_model"):
            assert tree(self.run.root / name) == tree(self.straight.root / name), name
        assert {path.name for path in self.run.completions.glob("*")} >= completions
        assert not list(self.run.root.glob("*/.*.tmp"))
        if 3 in self.intact():
            assert self.run.best_checkpoint() == self.run.checkpoint(3)
        assert STEPS in self.intact()
        if self.limit is not None:
            # The newest, the best, and one whose deletion was interrupted.
            assert len(self.run.complete_checkpoints()) <= max(self.limit, 2) + 1
        before = tree(self.run.root)
        with contextlib.suppress(IndexError):
            shutil.rmtree(self.draw.choice(self.run.checkpoints())[1])  # deleted to free space
            before = tree(self.run.root)
        assert train(self.run, self.limit).finished
        assert tree(self.run.root) == before


def spoil(file: Path, how: str, draw: random.Random) -> None:
    if not file.is_file():
        return
    content = bytearray(file.read_bytes())
    if how == "remove" or not content:
        file.unlink()
    elif how == "cut":
        file.write_bytes(content[: draw.randrange(len(content))])
    else:
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        file.write_bytes(content)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """A fake disk, without threads, git or composing of configs."""
    text = to_yaml(CONFIG)

    def load(recipe: Path) -> Config:
        if not recipe.is_file() or recipe.read_text(encoding="utf-8", errors="replace") != text:
            raise ConfigError(f"{recipe} cannot be read.")
        return CONFIG

    monkeypatch.setattr("covey.training.checkpoint.resume.load", load)
    monkeypatch.setattr(directory_module, "describe_environment", dict)
    monkeypatch.setattr("covey.training.run.to_yaml", lambda _: text)
    monkeypatch.setattr("covey.training.checkpoint.write.InBackground", FakeBackground)
    monkeypatch.setattr("time.sleep", lambda _: None)
    return Disk(monkeypatch)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_histories_of_a_run(block: int, tmp_path: Path, disk: Disk) -> None:
    straight = RunDirectory(tmp_path / "straight")
    train(straight, None)
    for seed in range(block * SCENARIOS // BLOCKS, (block + 1) * SCENARIOS // BLOCKS):
        history = History(seed, RunDirectory(tmp_path / str(seed)), straight, disk)
        try:
            for _ in range(history.draw.randrange(1, 5)):
                history.begin(history.draw.choice([None, *[history.draw.randrange(260)] * 4]))
                for action in (history.clock, history.damage):
                    if history.draw.random() < 0.5:
                        action()
            history.finish()
        except BaseException as error:
            error.add_note(f"scenario {seed}, limit {history.limit}: " + "; ".join(history.events))
            raise
        shutil.rmtree(history.run.root)
