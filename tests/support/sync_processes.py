"""One of two processes that sync their weights into engines, started by `test_engine_sync.py`: `MODEL FOLDER`.

The engines are fakes: a second copy of the model that takes weights and gives log-probs. All else is the real thing.
Each process writes the result of every case into `<rank>.json`: an error, or nothing.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from accelerate import Accelerator, InitProcessGroupKwargs
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey.errors import EngineError
from covey.rollout.vllm import engine as vllm_engine
from covey.training.trl.vllm import EngineGeneration, trainer_logps

CASES: dict[str, tuple[str, int, str]] = {
    "all is well": ("colocate", -1, ""),
    "the first is stale": ("colocate", 0, "stale"),
    "the second is stale": ("colocate", 1, "stale"),
    "the second reads other tokens": ("colocate", 1, "tokens"),
    "the server is well": ("server", -1, ""),
    "the server is stale": ("server", 0, "stale"),
    "the server refuses": ("server", 0, "refuses"),
    "the server is lost in the probe": ("server", 0, "lost"),
    "adapters are well": ("colocate", -1, "adapter"),
    "the second has no adapters for a layer": ("colocate", 1, "adapter layer"),
    "the server's adapters are well": ("server", -1, "adapter"),
    "the server's base weights are others": ("server", 0, "adapter base"),
}
"""How the engine runs, on which process something is wrong at the second sync, and what."""


class Engine:
    """A fake of both vLLM in this process and the client of a server."""

    def __init__(self, model: Any, fault: str) -> None:
        self.model, self.fault, self.lost, self.syncs = copy.deepcopy(model), fault, None, 0
        config = SimpleNamespace(dtype=torch.float32, max_model_len=64)
        self.llm_engine = SimpleNamespace(model_config=config, add_lora=self.add_lora, remove_lora=lambda _: None)
        self.dtype, self.max_model_len, self.host = "float32", 64, "localhost"
        self.adapted, self.named = None, False
        self.live, self.base_url = [self], "http://localhost"
        if isinstance(self.model, PeftModel):
            self.model = self.model.unload()
            if fault == "adapter base":
                next(self.model.parameters()).data *= 1.5

    def take_metrics(self) -> dict[str, float]:
        return {}

    def adapter_refusal(self, rank: int) -> None:
        pass

    def drop_adapters(self) -> None:
        self.named = False

    def load_adapter(self, name: str, folder: Path) -> None:
        self.syncs, self.named = self.syncs + 1, name != "in this process"
        self.adapted = PeftModel.from_pretrained(copy.deepcopy(self.model), str(folder))
        for weights_name, weights in self.adapted.named_parameters():
            if self.fault == "adapter layer" and "down_proj.lora_B" in weights_name:
                weights.data.zero_()

    def add_lora(self, request: Any) -> None:
        self.load_adapter("in this process", request.folder)

    def load(self, named: Iterator[tuple[str, torch.Tensor]]) -> None:
        self.syncs += 1
        weights = {name: tensor.clone() for name, tensor in named}
        if not (self.fault == "stale" and self.syncs == 2):
            self.model.load_state_dict(weights, strict=False)

    def update_named_params(self, metadata: Any, named: Iterator[tuple[str, torch.Tensor]]) -> None:
        self.load(named)

    def prompt_logps(self, rows: list[list[int]], adapter: Any = None, *, base: bool = False) -> Any:
        if adapter is not None or (self.named and not base):
            return trainer_logps(self.adapted, rows)
        found = trainer_logps(self.model, rows)
        if self.syncs == 2 and self.fault == "refuses":
            raise EngineError("The server refused.")
        if self.syncs == 2 and self.fault == "tokens":
            return found[:-1]
        if self.syncs == 2 and self.fault == "lost":
            self.lost = "it did not answer the probe"
            return None
        return found

    def reconnect(self) -> None:
        pass

    def reset_prefix_cache(self) -> None:
        pass

    def take_lost(self) -> str | None:
        lost, self.lost = self.lost, None
        return lost


class Generation(EngineGeneration):
    """With the fake engine."""

    fault = ""

    def _init_vllm(self) -> None:
        os.environ["RANK"] = os.environ["MASTER_PORT"] = "set by TRL"
        if self.mode == "colocate":
            self._adapter = self._chosen_adapter(lambda _: None)
            self.llm = Engine(self.model, self.fault)
        elif self.accelerator.is_main_process:
            self.vllm_client = Engine(self.model, self.fault)


def syncs(
    mode: str, fault: str, accelerator: Accelerator, model: Any, tokenizer: Any, *, adapted: bool
) -> tuple[str, float]:
    """Sync twice, the weights moved in between; returns the error and the largest gap."""
    Generation.fault = fault
    if adapted:
        torch.manual_seed(0)
        model = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear"))
    generation = Generation(model=model, accelerator=accelerator, processing_class=tokenizer, mode=mode)
    try:
        generation.sync_weights()
        with torch.no_grad():
            for name, weights in model.named_parameters():
                if not adapted:
                    weights *= 1.1
                elif "lora_B" in name:
                    weights += 0.5
        generation.sync_weights()
    except EngineError as error:
        return str(error), 0.0
    return "", max(generation.take_metrics().values(), default=0.0)


def main() -> None:
    path, folder = sys.argv[1:]
    before = os.environ["RANK"], os.environ["MASTER_PORT"]
    sys.modules["covey.training.trl.engine_clients"] = SimpleNamespace(connect=Engine)  # type: ignore[assignment]
    vllm_engine.installed = lambda: True
    vllm_engine.load_into = Engine.load
    vllm_engine.prompt_logps = Engine.prompt_logps
    vllm_engine.engine_errors = lambda _: nullcontext()
    vllm_engine.adapter_request = lambda name, number, folder: SimpleNamespace(
        lora_name=name, lora_int_id=number, folder=folder
    )
    accelerator = Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(seconds=60))])
    rank = accelerator.process_index
    tokenizer, results = AutoTokenizer.from_pretrained(path), {}
    for name, (mode, where, fault) in CASES.items():
        model = AutoModelForCausalLM.from_pretrained(path)
        adapted, fault = fault.startswith("adapter"), fault if rank == where else ""
        results[name] = syncs(mode, fault, accelerator, model, tokenizer, adapted=adapted)
        accelerator.wait_for_everyone()
    assert (os.environ["RANK"], os.environ["MASTER_PORT"]) == before
    Path(folder, f"{rank}.json").write_text(json.dumps(results))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
