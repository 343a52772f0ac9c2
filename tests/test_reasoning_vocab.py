"""The reasoning vocabulary: which tokens are copied, what they read as, and when the model thinks.

States are held against a reading of the decoded text by string search; masks, shares and rows against definitions.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3ForCausalLM,
)

from covey.errors import ConfigError, DataError, ModelError
from covey.model.reasoning_vocab import MAP_FILE, ReasoningVocabulary, TokenMap
from covey.model.reasoning_vocab.expansion import expand, fold
from covey.model.reasoning_vocab.surface import Surfaces
from covey.model.reasoning_vocab.token_map import choose_base_ids, read_ids
from covey.model.reasoning_vocab.vocabulary import attach, vocabulary_of
from covey.model.starter import STARTER_PATH
from covey.rollout import SamplingSettings, generate
from covey.rollout.thinking import ThinkingMask, masked_generation

ROWS = 512
SPECIAL = {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}
TAGS = {"<think>": 508, "</think>": 509, "<answer>": 510, "</answer>": 511}


@pytest.fixture(scope="session")
def wide_starter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The starter with one copy of each of its tokens."""
    folder = tmp_path_factory.mktemp("wide") / "model"
    expand(STARTER_PATH, folder, "full")
    return folder


@pytest.fixture(scope="session")
def starter_vocabulary(wide_starter: Path) -> ReasoningVocabulary:
    return ReasoningVocabulary.load(wide_starter)


def spoken(*texts: str, start: str = "copy", copies: Sequence[int] | None = None) -> ReasoningVocabulary:
    """A vocabulary of tokens with these texts, `<special>` being special; by default one copy of each other one."""
    special = {place for place, text in enumerate(texts) if text == "<special>"}
    surfaces = Surfaces(tuple(text.encode() for text in texts), frozenset(special))
    bases = tuple(range(len(texts))) if copies is None else tuple(copies)
    unusable = {place for place, base in enumerate(bases) if base in special or "think>" in texts[base]}
    rows = len(texts)
    token_map = TokenMap(rows, bases, frozenset(rows + place for place in unusable), start, "<think>", "</think>")
    return ReasoningVocabulary(token_map, surfaces)


def thinks_by_reading(texts: Sequence[str]) -> list[bool]:
    """Whether the text is inside of thinking after each token: found by searching the whole text anew each time."""
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
def test_states_are_what_reading_the_text_says(seed: int) -> None:
    vocabulary = spoken(*FRAGMENTS)
    drawn = random.Random(seed)
    rows, length = 40, 60
    ids = [[drawn.randrange(2 * len(FRAGMENTS)) for _ in range(length)] for _ in range(rows)]
    ids_BS = torch.tensor(ids)
    expected = torch.tensor([thinks_by_reading([FRAGMENTS[token % len(FRAGMENTS)] for token in row]) for row in ids])
    whole_BS = vocabulary.states(ids_BS)
    assert torch.equal(vocabulary.inside(whole_BS), expected)
    assert 0.2 < expected.float().mean() < 0.8
    state_B = torch.zeros(rows, dtype=torch.long)
    for place in range(length):
        state_B = vocabulary.step(state_B, ids_BS[:, place])
        assert torch.equal(state_B, whole_BS[:, place])


def test_padding_changes_nothing_and_a_special_token_ends_thinking() -> None:
    vocabulary = spoken("<think>", "a", "<special>", "</think>")
    ids = torch.tensor([[1, 0, 1, 2, 1], [0, 0, 0, 1, 1]])
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 0, 1, 1]])
    inside = vocabulary.inside(vocabulary.states(ids, mask))
    assert inside.tolist() == [[False, True, True, False, False], [False] * 5]
    assert vocabulary.thinks(ids, mask, 3).tolist() == [[True, True, False], [False, False, False]]


