"""The defaults of other projects: their numbers, which names select them, and that whatever the user sets wins."""

from __future__ import annotations

import importlib.machinery
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from compose_config import from_words, from_yaml, value_of
from covey.advice import install
from covey.config import Composed, compose, differences, load, split, to_yaml
from covey.config.aliases import presets
from covey.config.aliases.aliases import PEERS, look_up, table
from covey.config.aliases.presets import PRESETS
from covey.config.compose.group_files import CONF
from covey.config.groups.training import training_fields
from covey.config.keys import Source
from covey.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]
RECIPES = ROOT / "recipes"

# Written down from the projects' files, named in `conf/preset/`.
AGENT_TUNIX = {
    "model.lora.rank": 32,
    "model.lora.alpha": 32.0,
    "model.lora.enabled": True,
    "dataset.max_prompt_length": 256,
    "training.per_device_train_batch_size": 16,  # 4 prompts x 4 generations
    "training.num_generations": 4,
    "training.max_steps": 3738,
    "training.gradient_accumulation_steps": 1,
    "training.max_completion_length": 512,
    "training.temperature": 0.9,
    "training.top_k": 50,
    "training.top_p": 1.0,
    "training.learning_rate": 3e-6,
    "training.lr_scheduler_type": "cosine",
    "training.warmup_steps": 0.1,
    "training.max_grad_norm": 0.1,
    "training.weight_decay": 0.1,
    "training.adam_beta2": 0.99,
    "training.beta": 0.08,
    "training.epsilon": 0.2,
    "training.loss_type": "grpo",
    "rewards.funcs": ["match_format_exactly", "match_format_approximately", "check_answer", "check_numbers"],
    "training.report_to": "wandb",
    "logging.project": "tunix-grpo",
}
RLVR_VOCAB = {
    "dataset.max_prompt_length": 1024,
    "training.learning_rate": 5e-6,
    "training.num_train_epochs": 4,
    "training.max_steps": -1,
    "training.per_device_train_batch_size": 2,
    "training.gradient_accumulation_steps": 4,
    "training.num_generations": 4,
    "training.max_completion_length": 512,
    "training.lr_scheduler_type": "cosine",
    "training.warmup_steps": 0.1,
    "training.max_grad_norm": 1.0,
    "training.beta": 0.0,
    "training.loss_type": "dapo",
    "rewards.funcs": ["accuracy"],
    "training.report_to": "wandb",
    "logging.project": "rlvr-vocab",
}
OLDER_TRL = {
    "training.beta": 0.04,
    "training.loss_type": "bnpo",
    "training.learning_rate": 1e-6,
    "training.lr_scheduler_type": "linear",
    "training.num_train_epochs": 3,
    "training.num_generations": 8,
    "training.per_device_train_batch_size": 8,
    "training.gradient_accumulation_steps": 1,
    "training.max_completion_length": 256,
    "dataset.max_prompt_length": 512,
    "dataset.overlong_prompts": "truncate",
    "training.report_to": "none",
}
OPEN_R1 = "model_name_or_path: some/model\ndataset_name: open-r1/OpenR1-Math-220k\nsystem_prompt: Think.\n"
XDAN = "model_name_or_path: some/model\ndataset_name: AI-MO/NuminaMath-TIR\ndataset_configs: [all]\nvllm_device: auto\n"
MAXENT = "model_name_or_path: some/model\ndataset_name: open-r1/OpenR1-Math-220k\ntrain_grpo_objective: true\n"
TODAY = "model_name_or_path: some/model\ndataset_name: a/b\nnum_generations: 4\nuse_peft: true\nlora_r: 8\n"


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    has_wandb(monkeypatch, True)


def has_wandb(monkeypatch: pytest.MonkeyPatch, installed: bool) -> None:
    spec = importlib.machinery.ModuleSpec("wandb", None) if installed else None
    monkeypatch.setattr(presets, "find_spec", lambda name: spec)


