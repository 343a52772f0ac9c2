"""Expanding a model by a reasoning vocabulary, folding it back, and how far its tokens have moved in between."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from covey.errors import ConfigError, ModelError
from covey.model.reasoning_vocab.token_map import STARTS, TokenMap, choose_base_ids, unusable_copies
from covey.model.reasoning_vocab.tokenizer import (
    TokenBytes,
    expand_tokenizer,
    read_token_bytes,
    read_tokenizer,
    shrink_tokenizer,
)
from covey.model.reasoning_vocab.vocabulary import CONFIG_KEY, ReasoningVocabulary, tokens_with_tags, vocabulary_of
from covey.model.weight_files import quiet_weights
from covey.runlog.files import follow_umask

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


THINK_TAG, ANSWER_TAG = "think", "answer"

NOISE = 0.3
"""Expected norm of the noise on a row, as a share of the row's norm."""

_COMPARED = 8
"""Copies whose logits are compared with those of their base tokens after expansion."""


def expand(
    source: str | Path,
    out: str | Path,
    size: int | str,
    *,
    token_ids: str | None = None,
    start: str = "copy",
    noise: float = NOISE,
    seed: int = 0,
    think_tag: str = THINK_TAG,
    answer_tag: str = ANSWER_TAG,
    tokenizer: PreTrainedTokenizerBase | None = None,
    **options: Any,
) -> ReasoningVocabulary:
    """Write a model with a reasoning vocabulary into a folder that `from_pretrained` loads.

    The rows of the new tokens, in the embedding and in the head (its bias too), are copies of those of their base
    tokens, with `start="noise"` with noise on them. Everything else is bit-identical, in the saved dtype.

    Args:
        source: folder or hub id for `from_pretrained`.
        out: the folder to write; its contents are replaced.
        size: how many reasoning tokens; `full` for one copy of every token.
        token_ids: which tokens are copied, see `choose_base_ids`.
        start: see `TokenMap.start`.
        noise: see `add_noise`; only with `start="noise"`.
        seed: of the noise.
        think_tag: name of the tags between which reasoning tokens are allowed.
        answer_tag: name of the tags of the answer, which are not copied.
        tokenizer: of the model, to be saved with it; None loads it from `source`.
        options: for `from_pretrained` (`revision`, `trust_remote_code`).

    Raises:
        ConfigError: the size, the ids or the tags do not fit the tokenizer.
        ModelError: the model cannot be loaded or expanded, or has a reasoning vocabulary already.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = Path(out)
    tokenizer = tokenizer or AutoTokenizer.from_pretrained(str(source), **options)
    try:
        with quiet_weights():
            model = AutoModelForCausalLM.from_pretrained(str(source), dtype="auto", **options)
    except (OSError, ValueError) as error:
        raise ModelError(f"The weights of {source} cannot be loaded: {' '.join(str(error).split())}") from error
    if getattr(model.config, CONFIG_KEY, None) is not None:
        raise ModelError(f"{source} has a reasoning vocabulary already. Train it as it is, or fold it first.")
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    tokenizer.save_pretrained(out)
    rows = int(model.get_input_embeddings().weight.shape[0])
    ordinary = read_token_bytes(read_tokenizer(out), rows)
    token_map = plan(
        ordinary,
        rows,
        size,
        token_ids=token_ids,
        start=start,
        think_tag=think_tag,
        answer_tag=answer_tag,
        more_special=special_ids([model.config, model.generation_config], tokenizer),
    )
    vocabulary = ReasoningVocabulary(token_map, ordinary)
    check_tags(vocabulary, tokenizer)
    expand_tokenizer(out, token_map, model.config.model_type)
    expand_embeddings(model, token_map)
    _check_copies(model, token_map, str(source))
    if start == "noise":
        add_noise(model, token_map, noise, seed)
    with quiet_weights():
        model.save_pretrained(out)
    vocabulary.save(out)
    return vocabulary


def plan(
    ordinary: TokenBytes,
    rows: int,
    size: int | str,
    *,
    token_ids: str | None = None,
    start: str = "copy",
    think_tag: str = THINK_TAG,
    answer_tag: str = ANSWER_TAG,
    more_special: set[int] | frozenset[int] = frozenset(),
) -> TokenMap:
    """Choose the tokens to copy.

    Args:
        ordinary: the tokenizer's tokens.
        rows: of the model's embedding.
        size: how many copies, or `full`.
        token_ids: see `choose_base_ids`.
        start: see `TokenMap.start`.
        think_tag: name of the thinking tags.
        answer_tag: name of the answer tags.
        more_special: further special ids, see `special_ids`.

    Raises:
        ConfigError: see `choose_base_ids`, or an unknown start.
    """
    if start not in STARTS:
        raise ConfigError(f"model.reasoning_start={start} is not possible: it must be one of {', '.join(STARTS)}.")
    base_ids = choose_base_ids(size, token_ids, ordinary.ids)
    tags = [f"<{slash}{name}>" for name in (think_tag, answer_tag) for slash in ("", "/")]
    refused = ordinary.special | tokens_with_tags(ordinary, tags) | more_special
    return TokenMap(rows, base_ids, unusable_copies(rows, base_ids, refused), start, tags[0], tags[1])


def check_tags(vocabulary: ReasoningVocabulary, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise a `ConfigError` unless the tags, as tokenised, open and close thinking."""
    opening, closing = vocabulary.map.open_tag, vocabulary.map.close_tag
    for tags, inside in (((opening,), True), ((opening, closing), False)):
        ids = [token for tag in tags for token in tokenizer(tag, add_special_tokens=False)["input_ids"]]
        state = 0
        for token in ids:
            state = int(vocabulary.transitions[state, token])
        if not ids or (state >= vocabulary.outside_states) != inside:
            raise ConfigError(
                f"The tokenizer cannot represent the tag {tags[-1]}: encoded and decoded, it is another text "
                f"({tokenizer.decode(ids)!r}). Choose another rewards.think_tag, whose characters the tokenizer has."
            )


