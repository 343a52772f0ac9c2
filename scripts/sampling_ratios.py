"""Measure ratios at unchanged weights, settings by engines, and write the table into docs/sampling.md.

The ratio is the trainer's probability of a sampled token to the sampler's: 1 where both mean the same distribution.
Needs vLLM; without a GPU `.venv-vllm/bin/python scripts/sampling_ratios.py`, some minutes. `--only local` needs none.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import PrinterCallback

from covey import GRPOConfig, GRPOTrainer
from covey.model.reasoning_vocab.expansion import expand
from covey.model.starter import STARTER_PATH
from covey.training.replaced import replaced
from covey.training.trl import sampled_scoring

PAGE = Path(__file__).resolve().parents[1] / "docs" / "sampling.md"
BEGIN, END = "<!-- made by scripts/sampling_ratios.py: begin -->", "<!-- end -->"

TOGETHER = {"temperature": 0.7, "top_k": 5, "top_p": 0.8, "min_p": 0.05, "repetition_penalty": 1.2}
ROWS: dict[str, tuple[dict[str, float], str]] = {
    "nothing cut off": ({}, "plain"),
    "temperature 0.7": ({"temperature": 0.7}, "plain"),
    "top-k 20": ({"top_k": 20}, "plain"),
    "top-k 5": ({"top_k": 5}, "plain"),
    "top-p 0.95": ({"top_p": 0.95}, "plain"),
    "top-p 0.8": ({"top_p": 0.8}, "plain"),
    "min-p 0.05": ({"min_p": 0.05}, "plain"),
    "repetition penalty 1.2": ({"repetition_penalty": 1.2}, "plain"),
    "temperature 0.7, top-k 5, top-p 0.8": ({"temperature": 0.7, "top_k": 5, "top_p": 0.8}, "plain"),
    "all of them": (TOGETHER, "plain"),
    "all of them, an adapter sent alone": (TOGETHER, "lora"),
    "all of them, reasoning vocabulary": (TOGETHER, "reasoning"),
}
ENGINES = ("local", "colocate", "server")
HEAD = "| settings | local | vLLM in process | vLLM server | TRL's: vLLM in process | TRL's: vLLM server |"


def ratios(model: str, engine: str, support: str, settings: dict[str, float], *, lora: bool, port: int) -> torch.Tensor:
    """The ratios of all tokens of one generation, before any step."""
    found = list[torch.Tensor]()

    def keep(sample: Any, *_: Any, **__: Any) -> dict[str, float]:
        found.append((sample.trainer.double() - sample.sampler.double())[sample.counted.bool()].exp())
        return {}

    more: dict[str, Any] = {}
    if engine != "local":
        more = {"use_vllm": True, "vllm_mode": engine, "vllm_max_model_length": 256}
    if engine == "server":
        more |= {"vllm_server_host": "127.0.0.1", "vllm_server_port": port, "vllm_server_timeout": 600.0}
    with tempfile.TemporaryDirectory() as folder, replaced(sampled_scoring, measure_gap=keep):
        trainer = GRPOTrainer(
            run_directory=False,
            model=model,
            reward_funcs=lambda completions, **_: [float(len(one[0]["content"]) % 7) for one in completions],
            args=GRPOConfig(
                output_dir=folder,
                **{"per_device_train_batch_size": 64, "num_generations": 8, "max_completion_length": 48, "seed": 3},
                **{"max_steps": 1, "save_strategy": "no", "report_to": "none", "disable_tqdm": True},
                **{"bf16": False, "use_cpu": not torch.cuda.is_available(), "gradient_checkpointing": False},
                **{**settings, **more},
            ),
            train_dataset=Dataset.from_dict(
                {"prompt": [[{"role": "user", "content": f"What is {n} + {n + 7}?"}] for n in range(8)]}
            ),
            peft_config=LoraConfig(r=8, lora_alpha=16, target_modules="all-linear") if lora else None,
            support=support,
            sampler_gap=True,
        )
        draw = torch.Generator().manual_seed(0)
        for name, weights in trainer.model.named_parameters():
            if "lora_B" in name:
                weights.data.copy_(0.05 * torch.randn(weights.shape, generator=draw))
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return found[0]


@contextmanager
def serving(model: str, port: int) -> Iterator[None]:
    """Context manager: a server of this model that takes adapters."""
    words = ["--model", model, "--port", str(port), "--max-model-len", "256", "--max-lora-rank", "8"]
    with tempfile.NamedTemporaryFile() as log:
        command = [sys.executable, "-m", "covey.rollout.vllm.serve", *words, "--log-file", log.name]
        process = subprocess.Popen(command, start_new_session=True)
        try:
            while True:
                if process.poll() is not None:
                    raise SystemExit(f"The server ended:\n{Path(log.name).read_text()[-3000:]}")
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                    break
                except (urllib.error.URLError, OSError):
                    time.sleep(1)
            yield
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def shown(found: torch.Tensor | None) -> str:
    """Mean and standard deviation, with as many digits as say something."""
    if found is None:
        return "-"
    off, spread = float(found.mean()) - 1, float(found.std())
    if max(abs(off), spread) < 1e-3:
        return f"1 {'-' if off < 0 else '+'} {abs(off):.0e} ± {spread:.0e}"
    return f"{1 + off:.3f} ± {spread:.3f}"


def measured(only: list[str], folder: Path, port: int) -> list[str]:
    """The table's rows."""
    wide = folder / "wide"
    expand(STARTER_PATH, wide, 700, start="same_text")
    models = {"plain": str(STARTER_PATH), "lora": str(STARTER_PATH), "reasoning": str(wide)}
    cells: dict[tuple[str, str, str], torch.Tensor] = {}
    for model in dict.fromkeys(models.values()):
        rows = {name: row for name, row in ROWS.items() if models[row[1]] == model}
        for engine in only:
            with serving(model, port) if engine == "server" else tempfile.TemporaryDirectory():
                for name, (settings, kind) in rows.items():
                    for support in ("kept", "full") if engine != "local" else ("kept",):
                        found = ratios(model, engine, support, settings, lora=kind == "lora", port=port)
                        cells[name, engine, support] = found
                        print(f"{name}, {engine}, {support}: {shown(found)}", file=sys.stderr, flush=True)
    order = [(engine, "kept") for engine in ENGINES] + [(engine, "full") for engine in ENGINES[1:]]
    return [f"| {name} | {' | '.join(shown(cells.get((name, *column))) for column in order)} |" for name in ROWS]


def main() -> None:
    """Measure, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", nargs="+", choices=ENGINES, default=list(ENGINES), help="engines")
    parser.add_argument("--write", action="store_true", help="write the table into docs/sampling.md")
    args = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        table = "\n".join([HEAD, "|---|---|---|---|---|---|", *measured(args.only, Path(folder), port)])
    if not args.write:
        print(table)
        return
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
