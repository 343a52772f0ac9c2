"""Recipes, primary configs, experiments, groups of the user's own, and the command line over each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.compose_config import value_of
from tests.support.dead_keys import dead_lines

from covey.cli.main import main
from covey.config import Config, Flag, compose, load, to_yaml
from covey.errors import ConfigError

GLOBAL = "# @package _global_\n"


def write(files: dict[str, str]) -> None:
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write(
        {
            "conf/experiment/big.yaml": f"{GLOBAL}defaults:\n  - override /model: qwen3_1.7b\n"
            "  - override /dataset: gsm8k\ntraining: {max_steps: 9}\n",
            "conf/main.yaml": "defaults:\n  - override /model: qwen3_0.6b\n  - _self_\nseed: 5\n",
            "recipe.yaml": "defaults:\n  - override /model: qwen3_0.6b\ntraining: {max_steps: 4}\nseed: 6\n",
            "flat.yaml": "max_steps: 4\nlearning_rate: 1e-5\n",
        }
    )


def name_of(config: Config) -> str:
    return config.model.name.rpartition("/")[2]


# --- an experiment over a recipe or a primary config ---------------------------------------------------------------


@pytest.mark.parametrize("recipe", [None, "recipe.yaml", "flat.yaml"])
def test_an_experiments_groups_hold_with_any_recipe(recipe: str | None) -> None:
    config = load(["+experiment=big"], recipe, ["conf"])
    assert (name_of(config), config.dataset.id, config.training.max_steps) == ("Qwen3-1.7B", "openai/gsm8k", 9)
    config = load(["+experiment=big", "model=gemma3_1b", "max_steps=2"], recipe, ["conf"])
    assert (name_of(config), config.dataset.id, config.training.max_steps) == ("gemma-3-1b-it", "openai/gsm8k", 2)


def test_what_a_primary_config_overrides_goes_before_an_experiment_as_in_hydra() -> None:
    config = load(["+experiment=big"], config_dirs=["conf"], config_name="main")
    assert (name_of(config), config.dataset.id, config.training.max_steps) == ("Qwen3-0.6B", "openai/gsm8k", 9)
    assert name_of(load(["+experiment=big", "model=gemma3_1b"], None, ["conf"], config_name="main")) == "gemma-3-1b-it"


def test_a_recipe_over_a_primary_config() -> None:
    write({"conf/rest.yaml": "defaults:\n  - dataset: gsm8k\n  - _self_\nseed: 5\nrun_name: kept\n"})
    config = load([], "recipe.yaml", ["conf"], config_name="rest")
    assert (name_of(config), config.dataset.id, config.seed) == ("Qwen3-0.6B", "openai/gsm8k", 6)
    assert config.run_name == "kept"


def test_a_recipes_keys_come_after_a_group_on_the_command_line_and_that_is_said() -> None:
    write({"r.yaml": "model: {name: a/b}\ntraining: {loss_type: luspo, epsilon: 0.1}\n"})
    found = compose(["model=gemma3_1b", "objective=dapo", "epsilon=0.3"], "r.yaml")
    assert (found.config.model.name, found.config.training.loss_type) == ("a/b", "luspo")
    assert (found.config.training.epsilon, found.config.training.epsilon_high) == (0.3, 0.28)
    kept = [note for note in found.notes if "keeps its own" in note]
    assert len(kept) == 2
    assert kept[0].startswith("model=gemma3_1b: r.yaml keeps its own model.name=a/b, as")
    assert kept[1].startswith("objective=dapo: r.yaml keeps its own training.loss_type=luspo, as")
    assert not [note for note in compose(["objective=dapo"], "recipe.yaml").notes if "keeps its own" in note]


def test_a_group_over_the_whole_config_of_a_run_is_used_without_a_word() -> None:
    Path("whole.yaml").write_text(to_yaml(load([])), encoding="utf-8")
    found = compose(["evaluation=greedy"], "whole.yaml")
    assert found.config.evaluation.temperature == 0
    assert not [note for note in found.notes if "keeps its own" in note]


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        (r"dataset.system_prompt=a\nb", "a\nb"),
        (r'dataset.system_prompt="Use \boxed{}.\n\nReply."', "Use \\boxed{}.\n\nReply."),
        (r"dataset.system_prompt='Avoid \\neq and \\n.\n'", "Avoid \\neq and \\n.\n"),
        (Flag("system_prompt", (r"a\nb",)), "a\nb"),
        ("dataset.system_prompt='a\nb'", "a\nb"),
    ],
)
def test_a_typed_line_break_is_one(typed: str | Flag, text: str) -> None:
    assert load([typed]).dataset.system_prompt == text
    write({"r.yaml": r"dataset: {system_prompt: 'a\nb'}"})  # YAML has rules of its own
    assert load([], "r.yaml").dataset.system_prompt == r"a\nb"
    assert load([r"rewards.code.paths=[x\ny]"]).rewards.code.paths == (r"x\ny",)


@pytest.mark.parametrize(
    ("choice", "changed"),
    [
        ("evaluation=greedy", {"evaluation.temperature": 0.0, "evaluation.top_k": 0}),
        ("rewards=countdown", {"rewards.funcs": ["countdown", "format"]}),
        ("environment=python", {"environment.tools": ["python"]}),
        ("environment=none", {"environment.tools": []}),
        ("objective=maxrl", {"objective.name": "maxrl", "training.scale_rewards": "none"}),
        ("logging=default", {"logging.sample_completions": 3}),
        ("dataset=countdown", {"dataset.task": "countdown", "dataset.test_size": 512}),
        ("model=qwen3_0.6b", {"model.name": "Qwen/Qwen3-0.6B", "model.revision": None}),
    ],
)
def test_a_group_over_the_whole_config_of_a_run_replaces_only_what_it_states(
    choice: str, changed: dict[str, object]
) -> None:
    words = ["evaluation.grader=accuracy", "evaluation.max_problems=9", "evaluation.top_k=7", "rewards.think_tag=plan"]
    words += ["environment.tools=[calculator]", "environment.timeout=3", "objective.kl.kl_target=0.2"]
    words += ["logging.project=p", "logging.sample_completions=5", "dataset.max_prompt_length=64", "dataset.seed=3"]
    words += ["model.revision=abc", "dataset.test_size=32"]
    Path("whole.yaml").write_text(to_yaml(load(words)), encoding="utf-8")
    found = compose([choice], "whole.yaml")
    assert {key: value_of(found, key) for key in changed} == changed
    for key, _, value in (word.partition("=") for word in words):
        if key not in changed:
            assert value_of(found, key) == yaml.safe_load(value), key


def test_a_group_that_an_experiment_adds_may_be_overridden() -> None:
    write(
        {
            "conf/experiment/adds.yaml": f"{GLOBAL}defaults: [{{/extra: one}}]\n",
            "conf/extra/one.yaml": f"{GLOBAL}seed: 1\n",
            "conf/extra/two.yaml": f"{GLOBAL}seed: 2\n",
        }
    )
    assert load(["+experiment=adds"], None, ["conf"]).seed == 1
    for words in (["+experiment=adds", "extra=two"], ["extra=two", "+experiment=adds", "model=gemma3_1b"]):
        assert load(words, None, ["conf"]).seed == 2
    assert load(["+extra=two"], None, ["conf"]).seed == 2


def test_the_tuning_of_a_model_comes_before_all_groups_that_the_user_chooses() -> None:
    write({"conf/evaluation/rare.yaml": "every_steps: 77\n", "conf/training/slow.yaml": "learning_rate: 1e-7\n"})
    config = load(["training=slow", "evaluation=rare"], config_dirs=["conf"])
    assert (config.training.learning_rate, config.evaluation.every_steps) == (1e-7, 77)
    assert (config.training.max_steps, config.evaluation.batch_size) == (100, 256)  # of the starter's tuning


# --- a primary config ----------------------------------------------------------------------------------------------


def test_a_primary_config_takes_over_the_groups_that_it_lists() -> None:
    write(
        {
            "conf/config.yaml": "defaults:\n  - model: gemma3_270m\n  - _self_\n  - training: slow\n"
            "training: {max_steps: 8, learning_rate: 1e-3}\nhydra: {run: {dir: '${now:%Y}'}}\n",
            "conf/training/slow.yaml": "learning_rate: 1e-7\n",
        }
    )
    found = compose([], None, ["conf"], config_name="config")
    assert name_of(found.config) == "gemma-3-270m-it"
    assert (found.config.training.max_steps, found.config.training.learning_rate) == (8, 1e-7)  # `_self_` before it
    assert found.config.training.save_steps == 50  # Covey's base lies below
    assert "config.yaml: without effect here, ignored: hydra" in found.notes
    assert name_of(load(["model=gemma3_1b"], None, ["conf"], config_name="config")) == "gemma-3-1b-it"
    assert load(["training=grpo_default"], None, ["conf"], config_name="config").training.learning_rate == 1e-3


def test_packages_lists_and_optional_entries_of_a_primary_config() -> None:
    write(
        {
            "conf/config.yaml": "defaults:\n  - /rates@training: [low, warm]\n  - optional rewards: nothing\n"
            "  - common\n  - override hydra/job_logging: none\nseed: 3\n",
            "conf/rates/low.yaml": "learning_rate: 1e-7\n",
            "conf/rates/warm.yaml": "warmup_ratio: 0.25\n",
            "conf/common.yaml": "run_name: shared\nseed: 2\n",
        }
    )
    found = compose([], None, ["conf"], config_name="config")
    assert (found.config.training.learning_rate, found.config.training.warmup_steps) == (1e-7, 0.25)
    assert (found.config.run_name, found.config.seed) == ("shared", 3)
    assert any("ignored: the groups hydra/job_logging=none" in note for note in found.notes)


def test_the_views_show_a_primary_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "-cd", "conf", "-cn", "main", "--info"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"{Path('conf/main.yaml').absolute()}:" in lines
    assert "    model: qwen3_0.6b" in lines
    assert main(["train", "-m", "-cd", "conf", "-cn", "main", "--cfg", "job", "seed=1,2"]) == 0
    assert capsys.readouterr().out.count("name: Qwen/Qwen3-0.6B") == 2


@pytest.mark.parametrize(
    ("files", "words", "message"),
    [
        ({"conf/p.yaml": "defaults:\n  - model: gone\n"}, [], r"no option model=gone \(chosen in .*p\.yaml\)"),
        ({"conf/p.yaml": "defaults:\n  - lost\n"}, [], r"p\.yaml: Could not load 'lost'"),
        ({"conf/p.yaml": "defaults:\n  - override /algorithm: x\n"}, [], r"p\.yaml: Could not override 'algorithm'"),
        ({"conf/p.yaml": "defaults:\n  - {a: b, c: d}\n"}, [], r"p\.yaml: the entry .* of defaults is not one"),
        ({"conf/p.yaml": "defaults:\n  - q\n", "conf/q.yaml": "defaults: [p]\n"}, [], "include each other"),
        ({"conf/p.yaml": "seed: 1\n", "conf/model/m.yaml": "defaults: [../../x]\n"}, ["model=m"], "leads out of"),
        ({"conf/p.yaml": "# @package a b\nseed: 1\n"}, [], r"p\.yaml: its header cannot be read"),
        ({"conf/p.yaml": "seed: 1\n", "conf/model/m.yaml": "name: [\n"}, ["model=m"], r"m\.yaml, line 2.*not valid"),
        (
            {"conf/p.yaml": "maxent.recipe: p2.yaml\n", "p2.yaml": "maxent.recipe: conf/p.yaml\n"},
            [],
            "builds on itself",
        ),
    ],
)
def test_mistakes_in_a_primary_config(files: dict[str, str], words: list[str], message: str) -> None:
    write(files)
    with pytest.raises(ConfigError, match=message) as caught:
        load(words, None, ["conf"], config_name="p")
    assert "\n" not in str(caught.value)


# --- options of the user's own -------------------------------------------------------------------------------------


def test_an_option_of_the_users_own_takes_the_place_of_coveys() -> None:
    write({"conf/model/starter.yaml": "name: me/mine\n", "more/model/starter.yaml": "name: me/second\n"})
    found = compose([], None, ["conf"])
    assert found.config.model.name == "me/mine"
    (note,) = [note for note in found.notes if "of your own" in note]
    assert str(Path("conf/model/starter.yaml").absolute()) in note
    assert "covey/config/conf/model/starter.yaml" in note
    assert load(["model=starter"], None, ["more", "conf"]).model.name == "me/second"
    assert not [note for note in compose(["model=gemma3_1b"], None, ["conf"]).notes if "of your own" in note]


def test_other_tools_keys_in_a_group_file_reach_other_groups() -> None:
    write(
        {
            "conf/training/other.yaml": "inference_config: greedy\nmax_prompt_length: 64\nlogging_steps: 3\n",
            "conf/evaluation/mine.yaml": "inference_config: standard\nevery_steps: 7\ntop_k: 9\n",
            "conf/logging/w.yaml": "enabled: true\n",
        }
    )
    config = load(["training=other"], None, ["conf"])
    assert (config.evaluation, config.dataset.max_prompt_length) == (load(["evaluation=greedy"]).evaluation, 64)
    assert load(["training=other", "evaluation=liberal"], None, ["conf"]).evaluation.temperature == 0.85
    own = load(["evaluation=mine"], None, ["conf"]).evaluation
    assert (own.temperature, own.top_p, own.top_k, own.every_steps) == (0.7, 0.95, 9, 7)
    assert load(["logging=w"], None, ["conf"]).training.report_to == "wandb"
    assert load(["logging=w", "report_to=none"], None, ["conf"]).training.report_to == "none"


def test_keys_that_mean_something_together_may_lie_in_different_files() -> None:
    write(
        {"conf/experiment/adapted.yaml": f"{GLOBAL}lora_r: 4\n", "conf/experiment/on.yaml": f"{GLOBAL}use_peft: true\n"}
    )
    alone = compose(["+experiment=adapted"], None, ["conf"])
    assert alone.config.model.lora.enabled is False
    assert any("use_peft" in line for line in dead_lines(["+experiment=adapted"], None, ["conf"]))
    write({"on.yaml": "use_peft: true\n", "rank.yaml": "lora_r: 4\neval_steps: 5\n"})
    for words, recipe in (
        (["+experiment=adapted"], "on.yaml"),
        (["+experiment=on"], "rank.yaml"),
        (["+experiment=adapted", "use_peft=true"], None),
        (["+experiment=on", "lora_r=4"], None),
    ):
        found = compose(words, recipe, ["conf"])
        assert (found.config.model.lora.enabled, found.config.model.lora.rank) == (True, 4)
        assert not dead_lines(words, recipe, ["conf"])
    assert load(["eval_strategy=no"], "rank.yaml").evaluation.every_steps == 0


def test_references_between_files() -> None:
    write(
        {
            "conf/config.yaml": "defaults: [{training: t}, {logging: l}, _self_]\nexp_name: first\nproject_name: p\n",
            "conf/training/t.yaml": "output_dir: ./out/${exp_name}\nmicro_batch_size: 2\n",
            "conf/logging/l.yaml": "run_name: ${exp_name}\ntags: ['${project_name}']\n",
        }
    )
    config = load([], None, ["conf"], config_name="config")
    assert (config.run_name, config.output_dir, config.logging.tags) == ("first", "out", ("p",))
    assert load(["exp_name=second"], None, ["conf"], config_name="config").output_dir == "out"


# --- whole trees of other projects ---------------------------------------------------------------------------------

TUNIX = {
    "conf/config.yaml": "defaults:\n  - model: gemma3_270m\n  - optimizer: adamw\n  - grpo: default\n"
    "  - generation: default\n  - training: default\n  - _self_\nproject_name: p\nseed: 7\ndebug: false\n"
    "hydra:\n  run: {dir: 'outputs/${project_name}/${now:%H}'}\n",
    "conf/model/gemma3_270m.yaml": "model_family: gemma3\nmodel_size: 270m\nlora_rank: 16\nlora_alpha: 16.0\n",
    "conf/model/gemma3_1b.yaml": "model_family: gemma3\nmodel_size: 1b\nlora_rank: 24\nlora_alpha: 16.0\n",
    "conf/optimizer/adamw.yaml": "learning_rate: 2e-6\nbeta1: 0.8\nwarmup_ratio: 0.1\n",
    "conf/grpo/default.yaml": "num_generations: 4\nbeta: 0.07\n",
    "conf/generation/default.yaml": "max_generation_steps: 96\ntemperature: 0.8\n",
    "conf/training/default.yaml": "data_source: huggingface\nmicro_batch_size: 2\nnum_batches: 30\nnum_epochs: 1\n",
    "conf/evaluation/default.yaml": "inference_config: greedy\nnum_passes: 1\n",
    "conf/experiment/quick_test.yaml": f"{GLOBAL}defaults:\n  - override /model: gemma3_270m\n"
    "  - override /training: default\nmodel: {lora_rank: 4}\ntraining: {num_batches: 5}\n"
    "generation: {max_generation_steps: 32}\ngrpo: {num_generations: 2}\nwandb_disabled: true\n",
}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ("gemma-3-270m-it", 16, 8, 30, 96, 4)),
        (["model=gemma3_1b"], ("gemma-3-1b-it", 24, 8, 30, 96, 4)),
        (["+experiment=quick_test"], ("gemma-3-270m-it", 4, 4, 5, 32, 2)),
        (["model=gemma3_1b", "+experiment=quick_test"], ("gemma-3-1b-it", 4, 4, 5, 32, 2)),
        (["grpo.num_generations=8", "optimizer.learning_rate=1e-5"], ("gemma-3-270m-it", 16, 16, 30, 96, 8)),
    ],
)
def test_a_tree_in_the_style_of_agent_tunix(words: list[str], expected: tuple[Any, ...]) -> None:
    write(TUNIX)
    found = compose(words, None, ["conf"], config_name="config")
    model, training = found.config.model, found.config.training
    batch, steps, length = training.per_device_train_batch_size, training.max_steps, training.max_completion_length
    assert (name_of(found.config), model.lora.rank, batch, steps, length, training.num_generations) == expected
    assert (model.lora.enabled, found.config.dataset.id, found.config.seed) == (True, "openai/gsm8k", 7)
    assert (training.beta, training.adam_beta1, training.temperature) == (0.07, 0.8, 0.8)
    assert training.learning_rate == (1e-5 if len(words) > 1 and "learning_rate" in words[1] else 2e-6)
    assert found.config.evaluation.temperature == 0.0


def test_a_tree_in_the_style_of_the_vocabulary_project() -> None:
    write(
        {
            "conf/config.yaml": "defaults:\n  - model: qwen3_0.6b\n  - dataset: deepscaler\n"
            "  - training: grpo_default\n  - logging: wandb\n  - _self_\nexp_name: baseline\nseed: 42\n",
            "conf/model/qwen3_0.6b.yaml": "name: Qwen/Qwen3-0.6B\nreasoning_vocab_size: 0\n"
            "model_kwargs: {torch_dtype: bf16}\ngeneration_kwargs: {max_new_tokens: 64, temperature: 0.6}\n",
            "conf/dataset/deepscaler.yaml": "name: agentica-org/DeepScaleR-Preview-Dataset\nmax_train_samples: null\n"
            "system_prompt: Think first.\n",
            "conf/training/grpo_default.yaml": "output_dir: ./out/${exp_name}\nlearning_rate: 5e-6\n"
            "num_train_epochs: 4\nper_device_train_batch_size: 2\ngradient_accumulation_steps: 4\nnum_generations: 4\n",
            "conf/logging/wandb.yaml": "enabled: true\nproject: words\nrun_name: ${exp_name}\nmode: online\n",
        }
    )
    found = compose(["logging.enabled=false", "model.reasoning_vocab_size=100"], None, ["conf"], config_name="config")
    config, training = found.config, found.config.training
    assert (config.model.name, config.model.dtype, config.model.reasoning_vocab_size) == (
        *("Qwen/Qwen3-0.6B", "bfloat16"),
        100,
    )
    assert (training.learning_rate, training.num_train_epochs, training.num_generations) == (5e-6, 4, 4)
    assert (training.max_completion_length, training.temperature, training.report_to) == (64, 0.6, "none")
    assert (config.dataset.id, config.dataset.system_prompt) == (
        "agentica-org/DeepScaleR-Preview-Dataset",
        "Think first.",
    )
    assert (config.run_name, config.logging.project) == ("baseline", "words")
    (note,) = [note for note in found.notes if "of your own" in note]
    assert all(f"{name} (" in note for name in ("model/qwen3_0.6b", "dataset/deepscaler", "training/grpo_default"))


@pytest.mark.parametrize("name", ["hydra/maxent", "hydra/maxent.yaml"])
def test_primary_configs_in_the_style_of_maxent_grpo(name: str) -> None:
    write(
        {
            "configs/recipes/model/grpo.yaml": "model_name_or_path: a/b\ndataset_name: c/d\nbeta: 0.1\nmax_steps: 7\n",
            "configs/recipes/hydra/maxent.yaml": "command: train-maxent\nmaxent:\n"
            "  recipe: configs/recipes/model/grpo.yaml\n  training: {objective: maxent_listwise, beta: 0.3}\n"
            "hydra: {run: {dir: x}}\n",
        }
    )
    config = load(["max_steps=8"], None, ["configs/recipes"], config_name=name)
    assert (config.model.name, config.dataset.id) == ("a/b", "c/d")
    assert (config.objective.name, config.training.beta, config.training.max_steps) == ("maxent", 0.3, 8)
