"""One of two processes with a sharded model, run with `torch.distributed.run` by `rollout/local/test_sampling.py`.

Each process has other prompts, so they need a different number of steps; each prints `same` if its completions are
those of the unsharded model, also in a second turn that one of them reads from its start.
"""

from __future__ import annotations

import os

import torch
from torch.distributed.fsdp import fully_shard

from covey.rollout import SamplingSettings, sample
from covey.rollout.local.compatibility import unsupported_reason, unsupported_turns
from covey.rollout.local.turns import Conversation, Turn
from covey.training.trl.generation import any_over_shards
from small_models import build


def main() -> None:
    """Compare sharded with unsharded."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    model = build("qwen3")
    prompts = [[5, 9, 11]] * 2 if rank == 0 else [[7, 7, 21, 30]] * 2 + [[3, 4]] * 3
    greedy = SamplingSettings(6 if rank == 0 else 15, temperature=0.0)
    whole = sample(model, prompts, greedy)
    longer = [[*ids, *one.ids, *range(4, 8 + row)] for row, (ids, one) in enumerate(zip(prompts, whole, strict=True))]
    whole_next = sample(model, longer, greedy)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    any_has_work = any_over_shards(model)
    assert any_has_work is not None
    assert unsupported_reason(model) is None
    budget = None if rank == 0 else 20
    sharded = sample(
        model,
        prompts,
        greedy,
        max_tokens_in_flight=budget,
        any_has_work=any_has_work,
    )
    assert unsupported_turns(model) is None
    conversation = Conversation()
    for rows in (prompts, longer):
        turn = Turn(conversation.find(rows, 0 if rank == 0 else None))  # the second process reads all again
        sharded_next = sample(model, rows, greedy, any_has_work=any_has_work, turn=turn)
        conversation.keep(turn.rows, 0, model.device)
    same = [one.ids for one in [*sharded, *sharded_next]] == [one.ids for one in [*whole, *whole_next]]
    print("same" if same else "different", flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    os._exit(0)  # FSDP's threads sometimes abort the interpreter at exit


if __name__ == "__main__":
    main()
