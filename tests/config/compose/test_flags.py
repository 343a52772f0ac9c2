"""The words of a command line: how many a flag takes, that any text survives, and that flags keep their place."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from compose_config import from_words, from_yaml
from covey.config import Flag, load, split, to_yaml
from covey.errors import ConfigError

HARD = [
    "a=b, c: d; [e] {f}",
    "line one\nline two\n\n  indented\t",
    "quotes ' and \" and `",
    "cost ${model.name} \\${x} \\\\${y} ${ $",
    "back\\slash \\d+ \\w \\",
    "-1.0",
    "--not_a_flag at all",
    "007",
    "1e5",
    "true",
    "~x",
    "{{ messages }} {% if x %}",
    "ünïcode ∑ \u2028 end",
    " leading and trailing ",
]


@pytest.mark.parametrize("text", HARD)
def test_a_system_prompt_survives_as_a_flag_a_line_and_a_written_config(text):
    for words in (("--system_prompt", text), (f"--system_prompt={text}",), ("--dataset.system_prompt", text)):
        config = from_words(*words).config
        assert config.dataset.system_prompt == text
        Path("again.yaml").write_text(to_yaml(config), encoding="utf-8")
        assert load([], "again.yaml") == config
    escaped = text.replace("${", "\\${") if "\\${" not in text else None
    if escaped is not None:
        assert from_yaml({"system_prompt": escaped}).config.dataset.system_prompt == text


def test_any_text_survives_among_other_flags():
    draw = random.Random(0)
    letters = "ab =,:;[]{}()'\"`~+-$\\/#&%!?*<>|\n\t0.\u00fc"
    for _ in range(60):
        text = "".join(draw.choices(letters, k=draw.randint(1, 30)))
        words = split(["seed=3", f"--system_prompt={text}", "--reward_funcs", "accuracy", "format", "seed=4"])
        assert words.overrides == (
            "seed=3",
            Flag("system_prompt", (text,)),
            Flag("reward_funcs", ("accuracy", "format")),
            "seed=4",
        )
        assert load(words.overrides[:2]).dataset.system_prompt == text


# --- words ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "recipe", "overrides"),
    [
        (["r.yaml", "a=b"], "r.yaml", ("a=b",)),
        (["+experiment=x"], None, ("+experiment=x",)),
        (["~seed"], None, ("~seed",)),
        (["--bf16", "seed=1"], None, (Flag("bf16"), "seed=1")),
        (["--bf16", "False", "seed=1"], None, (Flag("bf16", ("False",)), "seed=1")),
        (["--no_bf16", "--no-use-vllm"], None, (Flag("bf16", ("false",)), Flag("use_vllm", ("false",)))),
        (["--no_cuda"], None, (Flag("no_cuda"),)),
        (["--learning-rate", "1e-5"], None, (Flag("learning_rate", ("1e-5",)),)),
        (["--learning_rate=1e-5"], None, (Flag("learning_rate", ("1e-5",)),)),
        (["--repetition_max_penalty", "-1.0"], None, (Flag("repetition_max_penalty", ("-1.0",)),)),
        (
            ["--reward_weights", "-1", "2", "--seed", "3"],
            None,
            (Flag("reward_weights", ("-1", "2")), Flag("seed", ("3",))),
        ),
        (["--reward_funcs", "a", "b", "~seed"], None, (Flag("reward_funcs", ("a", "b")), "~seed")),
        (["--reward_funcs", "a", "my.py:f=g", "model=x"], None, (Flag("reward_funcs", ("a", "my.py:f=g")), "model=x")),
        (["--resume"], None, (Flag("resume"),)),
        (["--resume", "out/x", "seed=1"], None, (Flag("resume", ("out/x",)), "seed=1")),
        (["--model_init_kwargs", '{"a": 1}'], None, (Flag("model_init_kwargs", ('{"a": 1}',)),)),
        (["--vf_coef", "0.1", "seed=1"], None, (Flag("vf_coef", ("0.1",)), "seed=1")),
        (["--log_like_grpo", "--seed", "1"], None, (Flag("log_like_grpo"), Flag("seed", ("1",)))),
    ],
)
def test_words_are_split(words, recipe, overrides):
    found = split(words)
    assert (found.recipe, found.overrides) == (recipe, overrides)


def test_a_recipe_whose_name_holds_an_equals_sign():
    Path("lr=1").mkdir()
    Path("lr=1/config.yaml").write_text("seed: 5\n")
    assert split(["lr=1", "seed=6"]).recipe == "lr=1"
    assert from_words("lr=1").config.seed == 5
    long = "dataset.system_prompt=" + "x" * 5000
    assert split([long]).overrides == (long,)
    assert load(["dataset_name=" + "x" * 5000]).dataset.id == "x" * 5000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-x", "1"], "two dashes"),
        (["--system_prompt"], "--system_prompt needs a value"),
        (["--learning_rate", "--beta", "1"], "--learning_rate needs a value"),
        (["--reward_funcs", "--beta", "1"], "needs one value or more"),
        (["--no_learning_rate"], "--learning_rate VALUE"),
        (["--model_init_kwargs", "{broken"], "neither JSON nor YAML"),
        (["--model_init_kwargs", "[1]"], "wants a mapping"),
        (["--seed", "many"], "must be an integer"),
        (["--bf16", "maybe"], "is not an override"),
        (["seed=1", "r.yaml"], "A recipe is given once"),
        (["--model", "qwen3"], r"The options of model are"),
    ],
)
def test_invalid_words(words, message):
    with pytest.raises(ConfigError, match=message) as caught:
        from_words(*words)
    assert "\n" not in str(caught.value)


def test_flags_choose_groups_and_keep_their_place_in_the_line():
    config = from_words("--model", "qwen3_0.6b", "seed=1", "--seed", "2", "seed=3", "--dataset", "gsm8k").config
    assert (config.model.name, config.seed, config.dataset.id) == ("Qwen/Qwen3-0.6B", 3, "openai/gsm8k")
    assert from_words("seed=1", "--seed", "2").config.seed == 2


def test_flags_for_whole_groups_and_lists_of_mappings():
    config = from_words("--model.lora", '{"rank": 4}', "--dataset.mixture.datasets", '[{"id": "a/b"}]', "seed=2").config
    assert (config.model.lora.rank, config.dataset.mixture.sources[0].id, config.seed) == (4, "a/b", 2)
    assert from_words("--training.model_init_kwargs.x", "3").config.training.model_init_kwargs == {"x": 3}
