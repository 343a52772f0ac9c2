"""The reasoning vocabulary of a training run: in sampling, in scoring, in what is saved and in the metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from covey.errors import ConfigError
from covey.model.reasoning_vocab import ReasoningVocabulary
from covey.model.reasoning_vocab.vocabulary import attach, vocabulary_of
from covey.rollout.shared_attention import base_model
from covey.rollout.thinking import ThinkingMask, masked_generation
from covey.runlog import names
from covey.training.masked_head import mask_head, states_of

logger = logging.getLogger(__name__)

Metrics = Mapping[str, dict[str, list[float]]]
"""Figures by name, in training and in evaluation."""


class Thinking:
    """What a trainer does with the reasoning vocabulary of its model; nothing where the model has none.

    Args:
        vocabulary: None takes the model's own, if it has one.
        model: the policy, adapters or not.
        reference: the reference model, if there is one of its own.
        args: of the trainer.
        home: where the fused head looks up the function that it computes with.
        function: under which name.

    Raises:
        ConfigError: the settings do not go together with a reasoning vocabulary.
        ModelError: the vocabulary does not fit the weights.
    """

    def __init__(
        self,
        vocabulary: ReasoningVocabulary | None,
        model: Any,
        reference: Any,
        args: Any,
        home: ModuleType,
        function: str,
    ) -> None:
        self.vocabulary = vocabulary or vocabulary_of(model)
        self._model, self._temperature = model, float(args.temperature)
        if self.vocabulary is None:
            return
        if args.use_transformers_continuous_batching:
            raise ConfigError(
                "use_transformers_continuous_batching=true knows no logits processors, so it cannot keep reasoning "
                "tokens within thinking. Set training.use_transformers_continuous_batching=false."
            )
        for one in (model, reference):
            if one is not None:
                attach(one, self.vocabulary)
                mask_head(base_model(one), self.vocabulary, home, function)
        if hasattr(model, "peft_config") and not _rows_are_trained(model):
            logger.warning(
                "The adapters leave the embeddings of the reasoning tokens as they are, so that these stay copies. "
                "Give LoraConfig trainable_token_indices (covey.model.adapters.trainable_rows) to train their rows too."
            )

    @property
    def thinks(self) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None:
        """For the shared scoring, see `SharedScoring`."""
        return states_of(self.vocabulary)

    def masks(self, prompt_ids: Sequence[Sequence[int]]) -> list[ThinkingMask]:
        """The logits processors for completions of these prompts.

        Raises:
            DataError: a prompt holds reasoning tokens.
        """
        if self.vocabulary is None:
            return []
        self.vocabulary.check_prompts(prompt_ids)
        return [ThinkingMask(self.vocabulary, temperature=self._temperature)]

    def generating(self) -> AbstractContextManager[None]:
        """Within, the policy's own `generate` keeps to the vocabulary."""
        return masked_generation(self._model, self.vocabulary, self._temperature)

    def save(self, folder: str | Path, *, writes: bool) -> None:
        """Write the map beside saved weights, if this process writes."""
        if self.vocabulary is not None and writes:
            self.vocabulary.save(folder)

    def measure(self, batch: Mapping[str, Any], metrics: Metrics, reduce: Callable[..., Any]) -> None:
        """Note how much of what was thought are reasoning tokens, over all processes.

        Args:
            batch: prompts and completions by TRL's names.
            metrics: receives the figures, under `train` or `eval`.
            reduce: adds tensors up over processes.
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
