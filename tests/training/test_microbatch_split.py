"""What a micro-batch costs and logs when rows are skipped or it is split into chunks.

Pinned here: rows without a gradient never reach the model, and a micro-batch of only such rows costs two tokens; the
logged means are those of the whole batch; processes run equally many chunks; what cannot be exact is refused.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from batches import PLAIN, WAYS, batching, generation_batch, relative_difference
from chunk_processes import BOTH, CASES, run
from covey import GRPOTrainer
from covey.config import SpeedConfig, load
from covey.errors import ConfigError
from covey.training.checkpoint.state import TrainingProgress, load_progress, save_progress
from covey.training.chunks import PLAN
from forked import run_two
from trainers import build_trainer

CUT = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 3}
WHOLE = {"per_device_train_batch_size": 24, "gradient_accumulation_steps": 1}


@pytest.mark.parametrize("loss", ["dapo", "bnpo"])
def test_rows_without_signal_do_not_reach_the_model(tiny_model: str, tmp_path: Path, loss: str) -> None:
    plain, everything = run(tiny_model, tmp_path, PLAIN, silent=18, loss_type=loss, **CUT)
    found, shapes = run(tiny_model, tmp_path, BOTH, silent=18, loss_type=loss, **CUT)
    assert relative_difference(found.gradient, plain.gradient) < 1e-6
    assert found.state.log_history[0]["loss"] == pytest.approx(plain.state.log_history[0]["loss"], rel=1e-5)
    assert [rows for rows, _ in everything] == [8, 8, 8]
    if loss == "dapo":  # micro-batches are whole groups, and the first two groups have no gradient
        assert sorted(shapes)[:2] == [(1, 2), (1, 2)]
        assert sorted(shapes)[2][0] == 6
    else:
        assert sum(rows for rows, _ in shapes) <= 6 + 2


@pytest.mark.parametrize("shared", [False, True])
def test_no_chunk_is_above_the_budget(tiny_model: str, tmp_path: Path, shared: bool) -> None:
    """Padding counts where the model reads it; prompts count once where it reads them once."""
    budget = 50
    plain, _ = run(tiny_model, tmp_path, PLAIN, **WHOLE)
    speed = replace(BOTH, max_tokens=budget, shared_scoring=shared)
    found, shapes = run(tiny_model, tmp_path, speed, **WHOLE)
    assert relative_difference(found.gradient, plain.gradient) < 1e-6
    tokens = [rows * width for rows, width in shapes]
    assert max(tokens) <= budget
    assert sum(tokens) / len(tokens) > budget / 2
    assert (len(tokens) < 8) == shared


def test_a_step_without_any_signal_has_a_gradient_of_zeros(tiny_model: str, tmp_path: Path) -> None:
    """Zeros and not nothing: momentum and weight decay act in this step too."""
    found, shapes = run(tiny_model, tmp_path, BOTH, silent=24, **CUT)
    assert shapes == [(1, 2)] * 3
    assert found.gradient.keys() == dict(found.model.named_parameters()).keys()
    assert not any(gradient.any() for gradient in found.gradient.values())
    row = found.state.log_history[0]
    assert row["clip_ratio/region_mean"] == row["clip_ratio/high_max"] == 0
    assert row.get("entropy") is None


def test_truncated_completions_that_do_not_count_are_left_out(tiny_model: str, tmp_path: Path) -> None:
    settings = {**CUT, "mask_truncated_completions": True, "loss_type": "grpo"}
    plain, _ = run(tiny_model, tmp_path, PLAIN, **settings)
    found, shapes = run(tiny_model, tmp_path, replace(BOTH, max_tokens=70), **settings)
    assert relative_difference(found.gradient, plain.gradient) < 1e-6
    assert len(shapes) > 3


@pytest.mark.parametrize(
    ("speed", "settings"),
    [
        pytest.param(replace(PLAIN, trim=True), {"beta": 0.1}, id="sorted"),
        pytest.param(replace(PLAIN, trim=True, max_tokens=50), {"beta": 0.1}, id="chunks"),
        pytest.param(BOTH, {"beta": 0.0}, id="skipped"),
        pytest.param(
            replace(BOTH, max_tokens=50),
            {"beta": 0.0, "importance_sampling_level": "sequence", "loss_type": "grpo"},
            id="skipped-chunks-by-sequence",
        ),
    ],
)
def test_logged_means_are_those_of_the_whole_batch(
    tiny_model: str, tmp_path: Path, speed: SpeedConfig, settings: dict[str, Any]
) -> None:
    """In the second step, which clips."""
    more = {"num_iterations": 2, "max_steps": 2, "optim": "sgd", "learning_rate": 0.3, "epsilon": 0.05, **settings}
    whole, cut = (
        run(tiny_model, tmp_path, how, silent=8, **more, **size)[0].state.log_history[1]
        for how, size in ((PLAIN, WHOLE), (speed, CUT))
    )
    names = ["clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean"]
    names += [] if speed.skip_zero else ["entropy", "kl"]
    assert whole["clip_ratio/region_mean"] > 0.01
    assert whole["clip_ratio/low_mean"] != whole["clip_ratio/high_mean"]
    for name in names:
        assert cut[name] == pytest.approx(whole[name], rel=1e-4), name


def test_extremes_count_the_rows_that_were_left_out(tiny_model: str, tmp_path: Path) -> None:
    more = {"num_iterations": 2, "max_steps": 2, "optim": "sgd", "learning_rate": 0.3, "epsilon": 0.01, "beta": 0.0}
    plain, chunks = (
        run(tiny_model, tmp_path, how, silent=8, **more, **WHOLE)[0].state.log_history[1]
        for how in (PLAIN, replace(BOTH, max_tokens=50))
    )
    assert plain["clip_ratio/high_max"] > 0
    for name in ("clip_ratio/low_min", "clip_ratio/high_max"):
        assert chunks[name] == pytest.approx(plain[name], abs=1e-6), name


def test_skipping_says_once_why_it_does_not_apply(caplog: pytest.LogCaptureFixture) -> None:
    batches = batching(BOTH, 1, 1)
    batch = generation_batch(0, groups=2)
    batch["advantages"][:4] = 0
    with caplog.at_level(logging.WARNING, logger="covey"):
        for _ in range(2):
            (micro,) = batches.split(batch, beta=0.1)
            assert len(micro["prompt_ids"]) == 8
        assert caplog.text.count("speed.skip_zero does not apply") == 1
    (micro,) = batches.split(batch, beta=0.0)
    assert len(micro["prompt_ids"]) == 4


@pytest.mark.parametrize(
    ("setting", "value", "named"),
    [
        ("loss_type", "bnpo", "loss_type=bnpo"),
        ("entropy_coef", 0.1, "entropy bonus"),
        ("top_entropy_quantile", 0.5, "top_entropy_quantile"),
        ("optim", "lomo", "optim=lomo updates the weights within every backward pass"),
    ],
)
def test_a_token_budget_is_refused_where_it_would_change_the_gradient(
    tiny_model: str, tmp_path: Path, setting: str, value: Any, named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        load(["speed.max_tokens=1000", f"training.{setting}={value}"])
    load(["speed.max_tokens=null", f"training.{setting}={value}"])
    more = {"speed": SpeedConfig(max_tokens=1000)}
    with pytest.raises(ConfigError, match=named):
        build_trainer(GRPOTrainer, tiny_model, tmp_path, prompts=4, more=more, **{setting: value})


def test_images_cannot_be_split_by_tokens() -> None:
    batch = generation_batch(0, groups=2) | {"pixel_values": [torch.ones(3)] * 8}
    with pytest.raises(ConfigError, match="images"):
        batching(WAYS["budget"], 1, 1).split(batch, beta=0.0)


def test_a_checkpoint_holds_the_plan(tmp_path: Path) -> None:
    batch = generation_batch(0, groups=2)
    batch["advantages"][4:] = 0
    cut = batching(WAYS["budget"], 2, 2).split(batch, beta=0.0)
    progress = TrainingProgress(
        micro_step=1,
        passes_done=0,
        buffered_inputs=cut,
        pending_metrics={},
        completion_log={},
        step_time=0.0,
        loss_since_log=0.0,
        loss_total=0.0,
        last_logged_step=0,
    )
    save_progress(tmp_path, 0, progress)
    loaded = load_progress(tmp_path, 0, torch.device("cpu"))
    assert loaded is not None
    assert loaded.buffered_inputs is not None
    assert [micro[PLAN] for micro in loaded.buffered_inputs] == [micro[PLAN] for micro in cut]
    assert any(dummy for micro in cut for dummy in micro[PLAN].dummies)


@pytest.mark.slow
def test_two_processes_have_the_gradient_of_one(tiny_model: str, tmp_path: Path) -> None:
    """With three micro-batches each; one process may have no signal, or fewer chunks."""
    run_two("chunk_processes.py", tiny_model, tmp_path, folder=tmp_path)
    for name, (_, silent, settings) in CASES.items():
        found = torch.load(tmp_path / f"{name}.pt", weights_only=True)
        plain, _ = run(tiny_model, tmp_path / name, PLAIN, silent=silent, **settings, **WHOLE)
        assert relative_difference(found["gradient"], plain.gradient) < 2e-6, name
        row = plain.state.log_history[0]
        assert found["row"]["clip_ratio/region_mean"] == pytest.approx(row["clip_ratio/region_mean"], abs=1e-7)
        if settings.get("beta"):
            assert found["row"]["kl"] == pytest.approx(row["kl"], rel=1e-4)
            assert found["row"]["entropy"] == pytest.approx(row["entropy"], rel=1e-5)
