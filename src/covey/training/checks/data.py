"""Checks of a run's data by its tokenizer, model and rewards: rows, lengths, memory, columns, gold answers.

`check_arguments` is for a trainer that is made in Python.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.answers import Outcome, Tags
from covey.answers.tasks import MODES
from covey.config import Config
from covey.config.groups.mesh import Mesh
from covey.config.groups.training import ASKS_FOR_NOTHING, REFUSED
from covey.config.named_code import is_stub
from covey.data.columns import PROMPT_NAMES
from covey.errors import ConfigError, DataError, ModelError, RunDirectoryError, one_line
from covey.evaluation.grading import answer_asked_by, grader_name
from covey.evaluation.stored import prompts_of
from covey.model.load import check_architecture, declared_eos_ids
from covey.model.memory import MemoryEstimate, available_memory, beside_vllm, estimate_memory, gigabytes
from covey.model.prompts import thinking_prefix, turn_end
from covey.model.starter import STARTERS
from covey.rewards import RewardSettings, find
from covey.rewards.library.answers import tag_marks
from covey.rewards.registry import GIVEN, columns_read
from covey.rewards.reward import whole_answers
from covey.rewards.runner import RewardRunner
from covey.training.checks.findings import SAMPLE, Known, Mark, PreflightFinding, Stage, check
from covey.training.checks.needs import PROMPTS_TRIED, check_free_space, check_size, own_functions, try_calls
from covey.training.processes import splits_weights

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from covey.environments.runner import EnvironmentRunner


_FEW_REPEATED = 0.01  # a harmless share
_SLACK = 1.2  # factor for the allocator


@check("stop tokens", Stage.MODEL_CONFIG)
def check_tokens(known: Known) -> Iterator[PreflightFinding]:
    """Whether the token that ends an answer in the chat template is one that generation stops at."""
    tokenizer = known.tokenizer
    stops = {tokenizer.eos_token_id, *declared_eos_ids(known.config.model)} - {None}
    names = ", ".join(f"{tokenizer.convert_ids_to_tokens(i)} ({i})" for i in sorted(stops)) or "none"
    end = turn_end(tokenizer)
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


@check("thinking", Stage.MODEL, Mark.WARNING)
def check_prompt_prefix(known: Known) -> Iterator[PreflightFinding]:
    """Whether the prompt opens the thinking tag for the model, so that completions lack it."""
    config = known.config
    first = prompts_of(known.loaded.train.select([0]))[0]
    prefix = thinking_prefix(known.tokenizer, first, config.rewards.think_tag, config.training.chat_template_kwargs)
    if whole_answers([""], [first], prefix, Tags(config.rewards.think_tag)) != [""]:
        yield PreflightFinding(
            Mark.WARNING,
            "thinking",
            f"the prompt ends inside an open <{config.rewards.think_tag}>, so completions start after it",
            "Rewards given by name and evaluations get completions with the tag prepended.",
        )


@check("rows", Stage.DATA)
def check_rows(known: Known) -> Iterator[PreflightFinding]:
    """Duplicate training prompts, and empty answers where something needs them.

    (Held-out problems in the training set are noted when the data are loaded.) Rows for an environment may differ by
    other columns than the prompt.
    """
    config, loaded = known.config, known.loaded
    own = config.environment.factory is not None
    prompts = [str(i) if own else _normalised(prompt) for i, prompt in enumerate(prompts_of(loaded.train))]
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


PRETRAINED = "Qwen/Qwen2.5-0.5B-Instruct"
"""What to take where the starter will not do."""
_SUM = re.compile(r"\d\s*[-+*/×·÷−]\s*\(?\d")
_MOST_LETTERS = 40  # around a sum: "Calculate the following expression:"


def are_sums(questions: Sequence[str]) -> bool:
    """Whether nearly all of these are what the starter knows: numbers with signs between them, and few words."""
    few = [sum(map(str.isalpha, text)) <= _MOST_LETTERS and _SUM.search(text) is not None for text in questions]
    return sum(few) >= 0.95 * len(few)


@check("starter", Stage.DATA, Mark.WARNING)
def check_starter(known: Known) -> Iterator[PreflightFinding]:
    """Whether the starter is to be trained on rows of which it knows nothing."""
    config = known.config
    if config.model.name not in STARTERS or not config.dataset.has_rows or config.environment.used:
        return
    rows = known.loaded.train.select(range(min(SAMPLE, len(known.loaded.train))))
    if not are_sums([str(prompt[-1]["content"]) for prompt in prompts_of(rows)]):
        yield PreflightFinding(
            Mark.WARNING,
            "starter",
            f"model.name={config.model.name} knows sums and differences of numbers alone, and the rows ask more",
            f"It will learn little more than the form: take a pretrained model, as in model.name={PRETRAINED}.",
        )


@check("batch", Stage.MODEL)
def check_batch(known: Known) -> Iterator[PreflightFinding]:
    """The size of a generation batch. (That groups are not split is checked with the config.)"""
    training, rows = known.config.training, len(known.loaded.train)
    completions = training.generation_batch
    prompts = completions // training.num_generations
    result = f"a generation batch is {prompts} × {training.num_generations} = {completions} completions a process"
    check_size(known.config, known.loaded, known.processes)
    steps = f"about {math.ceil(rows * training.num_generations * training.num_iterations / completions)} generation"
    length = f"{training.max_steps} steps" if training.max_steps > 0 else f"{steps} batches a pass over the data"
    yield PreflightFinding(Mark.FINE, "batch", f"{result}; {length}")


@check("lengths", Stage.MODEL)
def check_lengths(known: Known) -> Iterator[PreflightFinding]:
    """Prompts, as tokens, against the model's context and vocabulary."""
    config, model, ids = known.config, known.model, known.prompts
    if not all(ids):
        error = ModelError(
            f"The tokenizer of model.name={config.model.name} makes no tokens of {sum(not one for one in ids)} of "
            f"{len(ids)} prompts: its files are missing from the folder of the model (tokenizer.json), or they are of "
            "another model."
        )
        yield PreflightFinding(Mark.WRONG, "tokenizer", str(error), error=error)
    yield _vocabulary_finding(model, known.tokenizer, ids)
    lengths = sorted(map(len, ids))
    middle, high, longest = (lengths[min(len(lengths) - 1, int(q * len(lengths)))] for q in (0.5, 0.95, 1.0))
    supervised = config.sft.rows is not None
    kind = "examples" if supervised else "prompts"
    result = f"{kind} have {middle} tokens at the median, {high} at the 95th percentile, {longest} at most"
    context = getattr(model.get_text_config(), "max_position_embeddings", None)
    completion = 0 if supervised else config.training.max_completion_length
    if not isinstance(context, int) or longest + completion <= context:
        yield PreflightFinding(Mark.FINE, "lengths", result)
        return
    if supervised:
        text = f"{sum(length > context for length in lengths)} have more than the model's context of {context} tokens"
        yield PreflightFinding(Mark.WRONG, "lengths", f"{text}; {result}", f"Set sft.max_length={context} or lower.")
        return
    alone = sum(length >= context for length in lengths)
    over = sum(length + completion > context for length in lengths)
    what = (
        f"{_share(alone, lengths)} fill the model's context of {context} tokens without a completion"
        if alone
        else f"with training.max_completion_length={completion}, {_share(over, lengths)} take more than the model's "
        f"context of {context} tokens (the longest {longest + completion})"
    )
    yield PreflightFinding(Mark.WRONG, "lengths", f"{what}; {result}", _length_advice(lengths, context, completion))


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


