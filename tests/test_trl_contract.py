"""What Covey relies on in the pinned TRL and transformers.

When one of these fails, the pinned version has changed under `training/trainer.py`: read the method that is named, mend
the shell that replaces it, then this test.
"""

from __future__ import annotations

import inspect

import pytest
import torch
from transformers import Trainer
from trl import GRPOTrainer as TRLGRPOTrainer
from trl.trainer.utils import RepeatSampler

from covey.training.trainer import GRPOTrainer

REPLACED = {
    "_get_train_sampler": ["self", "dataset"],
    "_save_checkpoint": ["self", "model", "trial"],
    "_load_optimizer_and_scheduler": ["self", "checkpoint"],
}

ATTRIBUTES = {
    "_step": "__init__",
    "_buffered_inputs": "_prepare_inputs",
    "_metrics": "__init__",
    "_logs": "__init__",
    "_current_train_step_time": "training_step",
}


@pytest.mark.parametrize(("method", "parameters"), REPLACED.items())
def test_replaced_methods_keep_their_signature(method: str, parameters: list[str]) -> None:
    assert list(inspect.signature(getattr(TRLGRPOTrainer, method)).parameters) == parameters
    assert method in vars(GRPOTrainer), f"covey's GRPOTrainer no longer replaces {method}: drop it from this list"


@pytest.mark.parametrize(("attribute", "method"), ATTRIBUTES.items())
def test_attributes_that_a_checkpoint_holds_are_still_there(attribute: str, method: str) -> None:
    assert f"self.{attribute}" in inspect.getsource(getattr(TRLGRPOTrainer, method))


def test_the_constructor_is_trls() -> None:
    assert issubclass(GRPOTrainer, TRLGRPOTrainer)
    taken = inspect.signature(TRLGRPOTrainer.__init__).parameters
    assert {"model", "reward_funcs", "args", "train_dataset", "processing_class", "peft_config"} <= taken.keys()


def test_generation_batch_is_regenerated_on_the_cycle_that_progress_assumes() -> None:
    source = inspect.getsource(TRLGRPOTrainer._prepare_inputs)
    assert "generate_every = self.args.steps_per_generation * self.num_iterations" in source
    assert "self._step % generate_every == 0" in source


def test_a_pass_over_the_data_draws_one_permutation() -> None:
    sampler = RepeatSampler(range(10), mini_repeat_count=2, batch_size=5, seed=3)
    generator = torch.Generator().manual_seed(3)
    for _ in range(3):
        expected = torch.randperm(10, generator=generator).repeat_interleave(2).tolist()
        assert list(sampler) == expected


def test_running_totals_are_reset_before_training_begins_and_not_after() -> None:
    source = inspect.getsource(Trainer._inner_training_loop)
    begin = source.index("callback_handler.on_train_begin")
    for attribute in ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged"):
        assert f"self.{attribute} =" in source[:begin]
        assert f"self.{attribute} =" not in source[begin:]


def test_a_resume_loads_the_optimizer_before_it_reads_data() -> None:
    source = inspect.getsource(Trainer._inner_training_loop)
    assert source.index("self._prepare_for_training(") < source.index("self._run_epoch(")
    assert "self._load_optimizer_and_scheduler(" in inspect.getsource(Trainer._prepare_for_training)
