"""Rollouts of any trainer: which column of their files holds what, and the rows in one form.

Recognised as they are written by TRL (`log_completions`, trainer/grpo_trainer.py), verl (`rollout_data_dir`,
trainer/ppo/ray_trainer.py), prime-rl and verifiers (verifiers/utils/save_utils.py), AReaL (`dump_to_file`,
areal/infra/workflow_executor.py), NeMo-RL (`train_data_step…`, nemo_rl/algorithms/grpo.py, utils/logger.py), OpenRLHF
(openrlhf/cli/batch_inference.py), ms-swift (trainers/rlhf_trainer/grpo_trainer.py), SkyRL (`dumped_evals`) and Covey.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, repeat, zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from covey.config.groups.dataset import DATA_FILES
from covey.data.columns import ANSWER_NAMES, CONVERSATION_NAMES, PROMPT_NAMES, answer_text, usual_column
from covey.data.files import DataRow, find_path, listing, read_files
from covey.data.prompts import as_messages, question
from covey.data.table import Table, WrittenFloat, dataset_of, encode
from covey.errors import ConfigError, DataError
from covey.runlog import RunDirectory

_INSIDE = ("reference", "reward_spec.ground_truth", "env_extras.reward_spec.ground_truth")
COLUMNS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "completion": (
            *("completion", "response", "output", "generation", "generated_text", "model_output"),
            *("completions", "responses", "outputs", "output_response", "content", *CONVERSATION_NAMES),
        ),
        "prompt": (*PROMPT_NAMES, "prompts", "inputs", "input_prompt"),
        "reward": ("reward", "total_reward", "score", "rewards", "scores", "correct", "is_correct", "acc"),
        "gold": ("gts", "gold", "gold_answer", "ground_truth", "reference_answer", *ANSWER_NAMES, *_INSIDE),
        "step": ("step", "gen_step", "global_step", "training_step", "iteration", "rollout_id"),
        "group": ("group", "group_id", "group_index", "prompt_group", "uid", "prompt_id", "example_id", "task_id"),
        "truncated": ("truncated", "is_truncated", "finish_reason", "stop_reason", "status"),
    }
)
"""What is read of a file, and the names to look for, in this order and ignoring case."""

_OF_ANSWERS = re.compile(r"(?!.*format).*(accura|correct|answer|math|verif|exact|countdown)", re.IGNORECASE)
_NO_REWARD = re.compile(r"advantages?|environment_seconds|\w+_weight")
_HELD_OUT = re.compile(r"(?:^|[/_.-])(?:val|valid|validation|evals?|evaluation|test)(?=[/_.-])", re.IGNORECASE)
_END = re.compile(r"(?:<\|(?:im_end|endoftext|eot_id|end_of_text|end)\|>|</s>|<eos>|<end_of_turn>|\s)+\Z")


class Rollouts(NamedTuple):
    """What was read; what is not known is None."""

    rows: list[DataRow]
    """With `file`, `row` (its line or number there), `step`, `prompt`, `completion`, `gold`, `rewards` by function,
    `reward` (the sum of those that a grader is compared with), `group` and `truncated`."""
    columns: dict[str, list[str]]
    """Of the first file, by what they hold; `compared` are the rewards that check answers, if that is known."""
    files: list[str]
    left_out: dict[str, list[str]]
    """Files without completions, or without a column that was given, and their columns."""
    notes: list[str]
    """What was done with the files, once each."""


def read_rollouts(paths: Sequence[str], given: Mapping[str, str]) -> Rollouts:
    """Read files, and all data files of folders: of a run, its completions.

    Args:
        given: columns by what they hold; for `gold` also a file of questions and answers.

    Raises:
        ConfigError: every file lacks a given column.
        DataError: one cannot be read, or none has completions.
    """
    found, gold = Rollouts([], {}, [], {}, []), Path(given.get("gold", ""))
    named = {what: name for what, name in given.items() if what != "gold" or not gold.is_file()}
    roots = (find_path(text, "ROLLOUTS") for text in paths)
    places = [(path, root) for root in roots for path in _files(root) if path.stat().st_size]
    inside = {path: str(path.relative_to(root)) if root.is_dir() else path.name for path, root in places}
    held_out = [str(path) for path, name in inside.items() if _HELD_OUT.search(name)]
    if 0 < len(held_out) < len(inside):
        places = [one for one in places if str(one[0]) not in held_out]
        found.notes.append(f"Left out as evaluation by their names; named alone they are read: {listing(held_out)}")
    for path, root in places:
        table = read_files([path], "ROLLOUTS")
        columns = _columns(table, named) if all(map(table.has, named.values())) else {}
        if "completion" in columns:
            table = _lines_as_rows(table, columns)
            columns = _columns(table, named)
            found.columns.update({} if found.files else columns)
            found.files.append(str(path))
            found.rows.extend(_rows(table, columns, _step_of(path, root), found.notes))
        else:
            found.left_out[str(path)] = table.columns
    if found.left_out and not found.rows:
        _columns(table, named)  # raises for a column that was given
    for file, there in found.left_out.items() if not found.rows else ():
        raise DataError(
            f"{file} has no column that looks like completions ({', '.join(COLUMNS['completion'])}); it has "
            f"{listing(there)}. Name it with --completion NAME, and others with --prompt, --reward and --gold."
        )
    if not found.rows:
        raise DataError(f"{', '.join(paths)}: there are no rollouts, as no file has any rows.")
    if gold.is_file():
        found.columns["gold"] = [str(gold)]
        answers, known = _answers(read_files([gold], "--gold")), dict[str, str | None]()
        for row in found.rows:
            asked = question(row["prompt"] or "", drop_reply=False)
            if asked not in known:  # a template may have put more around it
                inside = (one for one in answers if one == asked or one in asked)
                known[asked] = answers.get(max(inside, key=len, default=""))
            row["gold"] = known[asked]
    return found


def _answers(table: Table) -> dict[str, str | None]:
    asked, answer = usual_column(table, PROMPT_NAMES), usual_column(table, ANSWER_NAMES)
    if asked is None or answer is None:
        raise DataError(f"--gold {table.name}: no columns look like questions and answers; it has {table.columns}.")
    pairs = zip(table.values(asked), table.values(answer, WrittenFloat), strict=True)
    return {question(one, drop_reply=False): answer_text(held) for one, held in pairs}


def _files(root: Path) -> list[Path]:
    """The data files of a folder in the order of their numbers; what an audit wrote is left out."""
    if root.is_file():
        return [root]
    root = root / "completions" if (root / "completions").is_dir() else root
    found = [path for path in root.rglob("*") if path.name.lower().endswith(DATA_FILES) and path.is_file()]
    found = [path for path in found if not any(RunDirectory(folder).audit.exists() for folder in path.parents)]
    rows = [path for path in found if path.suffix.lower() not in (".json", ".csv", ".tsv")] or found
    if not rows:
        raise DataError(f"{root}: this folder has no data files, such as .jsonl or .parquet.")
    return sorted(rows, key=lambda path: [(len(part) * part.isdigit(), part) for part in re.split(r"(\d+)", str(path))])


def _step_of(path: Path, root: Path) -> int:
    """The step in a file's place: `step_3/x.jsonl`, `3/x.jsonl`, `train_data_step3.jsonl`, `3.jsonl`; else 0."""
    inside = path.relative_to(root) if root.is_dir() else Path(path.parent.name, path.name)
    named = re.findall(r"step[_-]?(\d+)", inside.as_posix(), re.IGNORECASE)[-1:]
    folders = [part for part in inside.parts[:-1] if part.isdigit() and root.is_dir()]
    return int(next(iter([*named, *folders, *re.findall(r"(?:^|[_-])(\d+)$", inside.name.partition(".")[0])]), 0))


