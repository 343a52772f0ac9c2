"""The completions of a training step, by an engine: the policy itself, TRL's vLLM, or the user's own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import groupby
from typing import Any

import torch
from accelerate.utils import gather_object
from transformers import GenerationConfig
from transformers.integrations import is_deepspeed_zero3_enabled, is_fsdp_managed_module
from trl.distributed import DistributedBackend
from trl.extras.profiling import profiling_context
from trl.models.utils import unwrap_model_for_generation

from covey.errors import ConfigError, EngineError
from covey.model.adapters import unmerged_exactly
from covey.model.device import base_model, casting_once, evaluating
from covey.model.load import OWN_SAMPLING
from covey.rollout import Capabilities, Completion, InferenceEngine, LocalEngine, SamplingSettings, complete
from covey.rollout.engine import NamedWeights
from covey.rollout.generate import check_engine, check_reasoning, engine_failures
from covey.rollout.local.compatibility import options_of, other_options, samples_by_generate, unsupported_option
from covey.rollout.local.engine import AnyHasWork
from covey.rollout.vllm.engine import candidates, sampled_logps, support_of
from covey.training.replaced import replaced
from covey.training.trl.vllm import EngineGeneration

DEFAULT_TOP_K = 50
"""Of transformers' `generate`, where neither the settings nor the model set it."""

Turn = tuple[list[list[int]], list[list[float]] | None]
"""Token ids and log-probabilities of completions, as TRL's `_generate_single_turn` returns them."""


class PolicyEngine(LocalEngine):
    """Covey's own engine with the policy that a trainer trains, whose current weights it always has."""

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer.model, trainer._tokenizer, shared_prefill=trainer._speed.shared_prefill)
        self._trainer = trainer

    @property
    def capabilities(self) -> Capabilities:
        """Collective where parameters are sharded: every forward needs all processes."""
        return replace(super().capabilities, collective=any_over_shards(self._trainer.model) is not None)

    @property
    def version(self) -> int:
        """The current step."""
        return int(self._trainer.state.global_step)

    def sync(self, weights: NamedWeights, version: int) -> None:
        """Nothing is to be done."""

    def sample_or_none(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingSettings,
        refusal: str | None,
        max_lengths: Sequence[int] | None = None,
    ) -> list[Completion] | None:
        """As `generate`, with random numbers of the trainer; None, with a line in the log, where TRL's way is needed.

        Where `sample` does not apply, transformers' `generate` returns log-probabilities and supports if the settings
        ask for them; TRL's way returns none.

        Args:
            refusal: a reason not to use Covey's sampling, if there is one already.
            max_lengths: see `LocalEngine.generate`.
        """
        config = self._trainer.generation_config
        with training_options(self._trainer), self._in_use() as model, torch.no_grad():
            found = self._sample(model, prompts, sampling, refusal, max_lengths) if self.shared_prefill else None
            asked = sampling.logprobs or sampling.support or sampling.repetition_penalty != 1.0
            limited = config.max_new_tokens is not None
            if found is None and asked and limited and samples_by_generate(model, config):
                found = self._by_transformers(model, prompts, sampling, max_lengths, **other_options(config))
            return found

    @contextmanager
    def _in_use(self) -> Iterator[Any]:
        """The policy without its wrappers, with gathered parameters and without gradient checkpointing, as TRL
        generates; its mode is left as it is."""
        trainer = self._trainer
        args, backend = trainer.args, DistributedBackend(trainer.accelerator)
        with (
            unwrap_model_for_generation(
                trainer.model_wrapped,
                trainer.accelerator,
                getattr(args, "ds3_gather_for_generation", True),
                gradient_checkpointing_kwargs=args.gradient_checkpointing_kwargs,
            ) as model,
            backend.summon_full_params(trainer.model_wrapped, recurse=False),
            casting_once(model, mixed_precision(trainer)),
        ):
            yield model

    def _any_has_work(self, model: Any) -> AnyHasWork | None:
        return any_over_shards(model)


