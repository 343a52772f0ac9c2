"""A model's reasoning vocabulary in use: whether a text is inside of thinking, and the tokens allowed there.

A finite automaton tracks the state, one table look-up per token. It matches the text byte by byte with the tag that
would change the state, and the number of matched bytes is part of it, so that a tag may be part of a token, a token, or
spread over several. A copy has the transitions of its base token. A special token ends thinking: it ends a turn, and a
tag that a message only mentions, without closing it, must not affect the next one. One that is a tag acts as the tag.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch

from covey.errors import DataError, ModelError
from covey.model.device import base_model
from covey.model.reasoning_vocab.token_map import MAP_FILE, TokenMap
from covey.model.reasoning_vocab.tokenizer import TokenBytes, read_token_bytes, read_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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


CONFIG_KEY = "reasoning_token_map"
"""Key of the map's file name in a model's `config.json`."""

OUTSIDE, INSIDE = 0, 1
"""Rows of the bias table."""

_KNOWN: WeakKeyDictionary[Any, ReasoningVocabulary | None] = WeakKeyDictionary()


class ReasoningVocabulary:
    """The reasoning tokens of one model. The sampler and the scoring head use the same object, so they agree.

    Args:
        token_map: which token is a copy of which.
        ordinary: the texts of the ordinary tokens, `base_vocab_size` of them.
    """

    def __init__(self, token_map: TokenMap, ordinary: TokenBytes) -> None:
        self.map = token_map
        self.token_bytes = ordinary
        table = token_transitions(ordinary, token_map.open_tag, token_map.close_tag)
        bases = np.array(token_map.base_ids, dtype=np.int64)
        self.transitions: Transitions = np.concatenate([table, table[:, bases]], axis=1)
        """`[Q, V]`."""
        self.outside_states = count_outside(token_map.open_tag)
        self._on_device: dict[tuple[str, torch.device], torch.Tensor] = {}

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The reasoning vocabulary of a saved model: `reasoning_token_map.json` and `tokenizer.json`. Raises a
        `ModelError` if one of them is missing or damaged."""
        folder = Path(folder).expanduser()
        token_map = TokenMap.read(folder)
        return cls(token_map, read_token_bytes(read_tokenizer(folder), token_map.base_vocab_size))

    def save(self, folder: str | Path) -> None:
        """Write the map next to the weights."""
        self.map.write(Path(folder))

    @cached_property
    def multiplicity(self) -> torch.Tensor:
        """For every token 0 if it is ordinary, else which copy of its base it is, from 1: `[V]`."""
        ordinary = torch.zeros(self.map.base_vocab_size, dtype=torch.long)
        return torch.cat([ordinary, torch.tensor(self.map.multiplicities(), dtype=torch.long)])

    @cached_property
    def log_share(self) -> torch.Tensor:
        """What is added initially, inside of thinking, to the log-weight of every token: `[V]`, in nats.

        Zero under `copy`. Under `same_text`, `-log(1 + c)` for a token with c usable copies and for each of these.
        """
        share = torch.zeros(self.map.vocab_size)
        if self.map.start == "same_text":
            first = self.map.base_vocab_size
            bases = torch.tensor(self.map.base_ids, dtype=torch.long)
            usable = torch.ones(self.map.size)
            usable[[token - first for token in self.map.unusable]] = 0
            copies = torch.zeros(first).index_add_(0, bases, usable)
            share[:first] = -torch.log1p(copies)
            share[first:] = share[bases]
        return share

    def bias_table(self, temperature: float = 1.0) -> torch.Tensor:
        """What is added to logits before they are divided by the temperature: `[2, V]`, float32.

        Row 0 outside of thinking, row 1 inside: minus infinity for tokens that are not allowed, else `log_share`.
        """
        first = self.map.base_vocab_size
        bias = torch.zeros(2, self.map.vocab_size)
        bias[OUTSIDE, first:] = -torch.inf
        bias[INSIDE] = self.log_share * temperature
        bias[INSIDE, sorted(self.map.unusable)] = -torch.inf
        return bias

    def transitions_on(self, device: torch.device) -> torch.Tensor:
        """`transitions` on a device."""
        return self._cached("transitions", device, lambda: torch.from_numpy(self.transitions))

    def bias_on(self, device: torch.device, temperature: float) -> torch.Tensor:
        """`bias_table` on a device."""
        return self._cached(f"bias {temperature}", device, lambda: self.bias_table(temperature))

    def _cached(self, name: str, device: torch.device, make: Any) -> torch.Tensor:
        key = (name, torch.device(device))
        if key not in self._on_device:
            self._on_device[key] = make().to(device)
        return self._on_device[key]

    def states(self, ids_BS: torch.Tensor, mask_BS: torch.Tensor | None = None) -> torch.Tensor:
        """The state after each token of complete texts: `[B, S]`.

        A parallel scan over all positions in log2(S) rounds: a token is a map from states to states, and maps compose.

        Args:
            ids_BS: token ids.
            mask_BS: 0 at padding, which leaves the state unchanged; None for no padding.
        """
        table = self.transitions_on(ids_BS.device)
        maps_BSQ = table[:, ids_BS].permute(1, 2, 0).long()
        if mask_BS is not None:
            same_Q = torch.arange(len(table), device=ids_BS.device)
            maps_BSQ = torch.where(mask_BS.bool()[..., None], maps_BSQ, same_Q)
        reach = 1
        while reach < ids_BS.shape[1]:
            joined = maps_BSQ[:, reach:].gather(2, maps_BSQ[:, :-reach])
            maps_BSQ = torch.cat([maps_BSQ[:, :reach], joined], dim=1)
            reach *= 2
        return maps_BSQ[..., 0]

    def step(self, states_b: torch.Tensor, tokens_b: torch.Tensor) -> torch.Tensor:
        """The state after one more token of each text: `[b]`."""
        return self.transitions_on(tokens_b.device)[states_b, tokens_b].long()

    def inside(self, states: torch.Tensor) -> torch.Tensor:
        """Whether these states are inside of thinking."""
        return states >= self.outside_states

    def thinks(self, ids_BS: torch.Tensor, mask_BS: torch.Tensor, length_T: int) -> torch.Tensor:
        """Whether each completion token is sampled inside of thinking: `[B, T]`, false at padding.

        Args:
            ids_BS: prompts, padded on the left, and completions, padded on the right: `[B, L + T]`.
            mask_BS: 1 for tokens, 0 for padding.
            length_T: T, the number of completion columns.
        """
        before_BT = self.inside(self.states(ids_BS, mask_BS))[:, -length_T - 1 : -1]
        return before_BT & mask_BS[:, -length_T:].bool()

    def base(self, ids: Sequence[int]) -> list[int]:
        """Base tokens of a sequence."""
        return [self.map.base_of(token) for token in ids]

    def check_prompts(self, prompt_ids: Sequence[Sequence[int]], *, begun: bool = False) -> None:
        """Check that prompts have ordinary tokens only.

        Args:
            prompt_ids: of each prompt.
            begun: whether a completion may have begun in them, which has reasoning tokens inside of thinking.

        Raises:
            DataError: one has a reasoning token elsewhere.
        """
        for place, ids in enumerate(prompt_ids):
            reasoning = [at for at, token in enumerate(ids) if token >= self.map.base_vocab_size]
            if reasoning and begun:
                inside = self.inside(self.states(torch.tensor([list(ids)])))[0].tolist()
                reasoning = [at for at in reasoning if at == 0 or not inside[at - 1]]
            if reasoning:
                found = ids[reasoning[0]]
                raise DataError(
                    f"Prompt {place} holds the reasoning token {found}, a copy of token {self.map.base_of(found)}: "
                    "reasoning tokens are allowed in thinking only. Tokenise prompts from ordinary text, or replace "
                    "them by base tokens (ReasoningVocabulary.base)."
                )


