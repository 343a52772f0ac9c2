"""Objectives within the trainer.

Pinned here: the gradient of a step is that of the objective's loss, computed independently in NumPy and plain autograd;
it does not depend on micro-batches or processes; GRPO stays TRL's;
the KL is logged, controlled and limited; state resumes exactly; adapters and reused generations work.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer as TRLGRPOTrainer

import scripted
from covey import GRPOTrainer
from covey.config import SpeedConfig
from covey.errors import ConfigError, TrainingError
from covey.objective import GRPO, AdaptiveKL, MaxEnt
from forked import run_two
from maxent_formula import by_numpy
from scripted import (
    MAX_LENGTH,
    TOTAL,
    ScriptedTrainer,
    assert_same_gradient,
    scripted_reward,
    scripted_trainer,
)
from scripted_processes import BETA, CASES, FITS, TAU, more_for
from second_pass import logps_of
from trainers import build_trainer

FORMS = {"luspo": "sum", "dr_grpo": "sum", "dapo": "sum", "grpo": "mean"}


def expected_gradient(trainer: ScriptedTrainer, source: str, fit: str, form: str, truncated_leave: bool) -> Any:
    """The gradient of the mean over groups of -Σ w·s or -Σ w·log softmax(s), before the first step."""
    policy = AutoModelForCausalLM.from_pretrained(source)
    reference = AutoModelForCausalLM.from_pretrained(source)
    policy.load_state_dict(trainer.started_from)
    loss = torch.zeros(())
    for start in range(0, TOTAL, 8):
        group = trainer.generated[start : start + 8]
        kept = [
            (prompt, ids, scripted_reward(ids))
            for prompt, ids in group
            if scripted_reward(ids) is not None and not (truncated_leave and len(ids) == MAX_LENGTH)
        ]
        with torch.no_grad():
            ref = np.array([float(logps_of(reference, prompt, ids).double().mean()) for prompt, ids, _ in kept])
        w = torch.tensor(by_numpy(np.array([float(r) for *_, r in kept]), ref, TAU, BETA, 1.0, 1e-6)).float()
        sums = [logps_of(policy, prompt, ids) for prompt, ids, _ in kept]
        s = torch.stack([logps.mean() if form == "mean" else logps.sum() for logps in sums])
        loss = loss - (w * (s if fit == "mle" else s.log_softmax(dim=0))).sum() / 3
    loss.backward()
    return {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}


def trained(tiny_model: str, folder: Path, **settings: Any) -> ScriptedTrainer:
    return scripted.trained(tiny_model, folder, **{"beta": BETA, **settings})


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", FORMS)
@pytest.mark.parametrize("fit", FITS)
def test_the_gradient_is_that_of_the_objective(
    tiny_model: str, tmp_path: Path, fit: str, loss_type: str, level: str
) -> None:
    masked = level == "token"  # half of the cases without truncated completions
    trainer = trained(
        tiny_model,
        tmp_path,
        more={"objective": MaxEnt(tau=TAU, fit=fit)},
        loss_type=loss_type,
        importance_sampling_level=level,
        mask_truncated_completions=masked,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=3,
    )
    assert any(len(ids) == MAX_LENGTH for _, ids in trainer.generated)
    assert any(scripted_reward(ids) is None for _, ids in trainer.generated)
    expected = expected_gradient(trainer, tiny_model, fit, FORMS[loss_type], truncated_leave=masked)
    # What TRL's own normalisation leaves: a factor for the whole generation batch.
    tokens = sum(len(ids) for _, ids in trainer.generated if not (masked and len(ids) == MAX_LENGTH))
    factor = {"dr_grpo": 1 / MAX_LENGTH, "dapo": TOTAL / tokens}.get(loss_type, 1.0)
    assert_same_gradient(trainer.gradient, {name: factor * gradient for name, gradient in expected.items()})


def test_what_a_step_logs(tiny_model: str, tmp_path: Path) -> None:
    """The KL as TRL logs it for a loss of its own, and the objective's metrics; TRL's log has the advantages used."""
    trainer = trained(tiny_model, tmp_path / "a", more={"objective": MaxEnt(tau=TAU)}, loss_type="grpo")
    row = trainer.state.log_history[0]
    plain = trained(tiny_model, tmp_path / "b", loss_type="grpo").state.log_history[0]
    assert row["kl"] == pytest.approx(plain["kl"], rel=1e-5)
    assert row["kl"] > 0.01
    assert row["objective/beta"] == BETA
    assert trainer.beta == BETA
    assert 0 < row["objective/target_entropy"] < math.log(8)
    assert row["objective/target_policy_kl"] > 0
    assert {name for name in row if name.startswith("objective/")} - {"objective/beta"} == {
        f"objective/{name}"
        for name in (
            "target_entropy",
            "effective_completions",
            "weight_on_correct",
            "policy_entropy_group",
            "target_policy_kl",
            "incorrect_mass",
            "length_tilt",
            "log_odds",
            "excluded_completions",
        )
    }
    assert row["objective/incorrect_mass"] == pytest.approx(1 - row["objective/weight_on_correct"])
    advantages = torch.tensor(trainer.latest_completions["advantage"])
    assert len(advantages) == TOTAL
    torch.testing.assert_close(advantages.view(3, 8).sum(dim=1), torch.zeros(3), atol=1e-5, rtol=0)
    unscorable = torch.tensor([scripted_reward(ids) is None for _, ids in trainer.generated])
    assert (advantages[unscorable] == 0).all()
    assert (advantages[~unscorable] != 0).all()


def test_grpo_by_name_is_grpo_by_default(tiny_model: str, tmp_path: Path) -> None:
    named = trained(tiny_model, tmp_path / "a", more={"objective": GRPO()}, loss_type="dapo")
    default = trained(tiny_model, tmp_path / "b", loss_type="dapo")
    assert all(torch.equal(named.gradient[name], gradient) for name, gradient in default.gradient.items())
    shared = {name: value for name, value in named.state.log_history[0].items() if name.startswith("objective/")}
    # Two of 24 completions have no reward; the others weigh the same, and 11 of them are wrong.
    assert shared == pytest.approx(
        {
            "objective/effective_completions": 22 / 3,
            "objective/incorrect_mass": shared["objective/incorrect_mass"],
            "objective/length_tilt": 0.0,
            "objective/log_odds": 0.0,
            "objective/excluded_completions": 2.0,
        },
        abs=1e-6,
    )
    assert not any(name.startswith("objective/") for name in default.state.log_history[0])


def test_without_beta_there_is_no_reference(tiny_model: str, tmp_path: Path) -> None:
    trainer = trained(tiny_model, tmp_path, beta=0.0, more={"objective": MaxEnt(tau=TAU)}, loss_type="grpo")
    assert trainer.ref_model is None
    assert "kl" not in trainer.state.log_history[0]
    assert trainer.state.log_history[0]["objective/target_entropy"] > 0


def test_evaluation_is_trls(tiny_model: str, tmp_path: Path) -> None:
    from datasets import Dataset

    rows = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"What is {n} + 1?"}] for n in range(8)]})

    def losses(**more: Any) -> dict[str, float]:
        more["eval_dataset"] = rows
        return scripted_trainer(tiny_model, tmp_path, more=more, beta=BETA, per_device_eval_batch_size=8).evaluate()

    found, expected = losses(objective=MaxEnt(), kl_controller=AdaptiveKL(target=0.01)), losses()
    assert found["eval_loss"] == expected["eval_loss"]
    assert found["eval_kl"] == expected["eval_kl"]
    assert not any("objective" in name for name in found)


def test_a_custom_objective_keeps_the_kl_term(tiny_model: str, tmp_path: Path) -> None:
    """Its advantages are used unchanged: all zero leaves the KL term, which is not zero off the reference."""

    class Nothing:
        needs: frozenset[str] = frozenset()

        def advantages(self, rewards_PG: torch.Tensor, mask_PG: torch.Tensor, **_: Any) -> Any:
            return torch.zeros_like(rewards_PG), {"objective/nothing": 3.0}

    more: dict[str, Any] = {"objective": Nothing()}
    with_term = trained(tiny_model, tmp_path / "a", more=more, loss_type="grpo")
    without = trained(tiny_model, tmp_path / "b", more=more, loss_type="grpo", beta=0.0)
    assert max(float(g.abs().max()) for g in with_term.gradient.values()) > 1e-3
    assert max(float(g.abs().max()) for g in without.gradient.values()) == 0
    assert with_term.state.log_history[0]["objective/nothing"] == 3.0


@pytest.mark.parametrize(
    ("more", "settings", "text"),
    [
        ({"objective": MaxEnt()}, {"loss_type": "cispo"}, "loss_type=cispo does not work with"),
        ({"objective": MaxEnt(q_epsilon=0.2)}, {"loss_type": "grpo"}, "below 1/8"),
        ({"kl_controller": AdaptiveKL(target=0.1)}, {"beta": 0.0}, "needs a reference model"),
        ({"objective": "maxent"}, {}, "no method advantages"),
    ],
)
def test_what_cannot_be_combined(
    tiny_model: str, tmp_path: Path, more: dict[str, Any], settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        scripted_trainer(tiny_model, tmp_path, more=more, **settings)


# -- However the batch is cut


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "loss_type"),
    [
        *[("grpo", loss) for loss in ("grpo", "dapo", "dr_grpo", "luspo", "cispo", "sapo", "vespo")],
        *[(fit, loss) for fit in FITS for loss in FORMS],
        ("adaptive", "grpo"),
    ],
)
def test_micro_batches_do_not_change_the_gradient(
    tiny_model: str, tmp_path: Path, objective: str, loss_type: str
) -> None:
    """24 × 1, 12 × 2, 8 × 3 and 1 × 24. Not for `bnpo`, which TRL divides by the tokens of each micro-batch."""
    runs = [
        trained(
            tiny_model,
            tmp_path / str(cut),
            more=more_for(objective),
            loss_type=loss_type,
            mask_truncated_completions=True,
            per_device_train_batch_size=TOTAL // cut,
            gradient_accumulation_steps=cut,
        )
        for cut in (1, 2, 3, 24)
    ]
    for other in runs[1:]:
        assert_same_gradient(other.gradient, runs[0].gradient)
        assert other.beta == pytest.approx(runs[0].beta, rel=1e-6)
    assert (runs[0].beta != BETA) is (objective == "adaptive")


def test_bnpo_depends_on_the_micro_batch(tiny_model: str, tmp_path: Path) -> None:
    """TRL's own normalisation; if this fails, the test above can include `bnpo`."""
    whole, cut = (
        trained(
            tiny_model,
            tmp_path / str(steps),
            loss_type="bnpo",
            per_device_train_batch_size=TOTAL // steps,
            gradient_accumulation_steps=steps,
        )
        for steps in (1, 24)
    )
    assert any(not torch.allclose(cut.gradient[n], g, rtol=1e-3) for n, g in whole.gradient.items())