class TRLEngine:
    """TRL's vLLM, colocated or on a server. TRL sends the weights, which it reads from the policy itself."""

    capabilities = Capabilities(logprobs=True, reasoning_vocab=True, collective=True, support=True)

    def __init__(self, trainer: Any) -> None:
        """
        Args:
            trainer: Covey's `GRPOTrainer` with `use_vllm=True`.
        """
        self._trainer = trainer

    @property
    def version(self) -> int | None:
        """The step of the last sync."""
        step: int = self._trainer._last_loaded_step
        return None if step < 0 else step

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingSettings, *, seed: int | None = None
    ) -> list[Completion]:
        """See `InferenceEngine`. Log-probabilities are always there; TRL's `generation_kwargs` come on top.

        Args:
            prompts: on a server, equally many in every process.
            seed: ignored.
        """
        engine: EngineGeneration = self._trainer.vllm_generation
        rows = [list(ids) for ids in prompts]
        names = ("max_completion_length", *OWN_SAMPLING)
        settings: dict[str, Any] = {name: getattr(sampling, name) for name in names}
        more = {name: value for name, value in engine.generation_kwargs.items() if name not in (*names, "logprobs")}
        settings["generation_kwargs"] = more
        most = candidates(sampling, vocab_size(self._trainer)) if sampling.support else 0
        if most:
            settings |= {"top_k": most, "logprobs": most}
        with replaced(engine, **settings):
            _, completions, logps, tokens = engine.generate(
                prompts=rows,
                images=None,
                num_generations=self._group_size(rows) if engine.mode == "server" else 1,
                profiler=profiling_context(self._trainer, "vLLM.generate"),
            )
        ends = {*self._trainer.eos_token_ids, *sampling.stop_token_ids}
        found = list[Completion]()
        for ids, token_ids, values in zip(completions, tokens, logps, strict=True):
            one = Completion(list(ids), not ids or ids[-1] not in ends)
            if most:
                own, support = support_of(ids, token_ids, values)
                found.append(replace(one, logps=own, support=support))
            else:
                found.append(replace(one, logps=sampled_logps(ids, token_ids, values)))
        return found

    def check(self, sampling: SamplingSettings) -> None:
        """Raise an `EngineError` unless the engine can return the log-probs that these settings ask for."""
        self._trainer.vllm_generation.check_logprobs(candidates(sampling, vocab_size(self._trainer)))

    def _group_size(self, rows: list[list[int]]) -> int:
        """The largest size of groups of equal prompts that all prompts, of all processes, fall into."""
        found = [math.gcd(*(len(list(same)) for _, same in groupby(rows)))]
        if self._trainer.accelerator.num_processes > 1:
            found = gather_object(found)
        return max(math.gcd(*found), 1)

    def sync(self, weights: NamedWeights, version: int) -> None:
        """Send the policy's weights, and check that they have arrived; `weights` are not read."""
        self._trainer.vllm_generation.sync_weights()
        self._trainer._last_loaded_step = version

    def close(self) -> None:
        """TRL's engine ends with the process."""


def engine_for(trainer: Any, own: InferenceEngine | None) -> InferenceEngine:
    """The engine of a trainer: the user's own, TRL's vLLM, or the policy. Raises a `ConfigError` if the user's own
    engine is none, or another one is asked for as well."""
    if own is None:
        return TRLEngine(trainer) if trainer.use_vllm else PolicyEngine(trainer)
    others = ("use_vllm", "use_transformers_continuous_batching")
    if named := [name for name in others if getattr(trainer, name)]:
        raise ConfigError(f"engine=… and {named[0]}=True name two engines: leave one of them out.")
    check_engine(own, f"engine={own.__name__ if isinstance(own, type) else type(own).__name__}")
    check_reasoning(own, trainer._reasoning.vocabulary is not None)
    return own


