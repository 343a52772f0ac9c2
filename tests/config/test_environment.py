"""The group `environment`: its names, what a factory implies, and other names of its keys."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.compose_config import from_words, from_yaml

from covey.config import compose, load
from covey.config.groups.environment import EnvironmentConfig
from covey.config.named_code import own_code
from covey.errors import ConfigError

DEFAULT = ("exact_match", "format")


def test_the_options_of_the_group() -> None:
    assert not load().environment.used
    assert load(["environment=calculator"]).environment.tools == ("calculator",)
    assert load(["environment=python"]).environment.tools == ("python",)
    game = load(["environment=number_guess"])
    assert (game.environment.factory, game.rewards.funcs, game.dataset.has_source) == ("number_guess", (), False)
    assert game.training.reward_weights is None
    assert game.dataset.label == "environment"


def test_tools_leave_the_data_and_the_rewards() -> None:
    plain = load()
    for words in (["environment=calculator"], ["environment.tools=[a.py:f]"], ["environment.factory=calculator"]):
        config = load(words)
        assert config.rewards == plain.rewards
        assert config.training.reward_weights == [1.0, 0.2]
        assert config.dataset == plain.dataset


@pytest.mark.parametrize("factory", ["a.py:B", "package.module:B", "number_guess", "openenv:http://127.0.0.1:1"])
def test_a_factory_implies_its_own_prompts_and_reward(factory: str) -> None:
    composed = compose([f"environment.factory='{factory}'"])
    assert not composed.config.dataset.has_source
    assert composed.config.rewards.funcs == ()
    assert composed.config.training.reward_weights is None
    assert [note for note in composed.notes if "dataset=none is used" in note or "rewards=none is used" in note]
    named = load([f"environment.factory='{factory}'", "dataset.path=rows.jsonl", "rewards=math"])
    assert (named.dataset.path, named.rewards.funcs) == ("rows.jsonl", ("accuracy", "format"))
    kept = load([f"environment.factory='{factory}'", "dataset=arithmetic", "rewards.funcs=[exact_match]"])
    assert (kept.dataset.task, kept.rewards.funcs) == ("arithmetic", ("exact_match",))
    # a size is no source
    assert load([f"environment.factory='{factory}'", "dataset.test_size=3"]).dataset.test_size == 3


def test_a_recipe_composes_as_the_command_line_and_again_as_a_complete_config(tmp_path: Path) -> None:
    from covey.config import to_yaml

    words = [
        "environment.factory={a: x.py:A, b: {factory: number_guess, settings: {k: 1}}}",
        "environment.settings.q=2",
    ]
    config = load(words)
    (tmp_path / "whole.yaml").write_text(to_yaml(config))
    assert load(recipe=tmp_path / "whole.yaml") == config
    short = from_yaml(
        {"environment": {"factory": {"a": "x.py:A", "b": {"factory": "number_guess", "settings": {"k": 1}}}}},
        str(tmp_path / "r.yaml"),
        "environment.settings.q=2",
    )
    assert short.config == config
    assert config.environment.factories == {"a": ("x.py:A", {"q": 2}), "b": ("number_guess", {"q": 2, "k": 1})}


def test_the_users_own_code() -> None:
    group = EnvironmentConfig(
        factory={"a": "x.py:A", "b": "number_guess", "c": "openenv:http://h:1"}, tools=("python", "y.py:f")
    )
    assert group.own_code == ("x.py:A", "y.py:f")
    assert own_code(load(["environment.rollout_func=z.py:f"])) == ("z.py:f",)
    assert own_code(load(["environment=calculator"])) == ()


@pytest.mark.parametrize("name", ["max_tool_calling_iterations", "training.max_tool_calling_iterations"])
def test_trls_name_counts_one_turn_less(name: str) -> None:
    assert load([f"{name}=3"]).environment.max_turns == 4
    assert load([f"{name}=0"]).environment.max_turns == 1
    assert load([f"{name}=null"]).environment.max_turns is None
    with pytest.raises(ConfigError, match=r"max_tool_calling_iterations=-1 must be an integer, at least 0.*Set by"):
        load([f"{name}=-1"])


def test_other_names_of_a_trl_script(tmp_path: Path) -> None:
    recipe = {"environment_factory": "my.games.Game", "max_tool_calling_iterations": 2, "tools": "my.tools.add"}
    config = from_yaml(recipe, str(tmp_path / "trl.yaml")).config
    assert (config.environment.factory, config.environment.tools) == ("my.games:Game", ("my.tools:add",))
    assert config.environment.max_turns == 3
    assert from_words("rollout_func=my.rollouts.run").config.environment.rollout_func == "my.rollouts:run"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["environment.factory=[x]"], "wrong type: it must be a string, a mapping or null"),
        (["environment.factory={}"], "names no environment"),
        (["environment.factory={a: 3}"], r"factory\.a=3 is not a factory"),
        (["environment.factory={a: {settings: {}}}"], r"factory\.a\.factory=null is not a factory"),
        (["environment.factory={a: {factory: x.py:E, foo: 3}}"], r"factory\.a\.foo is not read"),
        (["environment.factory={a: {factory: x.py:E, settings: 3}}"], r"factory\.a\.settings=3 is not a mapping"),
        (["environment.factory=numberguess"], r"Did you mean number_guess\?.*file\.py:Class"),
        (["environment.factory=reasoning_gim"], r"Did you mean reasoning_gym:TASK\?"),
        (["environment.factory='reasoning_gym:'"], r"lacks what follows the colon: write reasoning_gym:TASK"),
        (["environment.factory=':B'"], r"must be file\.py:Class"),
        (["environment.tools=[calculater]"], r"Did you mean calculator\?.*file\.py:function"),
        (["environment.tools=['openenv:http://h']"], r"is an environment, not a tool: set environment\.factory="),
        (["environment.settings.a=3"], r"is for a factory: set environment\.factory too"),
        (["environment.timeout=0"], r"timeout=0 is out of range"),
        (["environment.max_turns=0"], r"max_turns=0 is out of range"),
        (["environment.rollout_func=run"], r"must be file\.py:function"),
        (["environment.rollout_func=a.py:f", "environment=calculator"], r"environment\.tools would never be used"),
        (["rewards=none"], r"rewards\.funcs=\[\] must name one or more"),
        (["dataset=none"], r"dataset has no source.*dataset=none is for an environment"),
        (["environment=number_guess", "training.reward_weights=[1]"], r"own reward has the weight 1"),
    ],
)
def test_mistakes(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load(words)
    assert "\n" not in str(caught.value)