def _columns(table: Table, given: Mapping[str, str]) -> dict[str, list[str]]:
    there = {name.lower(): name for name in reversed([*table.columns, *table.inner_columns])}
    for what, name in given.items():
        if name not in there.values():
            raise ConfigError(f"--{what} {name}: {table.name} has no such column; it has {listing(table.columns)}.")
    found = {what: [name] for what, name in given.items()}
    for what, usual in COLUMNS.items():
        free = {one: name for one, name in there.items() if [name] not in found.values()}
        if what not in found and (first := next((free[one] for one in usual if one in free), None)):
            found[what] = [first]
    floats = [name for name, kind in table.data.features.items() if str(getattr(kind, "dtype", "")).startswith("float")]
    functions = [name for name in floats if not _NO_REWARD.fullmatch(name)]
    (name,) = found.get("reward", [""])
    if not {"advantage", "advantages"} & {*floats} or name not in ("", "acc"):  # else TRL: a column of each, no sum
        functions = [one for one in table.inner_columns if one.startswith(f"{name}.")] or [name][: bool(name)]
    if functions:
        checked = [one for one in functions if _OF_ANSWERS.match(one)]
        found |= {"reward": functions, "compared": checked if len(checked) == 1 else functions}
    return found


def _lines_as_rows(table: Table, columns: Mapping[str, list[str]]) -> Table:
    """As rows, ms-swift's lines: lists of all columns, as long as each other, of texts in prompt and completion."""
    first = {name: table.select([0]).values(name)[0] for name in table.columns}
    texts = [first.get(columns.get(what, [""])[0]) for what in ("prompt", "completion")]
    sizes = [len(one) for one in first.values() if isinstance(one, list)]
    talk = any(not isinstance(one, list) or not one or isinstance(one[0], dict) for one in texts)
    if talk or len(sizes) < 3 or len({*sizes}) > 1:
        return table
    held = {name: table.values(name) for name in table.columns}
    rows: list[tuple[Any, ...]] = []
    for number, line in zip(table.origins[0].numbers, zip(*held.values(), strict=True), strict=True):
        size = max((len(one) for one in line if isinstance(one, list)), default=1)
        cells = (one if isinstance(one, list) else repeat(one, size) for one in line)
        rows += zip_longest(repeat(number, size), *cells)
    numbers, *values = zip(*rows, strict=True)
    origin = replace(table.origins[0], numbers=numbers)
    return Table(dataset_of(encode(dict(zip(held, values, strict=True)))), (origin,))


