"""The config: precedence, suggestions, checks, and that what is written loads again."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from pathlib import Path

import pytest
import yaml

from compose_config import from_words
from covey.config import TrainingConfig, build, check_geometry, differences, load, to_yaml
from covey.config.groups.training import training_fields
from covey.errors import ConfigError

SCRIPT = Path(__file__).parents[2] / "scripts" / "training_fields.py"


@pytest.fixture
def recipe(tmp_path: Path):
    def write(text: str, name: str = "recipe.yaml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


# --- what beats what ---------------------------------------------------------------------------------------------


def test_defaults_train_the_starter_with_its_own_tuning():
    config = load()
    assert (config.model.name, config.dataset.task, config.objective.name) == ("starter", "arithmetic", "grpo")
    assert config.training.max_steps == 100
    assert config.training.per_device_train_batch_size == 32
    assert config.training.gradient_accumulation_steps == 4
    assert config.evaluation.every_steps == 10
    assert config.dataset.hard_difficulty.min_digits == 5
    assert config.rewards.funcs == ("exact_match", "format")
    assert config.training.bf16 is None
    assert "bf16" not in config.training.values


@pytest.mark.parametrize("overrides", [["model=qwen3_0.6b"], ["model.name=some/model"], ["~tuning"], ["tuning=null"]])
def test_the_starters_tuning_is_dropped_with_the_starter(overrides):
    config = load(overrides)
    assert config.training.learning_rate == 1e-5
    assert config.training.per_device_train_batch_size == 8
    assert config.training.gradient_accumulation_steps == 8
    assert config.training.beta == 0.0
    assert config.evaluation.every_steps == 50
    assert (config.model.dtype is None) == ("model" in overrides[0])


PRETRAINED = "model.name=some/model"


@pytest.mark.parametrize(
    ("words", "rate", "steps"),
    [
        ([PRETRAINED], 1e-5, 8),
        ([PRETRAINED, "model.lora.rank=16"], 3e-4, 8),
        ([PRETRAINED, "--use_peft"], 3e-4, 8),
        ([PRETRAINED, "model.lora.rank=16", "model.lora.enabled=false"], 1e-5, 8),
        ([PRETRAINED, "model.lora.rank=16", "training.learning_rate=2e-5"], 2e-5, 8),
        ([PRETRAINED, "model.lora.rank=16", "+experiment=grpo_math"], 1e-6, 8),  # which sets both
        ([PRETRAINED, "training.per_device_train_batch_size=16"], 1e-5, 1),  # the batch that was asked for
        ([PRETRAINED, "training.generation_batch_size=32"], 1e-5, 1),
        ([PRETRAINED, "training.num_generations=4"], 1e-5, 8),
        ([PRETRAINED, "training.per_device_train_batch_size=16", "training.gradient_accumulation_steps=2"], 1e-5, 2),
        ([PRETRAINED, "model.lora.rank=16", "preset=maxent_grpo"], 1e-6, 1),
        (["model.lora.rank=16"], 2.5e-4, 4),  # the starter's own
        (["training.per_device_train_batch_size=16"], 2.5e-4, 4),
    ],
)
def test_the_batch_and_the_learning_rate_follow_the_model(words, rate, steps):
    training = from_words(*words).config.training
    assert (training.learning_rate, training.gradient_accumulation_steps) == (rate, steps)


def test_the_built_in_task_asks_for_the_form_of_any_model_but_a_starter(tmp_path):
    asked = "Think between <think> and </think>, then write the answer between <answer> and </answer>."
    made = tmp_path / "made"
    made.mkdir()
    (made / "config.json").write_text('{"covey_starter": "countdown"}')
    for words in ([PRETRAINED], ["model=qwen3_0.6b"], [PRETRAINED, "dataset=arithmetic"]):
        assert load(words).dataset.system_prompt == asked
    starters = ["model=starter"], ["dataset=arithmetic"], [f"model.name={made}"], ["~tuning"], ["model=starter_agent"]
    for words in (*starters, ["model=starter", "model.name=out/first/final_model"]):
        assert load(words).dataset.system_prompt is None
        assert load([*words, "dataset.system_prompt=Go."]).dataset.system_prompt == "Go."
    assert load([PRETRAINED, "dataset.system_prompt=null"]).dataset.system_prompt is None
    assert load([PRETRAINED, "dataset.path=mine.jsonl"]).dataset.system_prompt is None


def test_the_starters_tuning_stays_for_another_copy_of_the_starter():
    config = load(["model=starter", "model.name=out/first/final_model"])
    assert (config.training.max_steps, config.model.dtype) == (100, "float32")
    assert load(["model.name=starter"]) == load()


@pytest.mark.parametrize("environment", [["environment=calculator"], ["environment.tools=[calculator]"]])
def test_with_tools_the_default_model_is_the_starter_that_calls_them(environment, recipe):
    config = load(environment)
    assert (config.model.name, config.training.max_steps) == ("starter_agent", 60)
    assert load(recipe=recipe("environment: {tools: [calculator]}\n")) == load(["environment.tools=[calculator]"])
    assert load([*environment, "training.max_steps=7"]).training.max_steps == 7
    for own in (["model=starter"], ["model.name=starter"]):
        assert load([*environment, *own]).model.name == "starter"
    for own in (["model.name=me/mine"], ["model=qwen3_0.6b"]):
        config = load([*environment, *own])
        assert (config.model.name, config.training.learning_rate) == (load(own).model.name, 1e-5)
    assert load(["environment=none"]).model.name == "starter"
    path = recipe("defaults:\n  - environment: calculator\n  - model: qwen3_0.6b\n")
    assert load(recipe=path).model.name == "Qwen/Qwen3-0.6B"


def test_a_file_replaces_the_default_task(recipe):
    assert load(["dataset.path=mine.jsonl"]).dataset.task is None
    assert load(recipe=recipe("dataset.path: mine.jsonl")).dataset.hard_size == 0
    assert load(["dataset=gsm8k", "dataset.path=mine.jsonl"]).dataset.id == "openai/gsm8k"
    with pytest.raises(ConfigError, match=r"both name a source.*dataset\.task=null"):
        load(["dataset=arithmetic", "dataset.path=mine.jsonl"])


def test_the_recipe_overrides_tuning_and_overrides_the_recipe_from_left_to_right(recipe):
    path = recipe("training:\n  max_steps: 7\n  beta: 0.5\nseed: 3\nevaluation.every_steps: 2\n")
    config = load(["seed=4", "seed=5", "++training.beta=0.25"], path)
    assert config.training.max_steps == 7
    assert config.training.learning_rate == load().training.learning_rate
    assert (config.seed, config.training.beta, config.evaluation.every_steps) == (5, 0.25, 2)


def test_a_group_in_an_override_goes_below_the_keys_of_the_recipe(recipe):
    path = recipe("defaults: [override /model: gemma3_1b]\nmodel: {revision: main}\ntraining.max_steps: 700\n")
    assert load([], path).model.name == "google/gemma-3-1b-it"
    config = load(["model=qwen3_0.6b"], path)
    assert (config.model.name, config.model.revision) == ("Qwen/Qwen3-0.6B", "main")
    assert config.training.max_steps == 700
    for word in ("+experiment=quick_test", "experiment=quick_test"):
        assert load([word], path).training.max_steps == 5
    assert load(["training.max_steps=6", "+experiment=quick_test"], path).training.max_steps == 6


def test_a_recipe_chooses_groups(recipe):
    path = recipe(
        "defaults:\n  - override /model: qwen3_0.6b\n  - dataset: gsm8k\n  - /experiment: quick_test\n  - _self_\n"
        "training:\n  learning_rate: '1e-5'\n  save_strategy: no\n"
    )
    config = load([], path)
    assert (config.model.name, config.dataset.answer_column) == ("Qwen/Qwen3-0.6B", "answer")
    assert config.training.learning_rate == 1e-5
    assert config.training.save_strategy == "no"
    assert (config.training.max_steps, config.training.num_generations) == (5, 4)


def test_groups_of_the_users_own(tmp_path, recipe):
    recipe("name: me/mine\n", "conf/model/mine.yaml")
    recipe("# @package _global_\ntraining: {max_steps: 3}\n", "conf/tuning/mine.yaml")
    config = load(["model=mine"], config_dirs=[tmp_path / "conf"])
    assert (config.model.name, config.training.max_steps) == ("me/mine", 3)
    recipe("name: other\n", "conf/model/starter.yaml")
    assert load(["model=starter"], config_dirs=[tmp_path / "conf"]).model.name == "other"


def test_removing_a_key_and_open_mappings():
    config = load(["~training.beta", "+training.generation_kwargs.foo=1", "training.model_init_kwargs={a: [1, 2]}"])
    assert "beta" not in config.training.values
    assert config.training.beta == 0.0
    assert config.training.generation_kwargs == {"foo": 1}
    assert config.training.model_init_kwargs == {"a": [1, 2]}


# --- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "nearest"),
    [
        ("training.learning_rat=1", r"Did you mean training\.learning_rate\?"),
        ("learning_rat=1e-5", r"Did you mean training\.learning_rate\?"),
        ("eval.every_steps=3", r"Did you mean evaluation\.every_steps\?"),
        ("dataset.difficulty.maxdigits=3", r"Did you mean dataset\.difficulty\.max_digits"),
        ("modle=starter", r"Did you mean model\b"),
        ("rewards.foo=1", r"The keys of rewards are: rewards\.funcs"),
        ("seed.foo=1", "seed takes a value and holds no keys"),
        ("justaword", "is not an override: write key=value"),
        ("seed=1,2", "sweep.*`covey train --multirun` runs them all.*an integer"),
        ("dataset.system_prompt=a(b", "quotes"),
        ("~training.min_p", "which is not set"),
        ("training.max_steps=soon", "must be an integer"),
        ("run_name=${nowhere}", "cannot be resolved"),
        ("model=qwen3", r"The options of model are: deepseek.*, qwen3_0\.6b, .*model\.name=qwen3"),
        ("+experiment=quick", r"The options of experiment are: full_training, .*quick_test"),
    ],
)
def test_keys_and_overrides_that_do_not_exist(override, nearest):
    with pytest.raises(ConfigError, match=nearest) as caught:
        load([override])
    assert override in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "right"),
    [
        ("training.max_steps=abc", "an integer"),
        ("training.max_steps=1.5", "an integer"),
        ("training.max_steps=0", "at least 1, or -1"),
        ("training.learning_rate=fast", "a number"),
        ("training.learning_rate=-1", "at least 0"),
        ("training.beta=null", "a number"),
        ("training.beta=nan", "a number"),
        ("training.top_p=0", "above 0 and at most 1"),
        ("training.loss_type=ppo", "one of grpo, bnpo"),
        ("training.lr_scheduler_type=cosinus", "one of linear, cosine"),
        ("training.gradient_checkpointing=1", "true or false"),
        ("training.report_to=[a,1]", "a string, a list of strings or null"),
        ("training.auto_find_batch_size=true", "would cut groups"),
        ("training.load_best_model_at_end=true", "Covey evaluates by itself"),
        ("seed=-1", "at least 0"),
        ("seed=true", "an integer"),
        ("overwrite=maybe", "true or false"),
        ("run_name=a/b", "without slashes"),
        ("stop_after_steps=0", "at least 1"),
        ("model.dtype=int8", "one of float32"),
        ("evaluation.top_p=2", "at most 1"),
        ("dataset.answer_extractor=regex", "one of none, gsm8k"),
        ("dataset.user_prompt_template=hello", "must contain {prompt}"),
        ("dataset.hard_difficulty.min_digits=6", r"above dataset\.hard_difficulty\.max_digits=5"),
        ("dataset.difficulty.operators=[+,x]", r"one of \+, -, \*"),
        ("rewards.funcs=[[exact_match]]", "must be a list of strings"),
        ("training.reward_weights=[1]", r"rewards\.funcs names 2 functions"),
        ("objective.name=ppo", "must be one of grpo, maxent"),
    ],
)
def test_invalid_values(setting, right):
    key, _, value = setting.partition("=")
    values = {"dataset": {"task": "arithmetic"}}
    *parents, last = key.split(".")
    node = values
    for parent in parents:
        node = node.setdefault(parent, {})
    node[last] = yaml.safe_load(value)
    with pytest.raises(ConfigError, match=right) as caught:
        build(values)
    assert str(caught.value).startswith(f"{key}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training:\n  max_steps: 1\n  learning_rat: 2\n", r"training\.learning_rate\?.*recipe\.yaml, line 3"),
        ("\n\ntraining.max_steps: soon\n", r"an integer.*recipe\.yaml, line 3"),
        ("seed: 1\nmodel: [a\nrun_name: x\n", r"recipe\.yaml, line 3, column \d+: not valid YAML"),
        ("seed: 1\nseed: 2\n", r"recipe\.yaml, line 2.*duplicate key seed"),
        ("training: {beta: 1}\ntraining.beta: 2\n", r"training\.beta is set twice"),
        ("training: 5\n", "training is a group"),
        ("- a\n", "key: value"),
        ("defaults: x\n", "must be a list"),
        ("defaults: [5]\n", "entry 5 of defaults"),
        ("defaults: [override /modl: x]\n", "There is no config group modl.*mean model"),
        ("defaults: [override /model: x]\n", r"options of model are: .*qwen3_0\.6b"),
    ],
)
def test_invalid_recipes(recipe, text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load([], recipe(text))
    assert "recipe.yaml" in str(caught.value)


def test_a_missing_recipe_or_folder_names_the_candidates(tmp_path):
    with pytest.raises(ConfigError, match=r"Looked for: .*gone, .*gone\.yaml, .*gone\.yml, .*gone/config\.yaml"):
        load([], tmp_path / "gone")
    with pytest.raises(ConfigError, match=r"config folder .* does not exist"):
        load(config_dirs=[tmp_path / "gone"])


def test_geometry_names_values_that_work(monkeypatch):
    with pytest.raises(ConfigError) as caught:
        load(["training.per_device_train_batch_size=12", "training.gradient_accumulation_steps=1"])
    assert "num_generations=4 or 6" in str(caught.value)
    assert "per_device_train_batch_size=8 or 16" in str(caught.value)
    # three batches of a multiple of 4 make whole groups of 12
    uneven = {"num_generations": 12, "per_device_train_batch_size": 10, "gradient_accumulation_steps": 3}
    with pytest.raises(ConfigError, match="per_device_train_batch_size=8 or 12"):
        check_geometry(TrainingConfig(uneven))
    with pytest.raises(ConfigError, match="24 or 48 would work"):
        load(["training.per_device_train_batch_size=12", "training.generation_batch_size=40"])
    with pytest.raises(ConfigError, match="set the same size"):
        load(["training.generation_batch_size=128", "training.steps_per_generation=1"])
    with pytest.raises(ConfigError, match="at least 2"):
        load(["training.num_generations=1"])
    load(["training.per_device_train_batch_size=12", "training.generation_batch_size=48"])
    check_geometry(TrainingConfig({"num_generations": 8, "per_device_train_batch_size": 4}), world_size=2)
    monkeypatch.setenv("WORLD_SIZE", "2")
    load(["training.per_device_train_batch_size=4"])


# --- written and read again --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "overrides", [[], ["model=qwen3_0.6b", "dataset=gsm8k"], ["~tuning", "resume=false", "+experiment=quick_test"]]
)
def test_a_written_config_loads_as_the_same_config(recipe, overrides):
    config = load([*overrides, "run_name=1e5", "training.learning_rate=1e-5"])
    path = recipe(to_yaml(config), "run/config.yaml")
    again = load([], path.parent)
    assert again == config
    assert to_yaml(again) == to_yaml(config)
    assert dict(again.training.values) == dict(config.training.values)
    assert load(["seed=9"], path) == dataclasses.replace(config, seed=9)


@pytest.mark.parametrize(
    "text",
    [
        "Think first, then: a=1, b=2 # no comment\n\n  \"quoted\" and 'quoted' {prompt} [1]\n",
        "cost ${model.name} \\${x} \\\\${y} ${",
        *(
            "yes",
            "null",
            "",
            "1e5",
            "007",
            "1_000",
            "1:30",
            "2024-01-01",
            "  a",
            "- a",
            "...\nb",
            "\ttab",
            "\u2028ü",
            "\x85a\nb\u2029",
        ),
    ],
)
def test_any_text_survives(recipe, text):
    start = load()
    config = dataclasses.replace(start, dataset=dataclasses.replace(start.dataset, system_prompt=text))
    assert load([], recipe(to_yaml(config))) == config


def test_text_in_recipes_and_overrides(recipe):
    path = recipe("dataset.system_prompt: |-\n  a=1, b: 2\n  \\${x} # y\n")
    assert load([], path).dataset.system_prompt == "a=1, b: 2\n${x} # y"
    assert load(["dataset.system_prompt='a=1, {b}\nc'"]).dataset.system_prompt == "a=1, {b}\nc"
    assert load(["run_name=007"]).run_name == "007"
    assert load(["run_name=x_${seed}", "seed=4"]).run_name == "x_4"


def test_a_config_is_frozen_and_can_be_copied():
    config = load()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 1
    with pytest.raises(TypeError):
        config.training.values["beta"] = 1
    assert pickle.loads(pickle.dumps(config)) == copy.deepcopy(config) == config
    with pytest.raises(AttributeError, match="no field 'nonsense'"):
        _ = config.training.nonsense
    with pytest.raises(AttributeError, match="top level"):
        _ = config.training.seed
    assert config.training.vllm_mode == training_fields()["vllm_mode"].default


def test_derived_names_and_sizes():
    assert load().dataset.label == "arithmetic"
    assert load(["dataset=gsm8k"]).dataset.label == "gsm8k"
    assert load(["dataset=gsm8k", "dataset.path=some/where/rows.jsonl"]).dataset.label == "rows"
    sizes = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 3}
    assert TrainingConfig(sizes).generation_batch == 12
    assert TrainingConfig({**sizes, "steps_per_generation": 2}).generation_batch == 8
    assert TrainingConfig({"generation_batch_size": 16}).generation_batch == 16


def test_differences_leave_out_what_does_not_change_the_numbers():
    one = load()
    other = load(["resume=false", "stop_after_steps=3", "overwrite=true", "output_dir=x", "run_name=y"])
    assert differences(one, other) == []
    assert differences(one, load(["logging.sample_completions=9", "training.epsilon=0.2"])) == []
    assert differences(one, load(["training.beta=0.5", "seed=1", "~training.max_grad_norm"])) == [
        ("seed", 0, 1),
        ("training.max_grad_norm", 0.5, 1.0),
        ("training.beta", load().training.beta, 0.5),
    ]


def test_default_weights_go_with_the_default_rewards():
    assert load().training.reward_weights == [1.0, 0.2]
    assert load(["model=qwen3_0.6b"]).training.reward_weights == [1.0, 0.2]
    assert load(["rewards.funcs=[exact_match]"]).training.reward_weights is None
    both = load(["rewards.funcs=[exact_match]", "training.reward_weights=[0.5]"])
    assert both.training.reward_weights == [0.5]
    with pytest.raises(ConfigError, match="reward_weights"):
        load(["training.reward_weights=[1.0]"])