@check("prompt form", Stage.MODEL)
def check_form(known: Known) -> Iterator[PreflightFinding]:
    """Whether the prompts ask for the form without which the rewards give nothing, unless the model brings it: in its
    chat template, or as tokens of its own."""
    config, tokenizer = known.config, known.tokenizer
    settings = RewardSettings.of(config.rewards, config.training.max_completion_length)
    funcs, weights = config.rewards.funcs, config.training.reward_weights or [1.0] * len(config.rewards.funcs)
    forms = {name: find(name, settings).asks for name, weight in zip(funcs, weights, strict=True) if weight > 0}
    if not any(forms.values()):
        return
    brought, asking = tokenizer.get_vocab(), [*tokenizer.batch_decode(known.prompts), str(tokenizer.chat_template)]
    there = {t for form in forms.values() for one in form for t in one if t in brought or any(t in a for a in asking)}
    lacking = {name: [one for one in form if there.isdisjoint(one)] for name, form in forms.items()}
    names = ", ".join(name for name, form in lacking.items() if form)
    if not names:
        yield PreflightFinding(Mark.FINE, "prompt form", "the prompts ask for what the rewards look for")
        return
    marks = dict.fromkeys(" or ".join(one) for form in lacking.values() for one in form)
    ask = "Think between {} and {}, then write the answer between {} and {}.".format(*tag_marks(settings.tags))
    known_form = all(mark.partition(" or ")[0] in ask for mark in marks)
    prompt = f", as in \"dataset.system_prompt='{ask}'\"" if known_form else ""
    yield PreflightFinding(
        Mark.WRONG,
        "prompt form",
        f"nothing asks the model for {' and '.join(marks)}, without which {names} can only give 0: neither "
        f"dataset.system_prompt, nor the rows, nor the chat template of model.name={config.model.name}",
        f"Ask for it in the prompt{prompt}, or take rewards that read any answer, such as accuracy.",
    )


