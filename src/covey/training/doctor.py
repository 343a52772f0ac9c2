"""`covey doctor`: what would go wrong in a long run, found before it starts.

Every check returns findings: fine, worth a look, or wrong, each with what was seen and what to do. Nothing here
changes anything; the cheap checks also run at the start of `covey train`.
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

from covey import data
from covey.config import Config, TrainingConfig
from covey.errors import CoveyError
from covey.model.loading import check_model, load_tokenizer
from covey.model.prompts import opened_thinking, prompt_lengths, render
from covey.training.build import check_supported
from covey.training.findings import SAMPLE, Finding, Mark
from covey.training.gold import check_answers
from covey.training.memory import available_memory, estimate_memory
from covey.training.trackers import trackers
from covey.training.widening import check_reasoning

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from covey.data import LoadedData

_FEW_REPEATED = 0.01  # a share that does no harm
_TRIAL_STEPS = 3
_SLACK = 1.2  # what an allocator needs on top of what is counted


def examine(config: Config, *, show_prompt: Callable[[str], None] | None = None) -> Iterator[Finding]:
    """Run every check that needs no training; each finding comes as soon as it is known.

    Args:
        config: the run to look at.
        show_prompt: called once with a prompt exactly as the model will see it.
    """
    yield from _examine_settings(config)
    try:
        source = check_model(config.model)
        tokenizer = load_tokenizer(config.model)
    except CoveyError as error:
        yield Finding(Mark.WRONG, "model", str(error))
        return
    yield Finding(Mark.FINE, "model", f"{config.model.name}: config and tokenizer load")
    try:
        for note in check_reasoning(config, source, tokenizer):
            yield Finding(Mark.FINE, "reasoning", note)
    except CoveyError as error:
        yield Finding(Mark.WRONG, "reasoning", str(error))
    yield from check_tokens(config, source, tokenizer)
    try:
        loaded = data.load(config.dataset, config.seed)
    except CoveyError as error:
        yield Finding(Mark.WRONG, "data", str(error))
        return
    held_out = ", ".join(f"{name} {len(rows)}" for name, rows in loaded.evaluation.items()) or "none"
    yield Finding(Mark.FINE, "data", f"{len(loaded.train)} training rows; held out: {held_out}")
    for note in loaded.notes:
        yield Finding(Mark.LOOK, "data", note)
    if show_prompt is not None:
        show_prompt(render(tokenizer, loaded.train[0]["prompt"], config.training.chat_template_kwargs))
    yield from check_opening(config, tokenizer, loaded)
    yield from check_rows(loaded)
    longest = yield from check_lengths(config, source, tokenizer, loaded.train)
    yield from check_answers(config, loaded)
    yield check_batch(config, loaded)
    yield from check_memory(config, source, longest)


def glance(config: Config, source: str, tokenizer: PreTrainedTokenizerBase, loaded: LoadedData) -> list[str]:
    """The checks that cost next to nothing, for the start of a training run: what is worth a word, as notes."""
    findings = [
        *check_tokens(config, source, tokenizer),
        *check_opening(config, tokenizer, loaded),
        *check_rows(loaded),
        *check_lengths(config, source, tokenizer, loaded.train),
    ]
    return [f"{f.check}: {f.seen}. {f.advice}".rstrip() for f in findings if f.mark is not Mark.FINE]


def _examine_settings(config: Config) -> Iterator[Finding]:
    try:
        notes = check_supported(config)
        trackers(config)
    except CoveyError as error:
        yield Finding(Mark.WRONG, "settings", str(error))
        return
    for note in notes:
        yield Finding(Mark.LOOK, "settings", note)
    yield Finding(Mark.FINE, "settings", "every key is known, every value in range")


def check_tokens(config: Config, source: str, tokenizer: PreTrainedTokenizerBase) -> Iterator[Finding]:
    """Whether the token that ends an answer in the chat template is one that generation stops at."""
    stops = _stop_ids(source, config, tokenizer)
    names = ", ".join(f"{tokenizer.convert_ids_to_tokens(i)} ({i})" for i in sorted(stops)) or "none"
    end = _turn_end(tokenizer)
    if not stops:
        yield Finding(
            Mark.WRONG,
            "stop tokens",
            "neither the model nor its tokenizer names an end-of-sequence token",
            "Give one in the model's generation_config.json, or take the instruction-tuned model.",
        )
    elif end is not None and end not in stops:
        yield Finding(
            Mark.WRONG,
            "stop tokens",
            f"the chat template ends an answer with {tokenizer.convert_ids_to_tokens(end)} ({end}), but generation "
            f"stops only at {names}: completions would run on to the length limit",
            "Add that id to eos_token_id in generation_config.json, or give another model.chat_template.",
        )
    else:
        yield Finding(Mark.FINE, "stop tokens", f"generation stops at {names}")
    if tokenizer.pad_token_id is not None and tokenizer.pad_token_id in stops:
        yield Finding(
            Mark.LOOK,
            "padding",
            f"the padding token is the stop token {tokenizer.pad_token}",
            "Harmless in Covey, which masks by position; a tokenizer with a padding token of its own is cleaner.",
        )


def check_opening(config: Config, tokenizer: PreTrainedTokenizerBase, loaded: LoadedData) -> Iterator[Finding]:
    """Whether the prompt opens the thinking tag for the model, so that completions lack it."""
    if opened_thinking(
        tokenizer, loaded.train[0]["prompt"], config.rewards.think_tag, config.training.chat_template_kwargs
    ):
        yield Finding(
            Mark.LOOK,
            "thinking",
            f"the prompt ends inside an opened <{config.rewards.think_tag}>, so that completions begin behind it",
            "Rewards given by name and evaluations get completions with the tag in front.",
        )


def check_rows(loaded: LoadedData) -> Iterator[Finding]:
    """Whether training problems occur twice, and whether any answer is empty. (Problems of the held-out sets that are
    trained on too are noted where the data are loaded.)
    """
    prompts = [_key(prompt) for prompt in loaded.train["prompt"]]
    twice = len(prompts) - len(set(prompts))
    seen = f"{twice} of {len(prompts)} training rows repeat the prompt of another"
    if twice > _FEW_REPEATED * len(prompts):
        advice = "Take them out unless that is meant: each is trained on so many times more."
        yield Finding(Mark.LOOK, "duplicates", seen, advice)
    elif twice:
        yield Finding(Mark.FINE, "duplicates", seen)
    empty = [number for number, answer in enumerate(loaded.train["answer"]) if not str(answer or "").strip()]
    if empty:
        yield Finding(
            Mark.WRONG,
            "answers",
            f"{len(empty)} of {len(prompts)} training rows have no answer, first row {empty[0]}",
            "Check dataset.answer_column and dataset.answer_extractor.",
        )


def check_lengths(
    config: Config, source: str, tokenizer: PreTrainedTokenizerBase, rows: Dataset
) -> Generator[Finding, None, int]:
    """Percentiles of prompt lengths, against the model's context. Returns the length of a long prompt, in tokens."""
    from transformers import AutoConfig

    sample = rows.select(range(min(SAMPLE, len(rows))))
    lengths = sorted(prompt_lengths(tokenizer, config.training.chat_template_kwargs)(sample["prompt"]))
    middle, high, longest = (lengths[min(len(lengths) - 1, int(q * len(lengths)))] for q in (0.5, 0.95, 1.0))
    seen = f"prompts have {middle} tokens in the middle, {high} at the 95th percentile, {longest} at most"
    text = AutoConfig.from_pretrained(
        source, revision=config.model.revision or "main", trust_remote_code=config.model.trust_remote_code
    ).get_text_config()
    context = getattr(text, "max_position_embeddings", None)
    whole = longest + config.training.max_completion_length
    limit = config.dataset.max_prompt_length
    room = 0 if context is None else context - config.training.max_completion_length
    if context is not None and whole > context:
        yield Finding(
            Mark.WRONG,
            "lengths",
            f"{seen}; with training.max_completion_length={config.training.max_completion_length} that is {whole} "
            f"tokens, and the model's context holds {context}",
            (f"Set dataset.max_prompt_length={room} or lower" if room > 0 else "Lower")
            + " training.max_completion_length.",
        )
    elif limit is not None and longest > limit:
        over = sum(length > limit for length in lengths)
        what = "dropped" if config.dataset.overlong_prompts == "drop" else "cut"
        yield Finding(Mark.LOOK, "lengths", f"{seen}; {over} of {len(lengths)} will be {what} at {limit}")
    else:
        yield Finding(Mark.FINE, "lengths", seen)
    return min(longest, limit or longest)


