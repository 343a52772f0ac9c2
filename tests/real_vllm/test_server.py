"""A vLLM server next to the trainer: weights over HTTP, a server replaced in the middle of a run, `covey train`."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from completed import completed
from covey import GRPOTrainer
from covey.errors import EngineError
from covey.model.starter import STARTER_PATH
from covey.training.trl.vllm import trainer_logps
from servers import Server, StartServer
from trainers import build_trainer

pytestmark = pytest.mark.vllm

SAME = 1e-5


@pytest.fixture(scope="module")
def server(start_server: StartServer, tied_model: str) -> Server:
    """A server of the tied model; each test syncs its own weights into it."""
    started = start_server(tied_model)
    started.wait()
    return started


def served(model: str, server: Server, folder: Path, **more: Any) -> Any:
    """A trainer that generates with this server."""
    settings = {"use_vllm": True, "vllm_mode": "server", "vllm_server_host": "127.0.0.1", "max_steps": 3}
    settings |= {"vllm_server_port": server.port, "vllm_server_timeout": 120.0}
    return build_trainer(GRPOTrainer, model, folder, prompts=6, **(settings | more))


def gap(trainer: Any, rows: list[list[int]]) -> float:
    """The largest difference between the two sides now."""
    own, theirs = trainer_logps(trainer.model, rows), trainer.vllm_generation.vllm_client.prompt_logps(rows)
    return max(abs(a - b) for ours, other in zip(own, theirs, strict=True) for a, b in zip(ours, other, strict=True))


def test_every_group_of_weights_arrives(server: Server, tied_model: str, tmp_path: Path) -> None:
    trainer = served(tied_model, server, tmp_path)
    engine = trainer.vllm_generation
    engine.sync_weights()
    assert gap(trainer, engine._rows) < SAME
    for name, weights in trainer.model.named_parameters():
        with torch.no_grad():
            weights += 0.5 * torch.randn_like(weights) * weights.std().clamp(min=0.1)
        stale = gap(trainer, engine._rows)
        engine.sync_weights()
        assert stale > 20 * SAME, f"moving {name} is not seen by the probe"
        assert gap(trainer, engine._rows) < SAME, name


def test_training_generates_with_the_weights_of_each_step(server: Server, tied_model: str, tmp_path: Path) -> None:
    from peft import LoraConfig

    adapters = LoraConfig(r=4, target_modules="all-linear")
    trainer = served(tied_model, server, tmp_path, more={"peft_config": adapters}, learning_rate=0.05)
    trainer.train()
    assert all(difference < SAME for difference in differences(trainer, steps=3))


def test_weights_that_are_not_sent_stop_the_run(
    server: Server, tied_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = served(tied_model, server, tmp_path)
    client = trainer.vllm_generation.vllm_client
    monkeypatch.setattr(client, "_send_folder", lambda named: [None for _ in named] and None)
    with torch.no_grad():
        trainer.model.get_input_embeddings().weight.mul_(1.5)  # to differ from the weights of earlier tests
    with pytest.raises(EngineError, match=r"After the weight sync at step 0"):
        trainer.train()


def test_another_dtype_fails_the_weight_sync_check(server: Server, tied_model: str, tmp_path: Path) -> None:
    """An engine in bfloat16 for a trainer in float32: within the tolerance of half types, far beyond float32's."""
    trainer = served(tied_model, server, tmp_path, bf16=True)
    trainer.vllm_generation.sync_tolerance = 1e-6
    with pytest.raises(EngineError, match=r"launch\.sync_tolerance \(1e-06\)"):
        trainer.train()


def test_a_restarted_server_gets_the_weights(
    start_server: StartServer, tied_model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Killed after the first step. The new one has the weights that training began with, until it is synced."""
    running = [start_server(tied_model)]
    running[0].wait()

    class Replaces(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 1:
                running[0].kill()
                running.append(start_server(tied_model, port=running[0].port))

    more = {"callbacks": [Replaces()]}
    trainer = served(tied_model, running[0], tmp_path, more=more, learning_rate=0.05, max_steps=2)
    with caplog.at_level(logging.WARNING, logger="covey"):
        trainer.train()
    assert len(running) == 2
    assert all(difference < SAME for difference in differences(trainer, steps=2))
    assert "A new vLLM server answers" in caplog.text
    assert gap(trainer, trainer.vllm_generation._rows) > 100 * SAME  # the last step, which no sync has followed yet


def test_completions_of_a_server_without_the_weights_are_generated_again(
    server: Server, start_server: StartServer, tied_model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Between the sync of a step and its completions another server takes over, with other weights."""
    other = start_server(tied_model)
    other.wait()
    trainer = served(tied_model, server, tmp_path, learning_rate=0.05)
    client = trainer.vllm_generation.vllm_client
    real, steps = client.generate, []

    def taken_over(*args: Any, **kwargs: Any) -> Any:
        steps.append(trainer.state.global_step)
        if steps == [0, 1]:
            client.base_url = f"http://127.0.0.1:{other.port}"
        return real(*args, **kwargs)

    client.generate = taken_over
    with caplog.at_level(logging.WARNING, logger="covey"):
        trainer.train()
    assert steps == [0, 1, 1, 2]
    assert all(difference < SAME for difference in differences(trainer, steps=3))
    assert "completions came from another server" in caplog.text


def differences(trainer: Any, *, steps: int) -> list[float]:
    """Of each step: the largest difference between log-probs by vLLM and by the policy."""
    name = "sampling/sampling_logp_difference/max"
    found = [row[name] for row in trainer.state.log_history if name in row]
    assert len(found) == steps
    return found


def test_no_server_is_an_error(tied_model: str, tmp_path: Path) -> None:
    nobody = Server(process=None, port=9, log=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(EngineError, match=r"No vLLM server answers at http://127\.0\.0\.1:9 after 0\.1 s"):
        served(tied_model, nobody, tmp_path, vllm_server_timeout=0.1)


@pytest.mark.parametrize("how", ["colocate", "server", "launch"])
def test_the_commands(how: str, start_server: StartServer, tmp_path: Path) -> None:
    """`covey train` on the model that ships with Covey, in either mode, and `covey launch`, which starts the server."""
    command = "launch" if how == "launch" else "train"
    mode = "colocate" if how == "colocate" else "server"
    overrides = ["training.use_vllm=true", f"training.vllm_mode={mode}", "training.max_steps=3", "run_name=run"]
    overrides += ["training.vllm_max_model_length=192", "evaluation.every_steps=0", f"output_dir={tmp_path}"]
    if how == "server":
        server = start_server(STARTER_PATH, "--max-model-len", "192")
        server.wait()
        overrides += ["training.vllm_server_host=127.0.0.1", f"training.vllm_server_port={server.port}"]
    if how == "launch":
        overrides += ["launch.gpus=0", f"launch.log_dir={tmp_path / 'logs'}"]
    done = completed(
        [sys.executable, "-m", "covey.cli.main", command, *overrides], cwd=tmp_path, env=os.environ, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    gaps = [row["train/engine/logp_gap"] for row in rows if "train/engine/logp_gap" in row]
    assert len(gaps) == 3
    assert all(gap < SAME for gap in gaps)
    assert all(row["time/sync"] > 0 for row in rows if "train/loss" in row)
    assert (tmp_path / "run" / "final_model" / "model.safetensors").is_file()