def test_tags_in_several_tokens_with_text_at_their_ends_on_a_real_tokenizer(tmp_path: Path) -> None:
    """A tag that no token stands for: `<reason>` is written in pieces, and `.</` or `>\\n` may be tokens."""
    vocabulary = expand(STARTER_PATH, tmp_path / "m", 600, think_tag="reason")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "m")
    text = "so.<reason>\n1+2=3.</reason>\n<answer>3"
    ids = tokenizer(text)["input_ids"]
    assert len(tokenizer("<reason>")["input_ids"]) > 3
    inside = vocabulary.inside(vocabulary.states(torch.tensor([ids])))[0].tolist()
    for count, found in enumerate(inside, start=1):
        read = tokenizer.decode(ids[:count])
        assert found == ("<reason>" in read and "</reason>" not in read), read


# -- which tokens are copied


def test_every_token_has_a_copy_and_those_that_must_not_cannot_be_drawn(
    starter_vocabulary: ReasoningVocabulary,
) -> None:
    token_map = starter_vocabulary.map
    assert token_map.base_vocab_size == token_map.size == ROWS
    assert token_map.base_ids == tuple(range(ROWS))
    assert token_map.unusable == {ROWS + token for token in (*SPECIAL.values(), *TAGS.values())}


def test_beyond_the_vocabulary_tokens_are_copied_again(tmp_path: Path) -> None:
    vocabulary = expand(STARTER_PATH, tmp_path / "m", 1100, start="same_text")
    assert vocabulary.map.base_ids[:3] == (0, 1, 2)
    assert vocabulary.map.base_ids[512:515] == (0, 1, 2)
    assert vocabulary.map.base_ids[1024] == 0
    assert vocabulary.multiplicity[[5, 512 + 5, 1024 + 5, 1536 + 5]].tolist() == [0, 1, 2, 3]
    share = vocabulary.log_share
    for token, copies in ((5, 3), (512 + 5, 3), (1536 + 5, 3), (100, 2), (0, 0), (508, 0)):
        assert float(share[token]) == pytest.approx(-torch.log(torch.tensor(1.0 + copies)).item())


def test_ids_are_chosen_by_range_list_or_file(tmp_path: Path) -> None:
    file = tmp_path / "ids.txt"
    file.write_text("7\n9, 11-13\n")
    assert read_ids("3-6") == [3, 4, 5, 6]
    assert read_ids("5, 7,10-11") == [5, 7, 10, 11]
    assert read_ids(str(file)) == [7, 9, 11, 12, 13]
    file.write_text("[4, 4, 8]")
    assert choose_base_ids("full", str(file), range(10)) == (4, 4, 8)
    assert choose_base_ids(2, "3-6", range(10)) == (3, 4)
    assert choose_base_ids(5, None, [0, 1, 3]) == (0, 1, 3, 0, 1)


@pytest.mark.parametrize(
    ("size", "spec", "says"),
    [
        (5, "3-6", "more than the 4 ids"),
        (1, "3-60", "no token of this id"),
        (1, "6-3", "backwards"),
        (1, "none.txt", "neither a file"),
        (10**9, None, "too large"),
    ],
)
def test_a_size_that_the_ids_do_not_allow_is_refused(size: int, spec: str | None, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        choose_base_ids(size, spec, range(10))


# -- weights


def tiny(kind: str, **more: Any) -> Any:
    sizes: dict[str, Any] = {
        "vocab_size": 520,  # more rows than the tokenizer has tokens
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "bos_token_id": None,
        "initializer_range": 0.3,
    }
    torch.manual_seed(0)
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=False))
    if kind == "gemma3":  # embeddings scaled by a buffer of their class
        return Gemma3ForCausalLM(Gemma3TextConfig(**sizes, query_pre_attn_scalar=8))
    del sizes["head_dim"], sizes["num_key_value_heads"]
    model = PhiForCausalLM(PhiConfig(**sizes, partial_rotary_factor=0.5))
    torch.nn.init.normal_(model.lm_head.bias)
    return model