def _rows(table: Table, columns: Mapping[str, list[str]], step: int, notes: list[str]) -> Iterator[DataRow]:
    held = {name: [*map(_single, table.values(name, WrittenFloat))] for name in chain.from_iterable(columns.values())}
    for name in columns.get("reward", ()):
        note = f"{name} holds a list of scores, one a token or turn: the reward is their sum."
        if note not in notes and any(isinstance(value, list) for value in held[name]):
            notes.append(note)
    tasks = table.values("task") if "task" in table.columns else [""] * len(table)
    for at, number in enumerate(table.origins[0].numbers):
        row = {what: held[columns[what][0]][at] if what in columns else None for what in COLUMNS}
        rewards = {name: _number(held[name][at]) for name in columns.get("reward", ())}
        compared = [one for name in columns.get("compared", ()) if (one := _number(held[name][at])) is not None]
        prompt, completion = _conversation(row["prompt"], row["completion"])
        own_step, gold, cut_off = _number(row["step"]), row["gold"], row["truncated"]
        yield {
            **{"file": table.origins[0].name, "row": number, "step": step if own_step is None else int(own_step)},
            **{"prompt": prompt, "completion": completion, "rewards": rewards},
            "reward": math.fsum(compared) if compared else None,
            "gold": None if gold in (None, "") else answer_text(gold),
            "group": None if row["group"] is None else f"{tasks[at]}/{row['group']}",  # verifiers numbers each task's
            "truncated": None if cut_off is None else cut_off in (True, "length", "truncated"),
        }


def _single(value: Any) -> Any:
    """The value in NeMo-RL's batches of one."""
    while isinstance(value, list) and len(value) == 1 and not isinstance(value[0], dict):
        (value,) = value
    return value


def _conversation(prompt: Any, completion: Any) -> tuple[Any, Any]:
    """Prompt and completion, each text or messages; of a whole conversation, what comes from its first answer on."""
    if isinstance(completion, list) and completion and all(isinstance(text, str) for text in completion):
        completion = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(completion)]
    if messages := as_messages(completion):
        first = next((at for at, one in enumerate(messages) if one["role"] == "assistant"), len(messages))
        prompt, completion = prompt or messages[:first] or None, messages[first:]
    elif completion is None or isinstance(completion, str):
        completion = _END.sub("", completion or "")
    else:
        completion = json.dumps(completion, ensure_ascii=False, default=str)
    return as_messages(prompt) or (prompt if prompt is None else str(prompt)), completion


def _number(value: Any) -> float | None:
    try:
        number = float(math.fsum(value) if value and isinstance(value, list) else value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
