"""Keys with and without effect, in runs: what is said to have none changes no logged number, what has one does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest

from covey.cli.main import main
from covey.config import load
from covey.config.groups.training import NEVER
from covey.config.live import is_live
from covey.runlog.metrics import read_metrics

pytestmark = pytest.mark.slow

BASE = (
    *("dataset.train_size=64", "dataset.test_size=4", "evaluation.every_steps=0", "rewards.workers=0"),
    *("training.max_steps=3", "training.num_generations=4", "training.per_device_train_batch_size=4"),
    *("training.gradient_accumulation_steps=2", "training.max_completion_length=8", "training.learning_rate=1e-3"),
    *("training.save_strategy=no", "training.logging_steps=1"),
    *("rewards.funcs=[format,tag_count,soft_overlong]", "training.reward_weights=[1,1,1]"),
)
CLOCK = ("time", "second", "memory", "flos")
OFF_POLICY = ("training.num_iterations=3", "training.warmup_steps=0")
SAPO, VESPO, CISPO = (f"training.loss_type={name}" for name in ("sapo", "vespo", "cispo"))
ADAPTIVE = "training.use_adaptive_entropy=true"
LORA = ("model.lora.rank=2", "model.lora.target_modules=all-linear")
MAXENT = "objective=maxent"
KL = ("objective.kl.controller=adaptive", "objective.kl.kl_horizon=4")
REPETITION = ("rewards.funcs=[format,tag_count,repetition_penalty]", "training.max_completion_length=48")

CASES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    # a key; words beside which it changes what is logged; words beside which it changes nothing
    ("training.sapo_temperature_pos=4", (SAPO, *OFF_POLICY), OFF_POLICY),
    ("training.sapo_temperature_neg=4", (SAPO, *OFF_POLICY), OFF_POLICY),
    ("training.vespo_k_pos=9", (VESPO, *OFF_POLICY), OFF_POLICY),
    ("training.vespo_lambda_neg=9", (VESPO, *OFF_POLICY), (SAPO, *OFF_POLICY)),
    ("training.delta=1", OFF_POLICY, (CISPO, *OFF_POLICY)),
    ("training.epsilon=0.001", OFF_POLICY, (SAPO, *OFF_POLICY)),
    ("training.epsilon=0.001", (CISPO, *OFF_POLICY), (CISPO, *OFF_POLICY, "training.epsilon_high=3")),
    ("training.epsilon_high=0.001", (CISPO, *OFF_POLICY), (VESPO, *OFF_POLICY)),
    ("training.importance_sampling_level=sequence", OFF_POLICY, (VESPO, *OFF_POLICY, "training.beta=0")),
    ("training.scale_rewards=none", (), (MAXENT, "training.use_bias_correction_kl=false")),
    ("training.use_bias_correction_kl=false", (*OFF_POLICY, "training.beta=0.5"), (*OFF_POLICY, "training.beta=0")),
    ("training.use_bias_correction_kl=false", (*OFF_POLICY, "training.beta=0.5"), (MAXENT, "training.beta=0.5")),
    ("training.entropy_coef_delta=0.5", (ADAPTIVE, "training.entropy_target=9"), ()),
    ("training.entropy_target=9", (ADAPTIVE, "training.entropy_coef=0.5"), ("training.entropy_coef=0.5",)),
    ("training.ref_model_mixup_alpha=0.1", ("training.sync_ref_model=true", "training.ref_model_sync_steps=1"), ()),
    ("training.ref_model_sync_steps=1", ("training.sync_ref_model=true",), ()),
    ("training.adam_beta1=0.1", (), ("training.optim=sgd",)),
    ("training.adam_epsilon=0.1", (), ("training.optim=adafactor",)),
    ("training.optim_args='momentum=0.9'", ("training.optim=sgd",), ()),
    ("training.warmup_steps=3", (), ("training.lr_scheduler_type=constant",)),
    ("training.num_train_epochs=0.2", ("training.max_steps=-1",), ()),
    ("training.logging_steps=2", (), ("training.logging_strategy=epoch",)),
    ("training.data_seed=7", (), ("training.shuffle_dataset=false",)),
    ("model.lora.alpha=300", LORA, ()),
    ("model.lora.dropout=0.5", (*LORA, "training.disable_dropout=false"), LORA),
    ("objective.maxent_length_normalize_ref=false", (MAXENT, "training.beta=0.5"), (MAXENT, "training.beta=0")),
    ("objective.kl.kl_target=1e-6", (*KL, "training.warmup_steps=0"), ()),
    ("rollout.support=full", ("training.top_p=0.5",), ()),
    ("rollout.support_top_k=1", ("training.top_p=0.9",), ("training.top_k=3",)),
    ("rewards.soft_overlong_cache=8", (), REPETITION),
    ("rewards.cosine_max_value_wrong=-9", ("rewards.funcs=[format,tag_count,cosine_scaled]",), ()),
    ("dataset.difficulty.max_digits=9", (), ("dataset=graph_coloring",)),
    ("dataset.difficulty.min_vertices=7", ("dataset=graph_coloring",), ()),
    ("dataset.difficulty.min_modes=2", ("dataset=countdown",), ()),
)
WITHOUT = {  # of the fields that never have an effect: another value than the default
    "eval_delay": 3,
    "per_device_eval_batch_size": 4,
    "prediction_loss_only": "true",
    "eval_accumulation_steps": 2,
    "eval_do_concat_batches": "false",
    "num_generations_eval": 2,
    "label_names": "[a]",
    "do_train": "true",
    "average_tokens_across_devices": "false",
    "dataloader_drop_last": "true",
    "length_column_name": "answer",
    "greater_is_better": "true",
    "hub_always_push": "true",
    "log_multimodal": "false",
    "disable_tqdm": "false",
    "local_rank": 0,
}

Logged = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Logged:
    """What a run with these words logs, without times."""

    @cache
    def call(*words: str) -> list[dict[str, Any]]:
        folder = tmp_path_factory.mktemp("runs")
        assert main(["train", *BASE, *words, f"output_dir={folder}", "run_name=r"]) == 0
        return [_numbers(row) for row in read_metrics(folder / "r" / "metrics.jsonl")]

    return call


def _numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not any(word in name for word in CLOCK)}


@pytest.mark.parametrize(
    ("word", "within", "without"), CASES, ids=[f"{number}-{c[0]}" for number, c in enumerate(CASES)]
)
def test_a_key_changes_what_is_logged_exactly_where_it_is_said_to(
    word: str, within: tuple[str, ...], without: tuple[str, ...], logged: Logged
) -> None:
    assert logged(*within, word) != logged(*within)
    assert logged(*without, word) == logged(*without)


@pytest.mark.parametrize("name", WITHOUT)
def test_what_never_has_an_effect_changes_nothing(name: str, logged: Logged) -> None:
    word = f"training.{name}={WITHOUT[name]}"
    assert name in NEVER
    assert not is_live(f"training.{name}", load([word]))
    assert logged(word) == logged()
