"""A recipe for rows of one's own: what they hold decides reward, prompt, lengths and sizes."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from covey.advice import command
from covey.answers import EXTRACTORS, gold_answer
from covey.answers.maths.agree import is_readable
from covey.answers.maths.notation import read_number
from covey.answers.maths.shape import read_choice
from covey.answers.tasks import read_countdown, read_graph
from covey.config import Config, Flag, compose
from covey.data.columns import (
    ANSWER_NAMES,
    PROMPT_NAMES,
    Columns,
    RowNeeds,
    answer_text,
    check_prompts_differ,
    find_columns,
    prepare,
    usual_column,
)
from covey.data.holdout import test_rows
from covey.data.prompts import reply
from covey.data.sources import read_rows
from covey.data.table import Table, reading
from covey.errors import ConfigError, ModelError
from covey.evaluation.stored import prompts_of
from covey.model.load import load_tokenizer, resolve_model, source_options
from covey.model.prompts import prompt_lengths, render
from covey.model.starter import STARTERS
from covey.rewards.library.code import COLUMNS
from covey.training.checks.data import PRETRAINED, are_sums
from covey.training.checks.findings import SAMPLE

_MATHS, _TEXT, _TESTS, _NONE = "mathematics", "free text", "programs with tests", "none"
_TASKS = {"countdown": read_countdown, "graph_coloring": read_graph}
_FORMS = {
    "numbers": "the final number",
    "choices": "the letter of the right choice",
    "words": "the answer itself",
    _MATHS: "the final answer, in its simplest exact form,",
    "countdown": "the expression, with numbers, + - * / and parentheses,",
    "graph_coloring": "the colours, as in A=red B=green,",
}
_ASK = "Think step by step between <think> and </think>. Then write only {} between <answer> and </answer>."
_ASK_PROGRAM = "Write a program that solves the problem. End with all of it in one block: ```python … ```"
_LEAST = {**dict.fromkeys((_MATHS, _TESTS, *_TASKS), 512), _TEXT: 128}  # tokens of a completion; for other answers 256
_FEW = 0.05  # share of the rows that decides nothing


@dataclass(frozen=True, slots=True)
class Proposal:
    """What rows hold, and the keys of a recipe for them."""

    keys: Mapping[str, Any]
    facts: Mapping[str, str]
    shown: Sequence[tuple[str, str | None]]
    """Three prompts as the model will see them, each with its answer."""
    needs_model: bool
    """Whether nobody named a model, and the starter would not do."""
    needs_reward: bool
    """Whether no rule can check the answers."""
    no_answers: bool
    """Whether there are none, as far as the names of columns tell."""

    def recipe(self, stub: Path | None = None) -> str:
        """The recipe: the template with these keys; `stub` is the file of the user's reward."""
        keys = {**self.keys, **({"rewards.funcs": [f"{stub}:my_reward"]} if stub else {})}
        text = Path(__file__).with_name("own_rows.yaml").read_text(encoding="utf-8")
        text = text.replace("{rows}", Path(keys["dataset.path"]).name).replace("{answers}", self.facts["answers"])
        recipe = text[: text.index("\n") + 1]
        for group, inside in re.findall(r"^(\w+):\n((?: .*\n)+)", text, re.MULTILINE):
            lines = ""
            for why, names in re.findall(r"((?:  #.*\n)+)((?:  \w+:\n)+)", inside):
                found = [name for name in re.findall(r"\w+", names) if f"{group}.{name}" in keys]
                lines += why if found else ""
                lines += "".join(f"  {name}: {_yaml(keys.pop(f'{group}.{name}'))}\n" for name in found)
            recipe += f"\n{group}:\n{lines}" if lines else ""
        recipe += "\n# As given on the command line.\n" if keys else ""
        return recipe + "".join(f"{key}: {_yaml(value)}\n" for key, value in keys.items())


