"""How much memory training takes, by what is set: whole runs of `covey train`, each a process of its own.

    python benchmarks/memory.py [--only WORD] [--keep FOLDER]

Writes `benchmarks/memory.md`. Each run is two optimiser steps (the second has the optimiser's moments) of a model of
random weights on made-up problems, in float32 on the CPU; what is measured is the most that the process held in main
memory (its maximum resident set), once as it stands and once less what a run of a tiny model holds, which is Python,
PyTorch and the other libraries. Beside it stands what `covey doctor` estimates beforehand. A random model hardly ever
ends a completion, so nearly all of them have the full length: the worst case.

On a GPU the same tensors are held; the libraries' share differs. Some twenty minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "benchmarks" / "memory.md"
GIGABYTE = 1e9
PROMPT_LENGTH = 150
"""Tokens of every prompt, about."""


@dataclass(frozen=True)
class Size:
    """A Qwen3 with tied embeddings."""

    hidden: int
    layers: int
    inner: int
    vocabulary: int


SIZES = {
    "tiny": Size(hidden=32, layers=1, inner=64, vocabulary=1024),
    "11m": Size(hidden=256, layers=6, inner=768, vocabulary=24_000),
    "27m": Size(hidden=384, layers=8, inner=1152, vocabulary=32_000),
    "80m": Size(hidden=640, layers=10, inner=1920, vocabulary=48_000),
}

COMMON = (
    *("training.max_steps=2", "training.num_generations=8", "training.per_device_train_batch_size=8"),
    *("training.gradient_accumulation_steps=1", "training.max_completion_length=256", "training.beta=0"),
    *("training.gradient_checkpointing=true", "training.save_strategy=no", "training.report_to=none"),
    *(
        "dataset.test_size=0",
        "evaluation.every_steps=0",
        "rewards.funcs=[format]",
        "rewards.workers=1",
        "overwrite=true",
    ),
)
LORA = ("model.lora.rank=16", "model.lora.target_modules=all-linear")
TRL_PATHS = ("speed.shared_prefill=false", "speed.shared_scoring=false", "speed.trim=false", "speed.skip_zero=false")


@dataclass(frozen=True)
class Cell:
    """One run of a table."""

    title: str
    """What its row says."""
    size: str = "27m"
    settings: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        """What is run, whatever it is called."""
        return self.size, self.settings


Key = tuple[str, tuple[str, ...]]

TABLES: dict[str, list[Cell]] = {
    "By setting: 27 million parameters": [
        Cell("the settings above"),
        Cell("`training.gradient_checkpointing=false`", settings=("training.gradient_checkpointing=false",)),
        Cell(
            "… and `speed.max_tokens=1024`",
            settings=("training.gradient_checkpointing=false", "speed.max_tokens=1024"),
        ),
        Cell("`speed.max_tokens=1024`", settings=("speed.max_tokens=1024",)),
        Cell("all of `speed.*` off: TRL's own paths", settings=TRL_PATHS),
        Cell(
            "… and `training.gradient_checkpointing=false`",
            settings=(*TRL_PATHS, "training.gradient_checkpointing=false"),
        ),
        Cell("`training.beta=0.04`: with a reference", settings=("training.beta=0.04",)),
        Cell("LoRA of rank 16", settings=LORA),
        Cell("LoRA of rank 16, `training.beta=0.04`", settings=(*LORA, "training.beta=0.04")),
        Cell("`model.dtype=bfloat16`", settings=("model.dtype=bfloat16",)),
        Cell(
            "`objective=maxent`, `training.beta=0.04`",
            settings=("objective=maxent", "training.beta=0.04"),
        ),
    ],
    "By length and micro-batch": [
        Cell("completions of 128 tokens", settings=("training.max_completion_length=128",)),
        Cell("completions of 512 tokens", settings=("training.max_completion_length=512",)),
        Cell(
            "micro-batches of 16 completions",
            settings=("training.per_device_train_batch_size=16",),
        ),
    ],
    "By size": [Cell("11 million", "11m"), Cell("27 million"), Cell("80 million", "80m")],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="only rows whose title has this word; nothing is written")
    parser.add_argument("--keep", type=Path, help="a folder for models and runs, in place of one that is removed")
    arguments = parser.parse_args()
    with workplace(arguments.keep) as folder:
        data = write_problems(folder)
        idle = measure(Cell("idle", "tiny", ("training.max_completion_length=8",)), folder, data)[0]
        print(f"idle: {idle:.2f} GB", flush=True)
        measured: dict[Key, tuple[float, float]] = {}
        for cell in (cell for cells in TABLES.values() for cell in cells):
            if arguments.only in cell.title and cell.key not in measured:
                measured[cell.key] = measure(cell, folder, data)
                print(
                    f"{cell.title}: {measured[cell.key][0]:.2f} GB, estimated {measured[cell.key][1]:.2f}", flush=True
                )
    if not arguments.only:
        TABLE.write_text(page(measured, idle), encoding="utf-8")
        print(f"Written: {TABLE}")


@contextmanager
def workplace(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def write_problems(folder: Path) -> Path:
    """Problems whose prompts are all of about the same length."""
    path = folder / "problems.jsonl"
    sentence = "What is 12 + 30? "
    with path.open("w", encoding="utf-8") as file:
        for number in range(64):
            file.write(json.dumps({"problem": f"{number} {sentence * 18}", "answer": "42"}) + "\n")
    return path


def write_model(folder: Path, name: str) -> Path:
    """A model of random weights, with the starter's tokenizer: ids past its end decode to nothing."""
    import torch
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    path = folder / f"model-{name}"
    if (path / "config.json").is_file():
        return path
    size = SIZES[name]
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "src" / "covey" / "model" / "starter" / "weights")
    torch.manual_seed(0)
    config = Qwen3Config(
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        intermediate_size=size.inner,
        vocab_size=size.vocabulary,
        num_attention_heads=size.hidden // 64 or 1,
        num_key_value_heads=max(1, size.hidden // 128),
        head_dim=64,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    Qwen3ForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def measure(cell: Cell, folder: Path, data: Path) -> tuple[float, float]:
    """Gigabytes that a run held at most, and that were estimated for it; what a kept folder has is not run again."""
    stored = folder / "measured.json"
    known = json.loads(stored.read_text(encoding="utf-8")) if stored.is_file() else {}
    name = " ".join((cell.size, *cell.settings))
    if name in known:
        return known[name][0], known[name][1]
    model = write_model(folder, cell.size)
    reward = folder / "uneven.py"  # equal rewards would give no gradient, and no gradient is not computed
    reward.write_text(
        "def uneven(completions, **columns):\n    return [float(i % 2) for i in range(len(completions))]\n"
    )
    words = [
        f"output_dir={folder / 'out'}",
        "run_name=run",
        f"model.name={model}",
        f"dataset.path={data}",
        "dataset.id=null",
        f"rewards.funcs=[{reward}:uneven]",
    ]
    words += [*COMMON, *cell.settings]
    done = subprocess.run([sys.executable, "-m", "covey.cli.main", "train", *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{cell.title}: training ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    summary = json.loads((folder / "out" / "run" / "summary.json").read_text(encoding="utf-8"))
    known[name] = summary["peak_memory_bytes"] / GIGABYTE, estimated(words, model) / GIGABYTE
    stored.write_text(json.dumps(known), encoding="utf-8")
    return known[name]


def estimated(words: list[str], model: Path) -> float:
    """What the doctor says, in bytes."""
    from transformers import AutoConfig

    from covey.config import compose
    from covey.training.memory import estimate_memory

    estimate = estimate_memory(compose(words).config, AutoConfig.from_pretrained(model), PROMPT_LENGTH)
    return max(estimate.training, estimate.rollout)


def page(measured: dict[Key, tuple[float, float]], idle: float) -> str:
    from importlib.metadata import version

    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "trl", "peft"))
    lines = [
        "# Memory, measured",
        "",
        f"Made by `python benchmarks/memory.py` on {platform.machine()}, no GPU; {packages}.",
        "",
        "A Qwen3 of random weights in float32, groups of 8, micro-batches of 8 completions, one of them a step,",
        f"prompts of some {PROMPT_LENGTH} tokens, completions of 256 tokens, gradient checkpointing on, β 0, AdamW:",
        "what the rows below change. *Process* is the most that the process held in main memory; *above idle* is less",
        f"the {idle:.2f} GB of a tiny model's run, which are Python and the libraries. *Estimated* is what",
        "`covey doctor` expects beforehand, without them.",
    ]
    for title, cells in TABLES.items():
        lines += ["", f"## {title}", "", "| | process | above idle | estimated |", "|---|---|---|---|"]
        for cell in cells:
            peak, estimate = measured[cell.key]
            lines.append(f"| {cell.title} | {peak:.2f} GB | {peak - idle:.2f} GB | {estimate:.2f} GB |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
