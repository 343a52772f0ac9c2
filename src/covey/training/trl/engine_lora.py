"""The adapter of a policy alone, as vLLM takes it: whether it does, and the folder that it is sent in."""

from __future__ import annotations

import logging
import re
import shutil
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import is_peft_model
from peft import get_peft_model_state_dict
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor
from trl.distributed import DistributedBackend

from covey.config.vllm import adapter_refusal, highest_rank
from covey.errors import ConfigError
from covey.log_once import log_once
from covey.runlog.directory import temporary_folder

logger = logging.getLogger(__name__)


def model_refusal(model: Any, backend: DistributedBackend) -> str | None:
    """Why vLLM cannot take the adapter of a policy alone; None if the policy has nothing to say against it.

    Args:
        model: a peft model.
        backend: how its parameters are distributed.
    """
    if len(model.active_adapters) != 1:
        return f"{len(model.active_adapters)} adapters are active"
    reason = adapter_refusal(model.peft_config[model.active_adapters[0]].to_dict())
    if reason is not None:
        return reason
    config = model.get_base_model().config
    if getattr(config, "quantization_config", None) is not None:
        return "vLLM's base weights are not quantised as the trainer's are"
    if getattr(config, "vision_config", None) is not None:
        return "the model reads images, whose layers have other names in vLLM"
    if backend.is_zero3 or backend.fsdp_version == 1:
        return f"parameters are sharded by {'DeepSpeed ZeRO-3' if backend.is_zero3 else 'FSDP 1'}"
    others = [name for name, weights in model.named_parameters() if weights.requires_grad and ".lora_" not in name]
    if others:
        return f"{others[0]} is trained besides it"
    embeddings = {"lora_embedding_A": "an embedding", "lm_head.": "the output layer"}
    for part, what in embeddings.items():
        if any(part in name and ".lora_" in name for name, _ in model.named_parameters()):
            return f"it changes {what}, where vLLM's log-probs of prompts leave it out"
    return None


def chosen_adapter(
    model: Any,
    backend: DistributedBackend,
    wanted: str,
    engine_refusal: Callable[[int], str | None],
    folder: Path | None = None,
) -> PolicyAdapter | None:
    """The adapter that weight syncs send alone; None, with the reason in the log, if they send whole weights.

    Args:
        model: the policy.
        backend: how its parameters are distributed.
        wanted: `training.vllm_lora_sync`.
        engine_refusal: why the engine does not take an adapter of this rank; None if it does.
        folder: see `PolicyAdapter`.

    Raises:
        ConfigError: there is none, or vLLM does not take it, and that is what is wanted.
    """
    is_adapter = is_peft_model(model)
    if wanted == "merge" or (wanted == "auto" and not is_adapter):
        return None
    reason = model_refusal(model, backend) if is_adapter else "the run trains none (model.lora.rank)"
    if reason is None:
        adapter = PolicyAdapter(model, folder)
        reason = engine_refusal(adapter.rank)
        if reason is None:
            return adapter
    send_whole(wanted, reason)
    return None


def send_whole(wanted: str, reason: str) -> None:
    """Log that weight syncs send whole weights; raises a `ConfigError` if adapters alone are wanted."""
    if wanted == "adapter":
        raise ConfigError(
            f"training.vllm_lora_sync=adapter, but vLLM cannot get the adapter alone: {reason}. With auto or merge "
            "each weight sync sends whole weights with the adapter merged."
        )
    log_once(logger, "vLLM gets whole weights with the adapter merged, not the adapter alone: %s.", reason, shown=False)


def target_names(model: Any) -> list[str]:
    """The last parts of the names of the layers that have adapters, such as `q_proj`."""
    return sorted({name.rpartition(".")[2] for name in model.targeted_module_names})


class PolicyAdapter:
    """The one active adapter of a peft model."""

    def __init__(self, model: Any, folder: Path | None = None) -> None:
        """
        Args:
            model: the peft model.
            folder: where it is written, if not on this machine only.
        """
        self._model = model
        self._adapter: str = model.active_adapters[0]
        self._config = model.peft_config[self._adapter]
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        self._written: list[Path] = []
        own = ExitStack()
        self._place = own.enter_context(temporary_folder("covey-adapters-", folder))
        weakref.finalize(self, own.close)

    @property
    def rank(self) -> int:
        """The highest rank of its layers."""
        return highest_rank(self._config.to_dict())

    def tensors(self) -> dict[str, torch.Tensor]:
        """Its weights by their names in a saved adapter, whole; every process must take part."""
        marker = f".{self._adapter}."
        wrappers = re.compile(r"(_checkpoint_wrapped_module|_orig_mod)\.")  # of checkpointing and compilation
        whole = {
            wrappers.sub("", name): weights.full_tensor() if isinstance(weights, DTensor) else weights
            for name, weights in self._model.named_parameters()
            if ".lora_" in name and marker in name
        }
        return {
            name: weights.detach().to("cpu", copy=True).contiguous()
            for name, weights in get_peft_model_state_dict(
                self._model, state_dict=whole, adapter_name=self._adapter, save_embedding_layers=False
            ).items()
        }

    def write(self, tensors: dict[str, torch.Tensor], version: int) -> tuple[str, Path]:
        """Write weights into a folder of their own.

        Returns:
            A name that no other adapter has or had, on any server: vLLM tells cached prefixes apart by it. And the
            folder, which lasts until the second next call.
        """
        name = f"covey-v{version}-{uuid.uuid4().hex[:8]}"
        folder = self._place / name
        folder.mkdir()
        save_file(tensors, folder / "adapter_model.safetensors")
        self._config.save_pretrained(folder)
        self._written.append(folder)
        for old in self._written[:-2]:
            shutil.rmtree(old, ignore_errors=True)
        return name, folder

    @contextmanager
    @torch.no_grad()
    def random(self, spread: float) -> Iterator[None]:
        """Context manager: the adapter has random weights, the same in all processes, by which it changes the model.

        Args:
            spread: standard deviation of its matrices B, which are zero in a new adapter.
        """
        marker = f".lora_B.{self._adapter}."
        found = [weights for name, weights in self._model.named_parameters() if marker in name]
        places = [weights.to_local() if isinstance(weights, DTensor) else weights.data for weights in found]
        before = [weights.clone() for weights in places]
        for number, weights in enumerate(places):
            draw = torch.Generator().manual_seed(number)  # not one that the training draws from
            weights.copy_(torch.randn(weights.shape, generator=draw) * spread)
        try:
            yield
        finally:
            for weights, own in zip(places, before, strict=True):
                weights.copy_(own)
