"""How much memory training takes under various settings: whole runs, each in its own process.

    python benchmarks/memory.py [--only WORD] [--keep FOLDER]

Writes `benchmarks/memory.json`, and the tables of `docs/memory.md` from it. Each run is two optimiser steps (the second
has the optimiser's moments) of a model of random weights on made-up problems, in float32 on the CPU; measured is the
peak resident memory of the process less that of a run of a tiny model, which is Python, PyTorch and the other
libraries. The estimate of `covey doctor` is shown next to it. A random model hardly ever ends a completion, so nearly
all of them have the full length: the worst case. Rows of stock TRL are a plain script with TRL's own trainer.

On a GPU the same tensors are held; the libraries' share differs. About half an hour on one core.
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
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import Qwen3Config

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "memory.md"
BEGIN, END = "<!-- made by benchmarks/memory.py: begin -->", "<!-- made by benchmarks/memory.py: end -->"
FIGURES = ROOT / "benchmarks" / "memory.json"
GIGABYTE = 1e9
SENTENCE = "What is 12 + 30? "
REPEATS = 20
"""Sentences of every prompt."""


@dataclass(frozen=True)
class Size:
    """A Qwen3 with tied embeddings."""

    hidden: int
    layers: int
    inner: int
    vocabulary: int


SIZES = {
    "tiny": Size(hidden=32, layers=1, inner=64, vocabulary=1024),
    "25m": Size(hidden=320, layers=12, inner=1280, vocabulary=16_000),
    "25m-150k": Size(hidden=320, layers=12, inner=1280, vocabulary=150_000),
    "100m": Size(hidden=768, layers=10, inner=2304, vocabulary=48_000),
}

COMMON = (
    *("training.max_steps=2", "training.num_generations=8", "training.per_device_train_batch_size=16"),
    *("training.gradient_accumulation_steps=1", "training.max_completion_length=256", "training.beta=0"),
    *("training.gradient_checkpointing=false", "training.save_strategy=no", "training.report_to=none"),
    *("dataset.test_size=0", "evaluation.every_steps=0", "rewards.workers=1", "overwrite=true"),
    *("training.use_cpu=true", "training.bf16=false"),
)
SHORT = ("training.per_device_train_batch_size=8", "training.max_completion_length=64")
CHECKPOINTING = "training.gradient_checkpointing=true"
LORA = ("model.lora.rank=16", "model.lora.target_modules=all-linear")
STOCK = "stock TRL"
"""As the first setting: the run is a script with TRL's trainer."""


@dataclass(frozen=True)
class Cell:
    """One run of a table."""

    title: str
    """The label of its row."""
    size: str = "25m"
    settings: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        """What is run, whatever it is called."""
        return self.size, self.settings


Key = tuple[str, tuple[str, ...]]

