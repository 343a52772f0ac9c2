"""Keys without effect: what says so of each key, and what a person who sets one is told."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.config.effects import EFFECTS
from tests.support.dead_keys import FACTS, dead_lines

from covey.cli.config_arguments import Request
from covey.cli.main import main
from covey.cli.sweep.plan import make_plan
from covey.config import known_keys, load
from covey.config.compose import flags
from covey.config.groups.training import LIVE, NEVER
from covey.config.live import condition, is_live
from covey.data.tasks.arithmetic import Difficulty
from covey.data.tasks.countdown import CountdownDifficulty
from covey.data.tasks.graph_coloring import ColoringDifficulty
from covey.errors import ConfigError
from covey.rewards.reward import CodeSettings

ROOT = Path(__file__).parents[2]
VLLM, SERVER = "training.use_vllm=true", "training.vllm_mode=server"
CODE, LORA, MATH = "rewards.funcs=[code]", "model.lora.rank=4", "rewards.funcs=[accuracy]"
BETA, NO_BETA = "training.beta=0.1", "training.beta=0"

CASES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    # a key with its value; words beside which it has no effect; words beside which it has one
    ("dataset.difficulty.max_digits=3", ("dataset=gsm8k",), ("dataset=arithmetic",)),
    ("dataset.difficulty.operators=[+]", ("dataset=graph_coloring",), ("dataset=countdown",)),
    ("dataset.difficulty.min_vertices=5", (), ("dataset=graph_coloring",)),
    ("dataset.difficulty.min_modes=2", ("dataset=arithmetic",), ("dataset=countdown",)),
    ("dataset.hard_difficulty.max_digits=9", ("dataset.hard_size=0",), ("dataset.hard_size=8",)),
    ("dataset.streaming=true", (), ("dataset=gsm8k",)),
    ("dataset.train_split=a", (), ("dataset=gsm8k",)),
    ("dataset.prompt_column=a", (), ("dataset=gsm8k",)),
    ("dataset.train_size=9", ("dataset=gsm8k",), ()),
    ("dataset.hard_size=9", ("dataset=gsm8k",), ("dataset=countdown",)),
    ("dataset.overlong_prompts=truncate", (), ("dataset.max_prompt_length=64",)),
    ("dataset.mixture.seed=3", (), ("dataset.task=null", "dataset.mixture.datasets=[{path: a}]")),
    ("environment.max_turns=4", (), ("environment.tools=[calculator]",)),
    ("environment.timeout=4", (), ("environment=calculator",)),
    ("rewards.cosine_max_len=9", (), ("rewards.funcs=[cosine]",)),
    ("rewards.repetition_n_grams=2", (MATH,), ("rewards.funcs=[repetition_penalty_reward]",)),
    ("rewards.soft_overlong_cache=9", (), ("rewards.funcs=[soft_overlong_punishment]",)),
    ("rewards.code.timeout=9", (), ("rewards.funcs=[binary_code]",)),
    ("rewards.code.max_tests=9", (MATH,), (MATH, "evaluation.grader=code")),
    ("rewards.code.commands.js=node", (), (CODE,)),
    ("rewards.unevaluated=accept", (CODE,), (CODE, "evaluation.grader=accuracy")),
    ("rewards.model.batch_size=9", (), ("rewards.funcs=[model:a/b]",)),
    ("rewards.timeout=9", ("rewards.workers=0",), ()),
    ("evaluation.best_by=reward", ("evaluation.every_steps=0",), ()),
    ("evaluation.keep_best=true", ("training.save_strategy=no",), ()),
    ("evaluation.top_k=9", ("evaluation=greedy",), ()),
    ("evaluation.right_at=0.5", ("evaluation.grader=accuracy",), ("evaluation.grader=a.py:f",)),
    ("evaluation.early_stopping_threshold=0.1", (), ("callbacks=[early_stopping]",)),
    ("model.lora.alpha=8", (), (LORA,)),
    ("model.lora.dropout=0.1", (LORA,), (LORA, "training.disable_dropout=false")),
    ("model.lora.merge=true", (), (LORA,)),
    ("model.bnb_4bit_quant_type=fp4", (LORA, "model.load_in_8bit=true"), (LORA, "model.load_in_4bit=true")),
    ("model.revision=main", (), ("model.name=a/b",)),
    ("objective.xdr_tau=0.05", (), ("objective=xdr",)),  # its default, which a person takes for one that acts
    ("objective.maxent_length_normalize_ref=true", ("objective=maxent", NO_BETA), ("objective=maxent", BETA)),
    ("objective.kl.kl_target=0.1", (BETA,), (BETA, "objective.kl.controller=adaptive")),
    ("rollout.support=full", (), ("training.top_p=0.9",)),
    ("rollout.support_top_k=9", ("training.top_k=9",), ("training.min_p=0.1",)),
    ("speed.shared_prefill=false", (VLLM,), ()),
    ("logging.entity=me", ("logging=trackio",), ("logging=wandb",)),
    ("logging.sampler_gap=true", (VLLM,), ()),
    ("launch.vllm_model=a/b", (VLLM,), (VLLM, SERVER)),
    ("launch.hang_restarts=2", ("launch.step_timeout=null",), ()),
    ("launch.sync_tolerance=0.1", (), (VLLM,)),
    ("training.num_train_epochs=2", ("training.max_steps=5",), ("training.max_steps=-1",)),
    ("training.warmup_steps=2", ("training.lr_scheduler_type=constant",), ("training.lr_scheduler_type=cosine",)),
    ("training.adam_beta1=0.5", ("training.optim=adafactor",), ("training.optim=adamw_torch",)),
    ("training.optim_args='momentum=0.9'", ("training.optim=adamw_torch",), ("training.optim=sgd",)),
    ("training.delta=4", ("training.loss_type=cispo",), ("training.loss_type=grpo",)),
    ("training.epsilon=0.1", ("training.loss_type=sapo",), ("training.loss_type=cispo",)),
    ("training.epsilon=0.1", ("training.loss_type=cispo", "training.epsilon_high=3"), ()),
    ("training.sapo_temperature_pos=2", ("training.loss_type=grpo",), ("training.loss_type=sapo",)),
    ("training.scale_rewards=none", ("objective=maxent",), (BETA,)),
    ("training.use_bias_correction_kl=false", (NO_BETA,), (BETA,)),
    (
        "training.ref_model_mixup_alpha=0.5",
        (BETA,),
        (BETA, "training.sync_ref_model=true"),
    ),
    ("training.entropy_target=0.3", ("training.entropy_coef=0.1",), ("training.use_adaptive_entropy=true",)),
    ("training.async_order=arrival", (), ("training.staleness=1",)),
    ("training.vllm_server_port=8001", (), (VLLM, SERVER)),
    ("training.vllm_enable_sleep_mode=true", (VLLM, SERVER), (VLLM,)),
    ("training.vllm_tensor_parallel_size=2", (VLLM, SERVER, "training.vllm_server_host=far"), (VLLM, SERVER)),
    ("training.vllm_importance_sampling_clip_max=2", (), ("training.staleness=1",)),
    ("training.vllm_lora_sync=merge", (VLLM,), (VLLM, LORA)),
    ("training.save_steps=5", ("training.save_strategy=epoch",), ()),
    ("training.logging_steps=5", ("training.logging_strategy=epoch",), ()),
    ("training.hub_revision=a", (), ("training.push_to_hub=true",)),
    ("training.trackio_space_id=a", ("logging=wandb",), ("logging=trackio",)),
    ("training.num_completions_to_print=2", (), ("training.log_completions=true",)),
)


@pytest.mark.parametrize(("word", "without", "within"), CASES, ids=[case[0] for case in CASES])
def test_a_key_is_named_where_it_has_no_effect(word: str, without: tuple[str, ...], within: tuple[str, ...]) -> None:
    key = word.partition("=")[0]
    (line,) = [line for line in dead_lines([*without, word]) if re.search(rf"{re.escape(key)}\b", line)]
    assert line.startswith(f"no effect in this run: {key}; ")
    assert not any(key in line for line in dead_lines([*within, word]))


def test_what_would_give_it_an_effect_is_said_in_words() -> None:
    (line,) = dead_lines(["training.sapo_temperature_pos=2", "training.sapo_temperature_neg=2"])
    assert line == (
        "no effect in this run: training.sapo_temperature_pos, training.sapo_temperature_neg; read only where "
        "training.loss_type=sapo"
    )
    assert condition("evaluation.best_by") == "read only where evaluation.every_steps is not 0"
    assert "Covey evaluates by itself" in condition("training.eval_delay")


def test_a_foreign_recipe_has_one_line(tmp_path: Path) -> None:
    recipe = tmp_path / "theirs.yaml"
    recipe.write_text(
        "model_name_or_path: a/b\ndataset_name: c/d\nlora_r: 8\nper_device_eval_batch_size: 4\ncosine_max_len: 5\n"
        "eval_delay: 3\nmin_p: null\nlearning_rate: 1.0e-6\nvllm_device: auto\n"
    )
    (line,) = dead_lines((), recipe)
    for part in ("theirs.yaml", "lora_r", "per_device_eval_batch_size", "cosine_max_len", "eval_delay", "vllm_device"):
        assert part in line
    assert "learning_rate" not in line
    assert "min_p" not in line
    later = dead_lines([flags.Flag("cosine_max_len", ("7",))], recipe)
    assert len(later) == 2
    assert not any("cosine_max_len" in one for one in later if "theirs.yaml" in one)


def test_keys_that_nobody_set_are_not_named(tmp_path: Path) -> None:
    assert dead_lines(["objective=maxent", "+experiment=quick_test", "evaluation=greedy"]) == []
    assert dead_lines(["logging.tags=[]", "training.min_p=null"]) == []
    resolved = tmp_path / "config.yaml"  # holds every key, of which a person wrote none
    resolved.write_text("defaults: []\ndataset: {task: arithmetic}\ntraining: {vllm_server_port: 8001}\n")
    assert dead_lines((), resolved) == []
    assert len(dead_lines(["rewards.cosine_max_len=7"], resolved)) == 1


def test_an_unknown_reward_makes_no_key_dead() -> None:
    assert dead_lines(["rewards.funcs=[nothing_like_it]", "rewards.cosine_max_len=7"]) == []


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("evaluation.early_stopping_patience=3", r"read only where callbacks has early_stopping"),
        ("training.label_smoothing_factor=0.1", "no effect in GRPO: it smooths"),
        ("training.neftune_noise_alpha=5", "no effect in GRPO: its noise"),
        ("training.train_sampling_strategy=group_by_length", "training.shuffle_dataset=false"),
        ("training.train_sampling_strategy=sequential", "training.shuffle_dataset=false"),
    ],
)
def test_what_would_make_another_run_is_refused(word: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as error:
        load([word])
    assert "no effect" in str(error.value)


def test_what_asks_for_nothing_is_not_refused() -> None:
    load(["label_smoothing_factor=0", "neftune_noise_alpha=null", "train_sampling_strategy=random"])
    assert load(["callbacks=[early_stopping]", "evaluation.early_stopping_patience=5"])


# --- completeness ----------------------------------------------------------------------------------------------------


def test_every_key_has_a_condition_or_a_named_effect() -> None:
    named = {key: effect for effect, keys in EFFECTS.items() for key in keys.split()}
    conditional = {key for key in known_keys() if not is_unconditional(key)}
    assert not conditional & named.keys()
    assert conditional | named.keys() == {*known_keys()}


def is_unconditional(key: str) -> bool:
    from covey.config.live import _declared

    return not _declared()[key].live


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("objective=xdr", VLLM),
        ("dataset=gsm8k", LORA, CODE, "logging=wandb"),
        ("environment=calculator", VLLM, SERVER),
    ],
)
def test_every_condition_can_be_evaluated_and_said(words: tuple[str, ...]) -> None:
    config = load(words)
    for key in known_keys():
        assert is_live(key, config, FACTS) in (True, False)
        if not is_unconditional(key):
            said = condition(key)
            assert said
            assert "False" not in said
    assert not {*LIVE} & {*NEVER}
    assert {f"training.{name}" for name in (*LIVE, *NEVER)} <= {*known_keys()}


def test_conditions_of_settings_follow_their_owners() -> None:
    """A task's problems have the fields of its own class, an objective the settings of its own."""
    kinds = {"arithmetic": Difficulty, "countdown": CountdownDifficulty, "graph_coloring": ColoringDifficulty}
    every = {field.name for kind in kinds.values() for field in dataclasses.fields(kind)}
    for task, kind in kinds.items():
        config, own = load([f"dataset={task}", "dataset.hard_size=4"]), {f.name for f in dataclasses.fields(kind)}
        for name in every & {key.rpartition(".")[2] for key in known_keys() if "dataset.difficulty" in key}:
            for group in ("difficulty", "hard_difficulty"):
                assert is_live(f"dataset.{group}.{name}", config) == (name in own), (task, name)
    for key in (
        key for key in known_keys() if re.match(r"objective\.(unique|darling|seed|quantile|unlikely|passk)_", key)
    ):
        name = key.removeprefix("objective.").partition("_")[0]
        assert is_live(key, load([f"objective={name}"]))
        assert not is_live(key, load([]))
    for field in dataclasses.fields(CodeSettings):
        assert is_live(f"rewards.code.{field.name}", load([CODE]), FACTS)