@pytest.mark.parametrize("kind", ["llama", "gemma3", "phi"])
def test_rows_are_copies_and_the_ordinary_model_is_untouched(kind: str, tmp_path: Path) -> None:
    model = tiny(kind).eval()
    model.save_pretrained(tmp_path / "base")
    AutoTokenizer.from_pretrained(STARTER_PATH).save_pretrained(tmp_path / "base")
    vocabulary = expand(tmp_path / "base", tmp_path / "wide", 600)
    assert vocabulary.map.base_vocab_size == 520
    assert vocabulary.map.base_ids[511:513] == (511, 0)  # ids that no token has are not copied
    wide: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "wide").eval()
    bases = torch.tensor(vocabulary.map.base_ids)
    rows = wide.get_input_embeddings().weight
    assert torch.equal(rows[:520], model.get_input_embeddings().weight)
    assert torch.equal(rows[520:], rows[bases])
    head = wide.get_output_embeddings()
    assert torch.equal(head.weight[520:], head.weight[bases])
    if head.bias is not None:
        assert torch.equal(head.bias[520:], head.bias[bases])
        assert bool(head.bias[520:].any())
    assert (head.weight.data_ptr() == rows.data_ptr()) == (kind == "gemma3")
    ids = torch.tensor([[7, 30, 41]])
    with torch.no_grad():
        expected = model(ids).logits
        found = wide(ids + 520).logits
    torch.testing.assert_close(found[..., :520], expected)
    torch.testing.assert_close(found[..., 520:], expected[..., bases])


def test_a_model_that_was_folded_back_is_the_one_before(wide_starter: Path, tmp_path: Path) -> None:
    fold(wide_starter, tmp_path / "folded")
    before: Any = AutoModelForCausalLM.from_pretrained(STARTER_PATH)
    after: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "folded")
    for (name, one), (_, other) in zip(before.named_parameters(), after.named_parameters(), strict=True):
        assert torch.equal(one, other), name
    assert vocabulary_of(after) is None
    assert not (tmp_path / "folded" / MAP_FILE).exists()
    tokenizer, old = (AutoTokenizer.from_pretrained(path) for path in (tmp_path / "folded", STARTER_PATH))
    assert tokenizer.get_vocab() == old.get_vocab()
    text = "<think>é 1+2\n</think>"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == old.decode(old(text)["input_ids"]) == text
    with pytest.raises(ModelError, match="nothing to fold back"):
        fold(tmp_path / "folded", tmp_path / "again")


def test_a_model_is_widened_once(wide_starter: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="already"):
        expand(wide_starter, tmp_path / "m", 4)


# -- tokenizers

TEXT = "<think>Hello é 日本, 1 + 2 = 3.\n</think> yes"