@contextmanager
def evaluation_engine(trainer: Any) -> Iterator[InferenceEngine]:
    """The engine for evaluations during training, with the current weights: the user's own, else the policy.

    TRL's vLLM has no seeds, by which an evaluation is the same each time. In asynchronous training the engine is busy,
    with older weights.
    """
    engine = trainer.engine
    if trainer.asynchronous or isinstance(engine, TRLEngine | PolicyEngine):
        with evaluating(trainer.model):
            yield PolicyEngine(trainer)
    else:
        sync_engine(trainer)
        yield engine


def generate_turn(
    trainer: Any, prompt_ids: Sequence[Sequence[int]], *, text_only: bool, max_lengths: Sequence[int] | None = None
) -> Turn | None:
    """The completions of these prompts by the trainer's engine; None where TRL's own way is needed.

    Args:
        prompt_ids: token ids, each prompt as often as it has completions, one after another.
        text_only: whether tokens are all there is to the prompts; with images, for one, they are not.
        max_lengths: the longest completion of each prompt, where it is below `max_completion_length`; TRL's own way
            knows no such limits, so the caller cuts its completions.

    Raises:
        ConfigError: the user's engine cannot sample by the settings.
        EngineError: the engine fails, or the prompts are not text only and it is the user's.
    """
    engine, scoring = trainer.engine, trainer.sampling
    turn: Turn
    if not text_only:
        if isinstance(engine, TRLEngine | PolicyEngine):
            return None
        raise EngineError(f"The engine {type(engine).__name__} takes tokens, and these prompts hold images as well.")
    asked, refusal = sampling_of(trainer)
    sampling = scoring.settings(asked)
    if isinstance(engine, PolicyEngine):
        found = None
        if not trainer.use_transformers_continuous_batching:
            with profiling_context(trainer, "transformers.generate"):
                found = engine.sample_or_none(prompt_ids, sampling, refusal, max_lengths)
        if found is None:
            scoring.sampled_by_trl(asked)
            return None
        turn = scoring.sampled(found, sampling, refusal)
        return turn
    if refusal is not None:
        raise ConfigError(f"{refusal}, and {type(engine).__name__} generates the completions: leave it out.")
    sync_engine(trainer)
    # from the trainer's random numbers, which a checkpoint holds
    seed = int(torch.randint(2**31, ())) if engine.capabilities.seeded else None
    with nullcontext() if isinstance(engine, TRLEngine) else profiling_context(trainer, "engine.generate"):
        rows = vocab_size(trainer)
        found = complete(engine, prompt_ids, sampling, seed=seed, vocab_size=rows, max_lengths=max_lengths)
    turn = scoring.sampled(found, sampling)
    return turn


def sync_engine(trainer: Any) -> None:
    """Give the engine the weights of the current step, if it has others. Raises an `EngineError` if it fails, or does
    not have them afterwards."""
    engine, step = trainer.engine, int(trainer.state.global_step)
    if engine.version == step:
        return
    weights = iter(()) if isinstance(engine, TRLEngine) else named_weights(trainer)
    with profiling_context(trainer, "sync_weights"):
        with engine_failures(engine, "sync"):
            engine.sync(weights, step)
        for _ in weights:  # gathering sharded weights needs all processes
            pass
    if engine.version != step:
        raise EngineError(
            f"The engine {type(engine).__name__} has version {engine.version} after sync(weights, {step}): it must be "
            "the version that sync was given."
        )


def mixed_precision(trainer: Any) -> torch.dtype | None:
    """The dtype of mixed precision that one autocast around all forwards of a generation has; None where each forward
    enters it by itself: on a CPU, with sharded parameters, whose casts would pile up, and with vLLM."""
    accelerator = trainer.accelerator
    if (
        accelerator.device.type == "cpu"
        or not accelerator.native_amp
        or any_over_shards(trainer.model) is not None
        or trainer.use_vllm
    ):
        return None
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(accelerator.mixed_precision)


def vocab_size(trainer: Any) -> int:
    """Rows of the policy's embedding, which may be more than the tokenizer's tokens."""
    return int(base_model(trainer.model).config.get_text_config().vocab_size)