def expand_embeddings(model: PreTrainedModel, token_map: TokenMap) -> None:
    """Add the rows of the copies to the embedding and the head of a model, in place."""
    bases = torch.tensor(token_map.base_ids, dtype=torch.long)
    first = token_map.base_vocab_size
    model.resize_token_embeddings(token_map.vocab_size, mean_resizing=False)
    rows_of = tables(model)
    bias = getattr(model.get_output_embeddings(), "bias", None)
    with torch.no_grad():
        for table in rows_of if bias is None else [*rows_of, bias]:
            table[first:] = table[bases.to(table.device)]
    setattr(model.config, CONFIG_KEY, "reasoning_token_map.json")


@torch.no_grad()
def add_noise(model: PreTrainedModel, token_map: TokenMap, noise: float, seed: int) -> None:
    """Add normal noise to the rows of the copies, in place, in the embedding and in the head.

    Equal rows are a saddle point: base token and copy have equal returns, so the choice between them gets no gradient
    until the rows differ.

    Args:
        model: expanded.
        token_map: its map.
        noise: expected norm of a row's noise, as a share of the row's norm.
        seed: of the noise; tied tables get it once.
    """
    draw = torch.Generator().manual_seed(seed)
    for table in tables(model):
        rows = table[token_map.base_vocab_size :]
        spread = noise * rows.float().norm(dim=1, keepdim=True) / rows.shape[1] ** 0.5
        rows += (spread * torch.randn(rows.shape, generator=draw).to(rows.device)).to(rows.dtype)


def tables(model: PreTrainedModel) -> list[torch.nn.Parameter]:
    """The weights with a row per token: embedding and head, tied ones once."""
    modules = (model.get_input_embeddings(), model.get_output_embeddings())
    return list({id(one.weight): one.weight for one in modules if one is not None}.values())


def fold(model_dir: str | Path, out: str | Path) -> None:
    """Write a model without its reasoning vocabulary: the ordinary tokens as they were trained, and nothing else.

    Adapters are merged first. What the copies have learnt is dropped: the model then generates ordinary tokens only,
    inside of thinking too.

    Args:
        model_dir: a folder with an expanded model, or with adapters of one.
        out: the folder to write; its contents are replaced.

    Raises:
        ModelError: there is no such model, or it has no reasoning vocabulary.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, out = Path(model_dir), Path(out)
    try:
        with quiet_weights():
            if (folder / "adapter_config.json").is_file():
                from peft import AutoPeftModelForCausalLM

                model = AutoPeftModelForCausalLM.from_pretrained(str(folder), dtype="auto").merge_and_unload()
            else:
                model = AutoModelForCausalLM.from_pretrained(str(folder), dtype="auto")
        tokenizer = AutoTokenizer.from_pretrained(str(folder))
    except (OSError, ValueError) as error:
        raise ModelError(f"The model in {folder} cannot be loaded: {' '.join(str(error).split())}") from error
    vocabulary = vocabulary_of(model)
    if vocabulary is None:
        raise ModelError(f"The model in {folder} has no reasoning vocabulary, so there is nothing to fold.")
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    model.resize_token_embeddings(vocabulary.map.base_vocab_size, mean_resizing=False)
    delattr(model.config, CONFIG_KEY)
    with quiet_weights():
        model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    shrink_tokenizer(out, vocabulary.map)
    follow_umask(out)


def special_ids(configs: Iterable[Any], tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """All BOS, EOS and padding ids, by the model's configs or the tokenizer."""
    found: list[Any] = [*tokenizer.all_special_ids]
    for config in configs:
        for name in ("eos_token_id", "bos_token_id", "pad_token_id"):
            value = getattr(config, name, None)
            found += value if isinstance(value, list) else [value]
    return {int(token) for token in found if token is not None}


