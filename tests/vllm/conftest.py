"""Tests against real vLLM on the CPU. They run in an environment of their own (`make test-vllm`; see docs/vllm.md)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
READY_SECONDS = 180

os.environ["VLLM_NO_USAGE_STATS"] = "1"
os.environ["VLLM_CONFIGURE_LOGGING"] = "0"
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(HERE.parent))  # for the helpers that the other tests use


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here is marked `vllm`, and left out where vLLM is not installed."""
    missing = pytest.mark.skip(reason="vLLM is not installed here: `make test-vllm` runs these in .venv-vllm")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            if find_spec("vllm") is None:
                item.add_marker(missing)


@pytest.fixture(scope="session", autouse=True)
def caches(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What vLLM and torch keep between runs goes where the tests' files go."""
    folder = tmp_path_factory.mktemp("caches")
    os.environ["VLLM_CACHE_ROOT"] = str(folder / "vllm")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")


def save_model(folder: Path, *, tied: bool, seed: int = 0) -> str:
    """A Qwen3 like the starter, of random weights; its heads have 32 numbers, which vLLM on a CPU needs."""
    import torch
    from transformers import Qwen3ForCausalLM

    from covey.model.starter.coldstart import make_tokenizer, starter_config

    tokenizer = make_tokenizer()
    config = starter_config(tokenizer)
    config.update({"num_hidden_layers": 2, "tie_word_embeddings": tied})
    config.layer_types = config.layer_types[:2]
    torch.manual_seed(seed)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def tied_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model whose output head is its input embeddings."""
    return save_model(tmp_path_factory.mktemp("tied"), tied=True)


@pytest.fixture(scope="session")
def untied_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model with an output head of its own."""
    return save_model(tmp_path_factory.mktemp("untied"), tied=False)


@dataclass
class Server:
    """A server's process, and where it listens."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def wait(self) -> None:
        """Until it answers."""
        end = time.monotonic() + READY_SECONDS
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended: {self.log.read_text()[-3000:]}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                time.sleep(0.3)
        raise AssertionError(f"no answer within {READY_SECONDS} s: {self.log.read_text()[-3000:]}")

    def kill(self) -> None:
        """Take it and its children away at once, as a machine that fails does."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


StartServer = Callable[..., Server]


@pytest.fixture(scope="module")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """Starts servers as `covey launch` would, and ends them all."""
    started: list[Server] = []

    def start(model: str, *more: str, port: int | None = None) -> Server:
        if port is None:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
        log = tmp_path_factory.mktemp("server") / "server.log"
        process = subprocess.Popen(
            [
                *[sys.executable, "-m", "covey.rollout.vllm_serve", "--model", model, "--port", str(port)],
                *["--max-model-len", "256", "--gpu-memory-utilization", "0.03", "--log-file", str(log), *more],
            ],
            start_new_session=True,
        )
        started.append(Server(process, port, log))
        return started[-1]

    yield start
    for server in started:
        server.kill()
