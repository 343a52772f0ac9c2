"""Bytes and seconds of a weight sync to vLLM in LoRA training: the adapter alone, and whole weights merged.

A random Qwen3 of 130 million weights in float32, adapters of rank 16 on all linear layers, vLLM in the process and on a
server of this machine. Run where vLLM is: `.venv-vllm/bin/python benchmarks/adapter_sync.py`.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import Qwen3Config, Qwen3ForCausalLM

from covey import GRPOConfig, GRPOTrainer
from covey.model.starter.coldstart import make_tokenizer

TIMES = 5


def save_model(folder: Path) -> None:
    """Save a random model."""
    tokenizer = make_tokenizer()
    config = Qwen3Config(
        **{"vocab_size": 32_000, "hidden_size": 768, "intermediate_size": 2304, "num_hidden_layers": 14},
        **{"num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 64, "tie_word_embeddings": True},
        **{"max_position_embeddings": 1024, "pad_token_id": tokenizer.pad_token_id},
        **{"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id},
    )
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_trainer(model: str, out: str, mode: str, port: int) -> Any:
    """A trainer of adapters."""
    more = {"vllm_server_host": "127.0.0.1", "vllm_server_port": port} if mode == "server" else {}
    return GRPOTrainer(
        run_directory=False,
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=GRPOConfig(
            output_dir=out,
            **{"per_device_train_batch_size": 4, "num_generations": 4, "report_to": "none", "use_cpu": True},
            **{"use_vllm": True, "vllm_mode": mode, "vllm_max_model_length": 128, "bf16": False},
            **{"vllm_server_timeout": 600.0, **more},
        ),
        train_dataset=Dataset.from_dict({"prompt": ["1 + 1"] * 4}),
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"),
    )


def seconds_of(send: Callable[[], None]) -> list[float]:
    """Seconds of each of some calls, after one that is not counted."""
    found = []
    for _ in range(TIMES + 1):
        began = time.perf_counter()
        send()
        found.append(time.perf_counter() - began)
    return found[1:]


def measure(trainer: Any, mode: str) -> None:
    """Print a row for each of the two ways."""
    engine = trainer.vllm_generation
    engine.sync_weights()
    adapter = engine._adapter
    assert adapter is not None
    sizes = {
        "adapter": sum(weights.nbytes for weights in adapter.tensors().values()),
        "merged": sum(weights.nbytes for _, weights in engine._iter_named_params()),
    }
    ways = {"adapter": lambda: engine._send_adapter(adapter), "merged": engine._send_weights}
    for way, send in ways.items():
        seconds = seconds_of(send)
        spread = f"{min(seconds):.3f} to {max(seconds):.3f}"
        print(f"| {mode} | {way} | {sizes[way] / 1e6:.1f} | {statistics.median(seconds):.3f} ({spread}) |", flush=True)


def main() -> None:
    """Measure both modes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modes", nargs="+", default=["colocate", "server"])
    args = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads")
    print("| vLLM | sends | MB | seconds: median (range) |\n|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model")
        save_model(model)
        for mode in args.modes:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            words = ["--model", str(model), "--port", str(port), "--max-model-len", "128", "--max-lora-rank", "16"]
            command = [sys.executable, "-m", "covey.rollout.vllm.serve", *words, "--log-file", f"{folder}/log"]
            server = subprocess.Popen(command, start_new_session=True) if mode == "server" else None
            try:
                measure(make_trainer(str(model), folder, mode, port), mode)
            finally:
                if server is not None:
                    os.killpg(server.pid, signal.SIGKILL)
                    server.wait()


if __name__ == "__main__":
    main()