@pytest.mark.slow
def test_two_processes_have_the_gradient_of_one(tiny_model: str, tmp_path: Path) -> None:
    """Also with a group that is on both."""
    run_two("scripted_processes.py", tiny_model, tmp_path, folder=tmp_path)
    for name, (objective, loss_type, _) in CASES.items():
        alone = trained(tiny_model, tmp_path / "alone", more=more_for(objective), loss_type=loss_type, beta=0.05)
        spread = torch.load(tmp_path / f"{name}.pt", weights_only=True)
        assert_same_gradient(spread["gradient"], alone.gradient)
        assert spread["beta"] == pytest.approx(alone.beta, rel=1e-6)
        assert spread["columns"].keys() == alone.objective_columns.keys()
        for column, values in alone.objective_columns.items():
            same_values = values if column == "mode" else pytest.approx(values, rel=1e-4)
            assert spread["columns"][column] == same_values, column
        row = alone.state.log_history[0]
        # TRL's own `kl` is a mean over micro-batches of means over tokens, so only Covey's is the same.
        same = {"reward", *(("kl",) if objective in FITS else ())}
        for metric in row:
            if metric.startswith("objective/") or metric in same:
                assert spread["row"][metric] == pytest.approx(row[metric], rel=1e-4), metric


# -- Runs


