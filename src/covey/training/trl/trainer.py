"""Covey's `GRPOTrainer`: TRL's, with objectives, KL control, and checkpoints that hold all the next step depends on.

A comment above each override says which method it replaces and why; most of the work is done outside of this package,
which alone knows TRL. `tests/training/trl/test_trl_contract.py` fails when a replaced method changes in TRL.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft.utils.other import TrainableTokensWrapper
from torch.utils.data import Sampler
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl import GRPOConfig
from trl import GRPOTrainer as TRLGRPOTrainer
from trl.trainer import grpo_trainer
from trl.trainer.utils import (
    add_fused_lm_head,
    create_model_from_path,
    split_pixel_values_by_grid,
    unsplit_pixel_values_by_grid,
)

from covey.config import SpeedConfig
from covey.environments.templates import parse
from covey.errors import ConfigError
from covey.log_once import begin_run, log_once
from covey.model.adapters import untie
from covey.model.device import base_model, casting_once, disable_dropout
from covey.model.positions import count_from_first_token
from covey.model.prompts import as_shown
from covey.model.reasoning_vocab import ReasoningVocabulary
from covey.objective import KLController, Objective
from covey.objective.interface import check_objective, needs_of
from covey.rewards.reward import is_prefill
from covey.rollout import InferenceEngine, conversation
from covey.training.advantages import KLMonitor, apply_objective, end_kl_step, in_use, loss_with_kl
from covey.training.asynchronous.settings import Asynchronous
from covey.training.checkpoint.state import (
    MovedReference,
    TrainingProgress,
    copy_log,
    local_part,
    progress_of,
    restore_progress,
)
from covey.training.checkpoint.write import ResumedExactly
from covey.training.checks.data import check_arguments
from covey.training.chunks import PLAN, forward_in_chunks
from covey.training.microbatch import batching_for, merged_entries
from covey.training.prompt_order import OwnOrder
from covey.training.recording import CompletionRecorder, EarlyRewards
from covey.training.replaced import all_replaced, replaced
from covey.training.scoring import ReasoningSupport, SharedScoring
from covey.training.trl.generation import engine_for, generate_turn, mixed_precision, training_options
from covey.training.trl.restricted_head import give_bias
from covey.training.trl.rounds import AsynchronousRounds, make_resampler, resampled_batch
from covey.training.trl.sampled_scoring import SampledScoring, scoring_temperature
from covey.training.trl.tool_loop import TrainerEpisodes
from covey.training.trl.vllm import patched_engine

__all__ = ["GRPOConfig", "GRPOTrainer", "TRLGRPOTrainer"]


logger = logging.getLogger(__name__)


class GRPOTrainer(ResumedExactly, TRLGRPOTrainer):
    """TRL's `GRPOTrainer`, with the same constructor and the same numbers, and runs that resume exactly.

    A checkpoint of TRL 1.16 lacks the completions not yet trained on, the position within the accumulation and
    generation cycle, the permutation of the current epoch, and metrics not yet logged. Covey's holds them, so that a
    run stopped after any step and resumed equals one that never stopped (bit for bit on CPU). A checkpoint is complete
    once its marker file, written last, exists.
    """

    beta: float
    """Current weight of the KL divergence."""
    recorder: CompletionRecorder | None = None
    """Logs columns about every completion, if set."""
    _buffered_inputs: list[dict[str, Any]] | None
    _progress = progress_of
    _restore = restore_progress

    def __init__(
        self,
        *args: Any,
        objective: Objective | None = None,
        kl_controller: KLController | None = None,
        stop_above_kl: float | None = None,
        resample_groups: int = 0,
        speed: SpeedConfig | None = None,
        engine: InferenceEngine | None = None,
        asynchronous: Asynchronous | None = None,
        vocabulary: ReasoningVocabulary | None = None,
        vllm_lora_sync: str = "auto",
        support: str = "kept",
        support_top_k: int = 64,
        sampler_gap: bool = False,
        malformed_calls: str = "end",
        run_directory: bool = True,
        **kwargs: Any,
    ) -> None:
        """TRL's arguments, and Covey's; by default, training is TRL's.

        Args:
            args: TRL's arguments.
            objective: computes the advantages, such as `covey.objective.MaxEnt()`; None uses TRL's.
            kl_controller: updates β, the weight of the KL term in the loss or of the reference in an objective that
                uses it, after each step, such as `covey.objective.AdaptiveKL(target=0.07)`; None keeps β.
            stop_above_kl: a KL, in nats per token; a step above it ends the run with a `TrainingError`.
            resample_groups: most further prompts drawn for one generation batch, to replace groups whose rewards are
                all equal; 0 keeps every group.
            speed: which repeated work is done only once; None turns all of it on. The numbers stay the same.
            engine: generates the completions; None takes TRL's vLLM with `use_vllm=True`, else the policy itself.
            asynchronous: has completions written ahead, while the policy learns; None generates and learns in turns.
            vocabulary: the model's reasoning vocabulary; None reads the one stored next to the weights, if any.
            vllm_lora_sync: what vLLM gets of a model with adapters after each step: `adapter`, `merge` (whole weights),
                or `auto`, the adapter where vLLM takes it.
            support: see `rollout.support`: over which tokens log-probs are normalised where top-k, top-p or min-p cut
                some off. `full` is TRL's way, for which a `repetition_penalty` does not count either.
            support_top_k: see `rollout.support_top_k`.
            sampler_gap: see `logging.sampler_gap`.
            malformed_calls: see `environment.malformed_calls`.
            run_directory: whether `train()` makes `args.output_dir` a run directory.
            kwargs: TRL's arguments by keyword.

        Raises:
            ConfigError: the objective, the controller, the engine or a setting cannot be combined with the rest.
            DataError: rows have no `prompt`.
            ModelError: nothing of the model would be trained.
        """
        begin_run()
        if objective is not None:
            check_objective(objective)
        config = check_arguments(TRLGRPOTrainer, *args, **kwargs)
        with patched_engine(self, vllm_lora_sync), scoring_temperature(support, config), precise_heads(config):
            super().__init__(*args, **kwargs)
        self._dropout = prepare_models(self)
        self._speed = speed if speed is not None else SpeedConfig()
        run = {"num_generations": self.num_generations, "max_completion_length": self.max_completion_length}
        self._objective = in_use(objective, loss_type=self.loss_type, beta=self.beta, **run)
        self._objective_columns: dict[str, list[Any]] = {}
        self._kl_monitor = KLMonitor(kl_controller, stop_above_kl, self.beta)
        self._rewards_BF: torch.Tensor | None = None
        self._loss_logps_BT: torch.Tensor | None = None
        self._keeps_loss_logps = False
        self._run_directory = run_directory
        self.asynchronous = AsynchronousRounds(self, asynchronous, engine) if asynchronous else None
        self._reasoning = ReasoningSupport(vocabulary, self.model, self.ref_model, self.args)
        self.sampling = SampledScoring(self, support=support, support_top_k=support_top_k, measures=sampler_gap)
        self.engine = engine_for(self, engine)
        self.sampling.check()
        self._episodes = TrainerEpisodes(self, reports_malformed=malformed_calls == "report")
        self._scoring = SharedScoring(on=self._speed.shared_scoring)
        self._batching = batching_for(self._speed, self.args, router_loss=self.aux_loss_enabled)
        self._resampler = make_resampler(self, resample_groups) if resample_groups else None
        self._early_rewards = EarlyRewards(self.reward_funcs)
        self._begin_checkpoints()
        process = (self.args.process_index, self.args.world_size)
        self._reference = MovedReference(self.ref_model, self.args.sync_ref_model, process)
        self.add_callback(GRPOHooks(self))

    @property
    def _generate_every(self) -> int:
        """Micro-batches per generation batch, over all its iterations."""
        return int(self.args.steps_per_generation * self.num_iterations)

    @property
    def _needs(self) -> frozenset[str]:
        return frozenset() if self._objective is None else needs_of(self._objective)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as transformers' `Trainer.train` does, and record it in `args.output_dir` (`run_directory`).

        Raises:
            TrainingError: the KL rose above `stop_above_kl`, or the loss, the gradient norm or a weight is not finite;
                the step is logged, but no checkpoint is written for it.
        """
        from covey.training.trl.script_run import ScriptRun  # which loads all that makes a report

        with ScriptRun(self) if self._run_directory else nullcontext():
            try:
                output = super().train(*args, **kwargs)
            finally:
                if self.asynchronous:
                    self.asynchronous.close()
                self.checkpoints.wait()
            if self._kl_monitor.exceeded:
                raise self._kl_monitor.error(self.state.global_step, Path(self.args.output_dir))
            return output

    @property
    def latest_completions(self) -> dict[str, list[Any]]:
        """The completions of the newest generation batch, over all processes: one list per column.

        Columns: `prompt`, `completion`, one per reward, `advantage`, those of `log_extra`, and last the objective's.
        """
        log = copy_log(self._logs)
        texts = {"prompt": log["prompt"], "completion": log["completion"]}
        return {**texts, **log["rewards"], **log["extra"], "advantage": log["advantages"], **self.objective_columns}

    @property
    def objective_columns(self) -> dict[str, list[Any]]:
        """The columns that the objective returned for the completions of the newest generation batch."""
        count = len(self._logs["completion"])
        return {name: values for name, values in self._objective_columns.items() if len(values) == count}

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model as transformers does, and the map of its reasoning vocabulary next to it."""
        super().save_model(output_dir, _internal_call)
        self._reasoning.save(output_dir or str(self.args.output_dir), writes=self.args.should_save)

    # -- replaces TRL's `_generate`: starts rewards now; the engine may keep a conversation; all writing can be parsed.
    def _generate(self, prompts: list[Any]) -> Any:
        self._finite.check(self.state.global_step, self.log)
        turns = conversation(self.engine) if self.tools else nullcontext()
        with turns, self.sampling.generating(), replaced(grpo_trainer, parse_response=parse):
            output = super()._generate(prompts)
        prompt_ids, ids, _, completions, _, extra_fields, *_ = output
        if self.rollout_func is None:
            self._episodes.single_turns(prompts, prompt_ids, ids, completions)
        self._episodes.begin_rewards()
        if not extra_fields:  # these are passed to the rewards too, and only later
            logs = {"log_extra": self._log_completion_extra, "log_metric": self._log_metric}
            more = {"environments": self.environments, "trainer_state": self.state, **logs}
            self._early_rewards.begin(prompts, completions, completion_ids=ids, **more)
        return output

    # -- replaces TRL's `_tokenize_prompts`: shows messages as evaluations do, and leaves prefills open.
    def _tokenize_prompts(self, prompts: list[Any]) -> Any:
        ids, *more = super()._tokenize_prompts([as_shown(self._tokenizer, one) for one in prompts])
        both, begun = zip(prompts, ids, strict=True), self._episodes.begun
        return [begun(prompt) if is_prefill(prompt) else found for prompt, found in both], *more

    # -- replaces TRL's `_generate_single_turn`: the completions are the engine's, wherever it can sample them.
    def _generate_single_turn(self, prompt_ids: Any, images: Any, fields: Any, *args: Any, **kwargs: Any) -> Any:
        limits = self._episodes.turn_limits
        turn = generate_turn(self, prompt_ids, text_only=images is None and not fields, max_lengths=limits)
        if turn is not None:
            return turn
        casting = casting_once(self.model, mixed_precision(self))
        with training_options(self), self._reasoning.generating(), casting:
            return super()._generate_single_turn(prompt_ids, images, fields, *args, **kwargs)

    # -- replaces TRL's `_tool_call_loop`: calls of different rows run at once, and tokens are exact for more templates.
    def _tool_call_loop(
        self, prompts: Any, prompt_ids: Any, completion_ids: Any, completions: Any, logprobs: Any, *images: Any
    ) -> tuple[Any, ...]:
        if self._is_vlm:
            text = "The tools of a model that reads images are called by TRL, row after row."
            log_once(logger, text, key="tools", shown=False)
            return tuple(super()._tool_call_loop(prompts, prompt_ids, completion_ids, completions, logprobs, *images))
        return self._episodes.run(prompts, prompt_ids, completion_ids, completions, logprobs)

    # -- replaces TRL's `_calculate_rewards`: a completion with an infinite reward has none, so it leaves its group;
    #    keeps each function's rewards, over all processes, for the objective; records what the completions are.
    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> torch.Tensor:
        rewards_BF: torch.Tensor = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._episodes.settle()
        if self.recorder is not None:
            self.recorder.log(self._log_completion_extra, inputs, completion_ids_list, self._episodes.columns)
            self.recorder.watch(self._log_metric, inputs, completions)
        self._rewards_BF = rewards_BF.masked_fill(torch.isinf(rewards_BF).any(dim=1, keepdim=True), torch.nan)
        return self._rewards_BF

    # -- replaces TRL's `_generate_and_score_completions`: the objective computes the advantages, also those logged.
    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        with self.sampling.correcting():
            if self._resampler is not None and self.model.training:
                output = resampled_batch(self, self._resampler, len(inputs), super()._generate_and_score_completions)
            elif self.asynchronous and self.model.training:
                output = self.asynchronous.batch(inputs, super()._generate_and_score_completions)
            else:
                inputs = self._episodes.begin(inputs)
                with self._early_rewards.batch_of(inputs):
                    output = dict(super()._generate_and_score_completions(inputs))
        self.sampling.finish(output)
        self._reasoning.measure(output, self._metrics, self.accelerator.reduce)
        rewards_BF, self._rewards_BF = self._rewards_BF, None
        if self._objective is None or rewards_BF is None or not self.model.training:
            return output
        self._objective_columns = apply_objective(self, output, rewards_BF)
        return output

    # -- replaces TRL's `_get_per_token_logps_and_entropies`: computes a group's prompt once, where supported, over the
    #    tokens that could be sampled; keeps the log-probs of the loss for the KL.
    def _get_per_token_logps_and_entropies(self, *args: Any, **more: Any) -> tuple[Any, ...]:
        scores = self.sampling.score(super()._get_per_token_logps_and_entropies, *args, **more)
        if self._keeps_loss_logps:
            self._loss_logps_BT = scores[0].detach()
        return scores

    # -- replaces TRL's `_prepare_inputs`: in training, splits the generation batch into micro-batches of whole groups,
    #    without needless padding and without zero-gradient rows.
    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        if not self.model.training or self._batching.is_plain:
            return dict(super()._prepare_inputs(generation_batch))
        if self._step % self._generate_every == 0 or self._buffered_inputs is None:
            self._buffered_inputs = self._batching.split(
                split_pixel_values_by_grid(self._generate_and_score_completions(generation_batch)),
                beta=self.beta,
                packed=self._scoring.supports(self.model),
                process=self.accelerator.process_index,
                gather=self.accelerator.gather if self.accelerator.num_processes > 1 else None,
                finish=unsplit_pixel_values_by_grid,
            )
        return dict(self._buffered_inputs[self._step % self.args.steps_per_generation])

    # -- replaces TRL's `_compute_loss`: runs a micro-batch in the chunks of its plan.
    def _compute_loss(self, model: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        plan = inputs.get(PLAN) if self.model.training else None
        deepspeed = {"scale_wrt_gas": False} if self.is_deepspeed_enabled else {}
        with merged_entries(self._metrics["train"], plan):
            loss = forward_in_chunks(
                inputs,
                plan,
                lambda chunk: self._chunk_loss(model, chunk),
                backward=lambda loss: self.accelerator.backward(loss, **deepspeed),
                model=model,
                accelerator=self.accelerator,
            )
        if self.model.training:
            self._finite.record("loss", loss)
        end_kl_step(self)
        return loss

    # -- TRL's `_compute_loss` of a chunk.
    def _chunk_loss(self, model: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        with self.sampling.correcting(inputs), self.sampling.batch(inputs):
            return loss_with_kl(self, inputs, partial(super()._compute_loss, model, inputs))

    # -- replaces TRL's `_get_train_sampler`: `data_seed` orders the data; keeps the sampler, to restore an epoch's
    #    permutation after a resume; without shuffling, rows that fill no generation batch begin the next pass.
    def _get_train_sampler(self, dataset: Dataset | None = None) -> Sampler[int]:
        sampler: Any = super()._get_train_sampler(dataset)
        if self.shuffle_dataset and self.args.data_seed is not None:
            sampler.generator.manual_seed(self.args.data_seed)
        self._train_sampler = sampler if self.shuffle_dataset else OwnOrder(sampler)
        return self._train_sampler

    # -- replace transformers' `push_to_hub` and `_push_from_checkpoint`: the record of the run is not uploaded.
    def push_to_hub(self, *args: Any, **kwargs: Any) -> Any:
        """Push the model as transformers does, without what is recorded of the run."""
        from covey.training.trl.script_run import without_records

        with without_records():
            return super().push_to_hub(*args, **kwargs)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        from covey.training.trl.script_run import without_records

        with without_records():
            super()._push_from_checkpoint(checkpoint_folder)


class TrainerHooks(TrainerCallback):
    """Added by the trainer itself, so it runs before callbacks that are added later."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        trainer = self._trainer
        trainer._finite.check_start(trainer.model, str(trainer.model.config._name_or_path))
        if state.is_world_process_zero and not trainer.is_deepspeed_enabled:  # whose optimiser has float32 weights
            log_rounded_steps(trainer.model, float(args.learning_rate))
        trainer.checkpoints.newest = None
        restored, trainer._restored = trainer._restored, None
        self._begin(restored)
        if restored is not None:  # transformers' loop has just set its running totals to zero
            trainer._tr_loss += restored.loss_since_log
            trainer._total_loss_scalar = restored.loss_total
            trainer._globalstep_last_logged = restored.last_logged_step

    def _begin(self, restored: TrainingProgress | None) -> None:
        """Begin what a trainer has besides."""

    def on_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        trainer = self._trainer
        trainer._finite.end_step(state.global_step + 1, trainer.model)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        trainer = self._trainer
        trainer.checkpoints.check()
        waits = control.should_log or control.should_save or control.should_evaluate or control.should_training_stop
        if waits or trainer.accelerator.device.type == "cpu":
            trainer.check_finite()


