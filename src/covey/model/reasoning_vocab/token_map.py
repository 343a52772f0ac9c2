"""Which token is a copy of which: `reasoning_token_map.json`, stored next to the weights. Needs no torch."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from covey.errors import ConfigError, ModelError
from covey.runlog.files import write_atomically

MAP_FILE = "reasoning_token_map.json"
MAP_FORMAT = 1

STARTS = ("copy", "same_text", "noise")
"""How probability is distributed initially, see `TokenMap.start`."""

MOST_COPIES = 65_000
"""Most copies of one token: each has its own mark, a character of one private-use plane."""

_SPAN = re.compile(r"(\d+)(?:\s*-\s*(\d+))?")


@dataclass(frozen=True, slots=True)
class TokenMap:
    """The reasoning tokens of a model, in the order of their ids."""

    base_vocab_size: int
    """Rows of the model's embedding before expansion, padding included: the first reasoning id."""
    base_ids: tuple[int, ...]
    """The ordinary token that each reasoning token is a copy of: `base_ids[k]` for id `base_vocab_size + k`."""
    unusable: frozenset[int]
    """Reasoning ids that are never sampled: copies of special tokens, EOS and tags."""
    start: str
    """`copy`: each copy is initially as likely as its base token. `same_text`: a token and its copies share its
    probability, so that the distribution of texts is unchanged. `noise`: as `copy`, with noise on the rows of the
    copies."""
    open_tag: str
    """Begins thinking."""
    close_tag: str
    """Ends thinking."""

    @property
    def size(self) -> int:
        """The number of reasoning tokens."""
        return len(self.base_ids)

    @property
    def vocab_size(self) -> int:
        """Rows of the expanded embedding, V."""
        return self.base_vocab_size + self.size

    def base_of(self, token: int) -> int:
        """The ordinary token that this one is, or is a copy of."""
        return self.base_ids[token - self.base_vocab_size] if token >= self.base_vocab_size else token

    def multiplicities(self) -> list[int]:
        """For each reasoning token, which copy of its base it is, from 1."""
        seen: dict[int, int] = {}
        found = []
        for base in self.base_ids:
            seen[base] = seen.get(base, 0) + 1
            found.append(seen[base])
        return found

    def write(self, folder: Path) -> None:
        """Write `reasoning_token_map.json` into a folder."""
        content = {
            "format": MAP_FORMAT,
            "base_vocab_size": self.base_vocab_size,
            "start": self.start,
            "tags": [self.open_tag, self.close_tag],
            "unusable": sorted(self.unusable),
            "base_ids": list(self.base_ids),
        }
        write_atomically(folder / MAP_FILE, json.dumps(content) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the map of a model. Raises a `ModelError` if it is missing or damaged."""
        file = folder / MAP_FILE
        try:
            content: dict[str, Any] = json.loads(file.read_bytes())
        except FileNotFoundError:
            raise ModelError(
                f"{folder} has no {MAP_FILE}, though its config.json says that the model has a reasoning vocabulary. "
                "Copy the file from another checkpoint of the same run (it is the same in all)."
            ) from None
        except ValueError as error:
            raise ModelError(f"{file} is damaged ({error}). Copy it from another checkpoint of the same run.") from None
        try:
            if content["format"] != MAP_FORMAT:
                raise ModelError(f"{file} has format {content['format']!r}; this version of Covey reads {MAP_FORMAT}.")
            open_tag, close_tag = content["tags"]
            found = cls(
                int(content["base_vocab_size"]),
                tuple(int(token) for token in content["base_ids"]),
                frozenset(int(token) for token in content["unusable"]),
                str(content["start"]),
                str(open_tag),
                str(close_tag),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(
                f"{file} is not a valid map ({error!r}). Copy it from another checkpoint of the same run."
            ) from None
        found._check(file)
        return found

    def _check(self, file: Path) -> None:
        ordinary = all(0 <= token < self.base_vocab_size for token in self.base_ids)
        own = all(self.base_vocab_size <= token < self.vocab_size for token in self.unusable)
        if not (ordinary and own and self.start in STARTS and self.open_tag and self.close_tag):
            raise ModelError(
                f"{file} contradicts itself: base ids must be below base_vocab_size={self.base_vocab_size}, unusable "
                f"ids from there up to {self.vocab_size - 1}, and start must be one of {', '.join(STARTS)}."
            )

    def check_rows(self, rows: int, where: str) -> None:
        """Raise a `ModelError` unless an embedding has as many rows as this map."""
        if rows != self.vocab_size:
            raise ModelError(
                f"The reasoning vocabulary of {where} does not fit its weights: {MAP_FILE} has "
                f"{self.base_vocab_size} ordinary and {self.size} reasoning tokens, {self.vocab_size} in all, but the "
                f"embedding has {rows} rows. Map and weights must come from the same checkpoint."
            )


def choose_base_ids(size: int | str, spec: str | None, known: Sequence[int]) -> tuple[int, ...]:
    """The ordinary tokens to copy.

    Args:
        size: how many copies; `full` for one of each.
        spec: `model.reasoning_token_ids`; None takes all tokens from id 0 on, repeatedly.
        known: ids of the tokenizer's tokens, ascending.

    Raises:
        ConfigError: there are too few tokens, or ids without a token.
    """
    if spec is not None:
        chosen = read_ids(spec)
        tokens = set(known)
        strange = [token for token in chosen if token not in tokens]
        if strange:
            raise ConfigError(
                f"model.reasoning_token_ids={spec} names {strange[0]}, and the tokenizer has no token of this id: its "
                f"ids go from {known[0]} to {known[-1]}."
            )
        if size == "full":
            return tuple(chosen)
        if int(size) > len(chosen):
            raise ConfigError(
                f"model.reasoning_vocab_size={size} is more than the {len(chosen)} ids of model.reasoning_token_ids="
                f"{spec}. Lower it, set full for all of them, or repeat an id once for each copy."
            )
        return tuple(chosen[: int(size)])
    count = len(known) if size == "full" else int(size)
    if count > MOST_COPIES * len(known):
        raise ConfigError(
            f"model.reasoning_vocab_size={size} is too large: the tokenizer has {len(known)} tokens, each of which can "
            f"be copied {MOST_COPIES} times at most. {len(known)} (or full) is one copy of each."
        )
    return tuple(known[place % len(known)] for place in range(count))


def read_ids(spec: str) -> list[int]:
    """Token ids from a range (`0-9999`), a comma-separated list of ids and ranges, or a file with such a list. Raises a
    `ConfigError` if it is none of these."""
    file = Path(spec).expanduser()
    text = spec
    if not _SPAN.fullmatch(spec.strip()) and file.is_file():
        text = file.read_text(encoding="utf-8")
    ids: list[int] = []
    words = [word for word in re.split(r"[,\s\[\]]+", re.sub(r"(\d)\s*-\s*(\d)", r"\1-\2", text)) if word]
    for word in words:
        span = _SPAN.fullmatch(word)
        if span is None:
            raise ConfigError(
                f"model.reasoning_token_ids={spec} is neither a file of token ids nor a range: {word!r} is not an id. "
                "Write 0-9999, or [5,7,100-199], or the path of a file with ids."
            )
        first, last = int(span[1]), int(span[2] or span[1])
        if last < first:
            raise ConfigError(f"model.reasoning_token_ids={spec}: the range {word} is reversed.")
        ids += range(first, last + 1)
    if not ids:
        raise ConfigError(f"model.reasoning_token_ids={spec} does not name any token id.")
    return ids


def unusable_copies(base_vocab_size: int, base_ids: Sequence[int], refused: Collection[int]) -> frozenset[int]:
    """Reasoning ids whose base token is one of the `refused`."""
    refused = set(refused)
    return frozenset(base_vocab_size + place for place, base in enumerate(base_ids) if base in refused)
