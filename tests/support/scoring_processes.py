"""One of the processes started by `test_shared_scoring.py`: gradients of its own rows, averaged over processes.

Arguments: the folder to write `<way>.pt` into. Ways: DDP; FSDP2, layer by layer, with gradient checkpointing.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from scored import gradients, make, make_rows, shared

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    ids, mask, width = make_rows()
    rows = slice(0, 5) if rank == 0 else slice(5, None)  # the second group is on both
    for way in ("ddp", "fsdp2"):
        model: Any = make("gemma3")
        model.gradient_checkpointing_enable()
        if way == "ddp":
            model = DistributedDataParallel(model)
        else:
            for layer in model.model.layers:
                fully_shard(layer)
            fully_shard(model)
        grads = gradients(model, shared(model, ids[rows], mask[rows], width))
        whole = {
            name.removeprefix("module."): gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
            for name, gradient in grads.items()
        }
        if rank == 0:
            torch.save(whole, folder / f"{way}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    os._exit(0)  # FSDP's threads sometimes abort the interpreter at exit
