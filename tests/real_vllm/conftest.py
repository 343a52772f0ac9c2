"""Tests with real vLLM on the CPU. They run in their own environment (`make test-vllm`; see docs/vllm.md)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from servers import Server, StartServer

HERE = Path(__file__).parent

os.environ["VLLM_NO_USAGE_STATS"] = "1"
os.environ["VLLM_CONFIGURE_LOGGING"] = "0"
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip everything here if vLLM is not installed."""
    missing = pytest.mark.skip(reason="vLLM is not installed here: `make test-vllm` runs these in .venv-vllm")
    if find_spec("vllm") is None:
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(missing)


@pytest.fixture(scope="session", autouse=True)
def caches(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Put the caches of vLLM and torch into a temporary folder."""
    folder = tmp_path_factory.mktemp("caches")
    os.environ["VLLM_CACHE_ROOT"] = str(folder / "vllm")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")


def save_model(folder: Path, *, tied: bool, seed: int = 0) -> str:
    """A Qwen3 like the starter, of random weights; its head dimension, 32, is one that vLLM supports on a CPU."""
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
    """A model with tied embeddings."""
    return save_model(tmp_path_factory.mktemp("tied"), tied=True)


@pytest.fixture(scope="session")
def untied_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model with untied embeddings."""
    return save_model(tmp_path_factory.mktemp("untied"), tied=False)


@pytest.fixture(scope="module")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """Starts servers as `covey launch` does, and kills them at the end."""
    started: list[Server] = []

    def start(model: str, *more: str, port: int | None = None) -> Server:
        if port is None:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
        log = tmp_path_factory.mktemp("server") / "server.log"
        process = subprocess.Popen(
            [
                *[sys.executable, "-m", "covey.rollout.vllm.serve", "--model", model, "--port", str(port)],
                *["--max-model-len", "256", "--log-file", str(log), *more],
            ],
            start_new_session=True,
        )
        started.append(Server(process, port, log))
        return started[-1]

    yield start
    for server in started:
        server.kill()
