"""The completions in a report: a sample of whole groups, compressed."""

from __future__ import annotations

import base64
import gzip
import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from covey.errors import RunDirectoryError
from covey.evaluation.completions.transcript import (
    arguments_text,
    calls_of,
    content_text,
    reasoning_of,
    transcript,
)
from covey.report.charts.panels import reward_names
from covey.report.load import RunRecord
from covey.runlog import count_completions, names, read_completions

MOST_COMPLETIONS = 12_000
MOST_BYTES = 2_800_000
"""Limit of the compressed, base64-encoded completions in the page."""

MOST_LETTERS = 20_000
"""Limit of one message of an episode: a tool may return much."""

_GRADED_BY = ("accuracy", "exact_match", "countdown")
"""Rewards that decide right or wrong for completions without an outcome."""
_KNOWN = {names.STEP} | {value for name, value in vars(names).items() if name.startswith("COLUMN_")}

CompletionRow = Mapping[str, Any]
T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Packed:
    """The compressed completions of a page."""

    text: str
    """base64 of gzipped JSON; empty if there are none."""
    shown: int
    total: int


def pack_completions(record: RunRecord, *, most: int = MOST_COMPLETIONS, most_bytes: int = MOST_BYTES) -> Packed:
    """Pack a run's completions: all if they fit, else whole groups, evenly over the steps.

    Damaged files are skipped with a warning.
    """
    counts = {path: _read_or_warn(count_completions, path) for path in record.run.completions.glob("step-*.parquet")}
    files = sorted(path for path, count in counts.items() if count)
    total = sum(counts[path] or 0 for path in files)
    if not total:
        return Packed("", 0, 0)
    groups: list[list[CompletionRow]] = []
    wanted = min(total, most)
    for number, path in enumerate(files):
        here = in_groups(_read_or_warn(read_completions, path) or [])
        share = math.ceil(len(here) * wanted / total) if total > most else len(here)
        offset = number % max(1, len(here) - share + 1)  # not always the first problems of a batch
        groups += here[offset : offset + share]
    while True:
        text = _pack(table(groups, record))
        if len(text) <= most_bytes or len(groups) <= 1:
            return Packed(text, sum(map(len, groups)), total)
        keep = max(1, int(len(groups) * 0.93 * most_bytes / len(text)))
        groups = [groups[index * len(groups) // keep] for index in range(keep)]


def _read_or_warn(read: Callable[[Path], T], path: Path) -> T | None:
    try:
        return read(path)
    except RunDirectoryError as error:
        logger.warning("Left out of the report: %s", error)
        return None


def in_groups(rows: Sequence[CompletionRow]) -> list[list[CompletionRow]]:
    """The groups of one step; without group numbers, consecutive rows with the same prompt are a group."""
    groups: list[list[CompletionRow]] = []
    before: object = None
    for row in rows:
        key = row.get(names.COLUMN_GROUP, row.get(names.COLUMN_PROMPT))
        if not groups or key != before:
            groups.append([])
        groups[-1].append(row)
        before = key
    return groups


def table(groups: Sequence[Sequence[CompletionRow]], record: RunRecord) -> dict[str, Any]:
    """The completions as columns for the page's script; null if unknown."""
    rows = [row for group in groups for row in group]
    rewards = [name for name in reward_names(record.rows) if any(name in row for row in rows)]
    weights = [*((record.config.get("training") or {}).get("reward_weights") or ())]
    weights += [1.0] * (len(rewards) - len(weights))  # an environment's own reward has none
    outcomes = [_outcome(row, rewards) for row in rows]
    kinds = sorted({outcome for outcome in outcomes if outcome})
    extra = dict.fromkeys(name for row in rows for name in row if name not in _KNOWN and name not in rewards)
    tags = record.config.get("rewards") or {}
    return {
        "tags": [tags.get("think_tag") or "think", tags.get("answer_tag") or "answer"],
        "rewardNames": rewards,
        "outcomeNames": kinds,
        "groups": [
            {
                "step": group[0][names.STEP],
                "prompt": _prompt(group[0]),
                "answer": _text_or_none(group[0].get(names.COLUMN_ANSWER)),
            }
            for group in groups
        ],
        "group": [number for number, group in enumerate(groups) for _ in group],
        "text": [_text(row.get(names.COLUMN_COMPLETION)) for row in rows],
        "rewards": [[_number(row.get(name)) for row in rows] for name in rewards],
        "reward": [_total(row, rewards, weights) for row in rows],
        "advantage": [_number(row.get(names.COLUMN_ADVANTAGE)) for row in rows],
        "weight": [_number(next((row[name] for name in names.COLUMN_WEIGHTS if name in row), None)) for row in rows],
        "length": [row.get(names.COLUMN_LENGTH) for row in rows],
        "truncated": [row.get(names.COLUMN_TRUNCATED) for row in rows],
        "episodes": episodes(rows),
        "outcome": [kinds.index(outcome) if outcome else None for outcome in outcomes],
        "extra": {name: [_text_or_none(row.get(name)) for row in rows] for name in extra},
    }


def episodes(rows: Sequence[CompletionRow]) -> dict[str, list[Any]] | None:
    """What the page shows of episodes with tools or an environment, as columns; None if no completion is one.

    The turns of a completion are its messages: `[text, calls]` of the model, each call a name and its arguments, and
    `[text]` of a result. None where it is no episode.
    """
    shown = [_turns(row.get(names.COLUMN_COMPLETION)) if _is_episode(row) else None for row in rows]
    if not any(turns is not None for turns in shown):
        return None
    return {
        "messages": shown,
        "ended": [_text_or_none(row.get(names.COLUMN_EPISODE)) for row in rows],
        "turns": [_number(row.get(names.COLUMN_TURNS)) for row in rows],
        "calls": [_number(row.get(names.COLUMN_CALLS)) for row in rows],
        "failures": [_number(row.get(names.COLUMN_FAILURES)) for row in rows],
        "seconds": [_number(row.get(names.COLUMN_SECONDS)) for row in rows],
    }


def _is_episode(row: CompletionRow) -> bool:
    """Whether its columns say so; or, of a trainer that records none, its messages."""
    if row.get(names.COLUMN_TURNS) is not None:
        return True
    completion = row.get(names.COLUMN_COMPLETION)
    return isinstance(completion, list) and any(
        isinstance(message, dict) and (message.get("tool_calls") or message.get("role") == "tool")
        for message in completion
    )


def _turns(completion: Any) -> list[list[Any]]:
    messages = completion if isinstance(completion, list) else [{"role": "assistant", "content": completion}]
    found: list[list[Any]] = []
    for message in messages:
        if not isinstance(message, dict):
            message = {"role": "assistant", "content": message}
        text = _shortened(content_text(message.get("content")))
        if message.get("role") == "tool":
            found.append([text])
        else:
            calls = [[name, _shortened(arguments_text(arguments))] for name, arguments in calls_of(message)]
            found.append([reasoning_of(message) + text, calls])
    return found


def _shortened(text: str) -> str:
    more = len(text) - MOST_LETTERS
    return text if more <= 0 else f"{text[:MOST_LETTERS]}… ({more:,} more letters in the run's folder completions)"


def _pack(content: Mapping[str, Any]) -> str:
    # ASCII: lone surrogates and line separators become escapes; base64 cannot close a script tag.
    plain = json.dumps(content, ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode("ascii")
    return base64.b64encode(gzip.compress(plain, 7, mtime=0)).decode("ascii")


def _prompt(row: CompletionRow) -> str:
    rendered = row.get(names.COLUMN_RENDERED)
    if isinstance(rendered, str):
        return rendered
    prompt = row.get(names.COLUMN_PROMPT)
    if isinstance(prompt, list):  # from older runs, without the rendered prompt
        return "\n".join(f"[{message.get('role')}] {_text(message.get('content'))}" for message in prompt)
    return _text(prompt)


def _text(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[-1], dict):
        return _shortened(transcript(message for message in value if isinstance(message, dict)))
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _text_or_none(value: Any) -> str | None:
    return None if value is None else _text(value)


def _number(value: Any) -> float | None:
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.4g}")


def _total(row: CompletionRow, rewards: Sequence[str], weights: Sequence[float]) -> float | None:
    known = [(row.get(name), weight) for name, weight in zip(rewards, weights, strict=False)]
    parts = [value * weight for value, weight in known if isinstance(value, int | float) and math.isfinite(value)]
    return _number(math.fsum(parts)) if parts else None


def _outcome(row: CompletionRow, rewards: Sequence[str]) -> str | None:
    outcome = row.get(names.COLUMN_OUTCOME)
    if outcome is not None:
        return str(outcome)
    for name in _GRADED_BY:
        if name in rewards and row.get(name) is not None:
            return "right" if row[name] >= 1 else "wrong"
    return None
