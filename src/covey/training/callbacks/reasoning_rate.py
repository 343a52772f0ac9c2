"""A learning rate of their own for the rows of reasoning tokens: `model.reasoning_lr_multiplier`."""

from __future__ import annotations

from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from covey.errors import ConfigError
from covey.model.base import base_model
from covey.model.reasoning_vocab import ReasoningVocabulary
from covey.model.reasoning_vocab.expansion import tables


class ReasoningRate(TrainerCallback):
    """Multiplies what each optimiser step changes in the rows of reasoning tokens, in the embedding and in the head.

    For an optimiser whose step is proportional to the learning rate, as Adam's and SGD's are, weight decay included,
    this is the same as a learning rate that is multiplied. Multiplied gradients would change nothing under Adam.
    """

    def __init__(self, model: Any, vocabulary: ReasoningVocabulary, factor: float) -> None:
        """
        Args:
            model: the policy, with adapters or not, without wrappers.
            factor: multiplies the learning rate.
        """
        self._model, self._vocabulary, self._factor = model, vocabulary, factor
        self._before: list[torch.Tensor] = []

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        for rows in self._rows():
            if isinstance(rows, torch.distributed.tensor.DTensor) or hasattr(rows, "ds_id") or not rows.numel():
                raise ConfigError(
                    f"model.reasoning_lr_multiplier={self._factor:g} needs whole embeddings in every process, and this "
                    "run shards them (FSDP, or DeepSpeed ZeRO-3): leave it out, or train with data parallelism."
                )

    def on_pre_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._before = [rows.detach().clone() for rows in self._rows()]

    @torch.no_grad()
    def on_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        for rows, before in zip(self._rows(), self._before, strict=True):
            rows.copy_(before + self._factor * (rows - before))
        self._before = []

    def _rows(self) -> list[torch.Tensor]:
        """The trained rows: of the tables themselves, or with adapters peft's own, which hold nothing else."""
        own = [p for name, p in self._model.named_parameters() if "trainable_tokens_delta" in name and p.requires_grad]
        first = self._vocabulary.map.base_vocab_size
        return list(own) or [table[first:] for table in tables(base_model(self._model)) if table.requires_grad]