def assert_holds(found: Composed, values: dict[str, Any], *but: str) -> None:
    assert {key: value_of(found, key) for key in values if key not in but} == {
        key: value for key, value in values.items() if key not in but
    }


def about_presets(found: Composed) -> list[str]:
    return [note for note in found.notes if "preset=" in note]


# --- what a preset holds -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plus", ["+", "", "--"])
def test_an_explicit_preset_is_the_whole_project(plus: str) -> None:
    words = ["--preset", "agent_tunix"] if plus == "--" else [f"{plus}preset=agent_tunix"]
    found = from_words(*words)
    assert_holds(found, {**AGENT_TUNIX, "model.name": "google/gemma-3-270m-it", "dataset.id": "openai/gsm8k"})
    assert (found.config.output_dir, found.config.run_name) == ("checkpoints", "ckpts")
    found = from_words("preset=rlvr_vocab")
    data = "agentica-org/DeepScaleR-Preview-Dataset"
    assert_holds(found, {**RLVR_VOCAB, "model.name": "Qwen/Qwen3-0.6B", "dataset.id": data})
    assert (found.config.output_dir, found.config.run_name) == ("out", "grpo_baseline")
    assert_holds(from_words("preset=open_r1", "model.name=some/model"), OLDER_TRL)
    found = from_words("preset=maxent_grpo")
    assert_holds(found, {**OLDER_TRL, "model.name": "Qwen/Qwen2.5-1.5B-Instruct", "training.temperature": 0.8})
    assert value_of(found, "objective.name") == "grpo"


def test_a_preset_may_be_chosen_in_a_recipe() -> None:
    found = from_yaml("defaults: [{preset: agent_tunix}]\ntraining: {beta: 0.5}\n")
    assert_holds(found, {**AGENT_TUNIX, "training.beta": 0.5, "model.name": "google/gemma-3-270m-it"})
    assert value_of(
        from_yaml("defaults: [{override /preset: agent_tunix}]\n", "r.yaml", "preset=none"), "model.name"
    ) == ("starter")
    with pytest.raises(ConfigError, match=r"no option preset=tunix .*agent_tunix"):
        from_words("+preset=tunix")


@pytest.mark.parametrize(
    ("name", "recipe"), [("agent_tunix", "gemma3_270m/grpo/agent_tunix"), ("rlvr_vocab", "qwen3_0.6b/grpo/rlvr_vocab")]
)
def test_the_recipe_of_a_preset_has_its_defaults(name: str, recipe: str) -> None:
    assert PRESETS[name].recipe == f"recipes/{recipe}.yaml"
    assert differences(load(recipe=RECIPES / f"{recipe}.yaml"), load([f"+preset={name}"])) == []


# --- which names select one ----------------------------------------------------------------------------------------


def test_a_projects_own_key_selects_its_preset_for_a_model_that_the_user_names() -> None:
    found = from_words("model=gemma3_1b", "grpo.beta=0.1")
    assert_holds(found, {**AGENT_TUNIX, "training.beta": 0.1, "dataset.id": "openai/gsm8k"})
    (note,) = about_presets(found)
    assert note.startswith("preset=agent_tunix, selected by grpo.beta: the defaults of Agent-Tunix where nothing else")
    for part in ("preset=none", "dataset=gsm8k", "learning_rate=3e-06", "model.lora.rank=32", "report_to=wandb"):
        assert part in note
    assert "beta=0.08" not in note
    found = from_words("model.name=Qwen/Qwen3-0.6B", "logging.enabled=true", "exp_name=mine")
    assert_holds(found, {**RLVR_VOCAB, "dataset.id": "agentica-org/DeepScaleR-Preview-Dataset"})
    assert (found.config.output_dir, found.config.run_name) == ("out", "mine")


