"""Completions are scored as they were sampled: ratios are 1 at unchanged weights, whatever cuts tokens off."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig

from covey import GRPOTrainer
from covey.config import SpeedConfig
from covey.errors import ConfigError, EngineError
from covey.objective import MaxEnt
from covey.rollout import Capabilities, Completion, LocalEngine, SamplingSettings
from fake_engine import ScriptedEngine
from trainers import build_trainer

CUT = {"temperature": 0.7, "top_k": 5, "top_p": 0.8}
PENALISED = {"repetition_penalty": 1.3}
PLAIN = SpeedConfig(shared_scoring=False, trim=False, skip_zero=False)

Case = tuple[dict[str, Any], dict[str, Any]]
CASES: dict[str, Case] = {
    "all": (CUT | PENALISED | {"min_p": 0.05}, {}),
    "min_p": ({"min_p": 0.2}, {}),
    "top_p": ({"top_p": 0.7}, {"support_top_k": 20}),
    "penalty": (PENALISED, {}),
    "plain path": (CUT | PENALISED, {"speed": PLAIN}),
    "by transformers": (CUT | PENALISED, {"speed": SpeedConfig(shared_prefill=False)}),
    "an option of transformers": (CUT | {"generation_kwargs": {"no_repeat_ngram_size": 2}}, {}),
    "temperature by an option": ({"generation_kwargs": {"temperature": 0.5}}, {}),
    "adapters and a reference": (CUT | {"beta": 0.1}, {"peft_config": LoraConfig(r=2, target_modules="all-linear")}),
    "iterations": (CUT | {"num_iterations": 2, "steps_per_generation": 2}, {}),
    "chunks": (CUT, {"speed": SpeedConfig(max_tokens=60)}),
    "resampling": (CUT, {"resample_groups": 2}),
    "MaxEnt": (CUT | {"beta": 0.1, "scale_rewards": "none"}, {"objective": MaxEnt()}),
    "checkpointing": (CUT, {"gradient_checkpointing": True}),
}


class Watched(GRPOTrainer):
    """Keeps the micro-batches, and the log-probs of the loss."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.batches: list[dict[str, Any]] = []
        self.losses: list[torch.Tensor] = []

    def _chunk_loss(self, model: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        self.batches.append(inputs)
        loss = super()._chunk_loss(model, inputs)
        self.losses.append(loss.detach())
        return loss


def trained(model: str, folder: Path, *, more: dict[str, Any] | None = None, **settings: Any) -> Watched:
    made = {"max_steps": 2, "per_device_train_batch_size": 8, "learning_rate": 1e-3, **settings}
    trainer: Any = build_trainer(Watched, model, folder, prompts=4, more={"sampler_gap": True, **(more or {})}, **made)
    trainer.train()
    return trainer


def rows_of(trainer: Any) -> list[dict[str, float]]:
    return [row for row in trainer.state.log_history if "loss" in row]


@pytest.mark.parametrize("name", CASES)
def test_at_unchanged_weights_ratios_are_one(name: str, tiny_model: str, tmp_path: Path) -> None:
    settings, more = CASES[name]
    more = dict(more)
    settings = settings | {key: more.pop(key) for key in ("gradient_checkpointing",) if key in more}
    trainer = trained(tiny_model, tmp_path, more=more, **settings)
    assert len(rows_of(trainer)) == 2
    for row in rows_of(trainer):
        assert row["sampling/logp_gap"] < 1e-5
        assert row["sampling/ratio/min"] == pytest.approx(1, abs=1e-5)
        assert row["sampling/ratio/max"] == pytest.approx(1, abs=1e-5)
        assert row["sampling/ratio/outside"] == 0
        cuts = any(key in settings for key in ("top_k", "top_p", "min_p"))
        assert (row["sampling/logp_gap/truncation"] > 0.01) == cuts
    for batch in trainer.batches:
        assert ("support" in batch) == cuts
        assert ("repetition_penalty" in batch) == ("repetition_penalty" in settings)
        assert "sampling_per_token_logps" not in batch
        if cuts:
            ids, mask, support = batch["completion_ids"], batch["completion_mask"].bool(), batch["support"]
            assert support.dtype == torch.int32
            assert support.shape[:2] == ids.shape
            assert (support == ids[..., None]).any(-1)[mask].all()
            assert (support[~mask] == -1).all()
    if name == "top_p":
        assert max(batch["support"].shape[2] for batch in trainer.batches) <= 20


def test_a_top_k_of_the_whole_vocabulary_is_none(tiny_model: str, tmp_path: Path) -> None:
    none, large = (trained(tiny_model, tmp_path / str(k), top_k=k, max_steps=1) for k in (0, 10**6))
    assert "support" not in large.batches[0]
    assert none.latest_completions["completion"] == large.latest_completions["completion"]
    assert rows_of(none)[0]["sampling/logp_gap"] == rows_of(large)[0]["sampling/logp_gap"]


def test_what_other_options_cut_off_is_truncation(
    tiny_model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        trainer = trained(tiny_model, tmp_path, generation_kwargs={"typical_p": 0.8}, max_steps=1)
    (row,) = rows_of(trainer)
    assert row["sampling/logp_gap/truncation"] == pytest.approx(row["sampling/logp_gap"], rel=1e-3)
    assert row["sampling/logp_gap"] > 0.1
    assert row["sampling/logp_gap/number_type"] < 1e-5
    assert "typical_p=0.8" in caplog.text


def test_the_switch_keeps_trls_scores(tiny_model: str, tmp_path: Path) -> None:
    """Over the full vocabulary the ratio is the probability that was kept: what `truncation` says with one support."""
    kept = trained(tiny_model, tmp_path / "kept", **CUT, max_steps=1)
    full = trained(tiny_model, tmp_path / "full", **CUT, max_steps=1, more={"support": "full"})
    (one,), (other,) = rows_of(kept), rows_of(full)
    assert "support" not in full.batches[0]
    assert kept.latest_completions["completion"] == full.latest_completions["completion"]
    assert other["sampling/logp_gap"] == pytest.approx(one["sampling/logp_gap/truncation"], rel=1e-4)
    assert other["sampling/logp_gap/truncation"] == pytest.approx(one["sampling/logp_gap/truncation"], rel=1e-4)
    assert other["sampling/logp_gap/number_type"] < 1e-5
    assert other["sampling/ratio/mean"] < 0.98
    stock = trained(tiny_model, tmp_path / "stock", **CUT, max_steps=1, more={"support": "full", "sampler_gap": False})
    assert other["loss"] == rows_of(stock)[0]["loss"]


def test_measuring_changes_nothing(tiny_model: str, tmp_path: Path) -> None:
    """Not even the random numbers of dropout."""
    found = []
    for measures in (True, False):
        adapters = LoraConfig(r=2, target_modules="all-linear", lora_dropout=0.3)
        settings: dict[str, Any] = {**CUT, "off_policy_mask_threshold": 0.01, "num_iterations": 2}
        more = {"sampler_gap": measures, "peft_config": adapters}
        trainer = trained(tiny_model, tmp_path / str(measures), more=more, **settings)
        found.append({name: value.clone() for name, value in trainer.model.named_parameters()})
        assert ("sampling/logp_gap" in rows_of(trainer)[0]) == measures
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


def test_without_truncation_nothing_is_in_the_batch(tiny_model: str, tmp_path: Path) -> None:
    trainer = trained(tiny_model, tmp_path, max_steps=1, more={"sampler_gap": False})
    assert not {"support", "repetition_penalty", "sampling_per_token_logps"} & trainer.batches[0].keys()
    assert not [name for name in rows_of(trainer)[0] if name.startswith("sampling/")]


def test_a_generate_of_the_models_own_is_scored_as_trl_does(
    tiny_model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer: Any = build_trainer(
        Watched, tiny_model, tmp_path, prompts=4, more={"sampler_gap": True}, max_steps=2, **CUT
    )
    generate = trainer.model.generate
    trainer.model.generate = lambda *args, **options: generate(*args, **options)
    with caplog.at_level(logging.WARNING, "covey"):
        trainer.train()
    assert "support" not in trainer.batches[0]
    assert caplog.text.count("rollout.support=kept does not apply") == 1
    assert caplog.text.count("logging.sampler_gap has nothing to measure") == 1


class Shifted(LocalEngine):
    """Samples as the policy, and says that every token was `shift` nats less likely than it was."""

    shift = 0.0
    gives = True

    def generate(self, prompts: Any, sampling: SamplingSettings, **more: Any) -> list[Completion]:
        found = []
        for one in super().generate(prompts, sampling, **more):
            logps = None if one.logps is None or not self.gives else [logp - self.shift for logp in one.logps]
            found.append(Completion(one.ids, one.truncated, logps, support=one.support))
        return found


def shifted(model: str, folder: Path, shift: float, *, gives: bool = True, **settings: Any) -> Watched:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    engine = Shifted(AutoModelForCausalLM.from_pretrained(model), AutoTokenizer.from_pretrained(model))
    engine.shift, engine.gives = shift, gives
    mode = {"vllm_importance_sampling_mode": "token_truncate", "max_steps": 1, "max_grad_norm": 0.0}
    return trained(model, folder, more={"engine": engine, "sampler_gap": False}, **{**mode, **settings})


def test_an_own_engine_is_corrected_as_vllm_is(tiny_model: str, tmp_path: Path) -> None:
    """A sampler that was half as likely to draw each token makes each count twice, up to the bound of 3."""
    rows, batches = {}, {}
    for shift in (0.0, math.log(2), math.log(7)):
        trainer = shifted(tiny_model, tmp_path / f"{shift:.1f}", shift, **CUT)
        assert trainer.sampling.corrects
        assert not trainer.use_vllm
        (rows[shift],), batches[shift] = rows_of(trainer), trainer.batches[0]
    for shift, ratio in ((0.0, 1), (math.log(2), 2), (math.log(7), 3)):
        mask = batches[shift]["completion_mask"].bool()
        found = batches[shift]["importance_sampling_ratio"][mask]
        torch.testing.assert_close(found, torch.full_like(found, ratio), rtol=1e-4, atol=0)
        assert rows[shift]["grad_norm"] == pytest.approx(ratio * rows[0.0]["grad_norm"], rel=1e-3)
        assert rows[shift]["sampling/ratio/mean"] == pytest.approx(math.exp(shift), rel=1e-4)
        assert rows[shift]["sampling/logp_gap"] == pytest.approx(shift, abs=1e-5)
        assert rows[shift]["sampling/ratio/outside"] == (ratio == 3)
        assert rows[shift]["sampling/importance_sampling_ratio/mean"] == pytest.approx(ratio, rel=1e-4)


def test_the_correction_can_be_turned_off(tiny_model: str, tmp_path: Path) -> None:
    trainer = shifted(tiny_model, tmp_path, 1.0, vllm_importance_sampling_correction=False)
    assert not trainer.sampling.corrects
    assert "importance_sampling_ratio" not in trainer.batches[0]


def test_an_engine_that_promised_log_probs_must_give_them(tiny_model: str, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"Shifted returned completions without log-probabilities .*: return them"):
        shifted(tiny_model, tmp_path, 0.0, gives=False)


def test_a_loss_by_token_needs_ratios_by_token(tiny_model: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="token_truncate or token_mask instead of sequence_mask"):
        shifted(tiny_model, tmp_path, 0.0, loss_type="vespo", vllm_importance_sampling_mode="sequence_mask")


def test_an_unknown_support_is_refused(tiny_model: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it is 'kept' or 'full'"):
        trained(tiny_model, tmp_path, more={"support": "some"})


def test_an_engine_without_supports_is_scored_over_all(
    tiny_model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Plain(ScriptedEngine):
        capabilities = Capabilities(logprobs=True)

    def written(count: int) -> Sequence[Completion]:
        return [Completion([5 + place, 6, 7], truncated=True, logps=[-1.0, -2.0, -3.0]) for place in range(count)]

    with caplog.at_level(logging.WARNING, "covey"):
        more = {"engine": Plain(written(8)), "sampler_gap": False}
        trainer = trained(tiny_model, tmp_path, **CUT, **PENALISED, more=more, max_steps=1)
    assert "support" not in trainer.batches[0]
    assert float(trainer.batches[0]["repetition_penalty"]) == pytest.approx(1.3)
    assert "the sampler, Plain, gives no support" in caplog.text
    (row,) = rows_of(trainer)
    assert row["sampling/logp_gap"] >= row["sampling/logp_gap/truncation"]


@pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")
@pytest.mark.parametrize("measures", [False, True])
def test_the_off_policy_mask_takes_the_log_probs_of_a_rollout_function(
    tiny_model: str, tmp_path: Path, measures: bool
) -> None:
    """A function that says that its tokens were likelier by 2 nats than they are now is far off the policy: of its
    completions only those with a positive advantage count."""
    stated = -math.log(512) + 2.0  # the tiny model's distribution is nearly uniform

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        ids = [[20 + row, *range(30, 30 + row)] for row, _ in enumerate(prompts)]
        logps = [[stated] * len(row) for row in ids]
        return {"prompt_ids": [[5, 6, 7]] * len(prompts), "completion_ids": ids, "logprobs": logps}

    def longest(completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [float(len(ids)) for ids in completion_ids]

    kept, given, drop = GRPOTrainer.get_off_policy_mask, list[torch.Tensor](), list[torch.Tensor]()

    class Seen(Watched):
        @staticmethod
        def get_off_policy_mask(**named: Any) -> torch.Tensor:
            given.append(named["sampling_per_token_logps"][named["mask"].bool()])
            drop.append(torch.stack([named["advantages"][:, 0] < 0, kept(**named)[:, 0] == 0]))
            return kept(**named)

    def norms(threshold: float) -> float:
        given.clear()
        drop.clear()
        settings = {"off_policy_mask_threshold": threshold, "max_steps": 1, "per_device_train_batch_size": 8}
        more = {"rollout_func": rollout, "sampler_gap": measures}
        folder = tmp_path / str(threshold)
        trainer = build_trainer(Seen, tiny_model, folder, prompts=2, reward=longest, more=more, **settings)
        trainer.train()
        assert all(torch.equal(values, torch.full_like(values, stated)) for values in given)
        return float(rows_of(trainer)[0]["grad_norm"])

    all_rows = norms(10.0)
    assert not torch.cat(drop, dim=1)[1].any()
    some_rows = norms(0.5)
    negative, dropped = torch.cat(drop, dim=1)
    assert torch.equal(negative, dropped)
    assert dropped.any()
    assert some_rows != pytest.approx(all_rows, rel=1e-3)
