"""Names that newcomers bring: accepted with a note where they mean one key, else led to the keys that they may mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from covey.cli.main import main
from covey.config import compose
from covey.config.aliases.aliases import PEERS, SAME, kind_of, look_up
from covey.config.aliases.resolve import explain_alias
from covey.config.compose.flags import split
from covey.config.groups.training import training_fields
from covey.config.keys import kinds
from covey.errors import ConfigError

VALUES = {"bool": "true", "str": "x", "float": "1", "int": "8"}


@pytest.mark.parametrize("name", SAME)
def test_a_name_of_one_key_sets_it_and_says_so(name: str) -> None:
    key = SAME[name]
    assert key in kinds()
    assert name not in training_fields()
    known = {"lr_scheduler": "cosine", "lr_warmup_ratio": "0.1"}
    value = known.get(name) or VALUES.get((kind_of(name) or "").partition(" ")[0], "x")
    composed = compose([f"{name}={value}"])
    assert f"command line: {name} stands for {key}" in composed.notes
    assert key in composed.origins


@pytest.mark.parametrize("name", [name for name in PEERS if name not in SAME])
def test_a_name_of_several_keys_leads_to_them(name: str) -> None:
    keys, meaning = PEERS[name][0].split(), PEERS[name][1]
    assert all(key in kinds() for key in keys)
    assert look_up(name) is None
    with pytest.raises(ConfigError) as caught:
        compose([f"{name}=1"])
    assert f"{name} is not a key that Covey knows. Did you mean {' or '.join(keys)}? {meaning} (Set by" in str(
        caught.value
    )
    assert (
        explain_alias(name)[1] == f"{name} is not a key that Covey knows. Did you mean {' or '.join(keys)}? {meaning}"
    )
    assert meaning[0].isupper()
    assert meaning.endswith(".")


VERL = {
    "actor_rollout_ref.model.path": ("some/model", "model.name", "some/model"),
    "actor_rollout_ref.actor.optim.lr": ("1e-6", "training.learning_rate", 1e-6),
    "actor_rollout_ref.actor.kl_loss_coef": ("0.001", "training.beta", 0.001),
    "actor_rollout_ref.actor.clip_ratio_high": ("0.28", "training.epsilon_high", 0.28),
    "actor_rollout_ref.rollout.n": ("4", "training.num_generations", 4),
    "actor_rollout_ref.rollout.temperature": ("0.7", "training.temperature", 0.7),
    "actor_rollout_ref.rollout.top_k": ("-1", "training.top_k", 0),
    "actor_rollout_ref.rollout.gpu_memory_utilization": ("0.6", "training.vllm_gpu_memory_utilization", 0.6),
    "data.max_response_length": ("1024", "training.max_completion_length", 1024),
    "data.max_prompt_length": ("512", "dataset.max_prompt_length", 512),
    "trainer.total_epochs": ("15", "training.num_train_epochs", 15),
    "trainer.save_freq": ("20", "training.save_steps", 20),
    "trainer.test_freq": ("5", "evaluation.every_steps", 5),
}


@pytest.mark.parametrize("name", VERL)
def test_verls_keys_are_found_by_their_last_name(name: str) -> None:
    text, key, value = VERL[name]
    composed = compose([f"{name}={text}"])
    found: Any = composed.config
    for part in key.split("."):
        found = found.values[part] if key.startswith("training.") and part != "training" else getattr(found, part)
    assert found == value
    assert f"command line: {name} stands for {key}" in composed.notes


def test_flags_of_openrlhf() -> None:
    line = """--pretrain some/model --n_samples_per_prompt 4 --micro_train_batch_size 8 --actor_learning_rate 5e-7
        --prompt_max_len 1024 --generate_max_len 512 --eps_clip 0.3 --init_kl_coef 0.01 --input_key question
        --label_key gold --lr_warmup_ratio 0.1 --flash_attn --bf16 --prompt_data rows.jsonl"""
    config = compose(split(line.split()).overrides).config
    assert (config.model.name, config.model.attn_implementation) == ("some/model", "flash_attention_2")
    assert (config.dataset.path, config.dataset.max_prompt_length) == ("rows.jsonl", 1024)
    assert (config.dataset.prompt_column, config.dataset.answer_column) == ("question", "gold")
    values = config.training.values
    assert (values["num_generations"], values["per_device_train_batch_size"], values["beta"]) == (4, 8, 0.01)
    assert (values["learning_rate"], values["max_completion_length"], values["epsilon"]) == (5e-7, 512, 0.3)
    assert values["warmup_steps"] == 0.1


def test_a_file_of_axolotl(tmp_path: Path) -> None:
    recipe = tmp_path / "grpo.yaml"
    recipe.write_text(
        "base_model: some/model\ntrl: {beta: 0.002, num_generations: 4, reward_funcs: accuracy}\n"
        "optimizer: adamw_torch\nlr_scheduler: cosine\nflash_attention: true\nsample_packing: false\n",
        encoding="utf-8",
    )
    composed = compose((), recipe)
    config = composed.config
    assert config.model.attn_implementation == "flash_attention_2"
    assert config.rewards.funcs == ("accuracy",)
    values = config.training.values
    assert (values["beta"], values["num_generations"], values["optim"]) == (0.002, 4, "adamw_torch")
    assert values["lr_scheduler_type"] == "cosine"
    assert not any("preset" in note for note in composed.notes)  # no project's defaults come with these names
    recipe.write_text("trl: 3\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="trl is a group and holds keys"):
        compose((), recipe)


def test_a_group_name_of_verl_hides_no_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "data.learning_rat=1"]) == 2
    assert "data.learning_rat is not a key that Covey knows." in capsys.readouterr().err
    assert main(["config", "trainer.n_gpus_per_node=2"]) == 2
    assert "launch.num_processes=2" in capsys.readouterr().err


def test_names_of_llama_factory_ms_swift_and_a_recipe_misspelt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for flag, value, key in (
        ("finetuning_type", "lora", "model.lora.rank"),
        ("stage", "grpo", "objective.name"),
        ("rlhf_type", "grpo", "objective.name"),
    ):
        assert main(["config", f"--{flag}", value]) == 2
        assert f"Did you mean {key}?" in capsys.readouterr().err
    assert compose(split(["--vllm_gpu_util", "0.4"]).overrides).config.training.vllm_gpu_memory_utilization == 0.4
    assert compose(["model.path=some/model"]).config.model.name == "some/model"
    (tmp_path / "recipe.yaml").write_text("seed: 1\n")
    assert main(["config", str(tmp_path / "recpie.yaml")]) == 2
    assert f"Did you mean {tmp_path / 'recipe.yaml'}?" in capsys.readouterr().err
