"""Checks that find, before a run starts, what would go wrong in it.

Each returns findings: fine, warning, or wrong, with what was found and what to do. They change nothing. `covey doctor`
runs all of them, `covey train` the cheap ones.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from covey.config import Config
from covey.errors import ConfigError
from covey.evaluation.grading import answer_asked_by
from covey.model.loading import declared_eos_ids, source_options
from covey.model.prompts import prompt_lengths, thinking_prefix
from covey.training.preflight.findings import SAMPLE, Mark, PreflightFinding
from covey.training.preflight.memory_estimate import available_memory, beside_vllm, estimate_memory
from covey.training.preflight.requirements import check_size

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from covey.data import LoadedData


_FEW_REPEATED = 0.01  # a harmless share
_SLACK = 1.2  # factor for the allocator


def quick_checks(config: Config, source: str, tokenizer: PreTrainedTokenizerBase, loaded: LoadedData) -> list[str]:
    """The cheap checks, for the start of a training run; all that is not fine, as notes."""
    findings = [
        *check_tokens(config, tokenizer),
        *check_prompt_prefix(config, tokenizer, loaded),
        *check_rows(config, loaded),
        *check_lengths(config, source, tokenizer, loaded.train),
    ]
    return [f"{f.check}: {f.result}. {f.advice}".rstrip() for f in findings if f.mark is not Mark.FINE]


def check_tokens(config: Config, tokenizer: PreTrainedTokenizerBase) -> Iterator[PreflightFinding]:
    """Whether the token that ends an answer in the chat template is one that generation stops at."""
    stops = {tokenizer.eos_token_id, *declared_eos_ids(config.model)} - {None}
    names = ", ".join(f"{tokenizer.convert_ids_to_tokens(i)} ({i})" for i in sorted(stops)) or "none"
    end = _turn_end(tokenizer)
    if not stops:
        yield PreflightFinding(
            Mark.WRONG,
            "stop tokens",
            "neither the model nor its tokenizer names an end-of-sequence token",
            "Set one in the model's generation_config.json, or use the instruction-tuned model.",
        )
    elif end is not None and end not in stops:
        yield PreflightFinding(
            Mark.WRONG,
            "stop tokens",
            f"the chat template ends an answer with {tokenizer.convert_ids_to_tokens(end)} ({end}), but generation "
            f"stops only at {names}: completions would run on to the length limit",
            "Add that id to eos_token_id in generation_config.json, or use another model.chat_template.",
        )
    else:
        yield PreflightFinding(Mark.FINE, "stop tokens", f"generation stops at {names}")
    if tokenizer.pad_token_id is not None and tokenizer.pad_token_id in stops:
        yield PreflightFinding(
            Mark.WARNING,
            "padding",
            f"the padding token is the stop token {tokenizer.pad_token}",
            "Harmless in Covey, which masks by position; a tokenizer with its own padding token is cleaner.",
        )


def check_prompt_prefix(
    config: Config, tokenizer: PreTrainedTokenizerBase, loaded: LoadedData
) -> Iterator[PreflightFinding]:
    """Whether the prompt opens the thinking tag for the model, so that completions lack it."""
    if thinking_prefix(
        tokenizer, loaded.train[0]["prompt"], config.rewards.think_tag, config.training.chat_template_kwargs
    ):
        yield PreflightFinding(
            Mark.WARNING,
            "thinking",
            f"the prompt ends inside an open <{config.rewards.think_tag}>, so completions start after it",
            "Rewards given by name and evaluations get completions with the tag prepended.",
        )


def check_rows(config: Config, loaded: LoadedData) -> Iterator[PreflightFinding]:
    """Duplicate training prompts, and empty answers where something needs them.

    (Held-out problems in the training set are noted when the data are loaded.)
    """
    prompts = [_key(prompt) for prompt in loaded.train["prompt"]]
    twice = len(prompts) - len(set(prompts))
    result = f"{twice} of {len(prompts)} training rows repeat the prompt of another"
    if twice > _FEW_REPEATED * len(prompts):
        advice = "Remove them unless intended: each is trained on that many times more."
        yield PreflightFinding(Mark.WARNING, "duplicates", result, advice)
    elif twice:
        yield PreflightFinding(Mark.FINE, "duplicates", result)
    answers = loaded.train["answer"] if answer_asked_by(config) else []
    empty = [number for number, answer in enumerate(answers) if not str(answer or "").strip()]
    if empty:
        yield PreflightFinding(
            Mark.WRONG,
            "answers",
            f"{len(empty)} of {len(prompts)} training rows have no answer, first row {empty[0]}",
            "Check dataset.answer_column and dataset.answer_extractor.",
        )


def check_lengths(
    config: Config, source: str, tokenizer: PreTrainedTokenizerBase, rows: Dataset
) -> Generator[PreflightFinding, None, int]:
    """Percentiles of prompt lengths, against the model's context. Returns the length of a long prompt, in tokens."""
    from transformers import AutoConfig

    sample = rows.select(range(min(SAMPLE, len(rows))))
    lengths = sorted(prompt_lengths(tokenizer, config.training.chat_template_kwargs)(sample["prompt"]))
    middle, high, longest = (lengths[min(len(lengths) - 1, int(q * len(lengths)))] for q in (0.5, 0.95, 1.0))
    result = f"prompts have {middle} tokens at the median, {high} at the 95th percentile, {longest} at most"
    text = AutoConfig.from_pretrained(source, **source_options(config.model)).get_text_config()
    context = getattr(text, "max_position_embeddings", None)
    whole = longest + config.training.max_completion_length
    limit = config.dataset.max_prompt_length
    room = 0 if context is None else context - config.training.max_completion_length
    if context is not None and whole > context:
        yield PreflightFinding(
            Mark.WRONG,
            "lengths",
            f"{result}; with training.max_completion_length={config.training.max_completion_length} that is {whole} "
            f"tokens, and the model's context holds {context}",
            (f"Set dataset.max_prompt_length={room} or lower" if room > 0 else "Lower")
            + " training.max_completion_length.",
        )
    elif limit is not None and longest > limit:
        over = sum(length > limit for length in lengths)
        what = "dropped" if config.dataset.overlong_prompts == "drop" else "cut"
        yield PreflightFinding(Mark.WARNING, "lengths", f"{result}; {over} of {len(lengths)} will be {what} at {limit}")
    else:
        yield PreflightFinding(Mark.FINE, "lengths", result)
    return min(longest, limit or longest)


