"""Checks that find, before a run starts, what would go wrong in it.

Each returns findings, with what was found and what to do. They change nothing. `training/examination.py` runs them, for
`covey doctor` and for the start of every run.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.answers import Tags
from covey.config import Config
from covey.config.groups.mesh import Mesh
from covey.errors import ConfigError, ModelError, RunDirectoryError, one_line
from covey.evaluation.grading import answer_asked_by
from covey.evaluation.settings import prompts_of
from covey.model.loading import declared_eos_ids
from covey.model.prompts import render, thinking_prefix
from covey.rewards.reward import whole_answers
from covey.training.distributed.sharding import splits_weights
from covey.training.preflight.findings import Mark, PreflightFinding
from covey.training.preflight.memory_estimate import MemoryEstimate, available_memory, beside_vllm, estimate_memory
from covey.training.preflight.requirements import check_free_space, check_size

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from covey.data import LoadedData


_FEW_REPEATED = 0.01  # a harmless share
_SLACK = 1.2  # factor for the allocator


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
            Mark.NOTE,
            "padding",
            f"the padding token is the stop token {tokenizer.pad_token}",
            "Harmless in Covey, which masks by position; a tokenizer with its own padding token is cleaner.",
        )


def check_prompt_prefix(
    config: Config, tokenizer: PreTrainedTokenizerBase, loaded: LoadedData
) -> Iterator[PreflightFinding]:
    """Whether the prompt opens the thinking tag for the model, so that completions lack it."""
    first = prompts_of(loaded.train.select([0]))[0]
    prefix = thinking_prefix(tokenizer, first, config.rewards.think_tag, config.training.chat_template_kwargs)
    if whole_answers([""], [first], prefix, Tags(config.rewards.think_tag)) != [""]:
        yield PreflightFinding(
            Mark.WARNING,
            "thinking",
            f"the prompt ends inside an open <{config.rewards.think_tag}>, so completions start after it",
            "Rewards given by name and evaluations get completions with the tag prepended.",
        )


def check_rows(config: Config, loaded: LoadedData) -> Iterator[PreflightFinding]:
    """Duplicate training prompts, and empty answers where something needs them.

    (Held-out problems in the training set are noted when the data are loaded.) Rows for an environment may differ by
    other columns than the prompt.
    """
    own = config.environment.factory is not None
    prompts = [str(i) if own else _key(prompt) for i, prompt in enumerate(prompts_of(loaded.train))]
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
    config: Config, model: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, ids: list[list[int]]
) -> Generator[PreflightFinding, None, int]:
    """Prompts, as tokens, against the model's context and vocabulary. Returns the length of a long one, in tokens."""
    if not all(ids):
        error = ModelError(
            f"The tokenizer of model.name={config.model.name} makes no tokens of {sum(not one for one in ids)} of "
            f"{len(ids)} prompts: its files are missing from the folder of the model (tokenizer.json), or they are of "
            "another model."
        )
        yield PreflightFinding(Mark.WRONG, "tokenizer", str(error), error=error)
    yield _vocabulary_finding(model, tokenizer, ids)
    lengths = sorted(map(len, ids))
    middle, high, longest = (lengths[min(len(lengths) - 1, int(q * len(lengths)))] for q in (0.5, 0.95, 1.0))
    result = f"prompts have {middle} tokens at the median, {high} at the 95th percentile, {longest} at most"
    context = getattr(model.get_text_config(), "max_position_embeddings", None)
    completion = config.training.max_completion_length
    if not isinstance(context, int) or longest + completion <= context:
        yield PreflightFinding(Mark.FINE, "lengths", result)
        return longest
    alone = sum(length >= context for length in lengths)
    over = sum(length + completion > context for length in lengths)
    what = (
        f"{_share(alone, lengths)} fill the model's context of {context} tokens without a completion"
        if alone
        else f"with training.max_completion_length={completion}, {_share(over, lengths)} take more than the model's "
        f"context of {context} tokens (the longest {longest + completion})"
    )
    yield PreflightFinding(Mark.WRONG, "lengths", f"{what}; {result}", _length_advice(lengths, context, completion))
    return longest


def _share(count: int, lengths: list[int]) -> str:
    return f"all {count} prompts" if count == len(lengths) else f"{count} of {len(lengths)} prompts"


def _length_advice(lengths: list[int], context: int, completion: int) -> str:
    """What makes prompts and completions fit the context. (A limit of prompts drops those above it.)"""
    ways = []
    if context > lengths[-1]:
        ways.append(f"lower training.max_completion_length to {context - lengths[-1]}")
    if context > completion:
        ways.append(f"set dataset.max_prompt_length={context - completion} or lower")
    if not ways:
        ways = ["choose a model with a longer context, or shorter prompts"]
    text = ", or ".join(ways)
    return f"{text[0].upper()}{text[1:]}."