def check_batch(config: Config, loaded: LoadedData) -> Finding:
    """What one step is made of. (That groups are not cut is checked when the config is built.)"""
    training = config.training
    completions = training.generation_batch
    prompts = completions // training.num_generations
    seen = f"a generation batch is {prompts} × {training.num_generations} = {completions} completions a process"
    if len(loaded.train) < prompts:
        return Finding(
            Mark.WRONG,
            "batch",
            f"{seen}, but there are only {len(loaded.train)} training rows",
            "Lower training.per_device_train_batch_size or raise training.num_generations.",
        )
    if training.max_steps > 0:
        return Finding(Mark.FINE, "batch", f"{seen}; {training.max_steps} steps")
    steps = math.ceil(len(loaded.train) * training.num_generations * training.num_iterations / completions)
    return Finding(Mark.FINE, "batch", f"{seen}; about {steps} generation batches a pass over the data")


def check_memory(config: Config, source: str, prompt_length: int) -> Iterator[Finding]:
    """The estimate against what this machine has."""
    from transformers import AutoConfig

    model: PretrainedConfig = AutoConfig.from_pretrained(
        source, revision=config.model.revision or "main", trust_remote_code=config.model.trust_remote_code
    )
    need = estimate_memory(config, model, prompt_length)
    there, what = available_memory()
    trained = "" if need.trained == need.parameters else f", {need.trained / 1e6:.1f} M of them trained"
    seen = (
        f"{need.parameters / 1e6:.1f} M parameters{trained}; training about {_gigabytes(need.training)} at most "
        f"(weights {_gigabytes(need.weights)}, gradients {_gigabytes(need.gradients)}, optimiser "
        f"{_gigabytes(need.moments)}, activations {_gigabytes(need.activations)}, head {_gigabytes(need.head)}), "
        f"sampling about {_gigabytes(need.rollout)}; {what} has {_gigabytes(there)}"
    )
    most = max(need.training, need.rollout)
    if most > there:
        yield Finding(
            Mark.WRONG,
            "memory",
            seen,
            "Set speed.max_tokens or lower training.per_device_train_batch_size, set "
            "training.gradient_checkpointing=true, train adapters (model.lora.rank=16), or use more devices.",
        )
    elif most * _SLACK > there:
        yield Finding(Mark.LOOK, "memory", seen, "It is tight: allow a fifth more than the estimate.")
    else:
        yield Finding(Mark.FINE, "memory", seen)


