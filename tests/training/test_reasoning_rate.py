"""The learning rate of reasoning tokens' rows, against an optimiser that has the multiplied rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, TrainerControl, TrainerState, TrainingArguments

from covey.cli.main import main
from covey.model.reasoning_vocab.expansion import expand
from covey.model.starter import STARTER_PATH
from covey.training.callbacks import ReasoningRate

FIRST, FACTOR = 512, 20.0


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.SGD])
def test_the_rows_train_as_with_the_multiplied_rate_and_the_others_as_without(make: Any, tmp_path: Path) -> None:
    vocabulary = expand(STARTER_PATH, tmp_path / "m", "full")
    events: tuple[Any, ...] = (TrainingArguments(str(tmp_path)), TrainerState(), TrainerControl())

    def trained(rate: float, factor: float | None) -> Any:
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
        # All but the embedding is frozen, so that gradients of the two arms differ by its rows alone in the first step.
        model.requires_grad_(False)
        table = model.get_input_embeddings().weight.requires_grad_(True)
        optimizer = make([table], lr=rate, weight_decay=0.1)
        callback = None if factor is None else ReasoningRate(model, vocabulary, factor)
        table.grad = torch.randn(table.shape, generator=torch.Generator().manual_seed(1))
        if callback is not None:
            callback.on_train_begin(*events)
            callback.on_pre_optimizer_step(*events)
        optimizer.step()
        if callback is not None:
            callback.on_optimizer_step(*events)
        return table.detach()

    plain, fast, found = trained(1e-3, None), trained(1e-3 * FACTOR, None), trained(1e-3, FACTOR)
    assert torch.equal(found[:FIRST], plain[:FIRST])
    torch.testing.assert_close(found[FIRST:], fast[FIRST:], rtol=1e-4, atol=1e-6)
    assert not torch.allclose(found[FIRST:], plain[FIRST:], atol=1e-4)


@pytest.mark.parametrize("more", [[], ["model.lora.rank=4"]])
def test_a_run_moves_the_copies_further(tmp_path: Path, more: list[str]) -> None:
    common = ["training.max_steps=2", "training.save_strategy=no", "evaluation.every_steps=0", "dataset.test_size=0"]
    common += ["training.per_device_train_batch_size=8", "training.gradient_accumulation_steps=1", *more]
    common += [f"output_dir={tmp_path}", "model.reasoning_vocab_size=full", "model.lora.merge=true", "objective=grpo"]
    moved = {}
    for name, factor in (("one", "1"), ("fast", "50")):
        assert main(["train", f"run_name={name}", f"model.reasoning_lr_multiplier={factor}", *common]) == 0
        tables = [
            AutoModelForCausalLM.from_pretrained(tmp_path / name / part).get_input_embeddings().weight.detach()
            for part in ("checkpoint-0", "final_model")
        ]
        change = (tables[1] - tables[0]).norm(dim=1)
        moved[name] = float(change[FIRST:].mean())
    assert moved["fast"] > 10 * moved["one"] > 0


def test_without_reasoning_tokens_it_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "model.reasoning_lr_multiplier=2", f"output_dir={tmp_path}"]) != 0
    assert "model.reasoning_lr_multiplier=2 is for the rows of reasoning tokens" in capsys.readouterr().err
    assert main(["train", "model.reasoning_noise=0.2", f"output_dir={tmp_path}"]) == 2
    assert "has no effect with model.reasoning_start=copy" in capsys.readouterr().err
    for start in ("noise", "same_text"):
        assert main(["train", f"model.reasoning_start={start}", f"output_dir={tmp_path}"]) == 2
        assert (
            f"model.reasoning_start={start} has no effect with model.reasoning_vocab_size=0" in capsys.readouterr().err
        )
