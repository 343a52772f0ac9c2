"""Covey's `GRPOTrainer` against stock TRL's: the same work gives the same numbers."""

from __future__ import annotations

import logging
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset, IterableDataset
from transformers import TrainerCallback
from trl import GRPOTrainer as TRLGRPOTrainer

from covey import GRPOTrainer
from covey.config import SpeedConfig
from covey.errors import DataError
from covey.runlog.checkpoint import CHECKPOINT_MARKER, is_complete
from covey.training.checks.data import check_arguments
from trainers import build_trainer


def build(kind: type[TRLGRPOTrainer], tiny_model: str, folder: Path, **settings: Any) -> TRLGRPOTrainer:
    defaults = {"gradient_accumulation_steps": 2, "max_steps": 3, "save_strategy": "no"}
    return build_trainer(kind, tiny_model, folder, prompts=8, **{**defaults, **settings})


def test_the_same_numbers_as_stock_trl(tiny_model: str, tmp_path: Path) -> None:
    """Bit for bit with everything of `speed` that adds the same numbers up in another order switched off."""
    stock_order = SpeedConfig(shared_prefill=False, shared_scoring=False, trim=False)
    ours = build(GRPOTrainer, tiny_model, tmp_path / "ours", beta=0.02, more={"speed": stock_order})
    stock = build(TRLGRPOTrainer, tiny_model, tmp_path / "stock", beta=0.02)
    for trainer in (ours, stock):
        torch.manual_seed(7)  # building a trainer seeds; the second must not continue from the first
        trainer.train()
    for (name, a), (_, b) in zip(ours.model.named_parameters(), stock.model.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    rows = [
        [{k: v for k, v in r.items() if "time" not in k and "_per_" not in k} for r in t.state.log_history]
        for t in (ours, stock)
    ]
    assert rows[0] == rows[1]


def test_checkpoints_are_complete_and_limited(tiny_model: str, tmp_path: Path) -> None:
    build(GRPOTrainer, tiny_model, tmp_path, save_strategy="steps", save_steps=1, save_total_limit=2).train()
    kept = sorted(p.name for p in tmp_path.glob("checkpoint-*"))
    assert kept == ["checkpoint-2", "checkpoint-3"]
    assert all(is_complete(tmp_path / name) for name in kept)


def test_the_limit_goes_by_steps_and_not_by_the_clock(tiny_model: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 1}
    build(GRPOTrainer, tiny_model, tmp_path, max_steps=2, **settings).train()
    os.utime(tmp_path / "checkpoint-2", (4e9, 4e9))  # the clock was ahead
    build(GRPOTrainer, tiny_model, tmp_path, max_steps=3, **settings).train(str(tmp_path / "checkpoint-2"))
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-3"]
    assert not (tmp_path / "README.md").exists()  # TRL's card of a run: "a fine-tuned version of [None]"


def test_a_step_that_is_saved_twice_is_written_once(tiny_model: str, tmp_path: Path) -> None:
    """At the end of a step and of an epoch: while it is rewritten, there would be no complete one."""
    trainer = build(GRPOTrainer, tiny_model, tmp_path, max_steps=1, save_strategy="steps", save_steps=1)
    trainer.train()
    before = (tmp_path / "checkpoint-1" / CHECKPOINT_MARKER).stat().st_mtime_ns
    trainer._save_checkpoint(trainer.model, None)
    trainer.checkpoints.wait()
    assert (tmp_path / "checkpoint-1" / CHECKPOINT_MARKER).stat().st_mtime_ns == before


def test_the_newest_and_the_best_stay_under_a_limit_of_one(tiny_model: str, tmp_path: Path) -> None:
    trainer = build(
        GRPOTrainer, tiny_model, tmp_path, max_steps=3, save_strategy="steps", save_steps=1, save_total_limit=1
    )
    trainer.add_callback(BestIsTheFirst())
    trainer.train()
    assert {path.name for path in tmp_path.glob("checkpoint-*")} == {"checkpoint-1", "checkpoint-3"}


class BestIsTheFirst(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        state.best_global_step = 1


def test_old_checkpoints_stay_until_the_new_one_is_complete(
    tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(GRPOTrainer, tiny_model, tmp_path, max_steps=1, save_strategy="steps", save_steps=1).train()

    def broken(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("covey.training.checkpoint.write.save_progress", broken)
    settings: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 1, "max_steps": 2}
    with pytest.raises(OSError, match="No space left"):
        build(GRPOTrainer, tiny_model, tmp_path, **settings).train(
            resume_from_checkpoint=str(tmp_path / "checkpoint-1")
        )
    assert is_complete(tmp_path / "checkpoint-1")
    assert not is_complete(tmp_path / "checkpoint-2")


def test_a_checkpoint_of_stock_trl_resumes_with_a_warning(
    tiny_model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    build(TRLGRPOTrainer, tiny_model, tmp_path, max_steps=1, save_strategy="steps", save_steps=1).train()
    shutil.copytree(tmp_path / "checkpoint-1", tmp_path / "stock" / "checkpoint-1")
    trainer = build(GRPOTrainer, tiny_model, tmp_path / "ours")
    with caplog.at_level(logging.WARNING, logger="covey"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "stock" / "checkpoint-1"))
    assert trainer.state.global_step == 3
    assert "not exactly as if it had never stopped" in caplog.text


def test_rows_without_a_prompt_are_refused_with_advice() -> None:
    """TRL raises a bare KeyError, in the first batch."""
    check = partial(check_arguments, TRLGRPOTrainer)
    good = Dataset.from_dict({"prompt": ["1 + 1?"]})
    check(train_dataset=good, eval_dataset={"a": good, "b": good})
    check(train_dataset=good.rename_column("prompt", "q").with_transform(lambda rows: {"prompt": rows["q"]}))
    check(train_dataset=IterableDataset.from_generator(lambda: iter([{"q": 1}])), eval_dataset=None)
    with pytest.raises(DataError, match=r'train_dataset have no column `prompt`.* question, answer\. .*"question", "p'):
        check(train_dataset=Dataset.from_dict({"question": ["1 + 1?"], "answer": ["2"]}), eval_dataset=None)
    with pytest.raises(DataError, match=r"eval_dataset\['b'\] have no column `prompt`.* they have q\. Add one"):
        check(train_dataset=good, eval_dataset={"a": good, "b": Dataset.from_dict({"q": ["1 + 1?"]})})
    with pytest.raises(DataError, match="train_dataset"):  # before the model, which is not there, is looked for
        GRPOTrainer("no/model", lambda **_: [0.0], None, Dataset.from_dict({"q": ["1 + 1?"]}))