def test_its_data_are_taken_for_its_own_models_only() -> None:
    assert value_of(from_words("model.name=a/b", "grpo.beta=0.1"), "dataset.task") == "arithmetic"
    assert (
        value_of(from_words("model=gemma3_1b", "grpo.beta=0.1", "dataset=deepscaler"), "dataset.id") != "openai/gsm8k"
    )
    assert value_of(from_words("model=gemma3_1b", "grpo.beta=0.1", "dataset.id=a/b"), "dataset.id") == "a/b"


@pytest.mark.parametrize("text", [OPEN_R1, XDAN, MAXENT], ids=["open_r1", "xdan", "maxent"])
def test_recipes_for_an_older_trl_are_treated_alike(text: str) -> None:
    assert_holds(from_yaml(text), OLDER_TRL)
    assert_holds(
        from_yaml(f"{text}beta: 0.1\nloss_type: dr_grpo\n"), {**OLDER_TRL, "training.beta": 0.1}, "training.loss_type"
    )
    assert value_of(from_yaml(f"{text}loss_type: dr_grpo\n"), "training.loss_type") == "dr_grpo"
    none = from_yaml(text, "r.yaml", "preset=none")
    assert (value_of(none, "training.beta"), value_of(none, "training.loss_type")) == (0.0, "dapo")


def test_a_recipe_for_todays_trl_keeps_its_defaults() -> None:
    found = from_yaml(TODAY)
    assert (value_of(found, "training.beta"), value_of(found, "training.loss_type")) == (0.0, "dapo")
    assert about_presets(found) == []


def test_flags_and_config_groups_select_one_too() -> None:
    found = from_words("--model_name_or_path", "some/model", "--vllm_device", "auto")
    assert_holds(found, OLDER_TRL)
    group = Path("mine/training")
    group.mkdir(parents=True)
    (group / "t.yaml").write_text("micro_batch_size: 2\n")
    found = compose(["model=gemma3_1b", "training=t"], config_dirs=["mine"])
    assert_holds(found, {**AGENT_TUNIX, "training.per_device_train_batch_size": 8, "dataset.id": "openai/gsm8k"})


def test_the_project_with_more_of_its_own_keys_is_selected() -> None:
    found = from_words("model=gemma3_1b", "exp_name=mine", "grpo.beta=0.1", "optimizer.learning_rate=1e-5")
    assert_holds(found, {**AGENT_TUNIX, "training.beta": 0.1, "training.learning_rate": 1e-5})
    assert found.config.run_name == "mine"


# --- what the user sets wins ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("selecting", ["+preset=agent_tunix", "grpo.num_iterations=1"])
def test_whatever_the_user_sets_wins(selecting: str) -> None:
    def found(*words: str, recipe: str = "seed: 1\n") -> Composed:
        return from_yaml(recipe, "r.yaml", "model=gemma3_270m", selecting, *words)

    assert value_of(found(recipe="training: {learning_rate: 1.0e-4}\n"), "training.learning_rate") == 1e-4
    assert value_of(found("training.learning_rate=1e-4"), "training.learning_rate") == 1e-4
    assert value_of(found("--learning_rate", "1e-4"), "training.learning_rate") == 1e-4
    assert value_of(found("optimizer.learning_rate=1e-4"), "training.learning_rate") == 1e-4
    assert value_of(found("+experiment=quick_test"), "training.max_steps") == 5
    assert value_of(found("rewards=math"), "rewards.funcs") == ["accuracy", "format"]
    assert value_of(found("objective=dapo"), "training.beta") == 0.0
    assert value_of(found("objective=dr_grpo"), "training.loss_type") == "dr_grpo"
    assert value_of(found("logging=none"), "training.report_to") == "none"
    assert value_of(found("wandb_disabled=true"), "training.report_to") == "none"
    assert value_of(found("model.lora_rank=8"), "model.lora.rank") == 8
    assert value_of(found("grpo.num_generations=2"), "training.per_device_train_batch_size") == 8  # of 4 prompts
    assert value_of(found("training.num_epochs=2"), "training.max_steps") == 7476
    place = found("output_dir=there").config
    assert (place.output_dir, place.run_name) == ("there", None)
    assert found("run_name=mine").config.output_dir == "out"


