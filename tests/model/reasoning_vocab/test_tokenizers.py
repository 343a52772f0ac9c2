"""Expanded tokenizers of models for which transformers overrides the tokenizer class of a folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from covey.config.groups.model import ModelConfig
from covey.model.load import load_tokenizer
from covey.model.reasoning_vocab.expansion import expand, fold
from covey.model.starter import STARTER_PATH

TEXT = "<think>Hello é 12 + 3\n</think> yes"
SIZES = {
    "vocab_size": 520,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "eos_token_id": 2,
}


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_copies_decode_as_text_whatever_class_transformers_chooses(kind: str, tmp_path: Path) -> None:
    rows = SIZES["vocab_size"]
    model = Qwen2ForCausalLM(Qwen2Config(**SIZES)) if kind == "qwen2" else Qwen3ForCausalLM(Qwen3Config(**SIZES))
    model.save_pretrained(tmp_path / "base")
    AutoTokenizer.from_pretrained(STARTER_PATH).save_pretrained(tmp_path / "base")
    before = AutoTokenizer.from_pretrained(tmp_path / "base")
    expand(tmp_path / "base", tmp_path / "wide", "full")
    after = AutoTokenizer.from_pretrained(tmp_path / "wide")
    after.save_pretrained(tmp_path / "checkpoint")  # as in a checkpoint: next to the model's config
    shutil.copy(tmp_path / "wide" / "config.json", tmp_path / "checkpoint")
    ids = before(TEXT, add_special_tokens=False)["input_ids"]
    trusting = load_tokenizer(ModelConfig(name=str(tmp_path / "wide"), trust_remote_code=True))
    for tokenizer in (after, AutoTokenizer.from_pretrained(tmp_path / "checkpoint"), trusting):
        assert tokenizer(TEXT, add_special_tokens=False)["input_ids"] == ids
        assert tokenizer.decode([rows + token for token in ids]) == before.decode(ids) == TEXT
    fold(tmp_path / "wide", tmp_path / "folded")
    folded = AutoTokenizer.from_pretrained(tmp_path / "folded", trust_remote_code=True)
    assert type(folded) is type(before)
    assert folded.decode(folded(TEXT, add_special_tokens=False)["input_ids"]) == TEXT
