"""Decoding completions with reasoning tokens: the text of each token, its position, and which copy it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from covey.model.reasoning_vocab.token_bytes import TokenBytes
from covey.model.reasoning_vocab.token_map import TokenMap


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
