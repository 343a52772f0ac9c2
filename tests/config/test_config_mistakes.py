"""Mistakes in values and files: infinite numbers, unknown names, repeated keys. Each is one paragraph, at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.config import load
from covey.errors import ConfigError


def test_a_key_repeated_with_the_same_value(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("seed: 7\ntraining:\n  beta: 1e-3\n  beta: 1e-3\nseed: 7\nrun_name: '007'\n")
    config = load(recipe=path)
    assert (config.seed, config.training.beta, config.run_name) == (7, 1e-3, "007")
    path.write_text("seed: 7\ntraining:\n  beta: 1e-3\n  beta: 1e-4\nseed: 7\n")
    with pytest.raises(ConfigError, match=r"recipe\.yaml, line 4, column 3: not valid YAML: found duplicate key beta"):
        load(recipe=path)
    path.write_text("seed: 7\nseed: '7'\n")
    with pytest.raises(ConfigError, match="duplicate key seed"):
        load(recipe=path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["training.learning_rate=inf"], r"learning_rate=inf is out of range: it must be finite"),
        (["training.learning_rate=1e400"], r"must be finite"),
        (["training.reward_weights=[1,-inf]"], r"must be finite"),
        (["training.adam_beta2=1"], r"adam_beta2=1 is out of range: it must be at least 0 and below 1"),
        (["training.report_to=wandbb"], r"report_to=wandbb is not possible.*wandb"),
        (["training.report_to=[wandb,x]"], r"report_to=.*is not possible"),
        (["model.lora=[1]", "model.lora.rank=2"], r"model.lora is a list here, which has no key rank"),
        (["dataset.mixture=[1]", "dataset.mixture.seed=2"], r"dataset.mixture is a list here, which has no key seed"),
        (["~vf_coef"], r"^vf_coef is another tool's name: ~ removes keys of Covey's.*Set by the override"),
        (
            ["dataset.system_prompt='a ${ b'"],
            r"system_prompt holds \$\{, which begins a reference.*Set by the override",
        ),
        (
            ["training.per_device_train_batch_size=1000000007", "training.num_generations=9"],  # in no time, too
            r"num_generations=2 or 4, or training\.per_device_train_batch_size=999999999 or 1000000008",
        ),
        (["training.num_generations=1000000000"], r"num_generations=64 or 128"),
        (["rewards.think_tag="], r"rewards\.think_tag='' is not a tag name"),
        (["rewards.answer_tag='<a>'"], r"rewards\.answer_tag='<a>' is not a tag name: write one word without brackets"),
        (["rewards.think_tag=answer"], r"rewards\.answer_tag=answer is the name of rewards\.think_tag too"),
    ],
)
def test_numbers_and_names_beyond_bounds(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load(words)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("word", "found"), [("[5,7,100-199]", "5,7,100-199"), ("7", "7"), ("'5,7'", "5,7")])
def test_ids_in_a_list_are_those_in_a_text(word: str, found: str) -> None:
    config = load(["model.reasoning_vocab_size=2", f"model.reasoning_token_ids={word}"])
    assert config.model.reasoning_token_ids == found


def test_a_group_set_as_a_whole_by_a_reference() -> None:
    """A later key of the group replaces the reference."""
    assert load(["model.lora=${logging}", "model.lora.rank=3"]).model.lora.rank == 3


def test_no_limit_is_a_limit_of_infinity() -> None:
    for word in ("inf", ".inf", "Infinity"):
        assert load([f"training.max_grad_norm={word}"]).training.max_grad_norm == float("inf")


def test_half_a_reference_in_a_recipe(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("seed: 1\ndataset:\n  system_prompt: 'a ${ b'\n")
    with pytest.raises(ConfigError, match=r"recipe\.yaml, line 3: dataset\.system_prompt holds \$\{.*Write \\\$\{"):
        load(recipe=path)
