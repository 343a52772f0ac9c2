"""Inside or outside of thinking, from the text: one step per token, without decoding.

The text is read byte by byte for the tag that would change the state: outside for the opening tag, inside for the
closing one. How many bytes of it have been matched is part of the state, so that a tag may lie within one token, be one
token, or be spread over several, with other text at either end. What a whole token does to each state is worked out
once for the vocabulary; from then on a token is one look-up. A copy does what its base token does.

A special token ends thinking: it ends a turn, and a tag that a message only spoke of, and never closed, opens nothing
for the next one. If the special token is a tag itself, it does what the tag does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from covey.model.reasoning_vocab.surface import Surfaces

Transitions = npt.NDArray[np.uint8]
"""`[states, V]`: the state after a token, by the state before it."""

_GAP = 256
"""Read where an id has no token: it matches nothing."""


def count_outside(open_tag: str) -> int:
    """How many of the states are outside: those from this number on are inside. State 0 is where a text begins."""
    return len(open_tag.encode())


def token_transitions(surfaces: Surfaces, open_tag: str, close_tag: str) -> Transitions:
    """What each ordinary token does to each state, `[states, V]`."""
    table = _byte_transitions(open_tag.encode(), close_tag.encode())
    texts = [[_GAP] if text is None else list(text) for text in surfaces.text]
    order = np.array(sorted(range(len(texts)), key=lambda token: -len(texts[token])), dtype=np.int64)
    lengths = np.array([len(texts[token]) for token in order], dtype=np.int64)
    states = len(table)
    now = np.repeat(np.arange(states, dtype=np.uint8)[:, None], len(texts), axis=1)
    special = np.isin(order, list(surfaces.special))
    now[:, special] = 0
    for place in range(int(lengths.max(initial=0))):
        count = int((lengths > place).sum())
        column = np.array([texts[token][place] for token in order[:count]], dtype=np.int64)
        now[:, :count] = table[now[:, :count], column]
    found = np.empty_like(now)
    found[:, order] = now
    return found


def tokens_with_tags(surfaces: Surfaces, tags: Sequence[str]) -> set[int]:
    """Ids of tokens whose text holds one of these tags."""
    wanted = [tag.encode() for tag in tags]
    return {
        token for token, text in enumerate(surfaces.text) if text is not None and any(tag in text for tag in wanted)
    }


def _byte_transitions(open_tag: bytes, close_tag: bytes) -> npt.NDArray[np.uint8]:
    """`[states, 257]`: the state after one byte. State `k` has matched k bytes of the opening tag; further on, of the
    closing one."""
    patterns = (open_tag, close_tag)
    first = (0, len(open_tag))
    table = np.zeros((len(open_tag) + len(close_tag), _GAP + 1), dtype=np.uint8)
    for mode, pattern in enumerate(patterns):
        for matched in range(len(pattern)):
            for byte in range(_GAP):
                seen = pattern[:matched] + bytes([byte])
                longest = next(size for size in range(len(seen), -1, -1) if seen.endswith(pattern[:size]))
                after = first[1 - mode] if longest == len(pattern) else first[mode] + longest
                table[first[mode] + matched, byte] = after
            table[first[mode] + matched, _GAP] = first[mode]
    return table
