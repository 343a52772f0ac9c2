"""Training with non-finite values stops at that step, before saving, with an error.

Pinned here: what is checked (loss, gradient norm, weights, optimiser state, initial weights); the step that is named;
that float16's skipped steps do not count; that the last good checkpoint stays and is resumed from; and that a bad
checkpoint by an older version, which did not check, is skipped.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from covey import GRPOTrainer
from covey.cli.main import main
from covey.errors import TrainingError
from covey.runlog import CHECKPOINT_MARKER, is_complete, read_metrics
from covey.training.checkpoint.finite import FiniteCheck, is_finite, non_finite_files
from covey.training.trl.trainer import TrainerHooks
from trainers import build_trainer

NAN, INF = float("nan"), float("inf")


def check(tmp_path: Path, *, fp16: bool = False, others: list[int] | None = None) -> FiniteCheck:
    """For one process, or for two, the other one with the flags `others`."""

    def reduce(flags: torch.Tensor, reduction: str) -> torch.Tensor:
        assert reduction == "sum"
        return flags + torch.tensor(others) if others else flags

    accelerator: Any = SimpleNamespace(device=torch.device("cpu"), reduce=reduce)
    args: Any = SimpleNamespace(output_dir=str(tmp_path), fp16=fp16)
    return FiniteCheck(args, accelerator, settle=lambda: None)


@pytest.mark.parametrize(
    ("values", "finite"),
    [
        ([[1.0, -2.0], [3e38]], True),
        ([[1.0, NAN]], False),
        ([[1.0], [-INF, 0.0]], False),
        ([[]], True),
        ([[], [NAN]], False),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_all_values_count(values: list[list[float]], finite: bool, dtype: torch.dtype) -> None:
    tensors = [torch.tensor(value, dtype=dtype) for value in values]
    assert bool(is_finite([*tensors, torch.tensor([7], dtype=torch.uint8)])) is finite


@pytest.mark.parametrize(
    ("loss", "norm", "weight", "expected"),
    [
        (NAN, 1.0, 1.0, "its loss."),
        (0.0, INF, 1.0, "its gradient norm."),
        (0.0, 1.0, NAN, "its weights."),
        (INF, NAN, NAN, "its loss and gradient norm and weights."),
    ],
)
def test_the_first_step_is_named(loss: float, norm: float, weight: float, expected: str, tmp_path: Path) -> None:
    model, logged = torch.nn.Linear(1, 1), list[dict[str, float]]()
    finite_check = check(tmp_path)
    for step in (1, 2, 3):  # read only after the third, as where nothing is logged in between
        finite_check.record("loss", torch.tensor(0.5))
        finite_check.record("loss", torch.tensor(loss if step == 2 else 0.5))
        finite_check.record("loss", 0.25)
        finite_check.record("grad_norm", torch.tensor(norm if step == 2 else 1.0))
        with torch.no_grad():
            model.weight.fill_(weight if step == 2 else 1.0)
        finite_check.end_step(step, model)
        if step == 1:
            finite_check.check(1, logged.append)
    with pytest.raises(TrainingError) as caught:
        finite_check.check(3, logged.append)
    assert "stopped at step 2" in str(caught.value)
    assert expected in str(caught.value)
    assert "There is no checkpoint yet" in str(caught.value)
    assert logged == []  # the newest step is a later one


def test_processes_agree(tmp_path: Path) -> None:
    finite_check = check(tmp_path, others=[0, 1, 0])
    finite_check.record("loss", 1.0)
    finite_check.end_step(4, torch.nn.Linear(1, 1))
    with pytest.raises(TrainingError, match=r"stopped at step 4: .* in its gradient norm\. Nothing"):
        finite_check.check(4, lambda logs: None)


def test_float16_steps_with_an_infinite_gradient_do_not_count(tmp_path: Path) -> None:
    finite_check = check(tmp_path, fp16=True)
    finite_check.record("grad_norm", INF)
    finite_check.end_step(1, torch.nn.Linear(1, 1))
    finite_check.check(1, lambda logs: None)
    finite_check.record("loss", NAN)
    finite_check.end_step(2, torch.nn.Linear(1, 1))
    with pytest.raises(TrainingError, match="step 2"):
        finite_check.check(2, lambda logs: None)


def test_the_host_waits_for_the_device_only_where_it_does_anyway() -> None:
    """At steps that are logged, saved, evaluated or the last; generation and evaluation check for themselves."""
    checked = list[int]()
    trainer: Any = SimpleNamespace(
        checkpoints=SimpleNamespace(check=lambda: None),
        accelerator=SimpleNamespace(device=torch.device("cuda")),
        check_finite=lambda: checked.append(state.global_step),
        _kl_monitor=SimpleNamespace(exceeded=False),
        sampling=SimpleNamespace(repeat=lambda: None),
        asynchronous=None,
    )
    args, state = TrainingArguments(use_cpu=True, report_to="none"), TrainerState()
    for step, flags in enumerate([{}, {"should_log": True}, {"should_save": True}, {}, {"should_training_stop": True}]):
        state.global_step = step
        TrainerHooks(trainer).on_step_end(args, state, TrainerControl(**flags))
    assert checked == [1, 2, 4]


def test_moments_of_the_optimiser_count_when_a_checkpoint_is_written(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    check(tmp_path).check_state(1, model, optimizer)
    optimizer.state[model.weight]["exp_avg_sq"][0, 0] = INF
    with pytest.raises(TrainingError, match="optimiser's state"):
        check(tmp_path).check_state(1, model, optimizer)


class Poison(TrainerCallback):
    """Makes a gradient or a weight non-finite at a step."""

    def __init__(self, step: int, event: str, spoil: Callable[[torch.nn.Parameter], None]) -> None:
        def poison(args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            if state.global_step == step - (event != "on_step_begin"):
                spoil(next(p for p in model.parameters() if p.requires_grad))

        setattr(self, event, poison)


def spoil_gradient(parameter: torch.nn.Parameter) -> None:
    assert parameter.grad is not None
    parameter.grad.view(-1)[0] = NAN


def spoil_weight(parameter: torch.nn.Parameter) -> None:
    parameter.data.view(-1)[0] = INF


@pytest.mark.parametrize(
    ("event", "spoil"), [("on_pre_optimizer_step", spoil_gradient), ("on_optimizer_step", spoil_weight)]
)
@pytest.mark.parametrize("logging_steps", [1, 2])
def test_the_step_ends_the_run_and_is_not_saved(
    tiny_model: str, tmp_path: Path, event: str, spoil: Callable[[torch.nn.Parameter], None], logging_steps: int
) -> None:
    settings: dict[str, Any] = {"max_steps": 5, "save_strategy": "steps", "save_steps": 1, "save_total_limit": 1}
    trainer = build_trainer(GRPOTrainer, tiny_model, tmp_path, prompts=6, logging_steps=logging_steps, **settings)
    trainer.callback_handler.callbacks.insert(0, Poison(3, event, spoil))
    with pytest.raises(TrainingError) as caught:
        trainer.train()
    assert "stopped at step 3" in str(caught.value)
    assert f"The last good checkpoint is {tmp_path / 'checkpoint-2'}" in str(caught.value)
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-2"]
    assert is_complete(tmp_path / "checkpoint-2")
    assert trainer.state.log_history[-1]["step"] == 3  # the bad step has its row


def test_initial_weights_are_checked(tiny_model: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    poison(folder)
    trainer = build_trainer(GRPOTrainer, str(folder), tmp_path, prompts=6, max_steps=1)
    with pytest.raises(TrainingError, match="weights that training starts from are not finite"):
        trainer.train()


_POISON = """
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

