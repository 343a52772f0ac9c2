"""The completions of one generation batch, sampled here rather than by transformers' `generate`."""

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
from covey.rollout.generate import sample_or_none


@contextmanager
def in_reach(
    wrapped: Any, accelerator: Any, args: GRPOConfig, summon: Callable[..., AbstractContextManager[Any]]
) -> Iterator[Any]:
    """The policy without its wrappers, its parameters gathered and gradient checkpointing off, as TRL generates.

    Args:
        wrapped: the policy as it is trained.
        accelerator: which wrapped it.
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


def policy_in_reach(trainer: Any) -> AbstractContextManager[Any]:
    """The policy of a trainer outside of its own steps, ready to write completions; all processes must enter."""
    summon = DistributedBackend(trainer.accelerator).summon_full_params
    return in_reach(trainer.model_wrapped, trainer.accelerator, trainer.args, summon)


def write_completions(
    model_in_reach: AbstractContextManager[Any],
    prompt_ids: Sequence[Sequence[int]],
    config: GenerationConfig,
    *,
    eos_token_ids: Sequence[int],
    logits_processors: Sequence[LogitsProcessor] = (),
) -> list[list[int]] | None:
    """Sample a completion of each prompt; None, with a line in the log, where the sampling here does not apply.

    Args:
        model_in_reach: gives the policy, unwrapped, for as long as its parameters are needed.
        prompt_ids: token ids, each prompt as often as it has completions, one after another.
        config: how to sample, as for `generate`.
        eos_token_ids: tokens that end a completion, besides those of the config.
        logits_processors: applied to the logits of each next token.
    """
    with model_in_reach as model:
        return sample_or_none(
            model,
            prompt_ids,
            config,
            more_eos_token_ids=eos_token_ids,
            logits_processors=logits_processors,
            any_works=in_step(model),
        )


def in_step(model: Any) -> Callable[[bool], bool] | None:
    """Ask all processes whether any has work left, where parameters are sharded: a forward then needs every process."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    sharded = is_deepspeed_zero3_enabled() or is_fsdp_managed_module(model)
    if not sharded or torch.distributed.get_world_size() == 1:
        return None

    def any_works(works: bool) -> bool:
        flag = torch.tensor(int(works), device=model.device)
        torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
        return bool(flag)

    return any_works
