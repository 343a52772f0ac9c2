"""A trainer's scoring of completions as they were sampled, TRL's correction for other samplers, and their gap."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from trl.models.utils import disable_gradient_checkpointing

from covey.config.values import show
from covey.errors import ConfigError, EngineError, ModelError
from covey.log_once import log_once
from covey.model.positions import score_gaps
from covey.rollout import Capabilities, Completion, SamplingSettings
from covey.runlog import names
from covey.training.advantages import loss_mask
from covey.training.replaced import replaced
from covey.training.scoring import SUPPORT, Correction, Sampled, ScoredRows, ScoredSample, measure_gap, padded
from covey.training.trl.generation import PolicyEngine, TRLEngine, sampling_of, unused_options
from covey.training.trl.restricted_head import RestrictedHead

logger = logging.getLogger(__name__)

FORWARD_KEYS = (
    *("pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles"),
    *("image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids"),
)
"""What TRL's scoring pass takes besides tokens, all for images."""


def scoring_temperature(support: str, config: Any) -> AbstractContextManager[None]:
    """Context manager around TRL's constructor: it scores at the temperature that `generation_kwargs` samples at.

    Args:
        support: see `SampledScoring`; with `full`, TRL scores at `temperature`.
        config: its GRPOConfig, if one is given.
    """
    given: Mapping[str, Any] = getattr(config, "generation_kwargs", None) or {}
    temperature = given.get("temperature") if given.get("do_sample", True) else None
    if support == "full" or not temperature:
        return nullcontext()
    return replaced(config, temperature=temperature)