def test_a_default_option_chosen_again_hides_nothing() -> None:
    """It is the name of the RLVR project's own file too."""
    found = from_words("model.name=Qwen/Qwen3-0.6B", "dataset.val_split=test", "training=grpo_default")
    assert value_of(found, "training.learning_rate") == 5e-6


def test_values_that_exclude_each_other() -> None:
    path = from_words("model=gemma3_1b", "grpo.beta=0.1", "model.lora.path=out/a/final_model")
    assert value_of(path, "model.lora.rank") is None
    weights = from_words("model=gemma3_1b", "grpo.beta=0.1", "training.reward_weights=[1,0.5]")
    assert value_of(weights, "rewards.funcs") == ["exact_match", "format"]
    maxent = from_yaml("model_name_or_path: some/model\nmaxent_tau: 0.2\n")
    assert value_of(maxent, "training.loss_type") == "grpo"  # bnpo does not work with this objective
    assert value_of(maxent, "training.beta") == 0.04


# --- where none is taken -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("grpo.beta=0.01", "agent_tunix"),
        ("exp_name=a", "rlvr_vocab"),
        ("wandb_run_group=me", "open_r1"),
        ("gen_top_p=1.0", "maxent_grpo"),
    ],
)
def test_the_starter_is_left_as_it_is_with_a_note(word: str, name: str) -> None:
    found, plain = from_words(word), from_words(word, "preset=none")
    assert found.config == plain.config
    (note,) = about_presets(found)
    assert f"+preset={name}" in note
    assert "learning_rate=" in note
    assert "(here 0.00025)" in note
    assert PRESETS[name].recipe in note
    assert not about_presets(plain)


@pytest.mark.parametrize("name", ["full_training", "quick_test"])
def test_experiments_that_agent_tunix_has_too(name: str) -> None:
    words = ["model=gemma3_1b", f"+experiment={name}"]
    (note,) = about_presets(from_words(*words))
    assert note.startswith(f"+experiment={name} is Covey's own, and Agent-Tunix has one of this name.")
    assert "learning_rate=3e-06 (here 1e-05)" in note
    assert "+preset=agent_tunix" in note
    assert from_words(*words).config == from_words(*words, "preset=none").config
    assert not about_presets(from_words(*words, "preset=none"))
    assert not about_presets(from_words("model=qwen3_0.6b", f"+experiment={name}"))
    assert not about_presets(from_words(f"+experiment={name}"))
    assert value_of(from_words(*words, "+preset=agent_tunix"), "model.lora.rank") == 32


def test_without_wandb_a_preset_has_no_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    has_wandb(monkeypatch, False)
    found = from_words("+preset=agent_tunix")
    assert (value_of(found, "training.report_to"), value_of(found, "logging.project")) == ("none", None)
    assert [note for note in found.notes if install("wandb") in note]
    asked = from_words("+preset=agent_tunix", "logging=wandb")  # refused when it starts
    assert value_of(asked, "training.report_to") == "wandb"


def test_a_written_config_selects_none(tmp_path: Path) -> None:
    config = load(["+preset=agent_tunix"])
    path = tmp_path / "again.yaml"
    path.write_text(to_yaml(config), encoding="utf-8")
    assert load(recipe=path) == config
    assert load(["grpo.beta=0.08"], path) == config


SHARED = [
    "init_kl_coef",
    "init_kl_coeff",
    "kl_target",
    "kl_horizon",
    "micro_batch_size",
    "checkpoint_dir",
    "exp_name",
    "wandb_disabled",
    "wandb_entity",
    "chat_template",
    "evaluation_strategy",
    "cosine_max_len",
    "repetition_n_grams",
    "repetition_max_penalty",
    "optimizer.lr",
    "vllm_max_model_len",
    "vllm_enable_prefix_caching",
    "train_data_dir",
]
"""Names of the projects that OpenRLHF, axolotl, ms-swift, torchtune, open-instruct or kohya have too."""


