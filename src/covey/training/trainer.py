"""Covey's `GRPOTrainer`: TRL's, with objectives, KL control, and checkpoints that hold all the next step depends on.

The only module that knows TRL's private methods. Each shell below says which method it replaces and why; the bodies
live in sibling modules that know nothing of TRL. `tests/test_trl_contract.py` fails readably when one of the replaced
methods changes.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
import trl.trainer.utils
from accelerate.utils import gather_object
from datasets import Dataset
from torch.utils.data import Sampler
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from trl import GRPOConfig
from trl import GRPOTrainer as TRLGRPOTrainer
from trl.extras.profiling import profiling_context
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.utils import split_pixel_values_by_grid, unsplit_pixel_values_by_grid

from covey.config import SpeedConfig
from covey.model.reasoning_vocab import ReasoningVocabulary
from covey.objective import GRPO, KLController, Objective
from covey.training.batching import batching_for
from covey.training.checkpoints import written_whole
from covey.training.early_rewards import EarlyRewards
from covey.training.engine import engine_in_place
from covey.training.given_rows import check_prompts
from covey.training.kl_control import KLWatch
from covey.training.objective_step import ScoredRewards, check_objective, decide_advantages, loss_mask
from covey.training.piece_metrics import one_entry_each
from covey.training.pieces import PLAN, in_pieces
from covey.training.progress import Progress, copy_log, extend_log, load_progress, save_progress
from covey.training.prompt_order import replay_permutations
from covey.training.resampling import Resampler, Round, check_data, counting, has_signal, make_round, standing_in
from covey.training.rollout_step import in_reach, write_completions
from covey.training.scoring import SharedScoring
from covey.training.thinking import Thinking

__all__ = ["GRPOConfig", "GRPOTrainer"]

FORWARD_KEYS = (
    *("pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles"),
    *("image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids"),
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
    _buffered_inputs: list[dict[str, Any]] | None

    def __init__(
        self,
        *args: Any,
        objective: Objective | None = None,
        kl_controller: KLController | None = None,
        stop_above_kl: float | None = None,
        resample_groups: int = 0,
        speed: SpeedConfig | None = None,
        vocabulary: ReasoningVocabulary | None = None,
        **kwargs: Any,
    ) -> None:
        """Take all that TRL's trainer takes, and what Covey adds; by default, training is TRL's.

        Args:
            args: TRL's arguments.
            objective: makes the advantages, such as `covey.objective.MaxEnt()`; None leaves TRL's.
            kl_controller: moves β after each step, such as `covey.objective.AdaptiveKL(target=0.07)`: the weight of the
                KL term in the loss, or of the reference in an objective that uses it; None keeps β.
            stop_above_kl: a KL, in nats per token; a step above it ends the run with a `TrainingError`.
            resample_groups: most further prompts drawn for one generation batch, to replace groups whose rewards are
                all alike; 0 keeps every group.
            speed: which repeated work is done once only; None does all that applies. The numbers stay the same.
            vocabulary: the model's reasoning vocabulary; None reads the one that lies beside the weights, if any.
            kwargs: TRL's arguments by keyword.

        Raises:
            ConfigError: the objective or the controller does not go together with the rest.
            DataError: rows have no `prompt`.
        """
        if objective is not None:
            check_objective(objective)
        check_prompts(TRLGRPOTrainer, *args, **kwargs)
        with engine_in_place(self):
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
        head = (trl.trainer.utils, "_ChunkedLogProbFunction")
        self._thinking = Thinking(vocabulary, self.model, self.ref_model, self.args, *head)
        self._scoring = SharedScoring(on=self._speed.shared_scoring, thinks=self._thinking.thinks)
        self._batching = batching_for(self._speed, self.args, self.model, router_loss=self.aux_loss_enabled)
        self._resampler = self._make_resampler(resample_groups) if resample_groups else None
        self._early_rewards = EarlyRewards(self.reward_funcs)
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
        log = copy_log(self._logs)
        asked = {"prompt": log["prompt"], "completion": log["completion"]}
        return {**asked, **log["rewards"], **log["extra"], "advantage": log["advantages"]}

    @property
    def total_steps(self) -> int:
        """Optimiser steps of the whole run, by `max_steps` or by the epochs over the data."""
        return int(self.set_initial_training_values(self.args, self.get_train_dataloader())[-1])

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps of one pass over the data."""
        return int(self.set_initial_training_values(self.args, self.get_train_dataloader())[1])

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model as transformers does, with the map of its reasoning vocabulary beside it."""
        super().save_model(output_dir, _internal_call)
        self._thinking.save(output_dir or str(self.args.output_dir), writes=self.args.should_save)

    def load_checkpoint_weights(self, checkpoint: Path) -> None:
        """Put a checkpoint's weights and trainer state in place, without training on."""
        self._load_from_checkpoint(str(checkpoint))
        self.state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))

    # -- TRL's `_generate`: rewards in worker processes begin now, and not once the models have scored.
    def _generate(self, prompts: list[Any]) -> Any:
        output = super()._generate(prompts)
        _, ids, _, completions, _, extra_fields, *_ = output
        if not extra_fields and self.environments is None:  # which give the rewards more, and only later
            logs = {"log_extra": self._log_completion_extra, "log_metric": self._log_metric}
            self._early_rewards.begin(prompts, completions, completion_ids=ids, trainer_state=self.state, **logs)
        return output

    # -- TRL's `_generate_single_turn`: a group's prompt is read once, and completions that have ended leave the batch.
    def _generate_single_turn(self, prompt_ids: Any, images: Any, fields: Any, *args: Any, **kwargs: Any) -> Any:
        more = {"eos_token_ids": self.eos_token_ids, "logits_processors": self._thinking.masks(prompt_ids)}
        elsewhere = self.use_vllm or self.use_transformers_continuous_batching or images is not None or fields
        if self._speed.shared_prefill and not elsewhere:
            with profiling_context(self, "transformers.generate"):
                policy = in_reach(self.model_wrapped, self.accelerator, self.args, self._dist.summon_full_params)
                ids = write_completions(policy, prompt_ids, self.generation_config, **more)
            if ids is not None:
                return ids, None
        with self._thinking.generating():
            return super()._generate_single_turn(prompt_ids, images, fields, *args, **kwargs)

    # -- TRL's `_calculate_rewards`: keeps each function's rewards, over all processes, for the objective.
    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> torch.Tensor:
        rewards_BF: torch.Tensor = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._rewards_BF = rewards_BF
        return rewards_BF

    # -- TRL's `_generate_and_score_completions`: in training, the objective replaces the advantages, and TRL's log of
    #    them.
    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = self._scored_batch(inputs)
        self._thinking.measure(output, self._metrics, self.accelerator.reduce)
        rewards_BF, self._rewards_BF = self._rewards_BF, None
        if self._objective is None or rewards_BF is None or not self.model.training:
            return output
        advantages_B, metrics = decide_advantages(
            self._objective,
            self._scored(rewards_BF),
            mask_BT=loss_mask(output),
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

    def _make_resampler(self, most: int) -> Resampler:
        obstacles = {
            "tools": bool(self.tools),
            "environment_factory": self.environment_factories is not None,
            "rollout_func": self.rollout_func is not None,
        }
        check_data(self.train_dataset, obstacles)
        return Resampler(
            most,
            num_generations=self.num_generations,
            processes=self.accelerator.num_processes,
            process_index=self.accelerator.process_index,
            gather_object=gather_object,
        )

    # -- TRL's `_generate_and_score_completions`, under resampling: the batch is written, rewarded and refilled first;
    #    then TRL's method makes of the final batch what it makes of any, so that it alone is counted and logged.
    def _scored_batch(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if self._resampler is None or not self.model.training:
            with self._early_rewards.batch_of(inputs):
                return dict(super()._generate_and_score_completions(inputs))
        seen_before = self.state.num_input_tokens_seen
        filled = self._resampler.fill(len(inputs), self._write)
        seen, self.state.num_input_tokens_seen = self.state.num_input_tokens_seen, seen_before
        self._rewards_BF = filled.rewards
        self._pending_extra_logs.update(filled.extra)
        self._pending_metrics.update(filled.reported)
        with standing_in(
            self,
            _generate_single_turn=lambda *_, **__: filled.completions,
            _calculate_rewards=lambda *_: filled.rewards,
        ):
            output: dict[str, Any] = super()._generate_and_score_completions(filled.rows)
        wasted = seen - self.state.num_input_tokens_seen
        self.state.num_input_tokens_seen = seen
        self._metrics["train"]["num_tokens"] = [seen]
        for name, value in {**filled.metrics, "resampling/tokens": float(wasted)}.items():
            self._metrics["train"][name].append(value)
        return output

    def _write(self, rows: list[dict[str, Any]]) -> Round:
        """Have completions of these rows written and rewarded, with no trace in the metrics of the step."""
        kept, self._metrics["train"] = self._metrics["train"], defaultdict(list)
        prompts = [row["prompt"] for row in rows]
        _, ids, _, completions, logps, *_ = self._generate(prompts)
        rewards_BF = self._calculate_rewards(rows, prompts, completions, ids)
        self._metrics["train"] = kept
        extra, reported = dict(self._pending_extra_logs), dict(self._pending_metrics)
        self._pending_extra_logs.clear()
        self._pending_metrics.clear()
        ends = {*self.eos_token_ids, self._tokenizer.pad_token_id} if self.mask_truncated_completions else None
        counts_B = self.accelerator.gather(counting(ids, ends).to(rewards_BF.device))
        scored = self._scored(rewards_BF)
        signal_P = has_signal(scored if self._objective is None else scored.only(counts_B), counts_B)
        return make_round(rows, ids, logps, rewards_BF, signal_P, extra=extra, reported=reported)

    def _scored(self, rewards_BF: torch.Tensor) -> ScoredRewards:
        return ScoredRewards(rewards_BF, self.reward_weights, self.multi_objective_aggregation, self.num_generations)

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

    # -- TRL's `_get_per_token_logps_and_entropies`: the prompt of a group is computed once, where that applies; the
    #    loss's own log-probabilities are kept for the KL.
    def _get_per_token_logps_and_entropies(self, *args: Any, batch_size: Any = None, **more: Any) -> tuple[Any, ...]:
        with self.accelerator.autocast():
            scores = self._scoring.score(*args, rows_at_once=batch_size, whole=self.num_generations, **more)
        if scores is None:
            scores = super()._get_per_token_logps_and_entropies(*args, batch_size=batch_size, **more)
        if self._keeps_loss_logps:
            self._loss_logps_BT = scores[0].detach()
        return tuple(scores)

    # -- TRL's `_prepare_inputs`: in training, Covey cuts the generation batch into micro-batches: whole groups, no
    #    needless padding, no rows without a gradient.
    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        if not self.model.training or self._batching.is_plain:
            return dict(super()._prepare_inputs(generation_batch))
        generate_every = self.args.steps_per_generation * self.num_iterations
        if self._step % generate_every == 0 or self._buffered_inputs is None:
            self._buffered_inputs = self._batching.cut(
                split_pixel_values_by_grid(self._generate_and_score_completions(generation_batch)),
                beta=self.beta,
                packed=self._scoring.applies(self.model),
                process=self.accelerator.process_index,
                gather=self.accelerator.gather if self.accelerator.num_processes > 1 else None,
                finish=unsplit_pixel_values_by_grid,
            )
        return dict(self._buffered_inputs[self._step % self.args.steps_per_generation])

    # -- TRL's `_compute_loss`: a micro-batch goes through the model in the pieces of its plan.
    def _compute_loss(self, model: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        plan = inputs.get(PLAN) if self.model.training else None
        deepspeed = {"scale_wrt_gas": False} if self.is_deepspeed_enabled else {}
        with one_entry_each(self._metrics["train"], plan):
            loss = in_pieces(
                inputs,
                plan,
                lambda piece: self._piece_loss(model, piece),
                backward=lambda loss: self.accelerator.backward(loss, **deepspeed),
                model=model,
                accelerator=self.accelerator,
            )
        self._end_kl_step()
        return loss

    # -- TRL's `_compute_loss`: under an objective that uses the reference itself, the loss has no KL term of its own,
    #    and Covey logs the KL; where a controller or a limit asks for it, the KL of the whole step is measured.
    def _piece_loss(self, model: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        own_kl_term = "reference" not in self._needs
        if not self._watches_kl:
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
        self._kl_watch.add(logps_BT, inputs["ref_per_token_logps"], loss_mask(inputs))
        return loss

    @property
    def _watches_kl(self) -> bool:
        return self.model.training and self.beta != 0 and ("reference" in self._needs or self._kl_watch.acts)

    def _end_kl_step(self) -> None:
        if not (self._watches_kl and self.accelerator.sync_gradients):
            return
        beta, metrics = self.beta, self._metrics["train"]
        kl, self.beta = self._kl_watch.end_step(beta, lambda t: self.accelerator.reduce(t, reduction="sum"))
        metrics["objective/beta"].append(beta)
        if kl is not None and "reference" in self._needs:
            metrics["kl"].append(kl)

    # -- TRL's `_get_train_sampler`: the same order, but an epoch's permutation can be found again after a resume.
    def _get_train_sampler(self, dataset: Dataset | None = None) -> Sampler[int]:
        sampler: Sampler[int] = super()._get_train_sampler(dataset)
        self._train_sampler = sampler
        return sampler

    # -- TRL's `_save_checkpoint`: adds what TRL leaves out, then the marker; old checkpoints go only after that.
    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        run_dir = Path(self._get_output_dir(trial=trial))
        with written_whole(run_dir, self.args, self.state, self.accelerator.wait_for_everyone) as folder:
            super()._save_checkpoint(model, trial)
            save_progress(folder, self.args.process_index, self._progress())

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
        extend_log(self._logs, progress.completion_log)
        replay_permutations(self._train_sampler, progress.passes_done)

    def _begin_resampling(self) -> None:
        if self._resampler is not None:
            generate_every = self.args.steps_per_generation * self.num_iterations
            self._resampler.begin(self._train_sampler, self._restored, generate_every=generate_every)

    def _progress(self) -> Progress:
        generate_every = self.args.steps_per_generation * self.num_iterations
        mid_batch = self._step % generate_every != 0
        return Progress(
            micro_step=self._step,
            passes_done=int(self.state.epoch or 0),
            buffered_inputs=self._buffered_inputs if mid_batch else None,
            pending_metrics={name: list(values) for name, values in self._metrics["train"].items()},
            completion_log=copy_log(self._logs),
            step_time=self._current_train_step_time,
            loss_since_log=float(self._tr_loss),
            loss_total=float(self._total_loss_scalar),
            last_logged_step=int(self._globalstep_last_logged),
            beta=float(self.beta),
            prompt_cursor=self._resampler.cursor if self._resampler is not None else None,
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
        self._trainer._begin_resampling()
        self._trainer._restore_running_totals()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._trainer._kl_watch.exceeded:
            control.should_log = control.should_training_stop = True
            control.should_save = control.should_evaluate = False
