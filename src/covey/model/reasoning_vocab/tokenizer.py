"""A tokenizer that knows the copies: they decode as the tokens that they are copies of, and no text encodes to them.

A copy is named after its base token, with a private-use character behind it that tells which copy it is. The copies are
entries of the tokenizer's model that no merge leads to, rather than added tokens, which would be looked for in every
text. The decoder takes the marks off first. All of it is in `tokenizer.json`, for a generic fast tokenizer: a class
that builds its own decoder would lose it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from covey.errors import ModelError
from covey.model.reasoning_vocab.surface import MARKS, PLANE, read_tokenizer, vocabulary_of
from covey.model.reasoning_vocab.token_map import TokenMap
from covey.runlog.files import write_atomically

GENERIC = "TokenizersBackend"
"""The class of transformers that takes `tokenizer.json` as it is."""

_NEVER = -1e9
"""Score of a token that a unigram tokenizer is not to choose."""

_TAKEN_AT_ITS_WORD = {"AutoTokenizer": [None, None]}
"""For some models (Qwen2's) transformers takes the tokenizer class that it knows for them, whatever the folder says. A
folder that names code of its own is exempt, and without `trust_remote_code` falls back on the class that it says."""

_REBUILDERS = ("vocab.json", "merges.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
"""Files from which a class would build a tokenizer of its own."""


def widen_tokenizer(folder: Path, token_map: TokenMap, model_type: str = "") -> None:
    """Let the tokenizer that is saved in a folder know the copies.

    Args:
        folder: of the tokenizer.
        token_map: the copies.
        model_type: what transformers calls the kind of the model.

    Raises:
        ModelError: it is of a kind that cannot be widened.
    """
    content = read_tokenizer(folder)
    if content.get("decoder") is None:
        raise ModelError(
            f"The tokenizer of {folder} has no decoder, so copies of its tokens would not read as ordinary text. A "
            "reasoning vocabulary needs a byte-level, SentencePiece or WordPiece tokenizer."
        )
    model, added = content["model"], content.get("added_tokens", [])
    names = _names(vocabulary_of(model), added)
    mark = _free_mark(names.values(), folder)
    first = token_map.base_vocab_size
    copies = {
        names.get(base, f"<|unused-{base}|>") + chr(mark + multiplicity - 1): first + place
        for place, (base, multiplicity) in enumerate(zip(token_map.base_ids, token_map.multiplicities(), strict=True))
    }
    if isinstance(model["vocab"], dict):
        # Added tokens get the ids that they have in the model's own entries; else they would be counted on behind them.
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


def narrow_tokenizer(folder: Path, token_map: TokenMap) -> None:
    """Take the copies out of a tokenizer that `widen_tokenizer` has widened."""
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


def _names(vocab: Mapping[str, int], added: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    return {token: name for name, token in vocab.items()} | {one["id"]: one["content"] for one in added}


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


def _is_overruled(model_type: str) -> bool:
    """Whether transformers takes the tokenizer class that it knows for such models, whatever a folder says."""
    from transformers.models.auto import tokenization_auto

    return model_type in getattr(tokenization_auto, "MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS", ())


def _make_generic(folder: Path, model_type: str) -> None:
    file = folder / "tokenizer_config.json"
    settings: dict[str, Any] = json.loads(file.read_bytes())
    settings["tokenizer_class"] = GENERIC
    for rebuilt in ("auto_map", "backend", "vocab_file", "merges_file"):
        settings.pop(rebuilt, None)
    if _is_overruled(model_type):
        settings["auto_map"] = _TAKEN_AT_ITS_WORD
    write_atomically(file, json.dumps(settings, ensure_ascii=False, indent=2) + "\n")
    for name in _REBUILDERS:
        (folder / name).unlink(missing_ok=True)
