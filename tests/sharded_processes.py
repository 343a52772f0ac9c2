"""One process of two whose model is sharded, started by `torch.distributed.run` from `test_local_rollout.py`.

Each process asks for other prompts, so that they need a different number of steps; each prints `same` when its
completions are those of the whole model.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.distributed.fsdp import fully_shard
from transformers import Qwen3Config, Qwen3ForCausalLM

from covey.rollout import Ends, Sampling, sample
from covey.rollout.applies import obstacle
from covey.training.rollout_step import in_step

SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.4,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def main() -> None:
    """Compare sharded with whole."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    torch.manual_seed(2)
    model = Qwen3ForCausalLM(Qwen3Config(**SIZES)).eval()
    prompts = [[5, 9, 11]] * 2 if rank == 0 else [[7, 7, 21, 30]] * 2 + [[3, 4]] * 3
    ends = Ends(6 if rank == 0 else 15, [], 0)
    whole = sample(model, prompts, sampling=Sampling(temperature=0.0), ends=ends)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    any_works = in_step(model)
    assert any_works is not None
    assert obstacle(model) is None
    budget = None if rank == 0 else 20
    sharded = sample(
        model,
        prompts,
        sampling=Sampling(temperature=0.0),
        ends=ends,
        max_tokens_in_flight=budget,
        any_works=any_works,
    )
    print("same" if sharded == whole else "different", flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    os._exit(0)  # all is written; FSDP's threads now and then abort a process that Python takes down


if __name__ == "__main__":
    main()
