"""A finite automaton that tracks whether a text is inside of thinking, one table look-up per token.

It matches the text byte by byte with the tag that would change the state: outside with the opening tag, inside with the
closing one. The number of matched bytes is part of the state, so that a tag may be part of a token, a token, or spread
over several, with other text at either end. The transitions of whole tokens are computed once per vocabulary. A copy
has the transitions of its base token.

A special token ends thinking: it ends a turn, and a tag that a message only mentions, without closing it, must not
affect the next one. A special token that is a tag itself acts as the tag.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from covey.model.reasoning_vocab.token_bytes import TokenBytes

Transitions = npt.NDArray[np.uint8]
"""`[Q, V]`: the state after a token, by the state before it."""

_GAP = 256
"""Input for an id without a token: it matches nothing."""


def count_outside(open_tag: str) -> int:
    """The number of outside states; the others, with higher numbers, are inside. A text starts in state 0."""
    return len(open_tag.encode())


def token_transitions(token_bytes: TokenBytes, open_tag: str, close_tag: str) -> Transitions:
    """The transitions of all ordinary tokens, `[Q, V]`."""
    table = _byte_transitions(open_tag.encode(), close_tag.encode())
    texts = [[_GAP] if text is None else list(text) for text in token_bytes.text]
    order = np.array(sorted(range(len(texts)), key=lambda token: -len(texts[token])), dtype=np.int64)
    lengths = np.array([len(texts[token]) for token in order], dtype=np.int64)
    states = len(table)
    now = np.repeat(np.arange(states, dtype=np.uint8)[:, None], len(texts), axis=1)
    special = np.isin(order, list(token_bytes.special))
    now[:, special] = 0
    for place in range(int(lengths.max(initial=0))):
        count = int((lengths > place).sum())
        column = np.array([texts[token][place] for token in order[:count]], dtype=np.int64)
        now[:, :count] = table[now[:, :count], column]
    found = np.empty_like(now)
    found[:, order] = now
    return found


def tokens_with_tags(token_bytes: TokenBytes, tags: Sequence[str]) -> set[int]:
    """Ids of tokens whose text contains one of these tags."""
    encoded = [tag.encode() for tag in tags]
    return {
        token for token, text in enumerate(token_bytes.text) if text is not None and any(tag in text for tag in encoded)
    }


def _byte_transitions(open_tag: bytes, close_tag: bytes) -> npt.NDArray[np.uint8]:
    """`[Q, 257]`: the state after one byte. State `k` has matched k bytes of the opening tag; states from its
    length on, bytes of the closing one."""
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