@pytest.mark.parametrize("model", ["some/model", "google/gemma-3-270m-it", "Qwen/Qwen2.5-1.5B-Instruct"])
def test_names_that_several_tools_have_select_no_project(model: str) -> None:
    """Of OpenRLHF, axolotl, ms-swift, torchtune: each sets its own counterpart, for a project's own model too."""
    openrlhf = from_words("--pretrain", model, "dataset=gsm8k", "--init_kl_coef", "0.001", "--kl_target", "6")
    assert (value_of(openrlhf, "training.beta"), openrlhf.config.output_dir) == (0.001, "out")
    for words in (
        ["base_model=" + model, "micro_batch_size=2", "chat_template=x"],
        [f"model.name={model}", "exp_name=a"],
    ):
        found = from_words(*words, "dataset=gsm8k")
        assert about_presets(found) == []
        assert found.config == from_words(*words, "dataset=gsm8k", "preset=none").config
    assert about_presets(openrlhf) == about_presets(from_words(f"model.name={model}", "optimizer.lr=1e-5")) == []


def test_no_key_of_other_trainers_selects_a_project() -> None:
    for name in (*PEERS, *SHARED):
        assert not [key for key, preset in PRESETS.items() if preset.has(name)], name
        assert presets.select(None, [Source(foreign_names=[name])]) is None
    assert all(look_up(name) for name in SHARED)


# --- the names themselves ------------------------------------------------------------------------------------------


def test_a_name_selects_one_project_at_most() -> None:
    everything = [name for preset in PRESETS.values() for name in (*preset.names, *preset.prefixes)]
    assert len(everything) == len(set(everything))
    known = [*table(), *(f"{prefix}x" for preset in PRESETS.values() for prefix in preset.prefixes)]
    for name in known:
        owners = [key for key, preset in PRESETS.items() if preset.has(name)]
        assert len(owners) <= 1, f"{name}: {owners}"


def test_no_name_is_todays_trls_or_coveys() -> None:
    for key, preset in PRESETS.items():
        for name in (*training_fields(), "report_to", "use_peft", "lora_r", "dataset_name", "reward_funcs"):
            assert not preset.has(name), f"{key}: {name}"
        for name in preset.names:
            known = look_up(name)
            assert known is None or not known.native, f"{key}: {name}"


def test_every_name_is_one_that_covey_takes() -> None:
    wrappers = {"maxent", "baseline", "script"}
    for key, preset in PRESETS.items():
        for name in preset.names - wrappers:
            inside = name in ("grpo", "model.model_kwargs", "model.generation_kwargs")
            assert look_up(name) is not None or inside, f"{key}: {name}"


def test_each_option_is_a_preset_and_each_preset_an_option() -> None:
    assert {path.stem for path in (CONF / "preset").glob("*.yaml")} == {*PRESETS, "none"}


def test_coveys_own_commands_and_recipes_select_none() -> None:
    for path in RECIPES.glob("*/*/*.yaml"):
        assert not about_presets(compose(recipe=path, world_size=8)), path
    foreign = ("coming_from.md", "configuration.md")
    pages = [page for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")) if page.name not in foreign]
    found = 0
    for page in pages:
        for line in re.findall(
            r"^covey (?:train|config|launch|doctor) (.*?)(?:\s+#.*)?$", page.read_text(), re.MULTILINE
        ):
            words = [word for word in shlex.split(line) if word.startswith("--") or "=" in word]
            overrides = split([word for word in words if "..." not in word and "…" not in word]).overrides
            names = [str(word).lstrip("+-~").partition("=")[0].partition(" ")[0] for word in overrides]
            for name in names:
                owners = [key for key, preset in PRESETS.items() if preset.has(name)]
                assert not owners, f"{page.name}: {line}: {name}"
            found += 1
    assert found > 20
