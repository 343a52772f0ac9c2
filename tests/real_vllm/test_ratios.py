"""Ratios at unchanged weights: what vLLM says it sampled with is what the trainer scores, whatever cuts tokens off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey import GRPOTrainer
from covey.errors import EngineError
from covey.model.reasoning_vocab.expansion import expand
from covey.model.starter import STARTER_PATH
from covey.rollout import SamplingSettings
from servers import Server, StartServer
from trainers import build_trainer

pytestmark = pytest.mark.vllm

SAME = 1e-4  # float32 on both sides; measured: 3e-5 at most

SETTINGS: dict[str, dict[str, float]] = {
    "all": {"temperature": 0.7},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.05},
    "penalty": {"repetition_penalty": 1.3},
    "together": {"temperature": 0.7, "top_k": 5, "top_p": 0.8, "min_p": 0.05, "repetition_penalty": 1.3},
}


@pytest.fixture(scope="module")
def server(start_server: StartServer, tied_model: str) -> Server:
    started = start_server(tied_model)
    started.wait()
    return started


def scored(model: str, folder: Path, server: Server | None = None, **more: Any) -> dict[str, float]:
    """The metrics of one step."""
    settings = {"use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": 128, "max_steps": 1}
    settings |= {"max_completion_length": 32, "num_generations": 8, "per_device_train_batch_size": 8}
    if server is not None:
        settings |= {"vllm_mode": "server", "vllm_server_host": "127.0.0.1", "vllm_server_port": server.port}
    arguments = {"sampler_gap": True, "support": more.pop("support", "kept")}
    trainer = build_trainer(GRPOTrainer, model, folder, prompts=4, more=arguments, **(settings | more))
    trainer.train()
    return dict(trainer.state.log_history[0])


def assert_one(row: dict[str, float]) -> None:
    assert row["sampling/ratio/min"] == pytest.approx(1, abs=SAME)
    assert row["sampling/ratio/max"] == pytest.approx(1, abs=SAME)
    assert row["sampling/logp_gap"] < SAME


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_ratios_at_unchanged_weights_are_one(
    mode: str, name: str, server: Server, tied_model: str, tmp_path: Path
) -> None:
    row = scored(tied_model, tmp_path, server if mode == "server" else None, **SETTINGS[name])
    assert_one(row)
    if name in ("top_k", "top_p", "min_p", "together"):
        assert row["sampling/logp_gap/truncation"] > 0.01, "nothing was cut off, so this tests nothing"


@pytest.mark.parametrize("start", ["copy", "same_text"])
def test_ratios_of_a_reasoning_vocabulary_are_one(start: str, tmp_path: Path) -> None:
    expand(STARTER_PATH, tmp_path / "wide", 700, start=start)
    assert_one(scored(str(tmp_path / "wide"), tmp_path / "run", **SETTINGS["together"]))


def test_over_the_full_vocabulary_the_ratio_is_what_was_kept(tied_model: str, tmp_path: Path) -> None:
    """TRL's way: vLLM's log-probs are normalised over the tokens that it kept, the trainer's over all."""
    row = scored(tied_model, tmp_path, support="full", top_k=5)
    assert row["sampling/ratio/mean"] < 0.9


def test_a_server_that_cannot_say_which_tokens_is_refused(
    start_server: StartServer, tied_model: str, tmp_path: Path
) -> None:
    few = start_server(tied_model, "--max-logprobs", "4")
    few.wait()
    with pytest.raises(EngineError, match=r"log-probs of 4 tokens at most .* need 5 .*rollout\.support=full"):
        scored(tied_model, tmp_path, few, top_k=5)
    assert scored(tied_model, tmp_path, few, top_k=5, support="full")["sampling/ratio/mean"] < 0.9


def test_the_engine_outside_of_training_returns_supports() -> None:
    """Against the definition: the smallest set of the likeliest tokens, and log-probs normalised over it."""
    from covey.rollout.vllm.engine import VLLMEngine

    source = str(STARTER_PATH)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    prompt = AutoTokenizer.from_pretrained(source)("What is 3 + 4? It is", add_special_tokens=False)["input_ids"]
    settings = SamplingSettings(32, top_p=0.9, temperature=1.5, logprobs=True, support=True, support_top_k=20)
    most = 0
    for one in VLLMEngine(source, max_model_len=128).generate([prompt] * 4, settings, seed=1):
        assert one.support is not None
        assert one.logps is not None
        with torch.no_grad():
            logits_TV = model(torch.tensor([prompt + one.ids])).logits[0, len(prompt) - 1 : -1] / 1.5
        for place, token in enumerate(one.ids):
            likeliest, order = logits_TV[place].topk(20)
            share = likeliest.softmax(-1)
            kept = order[: int((share.cumsum(-1) - share < 0.9).sum())]
            found = one.support[place][one.support[place] >= 0]
            assert set(found.tolist()) == set(kept.tolist())
            among = logits_TV[place, kept].log_softmax(-1)[kept == token]
            assert one.logps[place] == pytest.approx(float(among), abs=1e-4)
            most = max(most, len(kept))
    assert most > 1
