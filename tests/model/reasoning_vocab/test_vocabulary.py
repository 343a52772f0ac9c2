"""The reasoning vocabulary: which tokens are copied, how they decode, and the files that store it."""

from __future__ import annotations

import json
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

from covey.errors import ConfigError, ModelError
from covey.model.reasoning_vocab import MAP_FILE, ReasoningVocabulary
from covey.model.reasoning_vocab.expansion import expand, fold
from covey.model.reasoning_vocab.token_map import choose_base_ids, read_ids
from covey.model.reasoning_vocab.vocabulary import attach, vocabulary_of
from covey.model.starter import STARTER_PATH

ROWS = 512
SPECIAL = {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}
TAGS = {"<think>": 508, "</think>": 509, "<answer>": 510, "</answer>": 511}


# -- how copies start


def test_noise_has_its_share_of_each_rows_norm_and_leaves_all_else(tmp_path: Path) -> None:
    expand(STARTER_PATH, tmp_path / "copy", "full")
    expand(STARTER_PATH, tmp_path / "noise", "full", start="noise", noise=0.5, seed=3)
    expand(STARTER_PATH, tmp_path / "again", "full", start="noise", noise=0.5, seed=3)
    expand(STARTER_PATH, tmp_path / "other", "full", start="noise", noise=0.5, seed=4)
    plain, noisy, again, other = (
        AutoModelForCausalLM.from_pretrained(tmp_path / name).state_dict()
        for name in ("copy", "noise", "again", "other")
    )
    tables = [name for name, weights in plain.items() if weights.shape[0] == 2 * ROWS]
    assert tables
    for name, weights in plain.items():
        if name not in tables:
            assert torch.equal(weights, noisy[name])
            continue
        assert torch.equal(weights[:ROWS], noisy[name][:ROWS])
        assert torch.equal(noisy[name], again[name])
        assert not torch.equal(noisy[name][ROWS:], other[name][ROWS:])
        shares = (noisy[name] - weights)[ROWS:].norm(dim=1) / weights[ROWS:].norm(dim=1)
        assert float(shares.mean()) == pytest.approx(0.5, rel=0.05)
    assert ReasoningVocabulary.load(tmp_path / "noise").bias_on(torch.device("cpu"), 1.0).tolist() == (
        ReasoningVocabulary.load(tmp_path / "copy").bias_on(torch.device("cpu"), 1.0).tolist()
    )


# -- which tokens are copied


def test_every_token_has_a_copy_and_copies_of_special_tokens_are_never_sampled(
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
        (1, "6-3", "is reversed"),
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


def test_a_folded_model_is_the_original_one(wide_starter: Path, tmp_path: Path) -> None:
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
    with pytest.raises(ModelError, match="nothing to fold"):
        fold(tmp_path / "folded", tmp_path / "again")


def test_a_model_is_expanded_once(wide_starter: Path, tmp_path: Path) -> None:
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
def test_copies_decode_as_their_base_tokens_and_no_text_encodes_to_one(kind: str, tmp_path: Path) -> None:
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
        (lambda content: content.pop("tags"), "is not a valid map"),
        (lambda content: content.update(format=99), "format 99"),
    ],
)
def test_a_map_that_does_not_fit_is_an_error(wide_starter: Path, tmp_path: Path, change: Any, says: str) -> None:
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


def test_a_loaded_model_has_its_vocabulary(wide_starter: Path, starter_vocabulary: ReasoningVocabulary) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(wide_starter)
    found = vocabulary_of(model)
    assert found is not None
    assert found.map == starter_vocabulary.map
    assert vocabulary_of(model) is found
    assert vocabulary_of(AutoModelForCausalLM.from_pretrained(STARTER_PATH)) is None


def test_a_vocabulary_fits_its_own_model_only(starter_vocabulary: ReasoningVocabulary) -> None:
    with pytest.raises(ModelError, match="does not fit its weights"):
        attach(Qwen3ForCausalLM.from_pretrained(STARTER_PATH), starter_vocabulary)
