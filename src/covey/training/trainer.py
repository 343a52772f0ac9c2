"""Covey's `GRPOTrainer`: TRL's, with objectives, KL control, and checkpoints that hold all the next step depends on.

The only module that knows TRL's private methods. Each shell below says which method it replaces and why; the bodies
live in sibling modules that know nothing of TRL. `tests/test_trl_contract.py` fails readably when one of the replaced
methods changes.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import Sampler
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints
from trl import GRPOConfig
from trl import GRPOTrainer as TRLGRPOTrainer
from trl.models.utils import disable_gradient_checkpointing

from covey.config import SpeedConfig
from covey.objective import GRPO, KLController, Objective
from covey.runlog.directory import is_whole, mark_whole, unmark
from covey.training.kl_control import KLWatch
from covey.training.objective_step import ScoredRewards, check_objective, decide_advantages
from covey.training.progress import Progress, load_progress, save_progress

__all__ = ["GRPOConfig", "GRPOTrainer"]

FORWARD_KEYS = (
    "pixel_values",
    "image_grid_thw",
    "num_images",
    "pixel_attention_mask",
    "spatial_shapes",
    "num_tiles",
    "image_sizes",
    "token_type_ids",
    "mm_token_type_ids",
    "image_position_ids",
)
"""What TRL's scoring pass takes beside the tokens, all of it for pictures."""