def try_steps(config: Config, console: Any) -> Finding:
    """Run three steps into a folder that is thrown away, and time them."""
    from covey.runlog import names
    from covey.runlog.metrics import read_metrics
    from covey.training.run import run_training

    with tempfile.TemporaryDirectory(prefix="covey-doctor-") as folder:
        training = TrainingConfig({**config.training.values, "save_strategy": "no", "logging_steps": 1})
        trial = dataclasses.replace(
            config,
            output_dir=folder,
            run_name="trial",
            resume=False,
            stop_after_steps=_TRIAL_STEPS,
            training=training,
            evaluation=dataclasses.replace(config.evaluation, every_steps=0),
        )
        try:
            result = run_training(trial, "trial", console)
        except CoveyError as error:
            return Finding(Mark.WRONG, "three steps", str(error))
        times = [row[names.STEP_TIME] for row in read_metrics(result.run.metrics) if names.STEP_TIME in row]
    later = times[1:] or times  # the first step also warms up
    seconds = sum(later) / len(later)
    seen = f"{seconds:.2f} s a step (the first took {times[0]:.2f} s)"
    if config.training.max_steps > 0:
        seen += (
            f"; {config.training.max_steps} steps would take about {seconds * config.training.max_steps / 60:.0f} min"
        )
    return Finding(Mark.FINE, "three steps", seen)


def _stop_ids(source: str, config: Config, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    from transformers import GenerationConfig

    stops = {tokenizer.eos_token_id} - {None}
    try:
        asked = GenerationConfig.from_pretrained(source, revision=config.model.revision or "main").eos_token_id
    except OSError:  # a model without a generation config stops at its tokenizer's token
        return stops
    return stops | set(asked if isinstance(asked, list) else [asked]) - {None}


def _turn_end(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The special token that the chat template puts behind an assistant's answer; None when it puts none there."""
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