def check_batch(config: Config, loaded: LoadedData) -> PreflightFinding:
    """The size of a generation batch. (That groups are not split is checked with the config.)"""
    training = config.training
    completions = training.generation_batch
    prompts = completions // training.num_generations
    result = f"a generation batch is {prompts} × {training.num_generations} = {completions} completions a process"
    try:
        check_size(config, loaded)
    except ConfigError as error:
        return PreflightFinding(Mark.WRONG, "batch", str(error))
    if training.max_steps > 0:
        return PreflightFinding(Mark.FINE, "batch", f"{result}; {training.max_steps} steps")
    steps = math.ceil(len(loaded.train) * training.num_generations * training.num_iterations / completions)
    return PreflightFinding(Mark.FINE, "batch", f"{result}; about {steps} generation batches a pass over the data")


def check_memory(config: Config, source: str, prompt_length: int) -> Iterator[PreflightFinding]:
    """The memory estimate against this machine's memory."""
    from transformers import AutoConfig

    model: PretrainedConfig = AutoConfig.from_pretrained(source, **source_options(config.model))
    need = estimate_memory(config, model, prompt_length)
    available, device, less_for_vllm = beside_vllm(config, *available_memory())
    trained = "" if need.trained == need.parameters else f", {need.trained / 1e6:.1f} M of them trained"
    result = (
        f"{need.parameters / 1e6:.1f} M parameters{trained}; training about {_gigabytes(need.training)} at most "
        f"(weights {_gigabytes(need.weights)}, gradients {_gigabytes(need.gradients)}, optimiser "
        f"{_gigabytes(need.moments)}, activations {_gigabytes(need.activations)}, head {_gigabytes(need.head)}), "
        f"sampling about {_gigabytes(need.rollout)}; {device} has {_gigabytes(available)}"
    )
    most = max(need.training, need.rollout)
    if most > available:
        yield PreflightFinding(
            Mark.WRONG,
            "memory",
            result,
            f"{less_for_vllm}Set speed.max_tokens or lower training.per_device_train_batch_size, set "
            "training.gradient_checkpointing=true, train adapters (model.lora.rank=16), or use more devices.",
        )
    elif most * _SLACK > available:
        yield PreflightFinding(Mark.WARNING, "memory", result, "Tight: allow a fifth more than the estimate.")
    else:
        yield PreflightFinding(Mark.FINE, "memory", result)


def _turn_end(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The special token that the chat template puts after an assistant's answer; None without one."""
    marker = "covey7answer"
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": marker}]
    text = str(tokenizer.apply_chat_template(messages, tokenize=False))
    _, _, tail = text.rpartition(marker)
    ids = tokenizer(tail, add_special_tokens=False).input_ids
    return next((int(i) for i in ids if i in set(tokenizer.all_special_ids)), None)


def _key(prompt: Any) -> str:
    text = prompt if isinstance(prompt, str) else "\n".join(f"{m['role']}: {m['content']}" for m in prompt)
    return " ".join(text.split()).casefold()


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.0f} MB"