class Poison(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        if state.global_step == 2:
            next(p for p in model.parameters() if p.grad is not None).grad.fill_(float("nan"))
"""


def poison(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    next(iter(weights.values())).view(-1)[0] = NAN
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_the_command_reports_it_and_resumes_from_the_good_checkpoint(
    tiny_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A gradient that is NaN in step 3; then checkpoints of a version without the check."""
    (tmp_path / "poison.py").write_text(_POISON)
    words = [
        *("train", "model=starter", f"model.name={tiny_model}", f"output_dir={tmp_path}", "run_name=run"),
        *("training.per_device_train_batch_size=4", "training.gradient_accumulation_steps=1"),
        *("training.num_generations=4", "training.max_completion_length=4", "training.save_steps=1"),
        *("training.save_total_limit=10", "training.max_steps=4", "dataset.test_size=4", "dataset.train_size=12"),
        *("evaluation.every_steps=1", "dataset.hard_size=0", "training.warmup_steps=0", "rewards.workers=0"),
    ]
    run = tmp_path / "run"
    assert main([*words, "stop_after_steps=2"]) == 0
    assert main([*words, f"callbacks=[{tmp_path / 'poison.py'}:Poison]", "resume=true"]) == 1
    output = " ".join(capsys.readouterr().err.split())
    assert "Traceback" not in output
    assert "Training was stopped at step 3" in output
    assert f"The last good checkpoint is {run / 'checkpoint-2'}" in output
    assert not (run / "checkpoint-3").exists()
    assert read_metrics(run / "metrics.jsonl")[-1]["step"] == 3

    assert main([*words, "resume=true"]) == 0
    assert read_metrics(run / "metrics.jsonl")[-1]["step"] == 4
    shutil.rmtree(run / "final_model")
    (run / "summary.json").unlink()
    for step in (3, 4):  # as 0.1 wrote them: without checksums, whatever the weights were
        checkpoint = run / f"checkpoint-{step}"
        poison(checkpoint)
        sizes = {path.name: path.stat().st_size for path in checkpoint.iterdir() if path.name != CHECKPOINT_MARKER}
        sizes.pop("records")
        (checkpoint / CHECKPOINT_MARKER).write_text(json.dumps({"step": step, "format": 1, "bytes": sizes}))
    assert non_finite_files(run / "checkpoint-4") == ["model.safetensors"]
    assert non_finite_files(run / "checkpoint-2") == []
    assert main([*words, "resume=true"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "checkpoint-4 holds values that are not finite (NaN or infinite), in model.safetensors" in output
    assert "Resuming from checkpoint-2" in output
    assert is_complete(run / "checkpoint-4")
    assert non_finite_files(run / "checkpoint-4") == []
