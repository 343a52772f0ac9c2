"""Adapters sent to real vLLM alone: its log-probs through them are the trainer's, and anything else is noticed."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig

from completed import completed
from covey import GRPOTrainer
from covey.errors import ConfigError, EngineError
from covey.rollout.vllm import engine as vllm_engine
from covey.training.trl.engine_lora import PolicyAdapter
from covey.training.trl.vllm import EngineGeneration
from servers import Server, StartServer
from trainers import build_trainer

pytestmark = pytest.mark.vllm

SAME = 5e-5  # float32 on both sides, adapters trained with a high learning rate; measured: 2e-5 at most


@pytest.fixture(scope="module")
def server(start_server: StartServer, tied_model: str) -> Server:
    """A server that takes adapters."""
    started = start_server(tied_model, "--max-lora-rank", "8")
    started.wait()
    return started


def made(
    model: str, folder: Path, server: Server | None = None, sync: str = "adapter", rank: int = 4, **more: Any
) -> Any:
    """A trainer of adapters with vLLM in its process, or with a server."""
    lora = LoraConfig(r=rank, lora_alpha=32, target_modules=more.pop("targets", "all-linear"))
    settings = {"use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": 128, "max_steps": 3}
    if server is not None:
        settings |= {"vllm_mode": "server", "vllm_server_host": "127.0.0.1", "vllm_server_port": server.port}
        settings |= {"vllm_server_timeout": 120.0}
    more.setdefault("learning_rate", 0.05)
    arguments = {"peft_config": lora, "vllm_lora_sync": sync}
    return build_trainer(GRPOTrainer, model, folder, prompts=6, more=arguments, **(settings | more))


def differences(trainer: Any, steps: int = 3) -> float:
    """The largest difference between log-probs by vLLM and by the policy, over all steps."""
    name = "sampling/sampling_logp_difference/max"
    found = [row[name] for row in trainer.state.log_history if name in row]
    assert len(found) == steps
    return max(found)


def refuse_whole_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("whole weights were sent")

    monkeypatch.setattr(EngineGeneration, "_send_weights", refuse)


def test_training_samples_with_the_adapter_of_each_step(
    tied_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_whole_weights(monkeypatch)
    trainer = made(tied_model, tmp_path)
    trainer.train()
    assert differences(trainer) < SAME
    engine = trainer.vllm_generation
    base, through = (vllm_engine.prompt_logps(engine.llm, engine._rows, one) for one in (None, engine._request))
    assert (torch.tensor(base[0]) - torch.tensor(through[0])).abs().max() > 100 * SAME  # it was trained
    assert engine._request.lora_name.startswith("covey-v2-")
    assert engine.llm.llm_engine.list_loras() == {engine._request.lora_int_id}


def test_a_servers_adapters_are_those_of_each_step(
    server: Server, tied_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_whole_weights(monkeypatch)
    trainer = made(tied_model, tmp_path, server)
    trainer.train()
    assert differences(trainer) < SAME
    client = trainer.vllm_generation.vllm_client
    served = [one["id"] for one in client._get(f"{client.base_url}/v1/models")["data"]]
    assert [one for one in served if one.startswith("covey-")] == [client.model]
    assert client.model.startswith("covey-v2-")


def test_an_adapter_that_is_not_sent_stops_the_run(
    tied_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = made(tied_model, tmp_path, learning_rate=1e-4)
    trainer.vllm_generation.sync_tolerance = 10.0  # so that the size of the gap is not an error
    real, calls = EngineGeneration._load_adapter, []

    def skips_the_third(engine: Any, *args: Any) -> None:
        calls.append(args)
        if len(calls) != 4:  # the first is the random one
            real(engine, *args)

    monkeypatch.setattr(EngineGeneration, "_load_adapter", skips_the_third)
    with pytest.raises(EngineError, match=r"sync at step 2, .*bit for bit"):
        trainer.train()


def loses_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The adapter of one kind of layer is left out, as vLLM does with layers that it has no adapters for."""
    real = PolicyAdapter.tensors
    monkeypatch.setattr(
        PolicyAdapter,
        "tensors",
        lambda adapter: {name: weights for name, weights in real(adapter).items() if "down_proj" not in name},
    )


def test_a_layer_without_its_adapter_is_noticed_before_training(
    tied_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loses_a_layer(monkeypatch)
    trainer = made(tied_model, tmp_path)
    with pytest.raises(ConfigError, match=r"vllm_lora_sync=adapter, but .* random weights of the adapter"):
        trainer.train()
    assert trainer.state.global_step == 0


@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_auto_falls_back_on_merged_weights(
    mode: str,
    server: Server,
    tied_model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An engine that was started for adapters takes merged weights as well."""
    loses_a_layer(monkeypatch)
    trainer = made(tied_model, tmp_path, server if mode == "server" else None, "auto")
    with caplog.at_level(logging.WARNING, logger="covey"):
        trainer.train()
    assert differences(trainer) < SAME
    assert trainer.vllm_generation._adapter is None
    assert caplog.text.count("whole weights with the adapter merged") == 1


def test_base_weights_of_another_run_are_replaced(
    server: Server, tied_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server keeps the weights of the run before."""
    before = made(tied_model, tmp_path / "a", server, "merge")
    before.train()
    sent, real = [], EngineGeneration._send_weights
    monkeypatch.setattr(EngineGeneration, "_send_weights", lambda engine: (sent.append(engine), real(engine)))
    trainer = made(tied_model, tmp_path / "b", server)
    trainer.train()
    assert len(sent) == 1
    assert differences(trainer) < SAME


def test_a_rank_above_the_servers_is_refused(server: Server, tied_model: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"takes ranks up to 8: start it with .*--max-lora-rank 9"):
        made(tied_model, tmp_path, server, rank=9)


def test_a_server_without_adapters_gets_merged_weights(
    start_server: StartServer, tied_model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = start_server(tied_model)
    plain.wait()
    with caplog.at_level(logging.WARNING, logger="covey"):
        trainer = made(tied_model, tmp_path, plain, "auto")
        trainer.train()
    assert "was started without adapters" in caplog.text
    assert differences(trainer) < SAME


def test_covey_launch_starts_the_server_for_adapters(tmp_path: Path) -> None:
    """`covey launch` on the model that ships with Covey."""
    words = ["training.use_vllm=true", "training.vllm_mode=server", "training.max_steps=3", "run_name=run"]
    words += ["training.vllm_max_model_length=192", "evaluation.every_steps=0", f"output_dir={tmp_path}"]
    words += ["model.lora.rank=4", "training.vllm_lora_sync=adapter", "training.learning_rate=1e-3"]
    words += ["launch.gpus=0", f"launch.log_dir={tmp_path / 'logs'}"]
    done = completed(
        [sys.executable, "-m", "covey.cli.main", "launch", *words], cwd=tmp_path, env=os.environ, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    gaps = [row["train/engine/logp_gap"] for row in rows if "train/engine/logp_gap" in row]
    assert len(gaps) == 3
    assert all(gap < SAME for gap in gaps)
