"""DeepSpeed's ZeRO-2 and ZeRO-3 train in two processes on the CPU, next to two plain ones (`make test-deepspeed`)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from completed import completed
from covey.cli.main import main
from covey.runlog import read_metrics

pytestmark = [
    pytest.mark.deepspeed,
    pytest.mark.skipif(
        find_spec("deepspeed") is None,
        reason="DeepSpeed is not installed here: `make test-deepspeed` runs these in .venv-deepspeed",
    ),
]

STEPS = 2
REWARD = '''
def variety(completions, **columns):
    """The number of different characters."""
    return [float(len(set(c[-1]["content"]))) for c in completions]
'''
SETTINGS = (
    *("training.learning_rate=0.01", "training.lr_scheduler_type=constant", "training.beta=0.05"),
    # Gradients are clipped, and seen: Adam's steps would be those of any other scale. Where they are nearly zero a step
    # with a smaller epsilon is as large as elsewhere, and depends on rounding.
    *("training.max_grad_norm=0.2", "training.adam_epsilon=1e-3"),
    *("training.per_device_train_batch_size=4", "training.gradient_accumulation_steps=2", "training.num_generations=4"),
    *("training.max_completion_length=8", f"training.max_steps={STEPS}", "training.save_steps=1"),
    *("dataset.train_size=12", "dataset.test_size=4", "dataset.hard_size=0", "evaluation.every_steps=0"),
)
Launch = Callable[..., Path]


@pytest.fixture(scope="module")
def launch(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """Launches two processes with an accelerate config, and gives the run's folder; whole runs are made once."""
    folder = tmp_path_factory.mktemp("deepspeed")
    (folder / "reward.py").write_text(REWARD, encoding="utf-8")
    here = Path(sys.prefix)
    environment = {
        **{**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
        "TORCH_EXTENSIONS_DIR": str(here / "extensions"),  # where scripts/setup_deepspeed.sh compiled
        "PATH": f"{here / 'bin'}{os.pathsep}{os.environ['PATH']}",  # ninja
    }
    done: dict[tuple[str, str], Path] = {}

    def start(kind: str, name: str = "whole", *more: str) -> Path:
        run = folder / f"{kind}-{name}"
        if more or (kind, name) not in done:
            words = [
                *("covey", "launch", "launch.gpus=0", "launch.num_processes=2", f"launch.accelerate={kind}"),
                *("model=starter", f"model.name={tiny_model}", f"rewards.funcs=[{folder}/reward.py:variety]"),
                *(*SETTINGS, "rewards.workers=0", f"output_dir={folder}", f"run_name={run.name}", *more),
            ]
            ended = completed([sys.executable, "-m", *words], cwd=folder, env=environment, timeout=1200)
            assert ended.returncode == 0, ended.stderr[-6000:]
            assert "cannot be estimated" not in ended.stdout + ended.stderr  # nor anything else on the meta device
            if not more:
                done[kind, name] = run
        return run

    return start


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_file(folder / "model.safetensors")
    return found


def rows(run: Path) -> list[dict[str, Any]]:
    """The metrics, but for times."""
    found = read_metrics(run / "metrics.jsonl")
    return [{name: v for name, v in row.items() if not name.startswith(("time/", "memory/"))} for row in found]


@pytest.mark.parametrize("kind", ["zero2", "zero3"])
def test_two_steps_are_those_of_two_plain_processes(kind: str, launch: Launch, tiny_model: str) -> None:
    plain, sharded, start = weights(launch("ddp") / "final_model"), launch(kind), weights(Path(tiny_model))
    stored = sharded / f"checkpoint-{STEPS}" / f"global_step{STEPS}"
    what = "model_states" if kind == "zero3" else "optim_states"
    assert len(list(stored.glob(f"zero_pp_rank_[01]_mp_rank_00_{what}.pt"))) == 2, "each process has its shard"
    found = weights(sharded / "final_model")
    if kind == "zero2":  # which writes the tied head as well
        assert torch.equal(found.pop("lm_head.weight"), found["model.embed_tokens.weight"])
    assert found.keys() == plain.keys()
    for name, tensor in plain.items():
        assert (tensor - start[name]).abs().max() > 1e-4, name
        assert (found[name] - tensor).abs().max() < 1e-6, name
    for of_plain, of_sharded in zip(rows(launch("ddp")), rows(sharded), strict=True):
        for figure in ("train/reward", "train/kl", "train/grad_norm", "train/loss"):
            assert of_sharded.get(figure) == pytest.approx(of_plain.get(figure), abs=1e-5), figure


@pytest.mark.parametrize("kind", ["zero2", "zero3"])
def test_a_resumed_run_is_the_whole_one(kind: str, launch: Launch) -> None:
    stopped = launch(kind, "stopped", "stop_after_steps=1")
    assert not (stopped / "final_model").exists()
    resumed, whole = launch(kind, "stopped"), launch(kind)
    assert rows(resumed) == rows(whole)
    found, expected = (weights(run / f"checkpoint-{STEPS}") for run in (resumed, whole))
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


@pytest.mark.parametrize("kind", ["zero2", "zero3"])
def test_the_model_and_its_export_load(kind: str, launch: Launch, tmp_path: Path) -> None:
    run, tokens = launch(kind), torch.arange(40, 60)[None]
    assert main(["export", str(run), str(tmp_path / "out")]) == 0
    expected = AutoModelForCausalLM.from_pretrained(launch("ddp") / "final_model")(tokens).logits
    for folder in (run / "final_model", tmp_path / "out"):
        model, about = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        assert not any(about.values()), about
        assert torch.allclose(model(tokens).logits, expected, rtol=0, atol=1e-5)