def sentencepiece_like(unigram: bool) -> Tokenizer:
    """A tokenizer with `▁` for a space and bytes for what it does not know, as Llama 2 and Gemma have."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "<", ">", "/", "think", "▁yes"]
    pieces += [*"abcdefghijklmnopqrstuvwxyzH0123456789.,+=", "he", "▁H"]
    if unigram:
        core = Tokenizer(models.Unigram([(piece, -float(len(pieces)) / (1 + len(piece))) for piece in pieces], 0, True))
    else:
        vocab = {piece: place for place, piece in enumerate(pieces)}
        merges = [("▁", "H"), ("h", "e")]
        core = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    core.normalizer = normalizers.Replace(" ", "▁")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    core.decoder = decoders.Sequence(steps)
    core.add_special_tokens([AddedToken(name, special=True) for name in ("<unk>", "<s>", "</s>")])
    core.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    return core


@pytest.mark.parametrize("kind", ["byte-level", "bpe", "unigram"])
def test_copies_read_as_their_base_tokens_and_no_text_becomes_one(kind: str, tmp_path: Path) -> None:
    if kind == "byte-level":
        before = AutoTokenizer.from_pretrained(STARTER_PATH)
    else:
        core = sentencepiece_like(kind == "unigram")
        before = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", bos_token="<s>", unk_token="<unk>")
    rows = len(before) + 7
    config = LlamaConfig(
        vocab_size=rows, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, eos_token_id=2
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "base")
    before.save_pretrained(tmp_path / "base")
    size = len(before) + 5
    vocabulary = expand(tmp_path / "base", tmp_path / "wide", size)
    after = AutoTokenizer.from_pretrained(tmp_path / "wide")
    after.save_pretrained(tmp_path / "again")
    for tokenizer in (after, AutoTokenizer.from_pretrained(tmp_path / "again")):
        ids = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
        assert ids == before(TEXT, add_special_tokens=False)["input_ids"]
        copies = [rows + token for token in ids]
        assert [vocabulary.map.base_of(token) for token in copies] == ids
        assert tokenizer.decode(copies) == tokenizer.decode(ids) == before.decode(ids)
        mixed = [token + rows * (place % 2) for place, token in enumerate(ids)]
        assert tokenizer.decode(mixed, skip_special_tokens=True) == before.decode(ids, skip_special_tokens=True)
        names = tokenizer.convert_ids_to_tokens([ids[1], rows + ids[1], rows + len(before)])
        assert names[1][:-1] == names[0]
        assert names[1] != names[0]
        # a name written out is text like any other
        assert max(tokenizer(names[1], add_special_tokens=False)["input_ids"]) < rows or kind == "unigram"
        for special in before.all_special_ids:
            assert tokenizer.convert_ids_to_tokens(special) == before.convert_ids_to_tokens(special)
    read = json.loads((tmp_path / "wide" / "tokenizer_config.json").read_text())
    assert read["tokenizer_class"] == "TokenizersBackend"


def test_tags_that_the_tokenizer_cannot_write_are_refused(tmp_path: Path) -> None:
    core = Tokenizer(models.BPE({"<unk>": 0, "a": 1, "b": 2, "</s>": 3}, [], unk_token="<unk>"))
    core.decoder = decoders.Fuse()
    core.add_special_tokens([AddedToken("</s>", special=True)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", unk_token="<unk>")
    config = LlamaConfig(vocab_size=4, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "base")
    with pytest.raises(ConfigError, match="cannot represent the tag <think>"):
        expand(tmp_path / "base", tmp_path / "wide", 2, tokenizer=tokenizer)


# -- maps


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda content: content.update(base_ids=[*content["base_ids"], 5]), "does not fit its weights"),
        (lambda content: content.update(base_vocab_size=400), "contradicts itself"),
        (lambda content: content.update(start="other"), "contradicts itself"),
        (lambda content: content.pop("tags"), "does not hold what a map holds"),
        (lambda content: content.update(format=99), "format 99"),
    ],
)
def test_a_map_that_does_not_fit_is_told(wide_starter: Path, tmp_path: Path, change: Any, says: str) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    for file in wide_starter.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    content = json.loads((folder / MAP_FILE).read_text())
    change(content)
    (folder / MAP_FILE).write_text(json.dumps(content))
    model = AutoModelForCausalLM.from_pretrained(folder)
    with pytest.raises(ModelError, match=says):
        vocabulary_of(model)
    (folder / MAP_FILE).unlink()
    with pytest.raises(ModelError, match="Copy the file"):
        vocabulary_of(model)


def test_a_loaded_model_knows_its_vocabulary(wide_starter: Path, starter_vocabulary: ReasoningVocabulary) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(wide_starter)
    found = vocabulary_of(model)
    assert found is not None
    assert found.map == starter_vocabulary.map
    assert vocabulary_of(model) is found
    assert vocabulary_of(AutoModelForCausalLM.from_pretrained(STARTER_PATH)) is None


# -- what may be drawn


def test_the_bias_by_definition() -> None:
    vocabulary = spoken("<think>", "</think>", "<special>", "a", "b", start="same_text", copies=[3, 3, 0, 4])
    bias = vocabulary.bias_table(temperature=2.0)
    never = -torch.inf
    third, half = 2 * -torch.log(torch.tensor(3.0)).item(), 2 * -torch.log(torch.tensor(2.0)).item()
    assert bias[0].tolist() == [0, 0, 0, 0, 0, never, never, never, never]
    torch.testing.assert_close(bias[1], torch.tensor([0, 0, 0, third, half, third, third, never, half]))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_start_that_keeps_the_text_keeps_it_at_every_temperature(temperature: float) -> None:
    copies = [3, 3, 4, 0, 4, 4]
    logits = torch.randn(5, generator=torch.Generator().manual_seed(1))
    wide = torch.cat([logits, logits[copies]])
    bases = torch.tensor([0, 1, 2, 3, 4, *copies])
    expected = (logits / temperature).softmax(-1)
    texts = ("<think>", "</think>", "<special>", "a", "b")
    mass = {}
    for start in ("copy", "same_text"):
        bias = spoken(*texts, start=start, copies=copies).bias_table(temperature)[1]
        mass[start] = torch.zeros(5).index_add_(0, bases, ((wide + bias) / temperature).softmax(-1))
    torch.testing.assert_close(mass["same_text"], expected)
    by_count = expected * torch.tensor([1.0, 1.0, 1.0, 3.0, 4.0])  # a plain copy is as likely as what it copies
    torch.testing.assert_close(mass["copy"], by_count / by_count.sum())


@pytest.mark.parametrize("start", ["copy", "same_text"])
@pytest.mark.parametrize("told", [True, False], ids=["rows told", "generate"])
def test_the_sampler_applies_the_table_at_every_position(start: str, told: bool) -> None:
    """Rows that end and change places, prompts of several lengths: logits are those of the table, by the whole text."""
    vocabulary = spoken(*FRAGMENTS, start=start)
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
        if told and length in (8, 15, 21):
            rows = {8: rows, 15: torch.tensor([0, 5, 2, 3]), 21: torch.tensor([3, 5])}[length]
            mask.select_rows(rows)
        logits = torch.randn(len(rows), V, generator=drawn)
        states = vocabulary.inside(vocabulary.states(ids[rows, :length]))[:, -1]
        torch.testing.assert_close(mask(ids[rows, :length], logits.clone()), logits + table[states.long()])


def test_one_mask_for_several_calls_of_generate() -> None:
    vocabulary = spoken("<think>", "</think>", "a")
    mask = ThinkingMask(vocabulary)
    first, second = torch.tensor([[0, 2]]), torch.tensor([[2, 1, 2]])
    assert mask(first, torch.zeros(1, 6))[0, 5] == 0
    assert mask(second, torch.zeros(1, 6))[0, 5] == -torch.inf


def test_logits_of_another_vocabulary_are_refused() -> None:
    with pytest.raises(ModelError, match="does not fit"):
        ThinkingMask(spoken("<think>", "</think>", "a"))(torch.tensor([[0]]), torch.zeros(1, 7))


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
    found = generate(model, tokenizer, prompts, SamplingSettings(48), batch_size=24, seed=0, shared_prefill=shared)
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
    assert any("<answer>" in one.text for one in found)
    assert not any("\U000f0000" in one.text for one in found)


def test_a_models_own_generate_can_be_made_to_keep_to_it(wide_starter: Path) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(wide_starter)
    ids = AutoTokenizer.from_pretrained(wide_starter)("2+2=", return_tensors="pt")["input_ids"]
    torch.manual_seed(0)
    more = {"max_new_tokens": 12, "do_sample": True, "temperature": 3.0, "top_k": 0}
    assert int(model.generate(ids, **more).max()) >= ROWS
    with masked_generation(model, vocabulary_of(model), 3.0):
        assert int(model.generate(ids, **more).max()) < ROWS
    assert int(model.generate(ids, **more).max()) >= ROWS


def test_prompts_hold_no_reasoning_tokens(starter_vocabulary: ReasoningVocabulary) -> None:
    starter_vocabulary.check_prompts([[1, 2, 511]])
    with pytest.raises(DataError, match="Prompt 1 holds the reasoning token 600, a copy of token 88"):
        starter_vocabulary.check_prompts([[1], [3, 600]])


def test_a_vocabulary_goes_with_the_model_it_was_made_for(starter_vocabulary: ReasoningVocabulary) -> None:
    with pytest.raises(ModelError, match="does not fit its weights"):
        attach(Qwen3ForCausalLM.from_pretrained(STARTER_PATH), starter_vocabulary)