@check("benchmarks", Stage.MODEL)
def check_benchmarks(known: Known) -> Iterator[PreflightFinding]:
    """Whether the benchmarks of the evaluations load: now, not after hours of training."""
    from covey.evaluation.job import BENCHMARKS, load_benchmark, named

    for name in (one for one in known.config.evaluation.benchmarks if named(one) in BENCHMARKS):  # others: `settings`
        load_benchmark(name, known.config)
    yield from ()


@check("weights", Stage.MODEL)
def check_weights(known: Known) -> Iterator[PreflightFinding]:
    """Whether the weight files are those of a model that can be trained."""
    check_architecture(known.config.model, known.source)
    yield from ()


@check("settings", Stage.MODEL)
def check_router(known: Known) -> Iterator[PreflightFinding]:
    """A router loss of a model without a router."""
    config, model = known.config, known.model
    coefficient = config.training.router_aux_loss_coef
    if coefficient and not hasattr(model.get_text_config(), "output_router_logits"):
        raise ConfigError(
            f"training.router_aux_loss_coef={coefficient:g} is for mixtures of experts, and model.name="
            f"{config.model.name} is none: leave it out."
        )
    yield from ()


@check("memory", Stage.MODEL)
def check_memory(known: Known) -> Iterator[PreflightFinding]:
    """The memory estimate against this machine's memory, and the size of the checkpoints against its disk."""
    config, model = known.config, known.model
    try:
        need = estimate_memory(config, model, max(map(len, known.prompts)))
    except Exception as error:  # an architecture of another kind, or code of its own
        yield PreflightFinding(Mark.NOTE, "memory", f"it cannot be estimated for this model: {one_line(error)}")
        return
    available, device, less_for_vllm = beside_vllm(config, *available_memory())
    trained = "" if need.trained == need.parameters else f", {need.trained / 1e6:.1f} M of them trained"
    result = (
        f"{need.parameters / 1e6:.1f} M parameters{trained}; training about {gigabytes(need.training)} at most "
        f"({need.parts}), sampling about {gigabytes(need.rollout)}; {device} has {gigabytes(available)}"
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


def _normalised(prompt: Any) -> str:
    return " ".join(str(prompt).split()).casefold()


def check_arguments(trainer: Any, *args: Any, **kwargs: Any) -> Any:
    """Check what a trainer of this class is made with, before anything is loaded: rows have a `prompt` column, if the
    columns are known and no environment makes prompts, something is trained, and every setting works.

    Returns:
        Its GRPOConfig; None if it is not given.

    Raises:
        DataError: with the argument, its columns, and a fix.
        ConfigError: a setting cannot work.
        ModelError: nothing of the model would be trained.
    """
    arguments = signature(trainer).bind_partial(*args, **kwargs).arguments
    _check_prompts(arguments)
    config, adapters = arguments.get("args"), arguments.get("peft_config")
    model: Any = arguments.get("model")
    for name, why in REFUSED.items():
        if getattr(config, name, None) not in ASKS_FOR_NOTHING:
            raise ConfigError(f"{name}={getattr(config, name)} has no effect in GRPO: {why}. Leave it out.")
    if getattr(adapters, "inference_mode", False):
        raise ModelError("peft_config has inference_mode=True, so that nothing would be trained. Set it to False.")
    frozen = hasattr(model, "parameters") and not any(one.requires_grad for one in model.parameters())
    if frozen and adapters is None:
        advice = (
            "Load its adapters by PeftModel.from_pretrained(model, folder, is_trainable=True): peft's default is False."
            if hasattr(model, "peft_config")
            else "Unfreeze what is to be trained (requires_grad_), or pass a peft_config."
        )
        raise ModelError(f"Nothing would be trained: all weights of the model have requires_grad=False. {advice}")
    return config


def _check_prompts(arguments: Mapping[str, Any]) -> None:
    if arguments.get("environment_factory") is not None:
        return
    for argument in ("train_dataset", "eval_dataset"):
        given = arguments.get(argument)
        parts = {f"{argument}[{key!r}]": part for key, part in given.items()} if isinstance(given, Mapping) else {}
        for name, dataset in (parts or {argument: given}).items():
            columns = getattr(dataset, "column_names", None)
            computed = (getattr(dataset, "format", None) or {}).get("type") == "custom"  # by set_transform, per row
            if not isinstance(columns, list) or "prompt" in columns or computed:
                continue
            near = next((column for column in PROMPT_NAMES if column in columns), None)
            advice = (
                f'Rename the column: {name}.rename_column("{near}", "prompt").'
                if near
                else f'Add one: {name}.map(lambda row: {{"prompt": …}}), with a text or a list of messages.'
            )
            raise DataError(
                f"The rows of {name} have no column `prompt`; they have "
                f"{', '.join(map(str, columns)) or 'no columns at all'}. {advice}"
            )


def columns_wanted(config: Config, runner: EnvironmentRunner | None, columns: Sequence[str]) -> PreflightFinding:
    """Which columns of the data each reward and each environment reads; in brackets what it can do without."""
    told = []
    settings = RewardSettings.of(config.rewards, config.training.max_completion_length)
    for name in config.rewards.funcs:
        own = _keywords(find(name, settings).batch, without=GIVEN) if ":" in name else []
        told.append((name, own if ":" in name else list(columns_read(name)[:1])))
    if runner is not None:
        for chosen, (factory, _) in config.environment.factories.items():
            told.append((factory, _keywords(runner.instances([chosen])[0].reset)))
    wanted = "; ".join(f"{name} reads {', '.join(names)}" for name, names in told if names)
    there = f"the rows have {', '.join(columns)}"
    return PreflightFinding(Mark.FINE, "columns", f"{wanted or 'no reward or environment names any'}; {there}")


def _keywords(function: Callable[..., Any], without: Collection[str] = ()) -> list[str]:
    """The names of what a function takes by keyword."""
    kinds = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    found = [p for p in signature(function).parameters.values() if p.kind in kinds and p.name not in without]
    return [p.name if p.default is p.empty else f"[{p.name}]" for p in found]


@check("own reward", Stage.DATA, Mark.WARNING)
def check_stub(known: Known) -> Iterator[PreflightFinding]:
    """Whether a reward is still what `covey init` wrote for the user to change."""
    for name in filter(is_stub, known.config.rewards.funcs):
        text = f"{name} is as covey init wrote it: it rewards wording, and knows nothing of what is right"
        yield PreflightFinding(Mark.WARNING, "own reward", text, "Change it to what you want, before its curves count.")


_FEW_WRONG = 0.05  # share of unscorable rows up to which this is a warning only
UNLIKELY = "-9786.13451"  # answer
_LISTED = 30  # rows that one finding names


@check("gold answers", Stage.MODEL, main_only=True)
def check_answers(known: Known) -> Iterator[PreflightFinding]:
    """Whether each gold answer, put into the expected format, is right by the rewards and the grader of the run, and
    whether the user's own can be called with it."""
    config, loaded = known.config, known.loaded
    settings = RewardSettings.of(config.rewards, config.training.max_completion_length)
    tags = Tags(config.rewards.think_tag, config.rewards.answer_tag)
    found = [find(name, settings) for name in config.rewards.funcs]
    graders = {reward.graded_by or reward.name for reward in found if reward.sample or reward.graded_by}
    grader = grader_name(config)
    graders |= {grader} if grader is not None and ":" not in grader else set()
    graders -= {"code"}  # its rows have tests, and no program that passes them
    without = replace(config.rewards, funcs=())  # graders and calls go to the workers by name
    with RewardRunner.of(without, max_completion_length=config.training.max_completion_length) as runner:
        if own_functions(config):
            runner.pool.start(known.output)
            few = list(loaded.train.select(range(min(PROMPTS_TRIED, len(loaded.train)))))
            texts = [gold_completion({"answer": "42", **row}, tags, str(grader)) for row in few]
            encode = lambda text: known.tokenizer(text, add_special_tokens=False).input_ids  # noqa: E731
            yield from try_calls(config, few, texts, runner, encode)
        for name, rows in {"train": loaded.train, **loaded.evaluation}.items():
            sample = list(rows.select(range(min(SAMPLE, len(rows)))))
            for grader in sorted(graders):
                texts = [gold_completion(row, tags, grader) for row in sample]
                outcomes = [graded.outcome for graded in runner.grade(grader, texts, sample)]
                yield _gold_finding(f"{grader} on {name}", sample, outcomes)
                if grader == "accuracy":
                    other = gold_completion({"answer": UNLIKELY}, tags, grader)
                    outcomes = [graded.outcome for graded in runner.grade(grader, [other] * len(sample), sample)]
                    yield from _unreadable_finding(f"{grader} on {name}", sample, outcomes)


def _gold_finding(check: str, rows: Sequence[Any], outcomes: Sequence[Outcome | None]) -> PreflightFinding:
    failed = [(n, o) for n, o in enumerate(outcomes) if o is not Outcome.RIGHT]
    if not failed:
        return PreflightFinding(Mark.FINE, check, f"all {len(rows)} gold answers score full marks")
    shown = "; ".join(f"row {n}: {str(rows[n]['answer'])[:60]!r} is {outcome}" for n, outcome in failed[:3])
    shown += _further_rows([n for n, _ in failed])
    return PreflightFinding(
        Mark.WRONG if len(failed) > _FEW_WRONG * len(rows) else Mark.WARNING,
        check,
        f"{len(failed)} of {len(rows)} gold answers do not score full marks ({shown})",
        "Nothing can earn the reward on these rows: fix the answers, or dataset.answer_extractor.",
        name="gold_answers",
    )


def _further_rows(rows: Sequence[int]) -> str:
    others = ", ".join(map(str, rows[3:_LISTED]))
    return f"; also rows {others}{' and more' if len(rows) > _LISTED else ''}" if others else ""


def _unreadable_finding(
    check: str, rows: Sequence[Any], outcomes: Sequence[Outcome | None]
) -> Iterator[PreflightFinding]:
    """The rows whose gold answer cannot be parsed, so that no answer can be compared with it."""
    found = [n for n, outcome in enumerate(outcomes) if outcome is Outcome.UNPARSABLE_GOLD]
    if not found:
        return
    shown = "; ".join(f"row {n}: {str(rows[n]['answer'])[:60]!r}" for n in found[:3])
    yield PreflightFinding(
        Mark.WARNING,
        check,
        f"{len(found)} of {len(rows)} gold answers cannot be read as mathematics ({shown}{_further_rows(found)})",
        "On these rows only the identical text earns the reward: fix them.",
    )


def gold_completion(row: Any, tags: Tags, grader: str) -> str:
    """A completion in the expected format that gives the row's own answer, or one of the right ones."""
    answer = row["answer"]
    if grader in MODES:  # its answer is the task: a solution is a completion
        answer = row.get("solution") or next(iter(MODES[grader](answer) or ()), answer)
    return f"<{tags.think}>\nAs given.\n</{tags.think}>\n<{tags.answer}>{answer}</{tags.answer}>"
