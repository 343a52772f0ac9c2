"""Two real processes train together: the steps of one process, exact resumes, one process that reports.

Copies of the model (DDP) and shards of it (FSDP2), both through accelerate, on the CPU. See `several_processes.py`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from completed import completed
from covey.model.reasoning_vocab import MAP_FILE, ReasoningVocabulary
from covey.model.reasoning_vocab.expansion import expand
from covey.runlog.metrics import read_metrics
from resampled import resampled_trainer
from scripted import scripted_trainer
from several_processes import CASES, EXPANDED, RUNS, STEPS

pytestmark = pytest.mark.slow


class Done(NamedTuple):
    """The results of the two processes."""

    folder: Path
    out: str
    err: str


@pytest.fixture(scope="module")
def done(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Done:
    from several_processes import REWARD

    folder = tmp_path_factory.mktemp("several")
    (folder / "reward.py").write_text(REWARD, encoding="utf-8")
    expand(tiny_model, folder / EXPANDED, "full", start="same_text")
    script = Path(__file__).parents[1] / "support" / "several_processes.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}  # as `covey train` sets it
    ended = completed([*command, tiny_model, str(folder)], env=environment, timeout=400)
    codes = folder / "codes-1.json"
    assert codes.exists(), ended.stderr[-6000:]
    assert len(json.loads(codes.read_text())) == len(RUNS), ended.stderr[-6000:]
    assert ended.returncode != 0, "the last run fails"
    return Done(folder, ended.stdout, ended.stderr)


def rows(run: Path) -> list[dict[str, Any]]:
    """The metrics, but for times."""
    found = read_metrics(run / "metrics.jsonl")
    return [{name: v for name, v in row.items() if not name.startswith(("time/", "memory/"))} for row in found]


def files(folder: Path) -> dict[str, bytes]:
    """By name, without the arguments and the model card, which hold the run's path."""
    apart = ("training_args.bin", "README.md")
    found = [path for path in folder.rglob("*") if path.is_file() and path.name not in apart]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def tensors(value: Any, name: str = "") -> dict[str, torch.Tensor]:
    """Every tensor in nested containers, by its path."""
    if isinstance(value, torch.Tensor):
        return {name: value}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    return {path: tensor for key, inner in items for path, tensor in tensors(inner, f"{name}/{key}").items()}


def state(run: Path) -> dict[str, torch.Tensor]:
    """Weights, moments, and the random state of both processes at the last step."""
    checkpoint = run / f"checkpoint-{STEPS}"
    found = {f"weight {name}": tensor for name, tensor in load_file(checkpoint / "model.safetensors").items()}
    (optimizer,) = checkpoint.glob("optimizer.*")
    found |= tensors(torch.load(optimizer, weights_only=True), "optimizer")
    for rank in (0, 1):
        found[f"random {rank}"] = torch.load(checkpoint / f"rng_state_{rank}.pth", weights_only=False)["cpu"]
    return found


