"""The reasoning vocabulary during sampling: when the model thinks, and which tokens are then allowed.

States are compared with a string search of the decoded text; masks and shares with their definitions.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey.errors import DataError, ModelError
from covey.model.reasoning_vocab import ReasoningVocabulary, TokenMap
from covey.model.reasoning_vocab.expansion import expand
from covey.model.reasoning_vocab.tokenizer import TokenBytes
from covey.model.reasoning_vocab.vocabulary import vocabulary_of
from covey.model.starter import STARTER_PATH
from covey.rollout import LocalEngine, SamplingSettings, generate
from covey.rollout.thinking import ThinkingMask, masked_generation

ROWS = 512


def make_vocabulary(*texts: str, start: str = "copy", copies: Sequence[int] | None = None) -> ReasoningVocabulary:
    """A vocabulary of tokens with these texts, `<special>` being special; by default one copy of each other one."""
    special = {place for place, text in enumerate(texts) if text == "<special>"}
    token_bytes = TokenBytes(tuple(text.encode() for text in texts), frozenset(special))
    bases = tuple(range(len(texts))) if copies is None else tuple(copies)
    unusable = {place for place, base in enumerate(bases) if base in special or "think>" in texts[base]}
    rows = len(texts)
    token_map = TokenMap(rows, bases, frozenset(rows + place for place in unusable), start, "<think>", "</think>")
    return ReasoningVocabulary(token_map, token_bytes)


def thinks_by_search(texts: Sequence[str]) -> list[bool]:
    """Whether the text is inside of thinking after each token: found by searching the whole text each time."""
    found = []
    for count in range(1, len(texts) + 1):
        text = "".join("\0" if one == "<special>" else one for one in texts[:count])
        inside, place = False, 0
        while True:
            tag = re.compile(re.escape("</think>") + "|\0" if inside else re.escape("<think>")).search(text, place)
            if tag is None:
                break
            inside, place = not inside, tag.end()
        found.append(inside)
    return found


# -- when the model thinks

FRAGMENTS = (
    *("<think>", "</think>", "<", "</", "think", ">", "thi", "nk>", "nk", "/", ".</", ">\n", "a", " 12", "<special>"),
    *("x<think>y", "b</think>c", "</think><think>", "<th", "ink>", "é"),
)


@pytest.mark.parametrize("seed", range(3))
def test_states_agree_with_a_search_of_the_text(seed: int) -> None:
    vocabulary = make_vocabulary(*FRAGMENTS)
    drawn = random.Random(seed)
    rows, length = 40, 60
    ids = [[drawn.randrange(2 * len(FRAGMENTS)) for _ in range(length)] for _ in range(rows)]
    ids_BS = torch.tensor(ids)
    expected = torch.tensor([thinks_by_search([FRAGMENTS[token % len(FRAGMENTS)] for token in row]) for row in ids])
    whole_BS = vocabulary.states(ids_BS)
    assert torch.equal(vocabulary.inside(whole_BS), expected)
    assert 0.2 < expected.float().mean() < 0.8
    state_B = torch.zeros(rows, dtype=torch.long)
    for place in range(length):
        state_B = vocabulary.step(state_B, ids_BS[:, place])
        assert torch.equal(state_B, whole_BS[:, place])


def test_padding_changes_nothing_and_a_special_token_ends_thinking() -> None:
    vocabulary = make_vocabulary("<think>", "a", "<special>", "</think>")
    ids = torch.tensor([[1, 0, 1, 2, 1], [0, 0, 0, 1, 1]])
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 0, 1, 1]])
    inside = vocabulary.inside(vocabulary.states(ids, mask))
    assert inside.tolist() == [[False, True, True, False, False], [False] * 5]
    assert vocabulary.thinks(ids, mask, 3).tolist() == [[True, True, False], [False, False, False]]


def test_tags_in_several_tokens_with_text_at_their_ends_on_a_real_tokenizer(tmp_path: Path) -> None:
    """A tag that is not a token: `<reason>` is several tokens, and `.</` or `>\\n` may be tokens."""
    vocabulary = expand(STARTER_PATH, tmp_path / "m", 600, think_tag="reason")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "m")
    text = "so.<reason>\n1+2=3.</reason>\n<answer>3"
    ids = tokenizer(text)["input_ids"]
    assert len(tokenizer("<reason>")["input_ids"]) > 3
    inside = vocabulary.inside(vocabulary.states(torch.tensor([ids])))[0].tolist()
    for count, found in enumerate(inside, start=1):
        read = tokenizer.decode(ids[:count])
        assert found == ("<reason>" in read and "</reason>" not in read), read


# -- which tokens are allowed


def test_the_bias_by_definition() -> None:
    vocabulary = make_vocabulary("<think>", "</think>", "<special>", "a", "b", start="same_text", copies=[3, 3, 0, 4])
    bias = vocabulary.bias_table(temperature=2.0)
    never = -torch.inf
    third, half = 2 * -torch.log(torch.tensor(3.0)).item(), 2 * -torch.log(torch.tensor(2.0)).item()
    assert bias[0].tolist() == [0, 0, 0, 0, 0, never, never, never, never]
    torch.testing.assert_close(bias[1], torch.tensor([0, 0, 0, third, half, third, third, never, half]))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_same_text_keeps_the_distribution_of_texts_at_every_temperature(temperature: float) -> None:
    copies = [3, 3, 4, 0, 4, 4]
    logits = torch.randn(5, generator=torch.Generator().manual_seed(1))
    wide = torch.cat([logits, logits[copies]])
    bases = torch.tensor([0, 1, 2, 3, 4, *copies])
    expected = (logits / temperature).softmax(-1)
    texts = ("<think>", "</think>", "<special>", "a", "b")
    mass = {}
    for start in ("copy", "same_text"):
        bias = make_vocabulary(*texts, start=start, copies=copies).bias_table(temperature)[1]
        mass[start] = torch.zeros(5).index_add_(0, bases, ((wide + bias) / temperature).softmax(-1))
    torch.testing.assert_close(mass["same_text"], expected)
    by_count = expected * torch.tensor([1.0, 1.0, 1.0, 3.0, 4.0])  # a plain copy is as likely as its base token
    torch.testing.assert_close(mass["copy"], by_count / by_count.sum())


@pytest.mark.parametrize("start", ["copy", "same_text"])
@pytest.mark.parametrize("numbered", [True, False], ids=["numbered rows", "generate"])
def test_the_sampler_applies_the_table_at_every_position(start: str, numbered: bool) -> None:
    """Rows that end and move, prompts of several lengths: the bias is that of the table, by the whole text."""
    vocabulary = make_vocabulary(*FRAGMENTS, start=start)
    V = vocabulary.map.vocab_size
    drawn = torch.Generator().manual_seed(3)
    pad = FRAGMENTS.index("<special>")
    ids = torch.randint(len(FRAGMENTS), (6, 30), generator=drawn)
    ids[:, 8:] = torch.randint(V, (6, 22), generator=drawn)
    ids[1, :3] = pad
    mask = ThinkingMask(vocabulary, temperature=0.8)
    rows = torch.arange(6)
    table = vocabulary.bias_table(0.8)
    for length in range(8, 31):
        if numbered and length in (8, 15, 21):
            rows = {8: rows, 15: torch.tensor([0, 5, 2, 3]), 21: torch.tensor([3, 5])}[length]
            mask.select_rows(rows)
        logits = torch.randn(len(rows), V, generator=drawn)
        states = vocabulary.inside(vocabulary.states(ids[rows, :length]))[:, -1]
        torch.testing.assert_close(mask(ids[rows, :length], logits.clone()), logits + table[states.long()])


def test_one_mask_for_several_calls_of_generate() -> None:
    vocabulary = make_vocabulary("<think>", "</think>", "a")
    mask = ThinkingMask(vocabulary)
    first, second = torch.tensor([[0, 2]]), torch.tensor([[2, 1, 2]])
    assert mask(first, torch.zeros(1, 6))[0, 5] == 0
    assert mask(second, torch.zeros(1, 6))[0, 5] == -torch.inf


def test_logits_of_another_vocabulary_are_an_error() -> None:
    with pytest.raises(ModelError, match="does not fit"):
        ThinkingMask(make_vocabulary("<think>", "</think>", "a"))(torch.tensor([[0]]), torch.zeros(1, 7))


@pytest.mark.parametrize("shared", [True, False])
def test_generation_keeps_reasoning_tokens_within_thinking(wide_starter: Path, shared: bool, tmp_path: Path) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(wide_starter)
    tokenizer = AutoTokenizer.from_pretrained(wide_starter)
    vocabulary = vocabulary_of(model)
    assert vocabulary is not None
    kept: list[list[int]] = []
    decode = tokenizer.decode

    def watch(ids: list[int], **more: Any) -> str:
        kept.append(list(ids))
        return str(decode(ids, **more))

    tokenizer.decode = watch
    prompts = [[{"role": "user", "content": f"What is {n} + {n + 5}?"}] for n in (3, 27) for _ in range(12)]
    engine = LocalEngine(model, tokenizer, shared_prefill=shared)
    found = generate(engine, tokenizer, prompts, SamplingSettings(48), seed=0)
    inside = [vocabulary.inside(vocabulary.states(torch.tensor([ids])))[0].tolist() for ids in kept]
    before = [[False, *row[:-1]] for row in inside]
    reasoning = [
        thinking
        for row, ids in zip(before, kept, strict=True)
        for thinking, token in zip(row, ids, strict=True)
        if token >= ROWS
    ]
    assert len(reasoning) > 30
    assert all(reasoning)
    assert not any(token in vocabulary.map.unusable for ids in kept for token in ids)
    assert any("<answer>" in str(one.text) for one in found)
    assert not any("\U000f0000" in str(one.text) for one in found)


def test_a_generate_that_was_patched_is_restored(wide_starter: Path, starter_vocabulary: ReasoningVocabulary) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(wide_starter)
    for patched in (model.generate, print):
        if patched is print:
            model.generate = patched
        with masked_generation(model, starter_vocabulary, 1.0):
            assert model.generate not in (patched, print)
        assert model.generate == patched
    with masked_generation(model, None, 1.0):
        assert model.generate is print


def test_a_models_own_generate_can_be_masked(wide_starter: Path) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(wide_starter)
    ids = AutoTokenizer.from_pretrained(wide_starter)("2+2=", return_tensors="pt")["input_ids"]
    torch.manual_seed(0)
    more = {"max_new_tokens": 12, "do_sample": True, "temperature": 3.0, "top_k": 0}
    assert int(model.generate(ids, **more).max()) >= ROWS
    with masked_generation(model, vocabulary_of(model), 3.0):
        assert int(model.generate(ids, **more).max()) < ROWS
    assert int(model.generate(ids, **more).max()) >= ROWS


def test_prompts_with_reasoning_tokens_are_an_error(starter_vocabulary: ReasoningVocabulary) -> None:
    starter_vocabulary.check_prompts([[1, 2, 511]])
    with pytest.raises(DataError, match="Prompt 1 holds the reasoning token 600, a copy of token 88"):
        starter_vocabulary.check_prompts([[1], [3, 600]])