class SampledScoring:
    """How a trainer's batches were sampled, and what follows from it.

    Args:
        support: `kept` scores over the tokens that could be sampled, `full` over all, as TRL does.
        support_top_k: most tokens that can be sampled in one place where only top-p or min-p cut any off.
        measures: whether to measure the gap also where that takes a forward pass.

    Raises:
        ConfigError: `support` is neither.
    """

    def __init__(self, trainer: Any, *, support: str, support_top_k: int, measures: bool) -> None:
        if support not in ("kept", "full"):
            raise ConfigError(f"support={support!r}: it is 'kept' or 'full'.")
        self._trainer = trainer
        self._keeps = support == "kept"
        self._top_k = support_top_k
        self._measures = measures
        self._head = RestrictedHead(trainer._reasoning.vocabulary)
        self._batch: Mapping[str, Any] | None = None
        self._gaps: WeakKeyDictionary[torch.nn.Module, tuple[float, float]] = WeakKeyDictionary()
        self.newest = Sampled()
        """Of the completions that were generated last, or of their last turn; whoever generates sets it."""
        self.last_gap: dict[str, float] = {}
        """The newest gap by metric, which steps without a generation log again."""

    def check(self) -> None:
        """Check the run, once its engine is known, and log what the model's generation config would sample by.

        Raises:
            ConfigError: the loss cannot be corrected for the engine.
            EngineError: vLLM cannot say which tokens could be sampled.
        """
        if unused := unused_options(self._trainer):
            text = (
                "The model's generation_config.json sets %s, and training does not sample by it: training.* and "
                "training.generation_kwargs count (model.use_generation_config=true takes what the engine knows)."
            )
            log_once(logger, text, ", ".join(f"{name}={show(value)}" for name, value in unused.items()))
        engine, mode = self._trainer.engine, self._trainer.vllm_importance_sampling_mode
        if isinstance(engine, TRLEngine):
            engine.check(self.settings(sampling_of(self._trainer)[0]))
        if self._trainer.loss_type == "vespo" and self.corrects and not mode.startswith("token"):
            raise ConfigError(
                f"loss_type=vespo needs the ratio of each token to the sampler's: set vllm_importance_sampling_mode to "
                f"token_truncate or token_mask instead of {mode}."
            )

    @property
    def corrects(self) -> bool:
        """Whether completions come from a sampler with log-probs of its own, so that the loss has TRL's importance
        ratio: vLLM, the user's own engine if it gives log-probs, and any engine in asynchronous training."""
        trainer = self._trainer
        if not trainer.vllm_importance_sampling_correction:
            return False
        own = self._has_own_engine and trainer.rollout_func is None and trainer.engine.capabilities.logprobs
        return bool(trainer.args.use_vllm or trainer.asynchronous or own)

    @property
    def _has_own_engine(self) -> bool:
        return not isinstance(self._trainer.engine, PolicyEngine | TRLEngine)

    # -- sampling
    def restricted(self, sampling: SamplingSettings, can: Capabilities) -> SamplingSettings:
        """The settings with which an engine that can gives supports, if they are used."""
        if not (sampling.truncates and self._keeps and can.support):
            return sampling
        return replace(sampling, support=True, support_top_k=self._top_k)

    def settings(self, sampling: SamplingSettings) -> SamplingSettings:
        """The settings with which the trainer's engine samples: it gives the support, and log-probs if needed."""
        trainer = self._trainer
        can = trainer.engine.capabilities
        sampling = self.restricted(sampling, can)
        uses = trainer.off_policy_mask_threshold is not None and self._has_own_engine
        return replace(sampling, logprobs=can.logprobs and (uses or self.corrects or self._measures))

    def sampled(
        self, found: Sequence[Completion], sampling: SamplingSettings, option: str | None = None
    ) -> tuple[list[list[int]], list[list[float]] | None]:
        """Record how these completions were sampled.

        Args:
            found: the completions.
            sampling: their settings.
            option: says which further option of `generate` they were sampled with, if any; it may cut tokens off.

        Returns:
            Their tokens and log-probs, as TRL's `_generate_single_turn` returns them.

        Raises:
            EngineError: log-probs are needed, and the engine does not give them.
        """
        supports = [one.support for one in found] if self._keeps else []
        known = any(one is not None for one in supports)
        cut_off = bool(sampling.truncates or option) and not known and bool(found)
        if cut_off and self._keeps:
            self._scores_over_all(option or "gives no support")
        penalty = sampling.repetition_penalty if self._keeps else 1.0
        self.newest = Sampled(supports if known else (), penalty, cut_off)
        logps = [one.logps for one in found if one.logps is not None]
        if len(logps) == len(found) and (logps or sampling.logprobs):
            return [one.ids for one in found], logps
        if self.corrects:
            name = type(self._trainer.engine).__name__
            raise EngineError(
                f"The engine {name} returned completions without log-probabilities (Completion.logps), by which the "
                "loss is corrected for it: return them, leave logprobs out of its capabilities, or set "
                "training.vllm_importance_sampling_correction=false."
            )
        return [one.ids for one in found], None

    def sampled_by_trl(self, sampling: SamplingSettings) -> None:
        """Record that TRL samples by itself, of which no more is known."""
        self.newest = Sampled(cut_off=sampling.truncates)
        if self._keeps and (sampling.truncates or sampling.repetition_penalty != 1.0):
            self._scores_over_all("is transformers' own generate, which gives no support")

    def _scores_over_all(self, why: str) -> None:
        text = (
            "rollout.support=kept does not apply: the sampler, %s, %s. Log-probs are normalised over the full "
            "vocabulary, and ratios hold the probability of what was cut off."
        )
        log_once(logger, text, type(self._trainer.engine).__name__, why)

    # -- scoring
    def correcting(self, batch: Mapping[str, Any] | None = None) -> AbstractContextManager[None]:
        """Context manager around TRL's scoring and loss: they have the importance ratio that they have with vLLM.

        Args:
            batch: of the loss; one that a checkpoint of a run without correction holds has no ratios.
        """
        scored = batch is None or "importance_sampling_ratio" in batch
        return replaced(self._trainer, use_vllm=True) if self.corrects and scored else nullcontext()

    def generating(self) -> AbstractContextManager[None]:
        """Context manager around a generation within `correcting`: TRL uses vLLM only if the run does."""
        return replaced(self._trainer, use_vllm=self._trainer.args.use_vllm)

    @contextmanager
    def batch(self, batch: Mapping[str, Any]) -> Iterator[None]:
        """Context manager: rows that are scored are those of this batch."""
        with replaced(self, _batch=batch):
            yield

    def score(
        self,
        plain: Callable[..., tuple[Any, ...]],
        model: Any,
        ids_BS: torch.Tensor,
        mask_BS: torch.Tensor,
        length_T: int,
        *,
        batch_size: int | None = None,
        **more: Any,
    ) -> tuple[Any, ...]:
        """Log-probs, entropies and the router's loss of a batch; a group's prompt is computed once, where supported.
        Raises a `ModelError` if the log-probs are not those of the model's own logits.

        Args:
            plain: TRL's `_get_per_token_logps_and_entropies`, whose other arguments these are.
            model: the policy or the reference model.
            ids_BS: prompts and completions.
            mask_BS: 1 for tokens.
            length_T: completion columns.
            batch_size: rows per forward.
            more: further arguments.
        """
        trainer = self._trainer
        known: Mapping[str, Any] = self._batch if self._batch is not None else self._entries(len(ids_BS), length_T)
        rows = ScoredRows.of(ids_BS, mask_BS, length_T, known)
        with trainer.accelerator.autocast():
            self._check_scores(model, mask_BS)
            scores = trainer._scoring.score(
                model,
                ids_BS,
                mask_BS,
                length_T,
                rows_per_forward=batch_size,
                group_size=trainer.num_generations,
                restricted=lambda size: self._head.over(rows, size),
                **more,
            )
        if scores is not None:
            return tuple(scores)
        with self._head.over(rows, batch_size or len(ids_BS), exact=True):
            return tuple(plain(model, ids_BS, mask_BS, length_T, batch_size=batch_size, **more))

    def _check_scores(self, model: Any, mask_BS: torch.Tensor) -> None:
        if model not in self._gaps:
            self._gaps[model] = score_gaps(model, self._trainer.temperature)
        gap, padded_gap = self._gaps[model]
        why = "it changes its logits after the head"
        if not gap and padded_gap and not self._trainer._scoring.supports(model) and not mask_BS[:, 0].all():
            gap, why = padded_gap, "it reads the padding on the left of a row, so take prompts of one length in tokens"
        if gap:
            text = (
                "The model cannot be trained so: log-probs by TRL's fused head differ from those of its own logits by"
            )
            raise ModelError(f"{text} {gap:.2g} nats per token, as {why}.")

    def score_batch(self, batch: Mapping[str, Any]) -> torch.Tensor:
        """Log-probs of a batch's completion tokens under the policy, `[B, T]`, without gradients."""
        trainer = self._trainer
        checkpointing = trainer.args.gradient_checkpointing_kwargs
        with torch.no_grad(), disable_gradient_checkpointing(trainer.model, checkpointing), self.batch(batch):
            logps_BT, _, _ = trainer._get_per_token_logps_and_entropies(
                trainer.model,
                torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
                torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1),
                batch["completion_ids"].size(1),
                batch_size=trainer.args.per_device_train_batch_size,
                **{key: batch[key] for key in FORWARD_KEYS if key in batch},
            )
        return torch.as_tensor(logps_BT)

    def _entries(self, rows: int, length_T: int) -> dict[str, torch.Tensor]:
        return self.newest.entries((rows, length_T), self._trainer.accelerator.device)

    # -- the gap
    def finish(self, batch: dict[str, Any]) -> None:
        """Complete a scored generation batch by how it was sampled, and measure the gap, where that is wanted."""
        trainer = self._trainer
        batch |= self._entries(*batch["completion_ids"].shape)
        if "sampling_per_token_logps" in batch:
            if self._measures or "old_per_token_logps" in batch:
                self._measure(batch)
            own = isinstance(trainer.engine, PolicyEngine) and trainer.rollout_func is None
            if own and not trainer.asynchronous:
                del batch["sampling_per_token_logps"]  # else TRL's off-policy mask would take them
        elif self._measures:
            text = "logging.sampler_gap has nothing to measure: %s gave no log-probs of what it sampled."
            log_once(logger, text, type(trainer.engine).__name__)
        self.newest = Sampled()

    def _measure(self, batch: Mapping[str, Any]) -> None:
        trainer, counted_BT = self._trainer, loss_mask(batch)
        trained_BT, full_BT = batch.get("old_per_token_logps"), None
        if trained_BT is None or (self._measures and SUPPORT in batch):
            trained_BT, full_BT = self._score_twice(batch)
        stale_BT = None
        if self.newest.staleness is not None:
            rounds = [torch.tensor(row, dtype=torch.int32)[:, None] for row in self.newest.staleness]
            stale_BT = padded(rounds, counted_BT.shape[1])[..., 0] > 0
        found = measure_gap(
            ScoredSample(
                counted=counted_BT,
                sampler=batch["sampling_per_token_logps"],
                trainer=trained_BT,
                full=full_BT,
                cut_off=self.newest.cut_off,
                stale=stale_BT,
            ),
            Correction(
                trainer.vllm_importance_sampling_mode.startswith("sequence"),
                trainer.vllm_importance_sampling_clip_min,
                trainer.vllm_importance_sampling_clip_max,
            ),
            last_number_type=self.last_gap.get(names.SAMPLING_GAP_PARTS[0], 0.0),
            gather=trainer.accelerator.gather,
        )
        self.last_gap = found
        mode = trainer._metrics["train" if trainer.model.training else "eval"]
        for name, value in found.items():
            mode[name].append(value)

    def _score_twice(self, batch: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-probs under the policy `[B, T]`, and with a support those over all tokens. The training's random numbers
        stay as they are."""
        device = self._trainer.accelerator.device
        with torch.random.fork_rng([device] if device.type == "cuda" else [], device_type=device.type):
            if SUPPORT not in batch:
                return self.score_batch(batch), None
            with self._head.measuring() as found:
                logps_BT = self.score_batch(batch)
        scored_BT = batch["completion_mask"].bool()
        full_M = torch.cat(found)[-int(scored_BT.sum()) :]  # before them, those of a forward that was given up
        full_BT = torch.zeros_like(logps_BT)
        full_BT[scored_BT] = full_M
        return logps_BT, full_BT

    def repeat(self) -> None:
        """Log the newest gap at a step without a generation."""
        metrics = self._trainer._metrics["train"]
        for name, value in self.last_gap.items():
            if not metrics[name]:
                metrics[name].append(value)