def _vocabulary_finding(
    model: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> PreflightFinding:
    """Whether the model has an embedding for every token. (Tokens that no text has are no harm.)"""
    rows = int(model.get_text_config().vocab_size)
    used = {token for prompt in prompts for token in prompt} | {tokenizer.eos_token_id, tokenizer.pad_token_id}
    above = sorted(token for token in used - {None} if token >= rows)
    if above:
        return PreflightFinding(
            Mark.WRONG,
            "vocabulary",
            f"the tokenizer gives token {tokenizer.convert_ids_to_tokens(above[0])} ({above[0]}) to the prompts, and "
            f"the model's embedding has {rows} rows",
            "The tokenizer is of another model, or the embedding was not extended: take the model's own tokenizer.",
        )
    last = max(tokenizer.get_vocab().values(), default=-1)
    if last >= rows:
        return PreflightFinding(
            Mark.WARNING,
            "vocabulary",
            f"the tokenizer's last token is {last}, and the model's embedding has {rows} rows; no prompt has one of "
            "the tokens without a row",
        )
    return PreflightFinding(Mark.FINE, "vocabulary", f"every token of the tokenizer has one of {rows} embeddings")


def check_batch(config: Config, loaded: LoadedData, processes: int = 1) -> PreflightFinding:
    """The size of a generation batch. (That groups are not split is checked with the config.)"""
    training = config.training
    completions = training.generation_batch
    prompts = completions // training.num_generations
    result = f"a generation batch is {prompts} × {training.num_generations} = {completions} completions a process"
    try:
        check_size(config, loaded, processes)
    except ConfigError as error:
        return PreflightFinding(Mark.WRONG, "batch", str(error), error=error)
    if training.max_steps > 0:
        return PreflightFinding(Mark.FINE, "batch", f"{result}; {training.max_steps} steps")
    steps = math.ceil(len(loaded.train) * training.num_generations * training.num_iterations / completions)
    return PreflightFinding(Mark.FINE, "batch", f"{result}; about {steps} generation batches a pass over the data")


def check_router(config: Config, model: PretrainedConfig) -> None:
    """Raise a `ConfigError` if a model without a router has a router loss."""
    coefficient = config.training.router_aux_loss_coef
    if coefficient and not hasattr(model.get_text_config(), "output_router_logits"):
        raise ConfigError(
            f"training.router_aux_loss_coef={coefficient:g} is for mixtures of experts, and model.name="
            f"{config.model.name} is none: leave it out."
        )


def check_memory(config: Config, model: PretrainedConfig, prompt_length: int) -> Iterator[PreflightFinding]:
    """The memory estimate against this machine's memory, and the size of the checkpoints against its disk."""
    try:
        need = estimate_memory(config, model, prompt_length)
    except Exception as error:  # an architecture of another kind, or code of its own
        yield PreflightFinding(Mark.NOTE, "memory", f"it cannot be estimated for this model: {one_line(error)}")
        return
    available, device, less_for_vllm = beside_vllm(config, *available_memory())
    trained = "" if need.trained == need.parameters else f", {need.trained / 1e6:.1f} M of them trained"
    result = (
        f"{need.parameters / 1e6:.1f} M parameters{trained}; training about {_gigabytes(need.training)} at most "
        f"(weights {_gigabytes(need.weights)}, gradients {_gigabytes(need.gradients)}, optimiser "
        f"{_gigabytes(need.moments)}, activations {_gigabytes(need.activations)}, head {_gigabytes(need.head)}), "
        f"sampling about {_gigabytes(need.rollout)}; {device} has {_gigabytes(available)}"
    )
    most = max(need.training, need.rollout)
    if most > available and (other := _other_layout(config, model)):
        advice = f"The estimate is of AdamW in one process, and this run has {other}."
        yield PreflightFinding(Mark.WARNING, "memory", result, advice)
    elif most > available:
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
    if not _other_layout(config, model) and not config.training.save_only_model:
        yield from _check_disk(config, need)


def _other_layout(config: Config, model: PretrainedConfig) -> str:
    """What takes less memory than the estimate says; empty if nothing does."""
    training = config.training
    if splits_weights(Mesh.of(config.model.mesh_shape)) or training.fsdp or training.deepspeed:
        return "a sharded model"
    if config.launch.accelerate:
        return f"launch.accelerate={config.launch.accelerate}"
    if getattr(model, "quantization_config", None):
        return "quantised weights"
    optim = str(training.optim)
    return "" if "adamw" in optim and "bit" not in optim else f"training.optim={optim}"


def _check_disk(config: Config, need: MemoryEstimate) -> Iterator[PreflightFinding]:
    if config.training.save_strategy == "no":
        return
    try:
        check_free_space(Path(config.output_dir), need.stored, need.moments, keeps_best=config.evaluation.keep_best)
    except RunDirectoryError as error:
        yield PreflightFinding(Mark.WRONG, "disk", str(error), error=error)


def _turn_end(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The special token that the chat template puts after an assistant's answer; None without one."""
    marker = "covey7answer"
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": marker}]
    try:
        text = render(tokenizer, messages, answering=False)
    except ModelError:  # it may need arguments, or refuse such a conversation; the prompts of the data are rendered too
        return None
    _, _, tail = text.rpartition(marker)
    ids = tokenizer(tail, add_special_tokens=False).input_ids
    return next((int(i) for i in ids if i in set(tokenizer.all_special_ids)), None)


def _key(prompt: Any) -> str:
    return " ".join(str(prompt).split()).casefold()


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.0f} MB"
