"""What another process needs to build the trainer's model, but for the weights."""

from __future__ import annotations

import sys
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Self

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.initialization import no_init_weights

from covey.errors import EngineError
from covey.model.device import base_model
from covey.model.reasoning_vocab import ReasoningVocabulary
from covey.model.reasoning_vocab.token_map import TokenMap
from covey.model.reasoning_vocab.tokenizer import TokenBytes
from covey.model.reasoning_vocab.vocabulary import attach, vocabulary_of


@dataclass(frozen=True, slots=True)
class ModelCopy:
    """A model without its weights and adapters. It is pickled: its class must be importable."""

    kind: type[PreTrainedModel]
    config: Any
    generation_config: Any
    tokenizer: PreTrainedTokenizerBase
    dtype: torch.dtype
    """Of most weights."""
    dtypes: dict[str, torch.dtype]
    """Of its weights, by their names in a checkpoint, tied ones once; of sharded ones some may be missing."""
    buffers: dict[str, torch.Tensor]
    """By name: what a checkpoint holds or the config gives, but training does not change."""
    vocabulary: tuple[TokenMap, TokenBytes] | None
    """What a reasoning vocabulary is made of."""

    @classmethod
    def of(cls, model: Any, tokenizer: PreTrainedTokenizerBase) -> Self:
        """That of a loaded model, with or without adapters, sharded or not. Raises an `EngineError` if its weights are
        quantised, or it is not a transformers model."""
        base = base_model(model)
        if not isinstance(base, PreTrainedModel):
            raise EngineError(f"The rollout process takes transformers models, not a {type(base).__name__}.")
        if getattr(base, "is_quantized", False):
            raise EngineError(
                "The rollout process cannot take a quantised model: its weights cannot be sent with adapters merged. "
                "Load the model without quantisation (model.load_in_4bit=false model.load_in_8bit=false)."
            )
        dtypes = {_checkpoint_name(name): one.dtype for name, one in base.named_parameters()}
        kinds = [kind for kind in dtypes.values() if kind.is_floating_point]
        dtype = max(dict.fromkeys(kinds), key=kinds.count)
        vocabulary = vocabulary_of(model)
        return cls(
            _importable(type(base)),
            deepcopy(base.config),
            deepcopy(base.generation_config),
            tokenizer,
            dtype,
            dtypes,
            {_checkpoint_name(name): one.detach().cpu() for name, one in base.named_buffers()},
            None if vocabulary is None else (vocabulary.map, vocabulary.token_bytes),
        )

    def build(self, device: torch.device) -> PreTrainedModel:
        """The model on a device, in evaluation mode. The values of its weights are arbitrary."""
        with no_init_weights(), device:
            model = self.kind._from_config(self.config, dtype=self.dtype)
        model.tie_weights()
        self._untie(model)
        model.generation_config = self.generation_config
        for name, weight in model.named_parameters():
            weight.data = weight.data.to(self.dtypes.get(name, self.dtype))
        for name, buffer in model.named_buffers():
            if name in self.buffers and self.buffers[name].shape == buffer.shape:
                buffer.data = self.buffers[name].to(buffer.device)
        if self.vocabulary is not None:
            attach(model, ReasoningVocabulary(*self.vocabulary))
        return model.to(device).eval()

    def _untie(self, model: PreTrainedModel) -> None:
        """Separate weights that the config ties and that are not tied in the trainer's model, as with trained heads."""
        tied = dict(model.named_parameters(remove_duplicate=False)).keys() - dict(model.named_parameters()).keys()
        for name in tied & self.dtypes.keys():
            parent, _, attribute = name.rpartition(".")
            shared = model.get_parameter(name)
            setattr(model.get_submodule(parent), attribute, torch.nn.Parameter(torch.empty_like(shared)))


def _checkpoint_name(name: str) -> str:
    """The name of a parameter or buffer of a model with adapters in a checkpoint of the model itself."""
    return name.replace(".base_layer", "").replace(".modules_to_save.default", "")


def _importable(kind: type[Any]) -> type[Any]:
    """The class, or what it was derived from where a library made a class of its own, as sharding does."""
    found: type[Any] = next(
        one for one in kind.__mro__ if getattr(sys.modules.get(one.__module__), one.__name__, None) is one
    )
    return found
