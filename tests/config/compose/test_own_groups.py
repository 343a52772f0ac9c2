"""Groups in a folder of the user's own, and recipes that build on another one, aliases included.

Aliases in a group's file work as in a recipe; an option the user chooses overrides the tuning of a default model and is
overridden by an experiment; a mistake in such a file is reported with file and line.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.config import compose, load
from covey.errors import ConfigError

FILES = {
    "model/small.yaml": "model_family: gemma3\nmodel_size: 1b\nlora_rank: 4\nlora_alpha: 8.0\ndtype: bf16\n",
    "training/slow.yaml": "learning_rate: 1e-7\nwarmup_ratio: 0.25\n",
    "training/few.yaml": "num_generations: 1\n",
    "optimizer/adamw.yaml": "learning_rate: 0.02\nbeta1: 0.8\n",
    "optimizer/sgd.yaml": "learning_rate: 0.02\nmomentum: 0.9\n",
    "evaluation/named.yaml": "inference_config: greedy\n",
    "experiment/quick.yaml": (
        "# @package _global_\ndefaults:\n  - override /model: small\nmodel:\n  lora_rank: 8\n"
        "training:\n  micro_batch_size: 1\n  num_batches: 10\ngeneration:\n  max_generation_steps: 64\n"
        "grpo:\n  num_generations: 2\n  beta: 0.08\nkl_target: 0.1\ndebug: true\n"
    ),
    "experiment/rate.yaml": "# @package _global_\ntraining:\n  learning_rate: 7e-5\n",
}


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / name).write_text(text)


def test_a_group_with_aliases() -> None:
    model = load(["model=small"], config_dirs=["mine"]).model
    assert (model.name, model.dtype) == ("google/gemma-3-1b-it", "bfloat16")
    assert (model.lora.enabled, model.lora.rank, model.lora.alpha) == (True, 4, 8.0)
    training = load(["optimizer=adamw"], config_dirs=["mine"]).training
    assert (training.learning_rate, training.adam_beta1) == (0.02, 0.8)


def test_an_experiment_with_aliases() -> None:
    composed = compose(["+experiment=quick"], config_dirs=["mine"])
    config = composed.config
    assert config.model.lora.rank == 8
    assert config.training.per_device_train_batch_size == 2  # one prompt of two completions
    assert (config.training.max_steps, config.training.max_completion_length) == (10, 64)
    assert config.objective.kl.controller == "adaptive"
    assert any("ignored: debug" in note for note in composed.notes)
    more = load(["+experiment=quick", "grpo.num_generations=4", "objective.kl=fixed"], config_dirs=["mine"])
    assert more.training.per_device_train_batch_size == 4
    assert more.objective.kl.controller == "fixed"


def test_groups_over_a_recipe() -> None:
    Path("r.yaml").write_text("optimizer: {learning_rate: 3e-4}\ndataset.system_prompt: kept\n")
    config = load(["+experiment=quick"], "r.yaml", config_dirs=["mine"])
    assert config.model.lora.rank == 8
    assert config.training.num_generations == 2
    assert (config.training.learning_rate, config.dataset.system_prompt) == (3e-4, "kept")


def test_a_users_option_overrides_the_tuning_of_the_default_model() -> None:
    tuned = load().training
    assert tuned.learning_rate != 1e-7
    training = load(["training=slow"], config_dirs=["mine"]).training
    assert (training.learning_rate, training.warmup_steps) == (1e-7, 0.25)
    assert training.max_steps == tuned.max_steps
    assert load(["training=slow", "+experiment=rate"], config_dirs=["mine"]).training.learning_rate == 7e-5
    assert load(["training=slow", "training.learning_rate=1"], config_dirs=["mine"]).training.learning_rate == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["training=few"], r"num_generations=1 is out of range.*few\.yaml, line 1\.\)"),
        (["optimizer=sgd"], r"optimizer\.momentum is not a key.*sgd\.yaml, line 2\.\)"),
    ],
)
def test_a_mistake_in_a_group_is_reported_with_its_place(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load(words, config_dirs=["mine"])
    assert "\n" not in str(caught.value)


def test_a_recipe_that_builds_on_another() -> None:
    Path("base.yaml").write_text(
        "train_grpo_objective: true\nbeta: 0.1\nlearning_rate: 1e-5\nkl_target: 0.2\nadam_beta2: two\nseed: 3\n"
    )
    Path("sub").mkdir()
    wrapper = Path("sub", "top.yaml")
    text = "command: train-maxent\nmaxent:\n  recipe: base.yaml\n  training:\n    objective: maxent_listwise\n"
    wrapper.write_text(text + "    beta: 0.3\n    adam_beta2: 0.9\n    maxent_beta_controller_enabled: false\n")
    config = load(recipe=wrapper)
    assert (config.objective.name, config.objective.maxent_fit) == ("maxent", "listwise")
    assert (config.training.beta, config.training.adam_beta2) == (0.3, 0.9)
    assert (config.training.learning_rate, config.seed) == (1e-5, 3)
    assert config.objective.kl.controller == "fixed"
    wrapper.write_text(text)
    with pytest.raises(ConfigError, match=r"adam_beta2=two has the wrong type.*base\.yaml, line 5, as adam_beta2"):
        load(recipe=wrapper)
    Path("sub", "lost.yaml").write_text("baseline:\n  recipe: gone.yaml\n")
    with pytest.raises(
        ConfigError, match=r"lost\.yaml, line 2: there is no recipe gone\.yaml, which this one builds on"
    ):
        load(recipe="sub/lost.yaml")