def run(model: str, folder: Path, settings: dict[str, Any], resume: Path | None = None) -> GRPOTrainer:
    defaults: dict[str, Any] = {"max_steps": 6, "save_steps": 1, "beta": 0.05, "loss_type": "grpo"}
    trainer = build_trainer(GRPOTrainer, model, folder, prompts=6, **{**defaults, **settings})
    trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    return trainer


def rows(trainer: GRPOTrainer) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if "time" not in k} for row in trainer.state.log_history if "loss" in row]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "settings", "weights"),
    [
        ({"objective": MaxEnt(), "kl_controller": AdaptiveKL(target=1e-3, horizon=50)}, {}, "model.safetensors"),
        (
            {"objective": MaxEnt(fit="mle"), "kl_controller": AdaptiveKL(target=1e-3, horizon=50)},
            {"num_iterations": 2, "steps_per_generation": 2, "loss_type": "dr_grpo"},
            "model.safetensors",
        ),
        (
            {
                "objective": MaxEnt(),
                "kl_controller": AdaptiveKL(target=1e-3, horizon=50),
                "peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
            },
            {"num_iterations": 2},
            "adapter_model.safetensors",
        ),
        (
            {"kl_controller": AdaptiveKL(target=1e-3, horizon=50)},
            {"gradient_accumulation_steps": 2},
            "model.safetensors",
        ),
    ],
    ids=["maxent", "maxent-reused", "maxent-lora-reused", "grpo-adaptive"],
)
def test_a_resumed_run_is_the_same_run(
    tiny_model: str, tmp_path: Path, more: dict[str, Any], settings: dict[str, Any], weights: str
) -> None:
    straight = run(tiny_model, tmp_path / "straight", {**settings, "more": more})
    expected = load_file(tmp_path / "straight" / "checkpoint-6" / weights)
    betas = [row["objective/beta"] for row in rows(straight)]
    assert betas[0] == 0.05
    assert len(set(betas)) == 6
    assert all(row["kl"] >= 0 for row in rows(straight))
    for stop in (1, 3, 4):
        resumed = run(
            tiny_model,
            tmp_path / f"from-{stop}",
            {**settings, "more": more},
            tmp_path / "straight" / f"checkpoint-{stop}",
        )
        found = load_file(tmp_path / f"from-{stop}" / "checkpoint-6" / weights)
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
        assert rows(resumed) == rows(straight)
        assert resumed.beta == straight.beta


