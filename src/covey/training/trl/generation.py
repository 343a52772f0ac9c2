"""Generating the completions of a batch by Covey's own sampling instead of transformers' `generate`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.integrations import is_deepspeed_zero3_enabled, is_fsdp_managed_module
from trl import GRPOConfig
from trl.distributed import DistributedBackend
from trl.models.utils import unwrap_model_for_generation

from covey.rollout import LogitsProcessor
from covey.rollout.local.generate import sample_or_none


@contextmanager
def unwrapped_for_generation(
    wrapped: Any, accelerator: Any, args: GRPOConfig, summon: Callable[..., AbstractContextManager[Any]]
) -> Iterator[Any]:
    """The policy without its wrappers, with gathered parameters and without gradient checkpointing, as TRL generates.

    Args:
        wrapped: the policy as it is trained.
        accelerator: that wrapped it.
        args: TRL's settings.
        summon: gathers the parameters that FSDP holds at the root, given the wrapped policy.
    """
    checkpointing = args.gradient_checkpointing_kwargs
    with (
        unwrap_model_for_generation(
            wrapped, accelerator, args.ds3_gather_for_generation, gradient_checkpointing_kwargs=checkpointing
        ) as model,
        summon(wrapped, recurse=False),
    ):
        yield model


def policy_unwrapped_for_generation(trainer: Any) -> AbstractContextManager[Any]:
    """The policy of a trainer outside of its own steps, unwrapped for generation; all processes must enter."""
    summon = DistributedBackend(trainer.accelerator).summon_full_params
    return unwrapped_for_generation(trainer.model_wrapped, trainer.accelerator, trainer.args, summon)


def generate_completions(
    unwrapped_model: AbstractContextManager[Any],
    prompt_ids: Sequence[Sequence[int]],
    config: GenerationConfig,
    *,
    eos_token_ids: Sequence[int],
    logits_processors: Sequence[LogitsProcessor] = (),
) -> list[list[int]] | None:
    """Sample a completion of each prompt; None, with a log line, where Covey's sampling is not supported.

    Args:
        unwrapped_model: yields the unwrapped policy while its parameters are needed.
        prompt_ids: token ids, each prompt as often as it has completions, one after another.
        config: how to sample, as for `generate`.
        eos_token_ids: tokens that end a completion, besides those of the config.
        logits_processors: applied to the logits of each next token.
    """
    with unwrapped_model as model:
        return sample_or_none(
            model,
            prompt_ids,
            config,
            more_eos_token_ids=eos_token_ids,
            logits_processors=logits_processors,
            any_has_work=any_over_shards(model),
        )


def any_over_shards(model: Any) -> Callable[[bool], bool] | None:
    """A logical or over all processes if parameters are sharded (a forward pass then needs all of them), else None."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    sharded = is_deepspeed_zero3_enabled() or is_fsdp_managed_module(model)
    if not sharded or torch.distributed.get_world_size() == 1:
        return None

    def any_has_work(works: bool) -> bool:
        flag = torch.tensor(int(works), device=model.device)
        torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
        return bool(flag)

    return any_has_work
