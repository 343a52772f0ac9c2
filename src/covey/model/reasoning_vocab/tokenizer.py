"""A tokenizer with copies: they decode like their base tokens, and no text encodes to them. Needs no torch.

A copy is named after its base token, followed by a private-use character that marks which copy it is. The copies are
entries of the tokenizer's model without merges, rather than added tokens, which would be matched in every text. The
decoder removes the marks first. All of it is in `tokenizer.json`, for a generic fast tokenizer: a class that builds its
own decoder would lose it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.errors import ModelError
from covey.model.reasoning_vocab.token_map import TokenMap
from covey.runlog.files import write_atomically

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


GENERIC = "TokenizersBackend"
"""The transformers class that uses `tokenizer.json` unchanged."""

_NEVER = -1e9
"""Score of a token that a unigram tokenizer must not choose."""

_NO_OVERRIDE = {"AutoTokenizer": [None, None]}
"""For some models (Qwen2's) transformers overrides the tokenizer class of the folder. A folder with an `auto_map` is
exempt, and without `trust_remote_code` falls back on its own class."""

_SOURCES = ("vocab.json", "merges.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
"""Files from which a class would rebuild the tokenizer."""


def expand_tokenizer(folder: Path, token_map: TokenMap, model_type: str = "") -> None:
    """Add the copies to the tokenizer in a folder.

    Args:
        model_type: of the model's config.

    Raises:
        ModelError: this kind of tokenizer cannot be expanded.
    """
    content = read_tokenizer(folder)
    if content.get("decoder") is None:
        raise ModelError(
            f"The tokenizer of {folder} has no decoder, so copies of its tokens would not decode as ordinary text. A "
            "reasoning vocabulary needs a byte-level, SentencePiece or WordPiece tokenizer."
        )
    model, added = content["model"], content.get("added_tokens", [])
    names = {token: name for name, token in vocabulary_of(model).items()} | {one["id"]: one["content"] for one in added}
    # The first character of a private plane that no token's name uses.
    used = {ord(character) & ~0xFFFF for name in names.values() for character in name if ord(character) >= MARKS[0]}
    free = [mark for mark in MARKS if mark not in used]
    if not free:
        raise ModelError(
            f"The tokenizer of {folder} uses characters of both private planes of Unicode, so copies of its tokens "
            "cannot be marked. A reasoning vocabulary is not possible with it."
        )
    mark = free[0]
    first = token_map.base_vocab_size
    copies = {
        names.get(base, f"<|unused-{base}|>") + chr(mark + multiplicity - 1): first + place
        for place, (base, multiplicity) in enumerate(zip(token_map.base_ids, token_map.multiplicities(), strict=True))
    }
    if isinstance(model["vocab"], dict):
        # Added tokens keep the ids that they have in the model's own entries; else they would get new ones after them.
        model["vocab"] = {**model["vocab"], **{one["content"]: one["id"] for one in added}, **copies}
    else:
        filled = {token: name for name, token in copies.items()} | {one["id"]: one["content"] for one in added}
        start = len(model["vocab"])
        model["vocab"] += [
            [filled.get(token, f"<|unused-{token}|>"), _NEVER] for token in range(start, token_map.vocab_size)
        ]
    strip = {"type": "Replace", "pattern": {"Regex": _pattern(mark)}, "content": ""}
    decoder = content["decoder"]
    rest = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    content["decoder"] = {"type": "Sequence", "decoders": [strip, *rest]}
    _write(folder, content)
    _make_generic(folder, model_type)


def shrink_tokenizer(folder: Path, token_map: TokenMap) -> None:
    """Remove the copies from a tokenizer that `expand_tokenizer` has expanded."""
    content = read_tokenizer(folder)
    model = content["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {name: token for name, token in model["vocab"].items() if token < token_map.base_vocab_size}
    else:
        last = max(token for token, (_, score) in enumerate(model["vocab"]) if score != _NEVER)
        model["vocab"] = model["vocab"][: last + 1]
    patterns = {_pattern(mark) for mark in MARKS}
    steps = content["decoder"]["decoders"]
    kept = [one for one in steps if (one.get("pattern") or {}).get("Regex") not in patterns]
    content["decoder"] = kept[0] if len(kept) == 1 else {"type": "Sequence", "decoders": kept}
    _write(folder, content)
    file = folder / "tokenizer_config.json"
    settings: dict[str, Any] = json.loads(file.read_bytes())
    if settings.pop("auto_map", None) is not None:
        write_atomically(file, json.dumps(settings, ensure_ascii=False, indent=2) + "\n")


def _pattern(mark: int) -> str:
    return f"[{chr(mark)}-{chr(mark + PLANE)}]$"


def _write(folder: Path, content: Mapping[str, Any]) -> None:
    write_atomically(folder / "tokenizer.json", json.dumps(content, ensure_ascii=False))


def _is_overridden(model_type: str) -> bool:
    """Whether transformers overrides the tokenizer class of a folder for such models."""
    from transformers.models.auto import tokenization_auto

    return model_type in getattr(tokenization_auto, "MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS", ())


def _make_generic(folder: Path, model_type: str) -> None:
    file = folder / "tokenizer_config.json"
    settings: dict[str, Any] = json.loads(file.read_bytes())
    settings["tokenizer_class"] = GENERIC
    for rebuilt in ("auto_map", "backend", "vocab_file", "merges_file"):
        settings.pop(rebuilt, None)
    if _is_overridden(model_type):
        settings["auto_map"] = _NO_OVERRIDE
    write_atomically(file, json.dumps(settings, ensure_ascii=False, indent=2) + "\n")
    for name in _SOURCES:
        (folder / name).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Span:
    """One token of a text."""

    token: int
    """Its id."""
    start: int
    """Its first character; a token with only trailing bytes of a character has none of its own."""
    end: int
    """The character after its last."""
    multiplicity: int
    """0 for an ordinary token, else which copy of its base it is, from 1."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A completion as text, and its tokens in it."""

    text: str
    spans: tuple[Span, ...]
    """One for each token with text, in order."""

    @property
    def multiplicity(self) -> list[int]:
        """For each character of the text, the multiplicity of the token that it begins in."""
        found = [0] * len(self.text)
        for span in self.spans:
            found[span.start : span.end] = [span.multiplicity] * (span.end - span.start)
        return found

    def runs(self) -> list[tuple[str, int]]:
        """The text in runs of equal multiplicity, `(text, multiplicity)`."""
        found: list[tuple[str, int]] = []
        for character, multiplicity in zip(self.text, self.multiplicity, strict=True):
            if found and found[-1][1] == multiplicity:
                found[-1] = (found[-1][0] + character, multiplicity)
            else:
                found.append((character, multiplicity))
        return found


class Reader:
    """Decodes completions of one model.

    Args:
        token_map: which token is a copy of which.
        ordinary: the texts of the ordinary tokens.
    """

    def __init__(self, token_map: TokenMap, ordinary: TokenBytes) -> None:
        self._map, self._ordinary = token_map, ordinary
        self._multiplicities = token_map.multiplicities()

    def read(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> Reading:
        """Decode token ids. A character belongs to the token with its first byte."""
        data, owners = bytearray(), []
        for place, token in enumerate(ids):
            base = self._map.base_of(token)
            text = self._ordinary.text[base] or b""
            if not (skip_special_tokens and token in self._ordinary.special):
                data += text
                owners += [place] * len(text)
        bounds: dict[int, tuple[int, int]] = {}
        characters: list[str] = []
        byte = 0
        while byte < len(data):
            character, size = _character(data, byte)
            start, _ = bounds.get(owners[byte], (len(characters), 0))
            bounds[owners[byte]] = (start, len(characters) + 1)
            characters.append(character)
            byte += size
        end, spans = 0, []
        for place in dict.fromkeys(owners):
            start, end = bounds.get(place, (end, end))
            spans.append(Span(ids[place], start, end, self.multiplicity(ids[place])))
        return Reading("".join(characters), tuple(spans))

    def multiplicity(self, token: int) -> int:
        """0 for an ordinary token, else which copy of its base it is."""
        first = self._map.base_vocab_size
        return 0 if token < first else self._multiplicities[token - first]

    def text_of(self, token: int) -> str:
        """The text of a single token."""
        return (self._ordinary.text[self._map.base_of(token)] or b"").decode("utf-8", "replace")


def _character(data: bytearray, at: int) -> tuple[str, int]:
    """The character that starts at a byte, and its size; an invalid byte is a replacement character."""
    lead = data[at]
    size = (
        1 if lead < 0x80 else 2 if lead >> 5 == 0b110 else 3 if lead >> 4 == 0b1110 else 4 if lead >> 3 == 0x1E else 1
    )
    try:
        return data[at : at + size].decode("utf-8"), size
    except UnicodeDecodeError:
        return "\ufffd", 1
