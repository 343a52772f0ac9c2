"""The reasoning vocabulary in training: in sampling, scoring, checkpoints and metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from covey.errors import ConfigError
from covey.model.reasoning_vocab import ReasoningVocabulary
from covey.model.reasoning_vocab.vocabulary import attach, vocabulary_of
from covey.rollout.thinking import masked_generation
from covey.runlog import names

logger = logging.getLogger(__name__)

TrainerMetrics = Mapping[str, dict[str, list[float]]]
"""TrainerMetrics by name, in training and in evaluation."""


class ReasoningSupport:
    """The use of a model's reasoning vocabulary by its trainer; does nothing if the model has none.

    Args:
        vocabulary: None takes the model's, if it has one.
        model: the policy, adapters or not.
        reference: the reference model, if it is a separate one.
        args: the trainer's.

    Raises:
        ConfigError: the settings cannot be combined with a reasoning vocabulary.
        ModelError: the vocabulary does not fit the weights.
    """

    def __init__(self, vocabulary: ReasoningVocabulary | None, model: Any, reference: Any, args: Any) -> None:
        self.vocabulary = vocabulary or vocabulary_of(model)
        self._model, self._temperature = model, float(args.temperature)
        if self.vocabulary is None:
            return
        if args.use_transformers_continuous_batching:
            raise ConfigError(
                "use_transformers_continuous_batching=true has no logits processors, so it cannot restrict reasoning "
                "tokens to thinking. Set training.use_transformers_continuous_batching=false."
            )
        for one in (model, reference):
            if one is not None:
                attach(one, self.vocabulary)
        if hasattr(model, "peft_config") and not _rows_are_trained(model):
            logger.warning(
                "The adapters do not train the embeddings of the reasoning tokens, so these stay copies. "
                "Pass LoraConfig trainable_token_indices (covey.model.adapters.trainable_rows) to train their rows too."
            )

    def generating(self) -> AbstractContextManager[None]:
        """Context manager: the policy's own `generate` uses the vocabulary's mask."""
        return masked_generation(self._model, self.vocabulary, self._temperature)

    def save(self, folder: str | Path, *, writes: bool) -> None:
        """Write the map next to saved weights, if this process writes."""
        if self.vocabulary is not None and writes:
            self.vocabulary.save(folder)

    def measure(self, batch: Mapping[str, Any], metrics: TrainerMetrics, reduce: Callable[..., Any]) -> None:
        """Log the share of reasoning tokens in thinking, and of thinking in completions, over all processes.

        Args:
            batch: prompts and completions by TRL's names.
            metrics: to append to, under `train` or `eval`.
            reduce: sums tensors over processes.
        """
        if self.vocabulary is None:
            return
        ids_BS = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        mask_BS = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        thinks_BT = self.vocabulary.thinks(ids_BS, mask_BS, batch["completion_ids"].shape[1])
        reasoning_BT = (batch["completion_ids"] >= self.vocabulary.map.base_vocab_size) & thinks_BT
        counts = torch.stack([reasoning_BT.sum(), thinks_BT.sum(), batch["completion_mask"].sum()]).float()
        reasoning, thought, written = reduce(counts, reduction="sum").tolist()
        found = metrics["train" if self._model.training else "eval"]
        found[names.REASONING_SHARE.removeprefix("train/")].append(reasoning / max(thought, 1))
        found[names.THINKING_SHARE.removeprefix("train/")].append(thought / max(written, 1))


def _rows_are_trained(model: Any) -> bool:
    head = model.get_base_model().get_input_embeddings()
    return any(parameter.requires_grad for parameter in head.parameters())
