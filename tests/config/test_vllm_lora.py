"""Which adapters vLLM takes alone, as far as a config says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig

from compose_config import from_words
from covey.config.vllm import RANKS, adapter_refusal, highest_rank, lora_options, served_rank

PLAIN = LoraConfig(r=8, target_modules=["q_proj"]).to_dict()


def test_a_plain_adapter_is_taken() -> None:
    assert adapter_refusal(PLAIN) is None
    assert adapter_refusal(json.loads(json.dumps(PLAIN, default=list))) is None
    assert adapter_refusal(PLAIN | {"use_rslora": True, "init_lora_weights": "gaussian"}) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"trainable_token_indices": [1, 2]}, "rows of the embedding"),
        ({"bias": "all"}, "biases"),
        ({"lora_bias": True}, "biases"),
        ({"target_parameters": ["experts.gate_up_proj"]}, "target_parameters"),
        ({"init_lora_weights": "pissa"}, "pissa changes the base weights"),
        ({"peft_type": "IA3"}, "IA3, not LoRA"),
        ({"use_qalora": True}, "use_qalora"),
        ({"r": 513}, "rank 513 is above 512"),
        ({"rank_pattern": {"q_proj": 1024}}, "rank 1024"),
    ],
)
def test_others_are_refused_with_a_reason(change: dict[str, Any], reason: str) -> None:
    assert reason in str(adapter_refusal(PLAIN | change))


def test_the_engines_rank_is_the_next_that_vllm_has() -> None:
    assert [lora_options(rank)["max_lora_rank"] for rank in (1, 4, 8, 9, 200, 512)] == [1, 8, 8, 16, 256, 512]
    assert highest_rank(PLAIN | {"rank_pattern": {"k_proj": 32}}) == 32
    assert lora_options(RANKS[-1])["max_loras"] == 2, "the newest, and the one before while requests use it"


VLLM = "training.use_vllm=true"


@pytest.mark.parametrize(
    ("words", "rank", "reason"),
    [
        (["model.lora.rank=12"], 12, None),
        (["model.lora.enabled=true"], 16, None),
        ([], 0, "trains no adapters"),
        (["model.lora.rank=8", "training.vllm_lora_sync=merge"], 0, "merge"),
        (["model.lora.rank=8", "model.lora.use_dora=true"], 0, "DoRA"),
        (["model.lora.rank=8", "model.load_in_4bit=true"], 0, "quantised"),
        (["model.lora.rank=8", "training.vllm_enable_sleep_mode=true"], 0, "sleep mode"),
        (["model.lora.rank=8", "model.reasoning_vocab_size=20"], 0, "rows of the embedding"),
    ],
)
def test_what_a_run_sends(words: list[str], rank: int, reason: str | None) -> None:
    found, why = served_rank(from_words(VLLM, *words).config)
    assert found == rank
    assert (why is None) == (reason is None)
    assert reason is None or reason in str(why)


def test_saved_adapters_bring_their_rank(tmp_path: Path) -> None:
    LoraConfig(r=24, target_modules=["q_proj"]).save_pretrained(str(tmp_path))
    assert served_rank(from_words(VLLM, f"model.lora.path={tmp_path}").config) == (24, None)
    (tmp_path / "adapter_config.json").write_text("no JSON")
    assert served_rank(from_words(VLLM, f"model.lora.path={tmp_path}").config) == (16, None)  # the run reports it