TABLES: dict[str, tuple[str, list[Cell]]] = {
    "What tokens take": (
        "25 million parameters; groups of 8, micro-batches of 16 completions of 256 tokens, no gradient checkpointing, "
        "β 0.",
        [
            Cell("stock TRL", settings=(STOCK,)),
            Cell("Covey", settings=()),
            Cell("Covey, `speed.max_tokens=2048`", settings=("speed.max_tokens=2048",)),
            Cell(
                "Covey, `per_device_train_batch_size=8`, two of them a step",
                settings=("training.per_device_train_batch_size=8", "training.gradient_accumulation_steps=2"),
            ),
            Cell("Covey, completions of 128 tokens", settings=("training.max_completion_length=128",)),
            Cell("stock TRL, `gradient_checkpointing=true`", settings=(STOCK, CHECKPOINTING)),
            Cell("Covey, `gradient_checkpointing=true`", settings=(CHECKPOINTING,)),
            Cell(
                "Covey, `gradient_checkpointing=true`, `speed.max_tokens=2048`",
                settings=(CHECKPOINTING, "speed.max_tokens=2048"),
            ),
            Cell(
                "Covey, `gradient_checkpointing=true`, a vocabulary of 150,000 in place of 16,000",
                "25m-150k",
                (CHECKPOINTING,),
            ),
        ],
    ),
    "What weights take": (
        "100 million parameters; micro-batches of 8 completions of 64 tokens, gradient checkpointing, β 0.",
        [
            Cell("Covey", "100m", (*SHORT, CHECKPOINTING)),
            Cell(
                "Covey, `training.beta=0.04`: with a reference", "100m", (*SHORT, CHECKPOINTING, "training.beta=0.04")
            ),
            Cell("Covey, LoRA of rank 16", "100m", (*SHORT, CHECKPOINTING, *LORA)),
            Cell(
                "Covey, LoRA of rank 16, `training.beta=0.04`",
                "100m",
                (*SHORT, CHECKPOINTING, *LORA, "training.beta=0.04"),
            ),
        ],
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="only rows whose title has this word; nothing is written")
    parser.add_argument("--keep", type=Path, help="a folder for models and runs, in place of one that is removed")
    parser.add_argument("--page", action="store_true", help="measure nothing: write the page from the stored figures")
    arguments = parser.parse_args()
    if arguments.page:
        write_page()
        return
    with workspace(arguments.keep) as folder:
        data = write_problems(folder)
        reward = folder / "uneven.py"  # equal rewards would give no gradient, and no gradient is not computed
        reward.write_text(
            "def uneven(completions, **columns):\n    return [float(i % 2) for i in range(len(completions))]\n"
        )
        peaks: dict[str, int] = {}
        for cell in every_cell():
            if arguments.only in cell.title:
                peaks[name(cell)] = measure(cell, folder, data)
                print(f"{cell.title}: {peaks[name(cell)] / GIGABYTE:.2f} GB", flush=True)
    if not arguments.only:
        stored = {"about": about(), "peak_bytes": peaks}
        FIGURES.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
        write_page()


def write_page() -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{tables()}\n{END}{after}", encoding="utf-8")
    print(f"Written: {PAGE}")


IDLE = {
    False: Cell("Covey, idle", "tiny", ("training.max_completion_length=8",)),
    True: Cell("stock TRL, idle", "tiny", (STOCK, "training.max_completion_length=8")),
}
"""A minimal run, by whether it is stock TRL's."""


def every_cell() -> Iterator[Cell]:
    seen = set()
    for cell in (*IDLE.values(), *(cell for _, cells in TABLES.values() for cell in cells)):
        if cell.key not in seen:
            seen.add(cell.key)
            yield cell


def name(cell: Cell) -> str:
    """The key under which the figure of a run is stored."""
    return " ".join((cell.size, *cell.settings))


@contextmanager
def workspace(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def write_problems(folder: Path) -> Path:
    """Problems whose prompts are all of about the same length."""
    path = folder / "problems.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number in range(100, 164):
            file.write(json.dumps({"problem": f"{number} {SENTENCE * REPEATS}", "answer": "42"}) + "\n")
    return path


def model_config(size_name: str) -> Qwen3Config:
    """A Qwen3 of that size, with the starter's end and padding tokens."""
    from transformers import Qwen3Config

    size = SIZES[size_name]
    tokenizer = starter_tokenizer()
    return Qwen3Config(
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        intermediate_size=size.inner,
        vocab_size=size.vocabulary,
        num_attention_heads=size.hidden // 64 or 1,
        num_key_value_heads=1,
        head_dim=64,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )


@cache
def starter_tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(ROOT / "src" / "covey" / "model" / "starter" / "weights")


def write_model(folder: Path, size_name: str) -> None:
    """A model of random weights, with the starter's tokenizer: ids past its end decode to nothing."""
    import torch
    from transformers import Qwen3ForCausalLM

    path = folder / f"model-{size_name}"
    if not (path / "model.safetensors").is_file():
        torch.manual_seed(0)
        Qwen3ForCausalLM(model_config(size_name)).save_pretrained(path)
        starter_tokenizer().save_pretrained(path)


def words_of(cell: Cell, folder: Path, data: Path) -> list[str]:
    """The overrides of a run."""
    return [
        *(f"output_dir={folder / 'out'}", "run_name=run", f"model.name={folder / f'model-{cell.size}'}"),
        *(f"dataset.path={data}", "dataset.id=null", f"rewards.funcs=[{folder / 'uneven.py'}:uneven]"),
        *COMMON,
        *(word for word in cell.settings if word != STOCK),
    ]


def measure(cell: Cell, folder: Path, data: Path) -> int:
    """Peak memory of a run in bytes; runs in a kept folder are not repeated."""
    kept = folder / "measured.json"
    known: dict[str, int] = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else {}
    if name(cell) in known:
        return known[name(cell)]
    write_model(folder, cell.size)
    words = words_of(cell, folder, data)
    if STOCK in cell.settings:
        program = [sys.executable, __file__, "--stock", *words]
    else:
        program = [sys.executable, "-m", "covey.cli.main", "train", *words]
    done = subprocess.run(program, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{cell.title}: training ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    if STOCK in cell.settings:
        known[name(cell)] = int(done.stdout.split()[-1])
    else:
        summary = json.loads((folder / "out" / "run" / "summary.json").read_text(encoding="utf-8"))
        known[name(cell)] = int(summary["peak_memory_bytes"])
    kept.write_text(json.dumps(known), encoding="utf-8")
    return known[name(cell)]


def train_stock(words: list[str]) -> None:
    """The same training by a script with TRL's own trainer; prints its peak memory in bytes."""
    import resource

    from datasets import load_dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from covey.config import compose

    config = compose(words).config
    wanted: dict[str, Any] = {
        key: getattr(config.training, key)
        for key in (
            *("max_steps", "num_generations", "per_device_train_batch_size", "gradient_accumulation_steps"),
            *("max_completion_length", "beta", "gradient_checkpointing", "save_strategy", "report_to", "loss_type"),
            *("temperature", "use_cpu", "bf16"),
        )
    }
    arguments = GRPOConfig(output_dir=config.output_dir, disable_tqdm=True, **wanted)
    rows = load_dataset("json", data_files=config.dataset.path, split="train", cache_dir=config.output_dir)
    rows = rows.map(
        lambda row: {"prompt": [{"role": "user", "content": row["problem"]}]}, remove_columns=["problem", "answer"]
    )
    trainer = GRPOTrainer(
        run_directory=False,
        model=config.model.name,
        reward_funcs=lambda completions, **_: [float(i % 2) for i in range(len(completions))],
        args=arguments,
        train_dataset=rows,
        processing_class=AutoTokenizer.from_pretrained(config.model.name),
    )
    trainer.train()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))


@cache
def prompt_tokens() -> int:
    """Tokens of every prompt, the template's among them."""
    message = {"role": "user", "content": f"100 {SENTENCE * REPEATS}"}
    written = starter_tokenizer().apply_chat_template([message], add_generation_prompt=True, return_dict=True)
    return len(written["input_ids"])


def estimated(cell: Cell) -> int:
    """The doctor's estimate, in bytes, on a machine without a GPU."""
    from covey.config import compose
    from covey.model.memory import estimate_memory

    config = compose(words_of(cell, Path("somewhere"), Path("problems.jsonl"))).config
    estimate = estimate_memory(config, model_config(cell.size), prompt_tokens())
    return max(estimate.training, estimate.rollout)


def about() -> dict[str, str]:
    """Where the figures come from."""
    from importlib.metadata import version

    packages = ", ".join(f"{package} {version(package)}" for package in ("torch", "transformers", "trl", "peft"))
    return {"machine": f"{platform.machine()}, no GPU", "packages": packages}


def tables() -> str:
    """The tables of the page, from the stored figures."""
    stored = json.loads(FIGURES.read_text(encoding="utf-8"))
    peaks = stored["peak_bytes"]
    idle, idle_stock = (f"{peaks[name(IDLE[stock])] / GIGABYTE:.2f} GB" for stock in (False, True))
    lines = [
        f"Made by `python benchmarks/memory.py` on {stored['about']['machine']}; {stored['about']['packages']}.",
        f"A Qwen3 of random weights in float32, AdamW, prompts of {prompt_tokens()} tokens. *Measured* is the most",
        "that the process held in main memory, less what a run of next to nothing holds, which is Python and the",
        f"libraries ({idle}; stock TRL {idle_stock}). *Estimated* is what `covey doctor` says beforehand.",
    ]
    for title, (text, cells) in TABLES.items():
        lines += ["", f"### {title}", "", text, "", "| | measured | estimated |", "|---|---|---|"]
        for cell in cells:
            stock = STOCK in cell.settings
            peak = (peaks[name(cell)] - peaks[name(IDLE[stock])]) / GIGABYTE
            estimate = "" if stock else f"{estimated(cell) / GIGABYTE:.2f} GB"
            lines.append(f"| {cell.title} | {peak:.2f} GB | {estimate} |")
    return "\n".join(lines)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if sys.argv[1:2] == ["--stock"]:
        train_stock(sys.argv[2:])
    else:
        main()
