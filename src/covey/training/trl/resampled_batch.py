"""A generation batch whose groups without signal are replaced before TRL scores it.

Completions are generated, rewarded and replaced first; then TRL's own method processes the final batch, so that only
this one is counted and logged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from accelerate.utils import gather_object

from covey.training.batch_source.resampling import (
    FilledBatch,
    Resampler,
    SamplingRound,
    check_resampling,
    counts_in_loss,
    has_signal,
    make_round,
)
from covey.training.replaced import replaced
from covey.training.trl.advantages import scored
from covey.training.trl.tool_loop import loop_result


def make_resampler(trainer: Any, max_prompts: int) -> Resampler:
    """The resampler of a trainer.

    Args:
        max_prompts: further prompts per generation batch, at most.

    Raises:
        ConfigError: the data or the way of generating cannot be combined with resampling.
    """
    images = bool(trainer.tools) and trainer._is_vlm
    check_resampling(
        trainer.train_dataset, {"rollout_func": trainer.rollout_func, "tools of a model that reads images": images}
    )
    return Resampler(
        max_prompts,
        num_generations=trainer.num_generations,
        processes=trainer.accelerator.num_processes,
        process_index=trainer.accelerator.process_index,
        gather_object=gather_object,
    )


def resampled_batch(
    trainer: Any, resampler: Resampler, rows: int, score: Callable[[list[dict[str, Any]]], Any]
) -> dict[str, Any]:
    """The scored generation batch of a step, with `rows` rows in this process.

    Args:
        resampler: draws further prompts.
        rows: their number.
        score: TRL's own `_generate_and_score_completions`.
    """
    seen_before = trainer.state.num_input_tokens_seen
    filled = resampler.fill(rows, lambda drawn: _generate(trainer, drawn, score))
    seen, trainer.state.num_input_tokens_seen = trainer.state.num_input_tokens_seen, seen_before
    trainer.sampling.newest = replace(trainer.sampling.newest, supports=[sample.support for sample in filled.samples])
    trainer._rewards_BF = filled.rewards
    trainer._pending_extra_logs.update(filled.extra)
    trainer._pending_metrics.update(filled.reported)
    with replaced(trainer, **_generated(filled), _calculate_rewards=lambda *_: filled.rewards):
        output: dict[str, Any] = score(filled.rows)
    trainer._episodes.log_metrics(filled.episodes)
    wasted = seen - trainer.state.num_input_tokens_seen
    trainer.state.num_input_tokens_seen = seen
    trainer._metrics["train"]["num_tokens"] = [seen]
    for name, value in {**filled.metrics, "resampling/tokens": float(wasted)}.items():
        trainer._metrics["train"][name].append(value)
    return output


def _generated(filled: FilledBatch) -> dict[str, Any]:
    """What replaces the parts of TRL's generation by the completions that there are, by their names in the trainer."""
    parts: dict[str, Any] = {"_generate_single_turn": lambda *_, **__: filled.completions}
    if episodes := filled.episodes:
        prompt_ids = [episode.prompt_ids for episode in episodes]
        parts |= {
            "_tokenize_prompts": lambda _: (prompt_ids, None, {}),
            "_tool_call_loop": lambda *_: loop_result(episodes),
            # these episodes are over, so no environment is to be reset
            "environment_factories": None,
            "environments": None,
        }
    return parts


class _Prompts(BaseException):
    """No error: leaves TRL's method with the prompts that it was about to generate from."""

    def __init__(self, prompts: list[Any]) -> None:
        self.prompts = prompts


def _prepared(trainer: Any, rows: list[dict[str, Any]], score: Callable[[list[dict[str, Any]]], Any]) -> list[Any]:
    """The prompts of these rows, as TRL makes them: with environments that are reset, and what they say."""

    def leave(prompts: list[Any]) -> None:
        raise _Prompts(prompts)

    try:
        with replaced(trainer, _generate=leave):
            score(rows)
    except _Prompts as left:
        return left.prompts
    raise AssertionError("TRL generates by _generate")


def _generate(trainer: Any, rows: list[dict[str, Any]], score: Callable[[list[dict[str, Any]]], Any]) -> SamplingRound:
    """Generate and reward completions of these rows, without adding to the metrics of the step."""
    kept, trainer._metrics["train"] = trainer._metrics["train"], defaultdict(list)
    rows = trainer._episodes.begin(rows)
    prompts = _prepared(trainer, rows, score) if trainer._episodes.used else [row["prompt"] for row in rows]
    with trainer._early_rewards.batch_of(rows):
        _, ids, _, completions, logps, *_ = trainer._generate(prompts)
        rewards_BF = trainer._calculate_rewards(rows, prompts, completions, ids)
    trainer._metrics["train"] = kept
    extra, reported = dict(trainer._pending_extra_logs), dict(trainer._pending_metrics)
    trainer._pending_extra_logs.clear()
    trainer._pending_metrics.clear()
    eos_token_ids = (
        {*trainer.eos_token_ids, trainer._tokenizer.pad_token_id} if trainer.mask_truncated_completions else None
    )
    counts_B = trainer.accelerator.gather(counts_in_loss(ids, eos_token_ids).to(rewards_BF.device))
    rewards = scored(trainer, rewards_BF)
    keeps = getattr(trainer._objective, "keeps_trl_advantages", trainer._objective is None)
    signal_P = has_signal(rewards if keeps else rewards.only(counts_B), counts_B)
    logged = {"extra": extra, "reported": reported}
    episodes, supports = trainer._episodes.newest, trainer.sampling.newest.supports
    return make_round(rows, ids, logps, rewards_BF, signal_P, **logged, episodes=episodes, supports=supports)
