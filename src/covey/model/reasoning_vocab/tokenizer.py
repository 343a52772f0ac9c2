"""A tokenizer with copies: they decode like their base tokens, and no text encodes to them.

A copy is named after its base token, followed by a private-use character that marks which copy it is. The copies are
entries of the tokenizer's model without merges, rather than added tokens, which would be matched in every text. The
decoder removes the marks first. All of it is in `tokenizer.json`, for a generic fast tokenizer: a class that builds its
own decoder would lose it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from covey.errors import ModelError
from covey.model.reasoning_vocab.token_bytes import MARKS, PLANE, read_tokenizer, vocabulary_of
from covey.model.reasoning_vocab.token_map import TokenMap
from covey.runlog.files import write_atomically

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
    mark = _free_mark(names.values(), folder)
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


def _free_mark(names: Iterable[str], folder: Path) -> int:
    """The first character of a private plane that no token's name uses."""
    used = {ord(character) & ~0xFFFF for name in names for character in name if ord(character) >= MARKS[0]}
    free = [mark for mark in MARKS if mark not in used]
    if not free:
        raise ModelError(
            f"The tokenizer of {folder} uses characters of both private planes of Unicode, so copies of its tokens "
            "cannot be marked. A reasoning vocabulary is not possible with it."
        )
    return free[0]


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