def vocabulary_of(model: PreTrainedModel | Any) -> ReasoningVocabulary | None:
    """The reasoning vocabulary of a loaded model, with or without adapters; None if it has none.

    The map is named in its `config.json` and read from where the model was loaded.

    Raises:
        ModelError: the map is missing or does not fit the weights.
    """
    inner = base_model(model)
    if inner in _KNOWN:
        return _KNOWN[inner]
    name = getattr(getattr(inner, "config", None), CONFIG_KEY, None)
    found = None
    if name is not None:
        found = ReasoningVocabulary.load(_folder(str(inner.config._name_or_path)))
    attach(inner, found)
    return found


def attach(model: PreTrainedModel | Any, vocabulary: ReasoningVocabulary | None) -> None:
    """Set the reasoning vocabulary of a model. Raises a `ModelError` if it does not fit the weights."""
    inner = base_model(model)
    if vocabulary is not None:
        vocabulary.map.check_rows(int(inner.config.get_text_config().vocab_size), str(inner.config._name_or_path))
    _KNOWN[inner] = vocabulary


def _folder(name: str) -> Path:
    """The folder of a model's files: its own, or the cache of a hub model."""
    if Path(name).is_dir():
        return Path(name)
    from transformers.utils import cached_file

    try:
        files = [cached_file(name, file) for file in (MAP_FILE, "tokenizer.json")]
    except OSError as error:
        raise ModelError(f"The reasoning vocabulary of {name} cannot be read: {error}") from error
    return Path(str(files[0])).parent