class GRPOHooks(TrainerHooks):
    """Of `GRPOTrainer`."""

    def _begin(self, restored: TrainingProgress | None) -> None:
        trainer = self._trainer
        trainer._scoring.supports(trainer.model)  # prepares its layers: a resumed run must sample as this one goes on
        if trainer._resampler is not None:
            trainer._resampler.begin(trainer._train_sampler, restored, generate_every=trainer._generate_every)
        if trainer.asynchronous:
            trainer.asynchronous.begin(restored)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        trainer = self._trainer
        trainer.sampling.repeat()
        if trainer.asynchronous:
            trainer.asynchronous.end_step()
        super().on_step_end(args, state, control, **kwargs)
        if trainer._kl_monitor.exceeded:
            control.should_log = control.should_training_stop = True
            control.should_save = control.should_evaluate = False


def log_rounded_steps(model: torch.nn.Module, rate: float) -> None:
    """Log how many of the weights that are trained in half precision a step can move: in the others it is less than
    half the spacing. Adam's steps are about as long as the learning rate."""
    held = [one for one in model.parameters() if one.requires_grad and one.dtype in (torch.bfloat16, torch.float16)]
    count = sum(local_part(one).numel() for one in held)
    if count:
        share = sum(int((local_part(one) + rate).ne(local_part(one)).sum()) for one in held) / count
        text = (
            "Weights are trained in %s: a step of the learning rate %g moves %.1f%% of them, and is rounded away in "
            "the others. model.dtype=float32 lets all move; training.bf16=true still computes in bfloat16."
        )
        level = logging.WARNING if share < 0.9 else logging.INFO
        log_once(logger, text, str(held[0].dtype).removeprefix("torch."), rate, 100 * share, level=level)


