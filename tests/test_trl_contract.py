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

from covey.training.trainer import FORWARD_KEYS, GRPOTrainer

REPLACED = {
    "_calculate_rewards": ["self", "inputs", "prompts", "completions", "completion_ids_list"],
    "_compute_loss": ["self", "model", "inputs"],
    "_generate_and_score_completions": ["self", "inputs"],
    "_get_per_token_logps_and_entropies": [
        *["self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size"],
        *["compute_entropy", "compute_aux_loss", *FORWARD_KEYS],
    ],
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
    "beta": "__init__",
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


def test_the_reference_is_built_scored_and_used_while_beta_is_not_zero() -> None:
    """Under an objective of its own use of the reference, β is zero within the loss only."""
    for method in ("__init__", "_generate_and_score_completions", "_compute_loss"):
        source = inspect.getsource(getattr(TRLGRPOTrainer, method))
        assert "if self.beta == 0.0" in source or "if self.beta != 0.0" in source
    loss = inspect.getsource(TRLGRPOTrainer._compute_loss)
    assert loss.count("self.beta") == 4  # the divergence, the term, its weight, and the metric


def test_the_loss_scores_the_policy_once_and_by_the_method_that_keeps_it() -> None:
    source = inspect.getsource(TRLGRPOTrainer._compute_loss)
    assert source.count("self._get_per_token_logps_and_entropies(") == 1
    assert source.count("model(") == 0


def test_rewards_are_gathered_and_then_made_advantages_of_whole_groups() -> None:
    assert "rewards_per_func = gather(rewards_per_func)" in inspect.getsource(TRLGRPOTrainer._calculate_rewards)
    source = inspect.getsource(TRLGRPOTrainer._generate_and_score_completions)
    assert source.count("self._calculate_rewards(") == 1
    for part in (
        "self.accelerator.process_index * len(prompts)",  # the slice of a process
        'self._logs["advantages"].extend(all_process_advantages.tolist())',
        'output["ref_per_token_logps"] = ref_per_token_logps',
        'output["old_per_token_logps"] = old_per_token_logps',
        "completion_mask = completion_mask * (~is_truncated)",
    ):
        assert part in source, part


def test_the_divergence_is_estimated_as_covey_estimates_it() -> None:
    source = "".join(inspect.getsource(TRLGRPOTrainer._compute_loss).split())
    assert "torch.exp(ref_per_token_logps-per_token_logps)-(ref_per_token_logps-per_token_logps)-1" in source


def test_the_log_averages_lists_of_numbers_by_name() -> None:
    source = inspect.getsource(TRLGRPOTrainer.log)
    assert "for key, val in self._metrics[mode].items()" in source
