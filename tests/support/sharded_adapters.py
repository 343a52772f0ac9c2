"""One of two processes with a model with adapters under FSDP 2, started by `test_engine_lora.py`: `FOLDER`.

Each prints `same` if the adapter is gathered whole, its random weights change the model alike in both, and are taken
back.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch.distributed.fsdp import fully_shard
from transformers import Qwen3ForCausalLM

from covey.training.trl.engine_lora import PolicyAdapter
from covey.training.trl.vllm import trainer_logps
from small_models import ARCHITECTURES

ROWS = [[5, 6, 7, 8], [9, 4, 11]]


def main() -> None:
    """Compare sharded with unsharded."""
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(2)
    base = Qwen3ForCausalLM(ARCHITECTURES["qwen3"]).eval()
    state = {name: weights.clone() for name, weights in base.state_dict().items()}
    model = get_peft_model(base, LoraConfig(r=4, target_modules="all-linear"))
    for name, weights in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weights)
    whole, before = PolicyAdapter(model).tensors(), trainer_logps(model, ROWS)
    for layer in base.model.layers:
        fully_shard(layer)
    fully_shard(model)
    adapter = PolicyAdapter(model)
    gathered = adapter.tensors()
    same = set(gathered) == set(whole) and all(torch.equal(gathered[name], whole[name]) for name in whole)
    with adapter.random(0.5):
        changed, random = trainer_logps(model, ROWS), adapter.tensors()
    _, folder = adapter.write(random, torch.distributed.get_rank())
    plain = Qwen3ForCausalLM(ARCHITECTURES["qwen3"]).eval()
    plain.load_state_dict(state)
    read = trainer_logps(PeftModel.from_pretrained(plain, str(folder)), ROWS)
    close = [torch.allclose(torch.tensor(a), torch.tensor(b), atol=1e-5) for a, b in zip(changed, read, strict=True)]
    back = [
        torch.allclose(torch.tensor(a), torch.tensor(b))
        for a, b in zip(trainer_logps(model, ROWS), before, strict=True)
    ]
    differs = not torch.allclose(torch.tensor(changed[0]), torch.tensor(before[0]), atol=1e-2)
    Path(sys.argv[1], str(torch.distributed.get_rank())).write_text(
        "same" if same and all(close) and all(back) and differs else f"{same} {close} {back} {differs}"
    )
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    os._exit(0)  # FSDP's threads sometimes abort the interpreter at exit


if __name__ == "__main__":
    main()