def test_the_reference_of_an_adapter_is_the_model_without_it(tiny_model: str, tmp_path: Path) -> None:
    """A step with an adapter that is merged into nothing yet has KL 0; later the KL is that to the base model."""
    peft = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    trainer = run(tiny_model, tmp_path, {"more": {"objective": MaxEnt(), "peft_config": peft}, "learning_rate": 0.1})
    kl = [row["kl"] for row in rows(trainer)]
    assert kl[0] == pytest.approx(0, abs=1e-9)
    assert kl[-1] > 1e-6
    assert trainer.ref_model is None


def test_a_fixed_beta_is_the_arguments_even_after_a_resume(tiny_model: str, tmp_path: Path) -> None:
    run(tiny_model, tmp_path / "a", {"max_steps": 1, "more": {"kl_controller": AdaptiveKL(target=1e-3)}})
    checkpoint = tmp_path / "a" / "checkpoint-1"
    resumed = run(tiny_model, tmp_path / "b", {"max_steps": 2, "beta": 0.2}, checkpoint)
    assert resumed.beta == 0.2
    adaptive = {"max_steps": 1, "beta": 0.2, "more": {"kl_controller": AdaptiveKL(target=1e-3)}}
    assert run(tiny_model, tmp_path / "c", adaptive, checkpoint).beta < 0.05


def test_a_kl_above_the_limit_ends_the_run(tiny_model: str, tmp_path: Path) -> None:
    """Every step is logged, the one above the limit has no checkpoint, and the message names an earlier one."""
    with pytest.raises(TrainingError, match="above the limit") as caught:
        run(tiny_model, tmp_path, {"max_steps": 9, "learning_rate": 0.05, "more": {"stop_above_kl": 0.02}})
    steps = sorted(int(folder.name.partition("-")[2]) for folder in tmp_path.glob("checkpoint-*"))
    last = steps[-1] + 1
    assert 3 <= last < 9
    assert f"in step {last}," in str(caught.value)
    assert f"{tmp_path / f'checkpoint-{last - 2}'}:" in str(caught.value)


def test_trls_metrics_stay_trls(tiny_model: str, tmp_path: Path) -> None:
    """A limit that is never reached changes nothing but the log of β."""
    settings: dict[str, Any] = {"beta": 0.05, "max_steps": 2, "save_strategy": "no", "loss_type": "grpo"}
    runs = []
    stock_order = SpeedConfig(shared_prefill=False, shared_scoring=False, trim=False)
    for kind, more in ((GRPOTrainer, {"stop_above_kl": 1e3, "speed": stock_order}), (TRLGRPOTrainer, {})):
        trainer = build_trainer(kind, tiny_model, tmp_path / kind.__module__, prompts=6, more=more, **settings)
        torch.manual_seed(7)
        trainer.train()
        runs.append(
            [{k: v for k, v in r.items() if "time" not in k and "_per_" not in k} for r in trainer.state.log_history]
        )
    for row in runs[0]:
        row.pop("objective/beta", None)
    assert runs[0] == runs[1]
