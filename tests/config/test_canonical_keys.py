"""Every source is read into Covey's own keys once: an alias and the keys it stands for compose to the same config.

The table of aliases below is written by hand. An objective named by a key is the choice of its group.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from compose_config import from_words, from_yaml
from covey.config import Config, compose, load, split
from covey.config.values import BadKeyError
from covey.errors import ConfigError

SRC = Path(__file__).parents[2] / "src/covey"

BY_HAND: list[tuple[str, Any, dict[str, Any]]] = [
    ("model_name_or_path", "some/model", {"model.name": "some/model"}),
    ("model.model_size", "1b", {"model.name": "google/gemma-3-1b-it"}),
    ("torch_dtype", "bf16", {"model.dtype": "bfloat16"}),
    ("model.lora_rank", 0, {"model.lora.enabled": False}),
    ("lora_rank", 16, {"model.lora.enabled": True, "model.lora.rank": 16}),
    ("dataset_name", "some/data", {"dataset.id": "some/data"}),
    ("dataset_name", "rows.jsonl", {"dataset.path": "rows.jsonl"}),
    ("max_prompt_length", 99, {"dataset.max_prompt_length": 99, "dataset.overlong_prompts": "truncate"}),
    ("prompt_template", "Solve: {problem}", {"dataset.user_prompt_template": "Solve: {prompt}"}),
    ("reward_funcs", ["accuracy_reward", "tag_count"], {"rewards.funcs": ["accuracy", "tag_count"]}),
    ("init_kl_coeff", 0.5, {"training.beta": 0.5}),
    ("maxent_tau", 0.7, {"objective.name": "maxent", "objective.maxent_tau": 0.7}),
    ("training.objective", "maxent_listwise", {"objective.name": "maxent", "objective.maxent_fit": "listwise"}),
    ("train_grpo_objective", False, {"objective.name": "maxent"}),
    ("grpo_loss_type", "luspo", {"training.loss_type": "luspo"}),
    ("gen_top_k", -1, {"training.top_k": 0}),
    ("optimizer.warmup_ratio", 0.1, {"training.warmup_steps": 0.1}),
    ("generation.max_generation_steps", 128, {"training.max_completion_length": 128}),
    ("training.micro_batch_size", 2, {"training.per_device_train_batch_size": 8}),
    ("scale_rewards", False, {"training.scale_rewards": "none"}),
    ("evaluation_strategy", "no", {"evaluation.every_steps": 0}),
    ("eval_steps", 25, {"evaluation.every_steps": 25}),
    ("wandb_project", "mine", {"logging.project": "mine", "training.report_to": "wandb"}),
    ("logging.enabled", True, {"training.report_to": "wandb"}),
    ("wandb_run_name", "first", {"logging.run_name": "first"}),
    ("vf_coef", 0.1, {}),
]
CHOICES = ["model=qwen3_0.6b", "dataset=gsm8k", "rewards=math", "evaluation=greedy", "speed=default"]
CHOICES += ["+experiment=quick_test", "+experiment=full_training"]


def composed(recipe: dict[str, Any], group: dict[str, Any], words: list[str]) -> Config | str:
    """The config, or the first word of the error, which is a key."""
    Path("r.yaml").write_text(json.dumps(recipe))
    Path("mine/experiment").mkdir(parents=True, exist_ok=True)
    Path("mine/experiment/own.yaml").write_text("# @package _global_\n" + json.dumps(nested(group)))
    try:
        found = split(words).overrides
        return compose(["+experiment=own", *found] if group else found, "r.yaml", ["mine"] if group else []).config
    except ConfigError as error:
        return str(error).partition(" ")[0].partition("=")[0]


def nested(values: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *parents, last = key.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return tree


@pytest.mark.parametrize("seed", range(40))
def test_aliases_compose_as_the_keys_they_stand_for(seed: int) -> None:
    draw = random.Random(seed)
    rows, taken = [], {"training.num_generations"}
    for row in draw.sample(BY_HAND, 9):
        if not taken & {row[0], *row[2]}:
            rows.append(row)
            taken |= {row[0], *row[2]}
    choices = draw.sample(CHOICES, draw.choice([0, 1, 2]))
    written: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = []
    places = [draw.choice(("recipe", "group", "override", "flag")) for _ in rows]
    for by_hand in (False, True):
        # both recipes have another tool's key: such a recipe gives way to the chosen options
        parts: dict[str, dict[str, Any]] = {"recipe": {"training.num_generations": 4, "logging_dir": "x"}, "group": {}}
        words: list[str] = [*choices, "preset=none"]
        for (name, value, keys), place in zip(rows, places, strict=True):
            for key, inner in keys.items() if by_hand else ((name, value),):
                if place in parts:
                    parts[place][key] = inner
                elif place == "override":
                    words.append(f"{key}={json.dumps(inner)}")
                else:
                    words += [f"--{key}={inner if isinstance(inner, str) else json.dumps(inner)}"]
        written.append((nested(parts["recipe"]), parts["group"], words))
    assert composed(*written[0]) == composed(*written[1])


def test_the_random_mixes_are_configs_mostly() -> None:
    """The test above compares configs and not only errors."""
    assert isinstance(composed({"maxent_tau": 0.7}, {"gen_top_k": -1}, ["--init_kl_coeff=0.5"]), Config)


def test_aliases_are_looked_up_where_keys_are_read() -> None:
    calls = {
        path.relative_to(SRC).as_posix()
        for path in SRC.rglob("*.py")
        if re.search(r"\blook_up\(", path.read_text(encoding="utf-8"))
    }
    assert calls == {"config/aliases/aliases.py", "config/aliases/resolve.py"}


# --- an objective named by a key -----------------------------------------------------------------------------------

NAMING = ["objective.name=maxent", "train_grpo_objective=false", "maxent_fit=listwise", "training.objective=maxent"]


@pytest.mark.parametrize("word", NAMING)
def test_a_key_that_names_an_objective_chooses_its_group(word: str) -> None:
    name, _, value = word.partition("=")
    chosen = compose(["objective=maxent"])
    found = compose([word])
    assert found.config == chosen.config == from_yaml(f"{name}: {value}\n").config
    assert [choice.option for choice in found.choices if choice.group == "objective"] == ["maxent"]
    assert "training.loss_type=grpo, as the group objective=maxent has it" in found.notes
    kept = from_yaml("loss_type: luspo\n", "r.yaml", word)
    assert kept.config.training.loss_type == "luspo"  # the user's own
    assert not [note for note in kept.notes if "as the group" in note]
    # an experiment's own loss goes before that of the group, as with objective=maxent
    assert load([word, "+experiment=grpo_math"]).training.loss_type == "grpo"


@pytest.mark.parametrize("word", ["objective.name=maxent", "train_grpo_objective=false"])
def test_a_key_that_names_an_objective_replaces_the_recipes_group(word: str) -> None:
    text = "defaults: [override /objective: dapo]\nmax_steps: 3\n"
    found = from_yaml(text, "r.yaml", word).config
    assert found == from_yaml(text, "r.yaml", "objective=maxent").config
    assert (found.training.loss_type, found.training.epsilon_high) == ("grpo", None)
    notes = from_yaml(f"{text}epsilon: 0.2\n", "r.yaml", word).notes
    assert "training.loss_type=grpo, as the group objective=maxent has it" in notes
    # the recipe's own epsilon stays
    gone = "training.epsilon_high=0.28, training.mask_truncated_completions=true, training.beta=0.0"
    assert f"objective=dapo is replaced, so these of its settings go: {gone}" in notes
    assert not [note for note in compose([word]).notes if "is replaced" in note]
    # DAPO and Dr. GRPO are groups of the objective grpo, which fits them
    dapo = from_yaml(text, "r.yaml", "objective.name=grpo").config
    assert dapo == from_yaml(text).config
    assert dapo.training.loss_type == "dapo"


def test_a_group_on_the_command_line_replaces_what_a_recipe_names() -> None:
    for text in ("objective.name: maxent\n", "objective: maxent\nmaxent_tau: 0.9\n", "maxent_tau: 0.9\n"):
        found = from_yaml(f"{text}max_steps: 3\n", "r.yaml", "objective=grpo").config
        assert found == from_yaml("max_steps: 3\n").config


def test_settings_of_the_objective_before_are_left_out() -> None:
    for text in ("objective: {name: maxent, maxent_tau: 0.9}\n", "maxent_tau: 0.9\n"):
        found = from_yaml(text, "r.yaml", "objective.name=grpo")
        assert found.config.objective == load().objective
        assert [note for note in found.notes if "left out: " in note and "maxent_tau" in note]
    own = from_yaml("objective: {name: 'mine.py:Own', settings: {weight: 0.5}}\n", "r.yaml", "objective.name=maxent")
    assert own.config == load(["objective=maxent"])
    with pytest.raises(ConfigError, match="belongs to objective=maxent"):
        from_words("objective.name=grpo", "objective.maxent_tau=0.9")
    with pytest.raises(ConfigError, match="belongs to objective=maxent"):
        from_yaml("objective.name: grpo\n", "r.yaml", "objective.maxent_tau=0.9")


def test_a_complete_config_is_not_composed_from_a_groups_defaults() -> None:
    text = "defaults: []\ndataset.task: arithmetic\nobjective.name: maxent\ntraining.loss_type: luspo\n"
    found = from_yaml(text)
    assert (found.config.training.loss_type, found.choices) == ("luspo", ())
    assert from_yaml(text, "r.yaml", "objective.name=grpo").config.training.loss_type == "luspo"


# --- group files and recipes that build on others ------------------------------------------------------------------


def test_keys_in_a_group_file_mean_what_they_mean_on_the_command_line() -> None:
    for name, text in {
        "logging/own": "enabled: true\nproject: mine\n",
        "training/own": "data_source: huggingface\n",
        "training/other": "num_batches: 7\n",
        "experiment/own": "# @package _global_\nmaxent_tau: 0.6\n",
    }.items():
        Path("mine", name).parent.mkdir(parents=True, exist_ok=True)
        Path("mine", f"{name}.yaml").write_text(text)
    tracked = load(["logging=own"], config_dirs=["mine"])
    assert (tracked.training.report_to, tracked.logging.project) == ("wandb", "mine")
    assert load(["logging=own", "logging=none"], config_dirs=["mine"]).training.report_to == "none"
    assert load(["logging=own", "report_to=tensorboard"], config_dirs=["mine"]).training.report_to == "tensorboard"
    assert load(["training=own"], config_dirs=["mine"]).dataset == load(["dataset=gsm8k"]).dataset
    assert load(["training=own", "dataset=countdown"], config_dirs=["mine"]).dataset.task == "countdown"
    maxent = load(["+experiment=own"], config_dirs=["mine"])
    assert maxent == load(["objective=maxent", "objective.maxent_tau=0.6"])
    # of two options of one group only the later counts
    assert (
        load(["training=other", "training=own"], config_dirs=["mine"]).training.max_steps == load().training.max_steps
    )


def test_a_later_source_switches_off_what_an_earlier_one_implies() -> None:
    Path("base.yaml").write_text("kl_target: 0.1\nbeta: 0.1\nmodel_size: 270m\nwarmup_ratio: 0.1\n")
    text = "maxent.recipe: base.yaml\nmaxent_beta_controller_enabled: false\nmodel.name: some/model\nwarmup_steps: 7\n"
    found = from_yaml(text).config
    assert (found.objective.kl.controller, found.model.name, found.training.warmup_steps) == ("fixed", "some/model", 7)
    off = from_words("base.yaml", "--maxent_beta_controller_enabled", "false").config
    assert (off.objective.kl.controller, off.model.name) == ("fixed", "google/gemma-3-270m-it")
    assert from_words("base.yaml").config.objective.kl.controller == "adaptive"


def test_a_key_says_where_it_was_set_under_the_name_that_was_written() -> None:
    cases = {
        "(Set in r.yaml, line 2, as gen_temperature.)": ("seed: 1\ngen_temperature: -1\n", []),
        "(Set by the flag `--gen_temperature -1`.)": ("gen_temperature: 1\n", ["--gen_temperature", "-1"]),
        "(Set by the override `training.temperature=-1`.)": ("gen_temperature: 1\n", ["training.temperature=-1"]),
    }
    for where, (text, words) in cases.items():
        with pytest.raises(ConfigError, match=re.escape(where)):
            from_yaml(text, "r.yaml", *words)
    with pytest.raises(
        ConfigError, match=r"experimant is not a key .*Did you mean experiment\?.*`experimant=quick_test`"
    ):
        from_words("experimant=quick_test")
    with pytest.raises(ConfigError, match=r"Did you mean train_grpo_objective or objective\? \(Set by"):
        from_words("train_grpo_objectivex=1")
    for name in ("experiment", "+experiment"):
        with pytest.raises(ConfigError, match=r"is a group of options.*override /experiment: NAME.* line 1"):
            from_yaml(f"{name}: quick_test\n", "r.yaml")
    assert from_yaml("defaults: [override /experiment: quick_test]\n").config == load(["experiment=quick_test"])


def test_an_error_about_a_mapping_names_what_set_it() -> None:
    recipe = "objective: {settings: {x: 2}}\n"
    cases = {
        "(Set in r.yaml, line 1.)": (recipe, ["objective.settings={}"]),  # merged, so the recipe's stays
        "(Set by the override `objective.settings.y=1`.)": (recipe, ["objective.settings.y=1"]),
    }
    for where, (text, words) in cases.items():
        with pytest.raises(ConfigError, match=re.escape(where)):
            from_yaml(text, "r.yaml", *words)
    found = from_yaml("objective: {name: 'm.py:Own', settings: {x: 2}}\n", "r.yaml", "objective.settings={}")
    with (
        pytest.raises(ConfigError, match=r"^objective\.settings\.x is wrong\. \(Set in r.yaml, line 1, as obj"),
        found.naming_places(),
    ):
        raise BadKeyError("objective.settings.x", " is wrong.")
    with pytest.raises(ConfigError, match=r"is missing\.$"), found.naming_places():
        raise BadKeyError("objective.settings.y", " is missing.")
