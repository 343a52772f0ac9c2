"""The text of each token as bytes, from the tokenizer's own file. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MARKS = (0xF0000, 0x100000)
"""First characters of the marks of copies: the two private-use planes of Unicode."""
PLANE = 0xFFFD


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """The tokens of a tokenizer, by id."""

    text: tuple[bytes | None, ...]
    """The bytes of each token, from id 0 to the last; None where there is no token. Special tokens have the bytes of
    their names."""
    special: frozenset[int]
    """Ids of special tokens."""

    @property
    def ids(self) -> list[int]:
        """Ids with a token, ascending."""
        return [token for token, text in enumerate(self.text) if text is not None]


def read_tokenizer(folder: Path) -> dict[str, Any]:
    """The content of a folder's `tokenizer.json`. Raises a `ModelError` if there is none."""
    try:
        found: dict[str, Any] = json.loads((folder / "tokenizer.json").read_bytes())
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{folder} has no tokenizer.json that can be read ({error}). A reasoning vocabulary needs a fast tokenizer."
        ) from None
    return found


def content_of(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """What the `tokenizer.json` of a loaded tokenizer would hold. Raises a `ModelError` if it is not a fast
    tokenizer."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(
            f"{tokenizer.name_or_path} has a slow tokenizer ({type(tokenizer).__name__}). A reasoning vocabulary "
            "needs a fast tokenizer, one that can be saved as tokenizer.json."
        )
    found: dict[str, Any] = json.loads(backend.to_str())
    return found


def read_token_bytes(content: Mapping[str, Any], size: int) -> TokenBytes:
    """The texts of the first `size` ids of a tokenizer.

    Args:
        content: of `tokenizer.json`.
        size: ids from this one on (the copies) are left out.
    """
    text: list[bytes | None] = [None] * size
    byte_level = "ByteLevel" in _decoders(content.get("decoder"))
    for name, token in vocabulary_of(content["model"]).items():
        if token < size:
            text[token] = _byte_level(name) if byte_level else _plain(name)
    special = set()
    for added in content.get("added_tokens", ()):
        if added["id"] < size:
            text[added["id"]] = str(added["content"]).encode()
            if added["special"]:
                special.add(int(added["id"]))
    return TokenBytes(tuple(text), frozenset(special))


def vocabulary_of(model: Mapping[str, Any]) -> dict[str, int]:
    """Names and ids of a tokenizer model, which stores them as a list or a mapping."""
    vocab = model["vocab"]
    return dict(vocab) if isinstance(vocab, dict) else {name: token for token, (name, _) in enumerate(vocab)}


def _decoders(decoder: Mapping[str, Any] | None) -> set[str]:
    if decoder is None:
        return set()
    return {str(decoder["type"])}.union(*(_decoders(one) for one in decoder.get("decoders", ())))


def _plain(name: str) -> bytes:
    if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        return bytes([int(name[3:5], 16)])
    return name.replace("▁", " ").encode()


def _byte_level(name: str) -> bytes:
    known = _bytes_by_character()
    if all(character in known for character in name):
        return bytes(known[character] for character in name)
    return name.encode()


@cache
def _bytes_by_character() -> dict[str, int]:
    """The alphabet of byte-level tokenizers: printable bytes are themselves, the others are mapped to 256 and above."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}