class GRPOTrainer(TRLGRPOTrainer):
    """TRL's `GRPOTrainer`, with the same constructor and the same numbers, and runs that resume exactly.

    A checkpoint of TRL 1.16 forgets the completions that are still to be learned from, the place within the
    accumulation and generation cycle, which permutation of the data an epoch is in, and metrics not yet logged. Covey's
    holds them, so that stopping after any step and going on equals the straight run (bit for bit on CPU). A checkpoint
    counts as whole once its marker file, written last, is there.
    """

    beta: float
    """Weight of the KL divergence, as it is now."""

    def __init__(
        self,
        *args: Any,
        objective: Objective | None = None,
        kl_controller: KLController | None = None,
        stop_above_kl: float | None = None,
        speed: SpeedConfig | None = None,
        **kwargs: Any,
    ) -> None:
        """Take all that TRL's trainer takes, and what Covey adds; by default, training is TRL's.

        Args:
            args: TRL's arguments.
            objective: makes the advantages, such as `covey.objective.MaxEnt()`; None leaves TRL's.
            kl_controller: moves β after each step, such as `covey.objective.AdaptiveKL(target=0.07)`: the weight of the
                KL term in the loss, or of the reference in an objective that uses it; None keeps β.
            stop_above_kl: a KL, in nats per token; a step above it ends the run with a `TrainingError`.
            speed: which repeated work is done once only; None does all that applies. The numbers stay the same.
            kwargs: TRL's arguments by keyword.

        Raises:
            ConfigError: the objective or the controller does not go together with the rest.
        """
        if objective is not None:
            check_objective(objective)
        super().__init__(*args, **kwargs)
        self._speed = speed if speed is not None else SpeedConfig()
        if objective is not None and hasattr(objective, "for_run"):
            objective = objective.for_run(loss_type=self.loss_type, num_generations=self.num_generations)
        self._objective = None if isinstance(objective, GRPO) else objective
        self._kl_watch = KLWatch(kl_controller, stop_above_kl, self.beta)
        self._rewards_BF: torch.Tensor | None = None
        self._loss_logps_BT: torch.Tensor | None = None
        self._keeps_loss_logps = False
        self._restored: Progress | None = None
        self.add_callback(_Hooks(self))

    @property
    def _needs(self) -> frozenset[str]:
        return frozenset() if self._objective is None else self._objective.needs

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as transformers' `Trainer.train` does.

        Raises:
            TrainingError: the KL rose above `stop_above_kl`; the step is logged, but no checkpoint is written for it.
        """
        output = super().train(*args, **kwargs)
        if self._kl_watch.exceeded:
            raise self._kl_watch.complaint(self.state.global_step, Path(self.args.output_dir))
        return output

    @property
    def latest_completions(self) -> dict[str, list[Any]]:
        """The completions of the newest generation batch, over all processes: one list per column.

        Columns: `prompt`, `completion`, one per reward function, `advantage`, and what rewards logged with `log_extra`.
        """
        logs = self._logs
        columns = {"prompt": list(logs["prompt"]), "completion": list(logs["completion"])}
        columns |= {name: list(values) for name, values in logs["rewards"].items()}
        columns |= {name: list(values) for name, values in logs["extra"].items()}
        columns["advantage"] = list(logs["advantages"])
        return columns

    @property
    def total_steps(self) -> int:
        """Optimiser steps of the whole run, by `max_steps` or by the epochs over the data."""
        return int(self.set_initial_training_values(self.args, self.get_train_dataloader())[-1])

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps of one pass over the data."""
        return int(self.set_initial_training_values(self.args, self.get_train_dataloader())[1])

    def load_checkpoint_weights(self, checkpoint: Path) -> None:
        """Put a checkpoint's weights and trainer state in place, without training on."""
        self._load_from_checkpoint(str(checkpoint))
        self.state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))

    # -- TRL's `_calculate_rewards`: keeps each function's rewards, over all processes, for the objective.
    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> torch.Tensor:
        rewards_BF: torch.Tensor = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._rewards_BF = rewards_BF
        return rewards_BF

    # -- TRL's `_generate_and_score_completions`: in training, the objective replaces the advantages, and TRL's log of
    #    them.
    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        rewards_BF, self._rewards_BF = self._rewards_BF, None
        if self._objective is None or rewards_BF is None or not self.model.training:
            return output
        advantages_B, metrics = decide_advantages(
            self._objective,
            ScoredRewards(rewards_BF, self.reward_weights, self.multi_objective_aggregation, self.num_generations),
            mask_BT=_loss_mask(output),
            ref_logps_BT=output.get("ref_per_token_logps"),
            policy_logps_BT=self._policy_logps(output),
            beta=self.beta,
            gather=self.accelerator.gather,
        )
        for name, value in metrics.items():
            self._metrics["train"][name].append(value)
        if advantages_B is not None:
            local = len(output["advantages"])
            start = self.accelerator.process_index * local
            output["advantages"] = advantages_B[start : start + local].to(output["advantages"])
            log = self._logs["advantages"]
            for _ in range(min(len(advantages_B), len(log))):
                log.pop()
            log.extend(advantages_B.tolist())
        return output

    def _policy_logps(self, batch: dict[str, Any]) -> torch.Tensor | None:
        """Log-probabilities of the completion tokens under the policy that wrote them, if they are there or needed."""
        kept: torch.Tensor | None = batch.get("old_per_token_logps")
        if kept is not None or "policy" not in self._needs:
            return kept
        with torch.no_grad(), disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs):
            logps_BT, _, _ = self._get_per_token_logps_and_entropies(
                self.model,
                torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
                torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1),
                batch["completion_ids"].size(1),
                batch_size=self.args.per_device_train_batch_size,
                **{key: batch[key] for key in FORWARD_KEYS if key in batch},
            )
        return torch.as_tensor(logps_BT)

    # -- TRL's `_get_per_token_logps_and_entropies`: the loss's own log-probabilities are kept for the KL.
    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
        logps_BT, entropies_BT, aux_loss = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if self._keeps_loss_logps:
            self._loss_logps_BT = logps_BT.detach()
        return logps_BT, entropies_BT, aux_loss

    # -- TRL's `_compute_loss`: under an objective that uses the reference itself, the loss has no KL term of its own,
    #    and Covey logs the KL; where a controller or a limit asks for it, the KL of the whole step is measured.
    def _compute_loss(self, model: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        own_kl_term = "reference" not in self._needs
        if not self.model.training or self.beta == 0 or (own_kl_term and not self._kl_watch.acts):
            return torch.as_tensor(super()._compute_loss(model, inputs))
        beta = self.beta
        self._keeps_loss_logps = True
        try:
            self.beta = beta if own_kl_term else 0.0
            loss = torch.as_tensor(super()._compute_loss(model, inputs))
        finally:
            self.beta = beta
            self._keeps_loss_logps = False
        logps_BT, self._loss_logps_BT = self._loss_logps_BT, None
        assert logps_BT is not None
        self._kl_watch.add(logps_BT, inputs["ref_per_token_logps"], _loss_mask(inputs))
        if self.accelerator.sync_gradients:
            kl, self.beta = self._kl_watch.end_step(beta, lambda t: self.accelerator.reduce(t, reduction="sum"))
            self._metrics["train"]["objective/beta"].append(beta)
            if kl is not None and not own_kl_term:
                self._metrics["train"]["kl"].append(kl)
        return loss

    # -- TRL's `_get_train_sampler`: the same order, but an epoch's permutation can be found again after a resume.
    def _get_train_sampler(self, dataset: Dataset | None = None) -> Sampler[int]:
        sampler: Sampler[int] = super()._get_train_sampler(dataset)
        self._train_sampler = sampler
        return sampler

    # -- TRL's `_save_checkpoint`: adds what TRL leaves out, then the marker; old checkpoints go only after that.
    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        run_dir = Path(self._get_output_dir(trial=trial))
        folder = run_dir / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        if self.args.should_save and folder.is_dir():
            if is_whole(folder):
                unmark(folder)  # it is about to be rewritten
            else:
                shutil.rmtree(folder)  # left half-written by a process that died
        self.accelerator.wait_for_everyone()
        keep, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self.args.save_total_limit = keep
        save_progress(folder, self.args.process_index, self._progress())
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            mark_whole(folder, self.state.global_step)
            rotate_checkpoints(
                output_dir=str(run_dir),
                save_total_limit=keep,
                best_model_checkpoint=self.state.best_model_checkpoint,
                use_mtime=True,
            )

    # -- TRL's `_load_optimizer_and_scheduler`: the one hook of a resume that runs once the trainer state is known and
    #    before the data are read.
    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        progress = load_progress(Path(checkpoint), self.args.process_index, self.accelerator.device)
        if progress is None:
            return  # a checkpoint of stock TRL; `load_progress` has said what that costs
        self._restored = progress
        self._step = progress.micro_step
        self._buffered_inputs = progress.buffered_inputs
        self._current_train_step_time = progress.step_time
        self._metrics["train"].clear()
        self._metrics["train"].update(progress.pending_metrics)
        if self._kl_watch.moves_beta and progress.beta is not None:
            self.beta = progress.beta
        for name in ("prompt", "completion", "advantages"):
            self._logs[name].extend(progress.completion_log[name])
        for name in ("rewards", "extra"):
            for column, values in progress.completion_log[name].items():
                self._logs[name][column].extend(values)
        _replay_permutations(self._train_sampler, progress.passes_done)

    def _progress(self) -> Progress:
        generate_every = self.args.steps_per_generation * self.num_iterations
        mid_batch = self._step % generate_every != 0
        return Progress(
            micro_step=self._step,
            passes_done=int(self.state.epoch or 0),
            buffered_inputs=self._buffered_inputs if mid_batch else None,
            pending_metrics={name: list(values) for name, values in self._metrics["train"].items()},
            completion_log={
                "prompt": list(self._logs["prompt"]),
                "completion": list(self._logs["completion"]),
                "advantages": list(self._logs["advantages"]),
                "rewards": {name: list(values) for name, values in self._logs["rewards"].items()},
                "extra": {name: list(values) for name, values in self._logs["extra"].items()},
            },
            step_time=self._current_train_step_time,
            loss_since_log=float(self._tr_loss),
            loss_total=float(self._total_loss_scalar),
            last_logged_step=int(self._globalstep_last_logged),
            beta=float(self.beta),
        )

    def _restore_running_totals(self) -> None:
        """Give transformers its running loss back, which its loop sets to zero just before training begins."""
        if self._restored is None:
            return
        self._tr_loss += self._restored.loss_since_log
        self._total_loss_scalar = self._restored.loss_total
        self._globalstep_last_logged = self._restored.last_logged_step
        self._restored = None


class _Hooks(TrainerCallback):
    def __init__(self, trainer: GRPOTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._trainer._restore_running_totals()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._trainer._kl_watch.exceeded:
            control.should_log = control.should_training_stop = True
            control.should_save = control.should_evaluate = False


def _loss_mask(batch: dict[str, Any]) -> torch.Tensor:
    """Which completion tokens the loss counts, `[B, T]`."""
    mask: torch.Tensor = batch["completion_mask"]
    return mask * batch["tool_mask"] if "tool_mask" in batch else mask


def _replay_permutations(sampler: Any, count: int) -> None:
    """Draw and drop the permutations of the passes that a resumed run does not make again."""
    generator = getattr(sampler, "generator", None)
    if generator is None:
        return
    for _ in range(count):
        torch.randperm(len(sampler.data_source), generator=generator)