@torch.no_grad()
def _check_copies(model: PreTrainedModel, token_map: TokenMap, source: str) -> None:
    """Compare a few tokens with their copies: if an architecture has other per-token state, the logits differ."""
    count = min(_COMPARED, token_map.size)
    if not count:
        return
    places = torch.linspace(0, token_map.size - 1, count).long()
    bases = torch.tensor(token_map.base_ids, dtype=torch.long)
    model.eval()
    first = token_map.base_vocab_size
    by_copy = model(input_ids=(first + places)[None]).logits.float()
    by_base = model(input_ids=bases[places][None]).logits.float()
    scale = float(by_base.abs().max()) or 1.0
    between = (by_copy - by_base, by_copy[..., first:] - by_copy[..., bases])
    difference = max(float(one.abs().max()) for one in between)
    if not difference <= 1e-3 * scale:
        raise ModelError(
            f"{source} cannot be given a reasoning vocabulary: {type(model).__name__} treats a copied token unlike its "
            f"base token (logits differ by {difference:.2g}), so it has weights per token besides embedding and head."
        )


BLOCK = 1024
"""Reasoning tokens per block in the comparison with all ordinary ones."""


@dataclass(frozen=True, slots=True)
class Drift:
    """The drift of one reasoning token."""

    token: int
    embedding: float
    """Cosine similarity of its embedding row to that of its base token, at present."""
    head: float
    """The same for the output head; with tied weights equal to `embedding`."""
    start_embedding: float | None
    """Cosine similarity of its embedding row to the same row before training; None if that is not known."""
    start_head: float | None
    """The same for the output head."""
    nearest: tuple[tuple[int, float], ...]
    """The ordinary tokens with the most similar embedding rows, with the cosine similarity; best first."""


@torch.no_grad()
def drift(
    model: Any, vocabulary: ReasoningVocabulary, tokens: Sequence[int], *, start: Any = None, nearest: int = 3
) -> list[Drift]:
    """Measure reasoning tokens of a loaded model, with or without adapters.

    Args:
        model: a causal language model.
        tokens: reasoning ids.
        start: the model before training, if it is there.
        nearest: how many ordinary tokens to return.
    """
    first = vocabulary.map.base_vocab_size
    embedding, head = _unit_rows(model)
    before = [None, None] if start is None else [table.to(embedding.device) for table in _unit_rows(start)]
    known = torch.tensor([text is not None for text in vocabulary.token_bytes.text], device=embedding.device)
    found = []
    for start in range(0, len(tokens), BLOCK):
        part = list(tokens[start : start + BLOCK])
        bases = vocabulary.base(part)
        similarity = (embedding[part] @ embedding[:first].T).masked_fill(~known, -torch.inf)
        best = similarity.topk(min(nearest, first), dim=1)
        to_base = (_cosines(table, part, table, bases) for table in (embedding, head))
        to_start = (_cosines(now, part, then, part) for now, then in zip((embedding, head), before, strict=True))
        for token, base, at_head, began, head_began, ids, values in zip(
            part, *to_base, *to_start, best.indices, best.values, strict=True
        ):
            around = tuple(zip(ids.tolist(), values.tolist(), strict=True))
            found.append(Drift(token, base, at_head, began, head_began, around))
    return found


def _unit_rows(model: Any) -> tuple[Tensor, Tensor]:
    """Embedding and head, with rows of norm 1."""
    modules = (model.get_input_embeddings(), model.get_output_embeddings())
    embedding, head = (normalize(one.weight.detach().float(), dim=1) for one in modules)
    return embedding, head


def _cosines(rows: Tensor, tokens: Sequence[int], others: Tensor | None, of: Sequence[int]) -> list[Any]:
    """The cosines of rows with those of other tokens; None for each without other rows."""
    if others is None:
        return [None] * len(tokens)
    found: list[float] = (rows[list(tokens)] * others[list(of)]).sum(1).tolist()
    return found