# --- what comes with Covey sets nothing in vain ----------------------------------------------------------------------

SHIPPED = [
    *[((), path) for path in sorted((ROOT / "recipes").rglob("*.yaml")) if "accelerate" not in path.parts],
    *[
        ([f"+{group}={path.stem}"], None)
        for group in ("experiment", "preset", "tuning")
        for path in sorted((ROOT / "src/covey/config/conf" / group).glob("*.yaml"))
    ],
]


@pytest.mark.parametrize(("words", "recipe"), SHIPPED, ids=lambda value: getattr(value, "stem", None))
def test_what_comes_with_covey_sets_nothing_in_vain(words: Any, recipe: Path | None) -> None:
    assert dead_lines(words, recipe) == []


def test_the_readmes_commands_set_nothing_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    checked = 0
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for line in re.findall(r"^covey (?:train|launch|doctor|config) (.+)$", page.read_text(encoding="utf-8"), re.M):
            words = [
                word for word in shlex.split(line, comments=True) if word not in ("--plan", "--dry-run", "--slurm")
            ]
            if any(re.match(r"-|[A-Z]+$|out/|rows\.", word) or re.search(r"=[^\['{]*,|…", word) for word in words):
                continue  # a placeholder, a sweep, an option of the command, or a run that is not there
            read = flags.split(words)
            assert dead_lines(read.overrides, read.recipe) == [], line
            checked += 1
    assert checked > 30


# --- where it is said ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["config"], ["config", "--diff"], ["launch", "--dry-run"], ["doctor"]])
def test_commands_say_it_once_on_standard_error(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    main([*command, "rewards.cosine_max_len=7", "launch.gpus=0"])
    out, err = capsys.readouterr()
    assert err.count("no effect in this run: rewards.cosine_max_len; ") == 1
    assert "no effect" not in out


def test_training_says_it_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ("training.max_steps=1", "evaluation.every_steps=0", "dataset.train_size=8", "training.num_generations=2")
    sizes = ("training.per_device_train_batch_size=2", "training.max_completion_length=4", "training.save_strategy=no")
    assert main(["train", f"output_dir={tmp_path}", *small, *sizes, "rewards.cosine_max_len=7"]) == 0
    assert capsys.readouterr().err.count("no effect in this run: rewards.cosine_max_len; ") == 1


def test_a_sweep_says_it_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    request = Request(None, (f"output_dir={tmp_path}", "seed=1,2", "rewards.cosine_max_len=9"), (), ())
    assert len(make_plan(request).configs) == 2
    assert capsys.readouterr().err.count("rewards.cosine_max_len") == 1
