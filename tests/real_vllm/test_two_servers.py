"""A launched run on two real vLLM servers: one is killed in the middle of a round, and training does not notice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

import covey
from covey.rollout import SamplingSettings
from covey.rollout.vllm.server_engine import ServerEngine
from covey.runlog import read_completions, read_metrics
from covey.training.trl.engine_clients import connect
from servers import StartServer

pytestmark = pytest.mark.vllm

SECONDS = 900.0
STEPS = 6
REWARD = '''
def variety(completions, **columns):
    """The number of different characters."""
    return [float(len(set(c[-1]["content"]))) for c in completions]
'''


def test_seeds_of_rows_decide_what_is_sampled(start_server: StartServer, tied_model: str) -> None:
    """Not the number of servers: tokens and log-probs of two are those of one, and both hold the weights."""
    servers = [start_server(tied_model), start_server(tied_model)]
    for server in servers:
        server.wait()
    urls = [f"http://127.0.0.1:{server.port}" for server in servers]
    model = AutoModelForCausalLM.from_pretrained(tied_model)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.5)
    prompts, seeds = [[5, 6, 7, number] for number in range(8, 24)], list(range(16))
    found: list[Any] = []
    for addresses in (urls[:1], urls):
        client = connect(addresses, connection_timeout=240.0)
        client.init_communicator("cpu")
        engine = ServerEngine(client, vocab_size=10_000)
        engine.sync(model.named_parameters(), 1)
        found.append(engine.generate(prompts, SamplingSettings(24, logprobs=True), seed=seeds))
        probes = [one.prompt_logps([[5, 6, 7, 8, 9]]) for one in client.live]
        engine.close()
    assert len(probes) == 2
    assert probes[0][0] == pytest.approx(probes[1][0])
    with torch.no_grad():
        logps = model(torch.tensor([[5, 6, 7, 8, 9]])).logits[0, :-1].log_softmax(-1)
    assert probes[0][0] == pytest.approx(logps.gather(1, torch.tensor([[6], [7], [8], [9]]))[:, 0].tolist(), abs=1e-4)
    assert [one.ids for one in found[0]] == [one.ids for one in found[1]]
    for one, other in zip(*found, strict=True):
        assert one.logps == pytest.approx(other.logps, abs=1e-4)


@pytest.mark.parametrize("staleness", [0, 1])
def test_one_of_two_is_killed(tied_model: str, tmp_path: Path, staleness: int) -> None:
    reward, output = tmp_path / "reward.py", tmp_path / "output.txt"
    reward.write_text(REWARD, encoding="utf-8")
    words = [
        *("training.use_vllm=true", "training.vllm_mode=server", "training.vllm_servers=2", f"model.name={tied_model}"),
        *("training.vllm_max_model_length=256", f"training.staleness={staleness}", f"training.max_steps={STEPS}"),
        *("training.per_device_train_batch_size=16", "training.gradient_accumulation_steps=1"),
        *("training.num_generations=4", "training.max_completion_length=96", "training.learning_rate=0.01"),
        *("evaluation.every_steps=0", "evaluation.before_training=false", f"rewards.funcs=[{reward}:variety]"),
        *(
            "launch.gpus=0",
            "logging=none",
            "run_name=r",
            f"output_dir={tmp_path}",
            f"launch.log_dir={tmp_path / 'logs'}",
        ),
        *("logging.completions_every_steps=1", "ignore_checks=all"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(Path(covey.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    with output.open("wb") as file:
        run = subprocess.Popen(
            [sys.executable, "-m", "covey", "launch", *words],
            cwd=tmp_path, env=environment, stdout=file, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def rows() -> list[dict[str, Any]]:
        file = tmp_path / "r" / "metrics.jsonl"
        return [row for row in read_metrics(file) if "train/loss" in row] if file.exists() else []

    def text() -> str:
        return output.read_text(errors="replace")[-6000:]

    try:
        end = time.monotonic() + SECONDS
        while len(rows()) < 2:
            assert run.poll() is None, text()
            assert time.monotonic() < end, text()
            time.sleep(0.2)
        guards = [one for one in psutil.Process(run.pid).children(recursive=True) if _serves(one)]
        assert len(guards) == 2
        guards[1].children()[0].send_signal(signal.SIGKILL)  # it has its own process title
        assert run.wait(SECONDS) == 0, text()
    finally:
        if run.poll() is None:
            run.terminate()
            run.wait(60)
    assert text().count("the vLLM server ended with exit code") == 1
    found = rows()
    assert [row["step"] for row in found] == list(range(1, STEPS + 1))
    assert all(row["train/engine/logp_gap"] < 1e-4 for row in found if "train/engine/logp_gap" in row)
    assert any("train/engine/logp_gap" in row for row in found)
    tokens = [sum(row.get(f"rollout/server_{number}/tokens", 0) for row in found) for number in range(2)]
    assert all(tokens)
    completions = read_completions(tmp_path / "r" / "completions")
    assert len(completions) == 16 * STEPS
    assert len({str(one["completion"]) for one in completions}) > 16


def _serves(process: psutil.Process) -> bool:
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    return any("guard.py" in word for word in words) and "covey.rollout.vllm.serve" in words