def propose(file: str, model: str | None, words: Sequence[str | Flag] = ()) -> Proposal:
    """Read rows, and choose what trains on them.

    Args:
        file: of rows, as `dataset.path` takes one.
        model: what `model.name` takes; None takes the starter where it will do, else a proposal.
        words: keys that the user sets, which win.

    Raises:
        CoveyError: the rows cannot be read; the model cannot be loaded, or is the starter and cannot learn them.
    """
    composed = compose([Flag("dataset.path", (file,)), *words, *([Flag("model.name", (model,))] if model else [])])
    config, typed = composed.config, {key: one.written for one in composed.given for key in one.keys}
    if config.environment.used:
        raise ConfigError(f"With an environment, {file} needs no recipe of its own: set dataset.path to it.")
    if config.model.name != "starter" or "model.name" in typed:
        model = config.model.name
    keys = dict[str, Any]({"dataset.path": file})

    def put(found: Mapping[str, Any]) -> None:
        nonlocal config
        keys.update({key: value for key, value in found.items() if key not in typed or key == "model.name"})
        own = {key.removeprefix("dataset."): value for key, value in keys.items() if key.startswith("dataset.")}
        config = replace(config, dataset=replace(config.dataset, **own))

    source = read_rows(config.dataset, [], RowNeeds(None))
    table = source.train
    put(_guessed_columns(table) if config.dataset.prompt_column is None else {})
    columns = find_columns(table, config.dataset, RowNeeds(None))
    raw = _raw_answers(table, columns)
    tests = any(name in table.columns for name in COLUMNS)
    answered = not tests and any(text.strip() for text in raw)
    needs = RowNeeds("the reward" if answered else None)
    marks = [name for name in ("gsm8k", "boxed", "answer_tag") if answered and all(map(EXTRACTORS[name], raw))]
    put({"dataset.answer_extractor": marks[0]} if marks else {})
    check_prompts_differ(table, columns, config.dataset, needs)
    prepared = prepare(table, config.dataset, [], needs=needs)
    sample = [*range(0, len(table), math.ceil(len(table) / SAMPLE))]
    rows, questions = [*reading(prepared.data.select(sample))], [prepared.questions[i] for i in sample]
    kinds = Counter(_kind(row["answer"]) for row in rows) if answered else Counter([_TESTS if tests else _NONE])
    sums = are_sums(questions) and set(kinds) == {"numbers"}
    put({"model.name": model or ("starter" if sums else PRETRAINED)})
    if (starter := keys["model.name"] in STARTERS) and not sums:
        raise ConfigError(
            f"{file} holds other things than sums and their results (its first question: {questions[0][:60]!r}), and "
            f"model.name={keys['model.name']} knows nothing else. Take a pretrained model, on the hub or in a folder: "
            f"{command('init {file} --model {model}', file=file, model=PRETRAINED)}."
        )
    chosen = "rewards.funcs" in typed
    needs_reward = not chosen and (bool(kinds[_NONE]) or kinds[_TEXT] > _FEW * kinds.total())
    put({} if chosen or needs_reward else _rewards(rows, kinds, starter=starter))

    answers = [raw[i] for i in sample] if marks or kinds[_TEXT] else []
    solved = answers or [str(row["solution"]) for row in rows if row.get("solution")]
    asked = prompts_of(reading(prepare(table.select(sample), config.dataset, [], needs=needs).data))
    few = sorted({0, len(rows) // 2, len(rows) - 1})
    named = keys["model.name"] if model or sums else None
    lengths, prompts, found = _lengths(config, asked, few, solved, kinds, named)
    put({key: value for key, value in found.items() if not starter or key.startswith("dataset.")})
    put({"dataset.test_size": 100 if len(table) > 1 else 0} if source.test is None else {})
    split_off = test_rows(len(table), config.dataset, table.name) if source.test is None else 0
    trained = min(len(table) - split_off, config.dataset.max_train_samples or len(table))
    put(_sizes(trained, starter=starter))
    for written in typed.values():
        if written.name not in ("dataset.path", "model.name"):
            keys[written.name] = written.value
    letters = (sign for text in questions for sign in text if sign.isalpha())
    scripts = Counter(unicodedata.name(sign, "?").split()[0].capitalize() for sign in letters)
    where = f"'{columns.answer}'" if columns.answer else "the reply at its end" if columns.replies else "none"
    facts = {
        "rows": f"{trained} to train on, {split_off or min(len(source.test or ()), config.dataset.test_size)} held out",
        "columns": f"prompt '{columns.prompt}', answer {where}; all: {', '.join(table.columns)}",
        "answers": _shares(kinds),
        "scripts": _shares(scripts) if scripts else "digits and signs only",
        "lengths": lengths,
    }
    golds = [rows[i]["answer"] if answered else None for i in few]
    shown = [*zip(prompts, golds, strict=True)]
    return Proposal(keys, facts, shown, model is None and not sums, needs_reward, no_answers=not answered)


def _guessed_columns(table: Table) -> Mapping[str, Any]:
    """Where no column has a usual name: the first with texts of several words, and the only one that follows it."""
    if usual_column(table, PROMPT_NAMES):
        return {}
    texts = {name: [str(value) for value in table.values(name)] for name in table.columns}
    asks = [name for name, found in texts.items() if sum(" " in text for text in found) > len(table) / 2]
    after = table.columns[table.columns.index(asks[0]) + 1 :] if asks else []
    answer = after if len(after) == 1 and not usual_column(table, ANSWER_NAMES) else []
    return dict(zip(("dataset.prompt_column", "dataset.answer_column"), asks[:1] + answer, strict=False))


def _raw_answers(table: Table, columns: Columns) -> list[str]:
    """The answers as they are written; empty where there is none."""
    if columns.replies:
        return [reply(value) or "" for value in table.values(str(columns.prompt))]
    return [answer_text(value) or "" for value in table.values(columns.answer)] if columns.answer else [""] * len(table)


def _kind(answer: str) -> str:
    """What kind of answer a text is."""
    text = gold_answer(answer)
    if read_number(text) is not None:
        return "numbers"
    if read_choice(text) is not None:
        return "choices"
    if len(text) <= 60 and len(text.split()) <= 4 and not any(sign in r"0123456789\^=+*/<>${}" for sign in text):
        return "words"
    return next((name for name, read in _TASKS.items() if read(text)), _MATHS if is_readable(text) else _TEXT)


def _rewards(rows: Sequence[Mapping[str, Any]], kinds: Counter[str], *, starter: bool) -> Mapping[str, Any]:
    """Rewards, grader, and the prompt that asks for what they look for, unless the rows do."""
    kind = kinds.most_common(1)[0][0]
    sure = kinds[kind] >= (1 - _FEW) * kinds.total()
    readable = sum(is_readable(gold_answer(row["answer"])) for row in rows) if kind != _TESTS else 0
    name = kind if kind in _TASKS and sure else "accuracy" if readable >= (1 - _FEW) * len(rows) else "exact_match"
    name = "code" if kind == _TESTS else "exact_match" if starter else name
    texts = [str(row["prompt"]) for row in rows]
    tags, boxed = (sum(mark in text for text in texts) > len(texts) / 2 for mark in ("<answer>", r"\boxed"))
    boxed = boxed and name == "accuracy"
    found: dict[str, Any] = {"evaluation.grader": name}
    if not (starter or tags or boxed):
        form = kind if sure else _MATHS if _MATHS in kinds else "words"
        asked = _ASK_PROGRAM if name == "code" else _ASK.format(_FORMS[form])
        own = any(message["role"] == "system" for message in rows[0]["prompt"])
        key, text = ("user_prompt_template", f"{{prompt}}\n\n{asked}") if own else ("system_prompt", asked)
        found[f"dataset.{key}"] = text
    found["rewards.funcs"] = [name] if boxed else [name, "code_format" if name == "code" else "format"]
    return {**found, "training.reward_weights": [1.0, 0.2][: len(found["rewards.funcs"])]}


def _lengths(
    config: Config,
    asked: Sequence[Any],
    few: Sequence[int],
    solved: Sequence[str],
    kinds: Counter[str],
    model: str | None,
) -> tuple[str, list[str], Mapping[str, Any]]:
    """What to say of lengths, the few prompts as the model sees them, and limits; guessed without a model."""
    arguments, context, about = config.training.chat_template_kwargs, None, ""
    try:
        tokenizer = None if model is None else load_tokenizer(replace(config.model, name=model))
    except ModelError:
        if Path(resolve_model(str(model))).is_dir():
            raise
        tokenizer = None
    if tokenizer is None:
        prompts, about = ["\n".join(f"{one['role']}: {one['content']}" for one in prompt) for prompt in asked], "about "
        shown = [prompts[i] for i in few]
        lengths, solutions = ([max(3 * len(t.split()) // 2, len(t) // 5) for t in texts] for texts in (prompts, solved))
    else:
        from transformers import AutoConfig

        found = AutoConfig.from_pretrained(resolve_model(str(model)), **source_options(config.model))
        context = getattr(found.get_text_config(), "max_position_embeddings", None)
        shown = [render(tokenizer, asked[i], arguments) for i in few]
        lengths = prompt_lengths(tokenizer, arguments)([*asked])
        solutions = [len(tokenizer(text, verbose=False).input_ids) for text in solved]
    lengths, solutions = sorted(lengths), sorted(filter(None, solutions))
    text = f"prompts {about}{lengths[len(lengths) // 2]} tokens at the median, {lengths[-1]} at most"
    tokens = max(_LEAST.get(kind, 256) for kind, count in kinds.items() if count > _FEW * kinds.total())
    if solutions:
        text += f"; solutions {solutions[len(solutions) // 2]} and {solutions[-1]}"
        tokens = min(max(tokens, 64 * math.ceil(1.5 * _high(solutions) / 64)), 1024)
    if context is None:
        return text, shown, {"training.max_completion_length": tokens}
    tokens = max(1, min(tokens, context // 2, context - _high(lengths)))
    longest = {"dataset.max_prompt_length": max(1, context - tokens)} if lengths[-1] + tokens > context else {}
    return text, shown, {"training.max_completion_length": tokens, **longest}


def _high(lengths: Sequence[int]) -> int:
    return lengths[int((1 - _FEW) * (len(lengths) - 1))]


def _sizes(rows: int, *, starter: bool) -> Mapping[str, Any]:
    """The batch and the number of steps; the starter has its own, but for few rows."""
    prompts = 2 ** int(math.log2(min(16 if starter else 8, rows)))
    found = {"training.max_steps": min(100 if starter else 200, max(20, 20 * rows // prompts))}
    if not starter or prompts < 16:
        sizes = ("num_generations", 8), ("per_device_train_batch_size", 8), ("gradient_accumulation_steps", prompts)
        found |= {f"training.{name}": size for name, size in sizes}
    return found if starter else {**found, "training.learning_rate": 1e-5}


def _shares(counts: Counter[str]) -> str:
    """What there is, the most frequent first, each with its share."""
    shares = {name: f"{count / counts.total():.0%}" for name, count in counts.most_common()}
    return ", ".join(f"{name} {share}" for name, share in shares.items() if share != "0%")


def _yaml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False).replace("${", "\\\\${")