def load_base_model(source: str, args: GRPOConfig, quantization: Any) -> Any:
    """The base model of adapters, loaded as TRL itself would."""
    values = dict(args.model_init_kwargs or {})
    if quantization is not None:
        values["quantization_config"] = quantization
    if args.distributed_state.distributed_type in ("MULTI_GPU", "DEEPSPEED"):
        values["device_map"] = None
    return create_model_from_path(source, **values, trust_remote_code=args.trust_remote_code)


def with_fused_head(model: Any) -> Any:
    """The model with TRL's head, which gives log-probs and entropies without logits."""
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    return model


def precise_heads(args: GRPOConfig | None) -> AbstractContextManager[Any]:
    """Context manager around TRL's constructor: `cast_lm_head_to_fp32` works for every model. TRL finds the layers by
    the names that they have in some models without adapters."""
    casts = args is not None and args.cast_lm_head_to_fp32
    ours = {"add_fused_lm_head": _add_precise_head}
    return all_replaced([(args, {"cast_lm_head_to_fp32": False}), (grpo_trainer, ours)] if casts else [])


def _add_precise_head(model: Any, **options: Any) -> None:
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    dtype = embedding.weight.dtype
    head.float().register_forward_pre_hook(lambda _, inputs: (inputs[0].float(), *inputs[1:]))
    embedding.register_forward_hook(lambda _, __, output: output.to(dtype))  # its weights may be the head's
    add_fused_lm_head(model, **{**options, "cast_lm_head_to_fp32": True})


def prepare_models(trainer: Any) -> list[tuple[Any, dict[str, float]]]:
    """Prepare the models that a trainer has made: tied weights, positions, heads, and dropout, if it is to be off.

    Returns:
        The policy's configs that were changed, with their own rates, which are to be saved.

    Raises:
        ConfigError: vLLM, which ties a head that the config ties, cannot hold the model that is trained.
    """
    untie(trainer.model)
    base: Any = base_model(trainer.model)
    head, embedding = base.get_output_embeddings(), base.get_input_embeddings()
    tied = base.config.get_text_config().tie_word_embeddings and not isinstance(head, TrainableTokensWrapper)
    if trainer.args.use_vllm and tied and embedding.weight is not head.weight:
        raise ConfigError(
            "vLLM cannot generate with this model: its config ties the head to the embedding, and only one of the two "
            "would be trained, or each by itself. Leave the embedding and the head out of the adapters "
            "(target_modules, modules_to_save), or set use_vllm=false."
        )
    rates: list[tuple[Any, dict[str, float]]] = []
    for model in (one for one in (trainer.ref_model, trainer.model) if one is not None):
        count_from_first_token(model)
        give_bias(base_model(model))
        rates = disable_dropout(model) if trainer.args.disable_dropout else []
    return rates