@pytest.mark.parametrize("case", [*CASES, "resampled"])
def test_a_step_is_that_of_one_process(done: Done, tiny_model: str, tmp_path: Path, case: str) -> None:
    """With the speed defaults, and with groups that are on both processes."""
    found = torch.load(done.folder / f"{case}.pt", weights_only=True)
    if case == "resampled":
        alone = resampled_trainer(tiny_model, tmp_path, range(7), 4, silent={0, 2, 3}, more={})
    else:
        _, more, settings = CASES[case]
        model = str(done.folder / EXPANDED) if case == "thinking" else tiny_model
        alone = scripted_trainer(model, tmp_path, more=more, **{**settings, "gradient_accumulation_steps": 1})
    alone.train()
    assert found["gradient"].keys() == alone.gradient.keys()
    assert max(gradient.abs().max() for gradient in alone.gradient.values()) > 1e-4
    for name, gradient in alone.gradient.items():
        assert torch.allclose(found["gradient"][name], gradient, rtol=1e-4, atol=1e-6), name
    (row,) = [row for row in alone.state.log_history if "loss" in row]
    compared = [name for name in row if name.startswith(("reward", "loss", "kl", "resampling/", "objective/"))]
    assert len(compared) > 4
    for name in compared:
        if "time" not in name:
            assert found["row"][name] == pytest.approx(row[name], rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("name", ["copies", "shards"])
def test_a_stopped_run_resumes_exactly(done: Done, name: str) -> None:
    straight, stopped = done.folder / name, done.folder / f"{name}-stopped"
    assert rows(stopped) == rows(straight)
    assert [row["step"] for row in rows(straight)] == list(range(STEPS + 1))
    assert len({row["train/grad_norm"] for row in rows(straight)[1:]}) == STEPS
    for folder in ("completions", "evaluation", "final_model"):
        assert files(straight / folder)
        assert files(stopped / folder) == files(straight / folder)
    found, expected = state(stopped), state(straight)
    assert found.keys() == expected.keys()
    for part, tensor in expected.items():
        assert torch.equal(found[part], tensor), part
    assert not torch.equal(expected["random 0"], expected["random 1"])
    assert sum(row["train/resampling/groups_replaced"] for row in rows(straight)[1:]) > 0
    assert len({row["train/objective/beta"] for row in rows(straight)[1:]}) == STEPS
    assert all(row["sampling/logp_gap"] < 1e-5 < row["sampling/logp_gap/truncation"] for row in rows(straight)[1:])


def test_a_signal_to_one_process_stops_both_with_a_checkpoint(done: Done) -> None:
    codes = [json.loads((done.folder / f"codes-{rank}.json").read_text()) for rank in (0, 1)]
    assert codes[0] == codes[1] == [143 if number == 1 else 0 for number in range(len(RUNS))]
    assert "Resuming from checkpoint-1" in done.out


def test_shards_train_as_copies_do(done: Done) -> None:
    """The same completions, and gradients that differ by rounding only."""
    copies, shards = done.folder / "copies", done.folder / "shards"
    assert files(copies / "evaluation").keys() == files(shards / "evaluation").keys()
    for found, expected in zip(rows(shards), rows(copies), strict=True):
        assert found.get("train/reward") == expected.get("train/reward")
        if expected["step"]:
            assert found["train/grad_norm"] == pytest.approx(expected["train/grad_norm"], rel=1e-3)


def test_a_reasoning_vocabulary_is_made_once_for_both(done: Done) -> None:
    run = done.folder / "thinking"
    assert done.out.count("reasoning tokens,") == 1
    assert not (run / "checkpoint-0.part").exists()
    maps = {(run / folder / MAP_FILE).read_bytes() for folder in ("checkpoint-0", "checkpoint-1", "final_model")}
    assert len(maps) == 1
    (row,) = [row for row in rows(run) if "train/kl" in row]
    assert row["train/kl"] == pytest.approx(0, abs=1e-7)  # policy and reference are both the model of checkpoint-0
    vocabulary = ReasoningVocabulary.load(run / "final_model")
    weights = load_file(run / "final_model" / "model.safetensors")["model.embed_tokens.weight"]
    assert len(weights) == vocabulary.map.vocab_size == 2 * vocabulary.map.base_vocab_size


@pytest.mark.parametrize("name", ["copies", "shards"])
def test_one_process_loads_what_two_saved(done: Done, tiny_model: str, name: str) -> None:
    run = done.folder / name
    before = AutoModelForCausalLM.from_pretrained(tiny_model).state_dict()
    for folder in (run / f"checkpoint-{STEPS}", run / "final_model"):
        model, loading_info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        assert not any(loading_info.values()), loading_info
        after = model.state_dict()
        assert after.keys() == before.keys()
        assert any(not torch.equal(tensor, before[part]) for part, tensor in after.items())


def test_evaluations_are_split_and_merged(done: Done) -> None:
    """Seven problems in batches of three: two batches in one process, one in the other."""
    for name in ("copies", "shards"):
        written = (done.folder / name / "evaluation" / f"test-step-{STEPS:06d}.jsonl").read_text().splitlines()
        assert [json.loads(line)["problem"] for line in written] == list(range(7))
        rewards = [json.loads(line)["rewards"]["coarse"] for line in written]
        row = rows(done.folder / name)[-1]
        assert row["eval/reward"] == row["eval/reward/coarse"] == pytest.approx(sum(rewards) / 7)
        assert "eval/accuracy" not in row


def test_only_the_main_process_displays_and_writes(done: Done) -> None:
    assert done.out.count("saving the model") == len(RUNS) - 2  # without those that are stopped
    run = done.folder / "copies"
    log = (run / "train.process-1.log").read_text()
    assert "step 1" not in log
    assert not list(run.glob(".*"))
    assert (run / "report.html").stat().st_size > 10_000


def test_a_failure_in_one_process_is_one_paragraph(done: Done) -> None:
    lines = done.err.splitlines()
    reported = [line for line in lines if line.startswith("covey: ")]
    assert len(reported) == 1, done.err[-4000:]
    assert reported[0].startswith("covey: process 1 on ")
    assert "no more of this" in reported[0]
    assert not any(line.startswith("[rank") for line in lines)
    assert done.err.count("Traceback") == 1  # the launcher's own
    assert not (done.folder / "failing" / "final_model").exists()
    summary = json.loads((done.folder / "failing" / "summary.json").read_text())  # by the process that failed first
    assert (summary["status"], summary["error"]) == ("failed", "RewardError")
    assert "no more of this" in summary["traceback"]