def named_weights(trainer: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The policy's weights, gathered one by one, with adapters merged; every process must read all of them."""
    source = object.__new__(EngineGeneration)  # only how it names and gathers weights: no vLLM is started
    source.model, source.accelerator = trainer.model, trainer.accelerator
    source._dist = DistributedBackend(trainer.accelerator)
    with unmerged_exactly(trainer.model):
        yield from source._iter_named_params()


def sampling_of(trainer: Any) -> tuple[SamplingSettings, str | None]:
    """The settings of a trainer's completions, and why Covey's sampling does not support them, if it does not.

    A top-k of the whole vocabulary is none: its supports would hold every token.
    """
    settings, refusal = _all_sampling_of(trainer)
    return (replace(settings, top_k=0) if settings.top_k >= vocab_size(trainer) else settings), refusal


def _all_sampling_of(trainer: Any) -> tuple[SamplingSettings, str | None]:
    ends = tuple(trainer.eos_token_ids)
    if trainer.use_vllm:
        settings = SamplingSettings(
            trainer.max_completion_length,
            temperature=trainer.temperature,
            top_p=trainer.top_p,
            top_k=trainer.top_k,
            min_p=trainer.min_p or 0.0,
            repetition_penalty=trainer.repetition_penalty,
            stop_token_ids=ends,
        )
        given = trainer.args.generation_kwargs or {}  # of which vLLM takes these in place of the settings
        return replace(settings, **{name: given[name] for name in OWN_SAMPLING if given.get(name) is not None}), None
    with training_options(trainer):
        options = options_of(trainer.model, trainer.generation_config)
    refusal = unsupported_option(options)
    if "max_new_tokens" not in options:
        refusal = "there is no limit on new tokens (max_new_tokens)"
    return settings_of({"max_new_tokens": trainer.max_completion_length, **options}, ends), refusal


@contextmanager
def training_options(trainer: Any) -> Iterator[None]:
    """Context manager: the model's generation config has its special tokens only. transformers' `generate` fills in
    from it what training leaves open."""
    own = getattr(base_model(trainer.model), "generation_config", None) or GenerationConfig()
    tokens = ("eos_token_id", "pad_token_id", "bos_token_id", "decoder_start_token_id")
    ids = {name: getattr(own, name) for name in tokens}
    with replaced(own, **dict.fromkeys(vars(own)) | vars(GenerationConfig(**ids))):
        yield


def unused_options(trainer: Any) -> dict[str, Any]:
    """What the model's generation config sets, and training does not sample by."""
    own = getattr(base_model(trainer.model), "generation_config", None) or GenerationConfig()
    sampling, _ = sampling_of(trainer)
    used = {**(trainer.args.generation_kwargs or {}), **{name: getattr(sampling, name) for name in OWN_SAMPLING}}
    sets = {name: getattr(own, name) for name in OWN_SAMPLING if getattr(own, name) is not None} | other_options(own)
    return {name: value for name, value in sets.items() if value != used.get(name)}


def settings_of(options: Mapping[str, Any], more_eos_token_ids: Sequence[int] = ()) -> SamplingSettings:
    """The settings that options of transformers' `generate` stand for; options that have none are left out.

    Args:
        options: by name, `max_new_tokens` among them; see `options_of`.
        more_eos_token_ids: further tokens that end a completion.
    """
    eos = options.get("eos_token_id", [])
    sampled = options.get("do_sample", False)
    return SamplingSettings(
        options["max_new_tokens"],
        temperature=options.get("temperature", 1.0) if sampled else 0.0,
        top_p=options.get("top_p", 1.0),
        top_k=options.get("top_k", DEFAULT_TOP_K),
        min_p=options.get("min_p", 0.0),
        repetition_penalty=options.get("repetition_penalty", 1.0),
        stop_token_ids=tuple(dict.fromkeys([*([eos] if isinstance(eos, int) else eos), *more_eos_token_ids])),
    )


def any_over_shards(model: Any) -> AnyHasWork | None:
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
