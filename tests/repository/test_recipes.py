"""Everything that is shipped to be chosen: config groups, experiments, recipes, and the files for accelerate.

Each one composes, passes the schema for the number of processes it is meant for, and matches its header; pairs for
comparison differ in one thing only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from covey.cli.main import main
from covey.config import Config, differences, load
from covey.config.compose.group_files import CONF
from covey.config.compose.recipe import read_yaml
from covey.launch.machine import Machine
from covey.launch.plan import make_plan
from covey.rewards.registry import get_reward
from load_scripts import load_script

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes"
OPTIONS = sorted((path.parent.name, path.stem) for path in CONF.glob("*/*.yaml"))
ADDED = ("experiment", "tuning")
MATH = ("deepscaler", "openr1_math", "math500", "aime24", "amc23")


script = load_script("scripts/recipes_table.py")
ALL = [path.relative_to(RECIPES).as_posix() for path in script.recipes()]


@pytest.fixture(autouse=True)
def _one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def recipe(name: str) -> Config:
    return load(recipe=RECIPES / name, world_size=script.read_header(RECIPES / name).processes)


# --- groups --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_composes_and_says_what_it_is_for(group: str, option: str) -> None:
    plus = "+" if group in ADDED else ""
    more = ["model.name=some/model"] if option == "other" else []
    more += ["environment.factory=a.py:B"] if option == "none" and group in ("dataset", "rewards") else []
    load([f"{plus}{group}={option}", *more])
    text = (CONF / group / f"{option}.yaml").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("# @package")]
    assert lines[0].startswith("# "), f"{group}={option} has no comment"


def test_the_documented_options_exist() -> None:
    promised = {
        "model": "starter starter_agent other qwen2.5_0.5b_instruct qwen2.5_1.5b_instruct qwen2.5_7b_instruct "
        "qwen3_0.6b qwen3_1.7b gemma3_270m gemma3_1b llama3.1_8b_instruct deepseek_r1_distill_qwen_1.5b "
        "smollm2_135m_instruct",
        "dataset": "arithmetic countdown graph_coloring gsm8k deepscaler openr1_math math500 aime24 amc23 none "
        "reasoning_gym",
        "objective": "grpo maxent dr_grpo dapo maxrl xdr passk unique darling seed quantile unlikely token_entropy",
        "rewards": "default math gsm8k_ladder countdown graph_coloring code none reasoning_gym",
        "environment": "none calculator python number_guess",
        "training": "grpo_default sft",
        "evaluation": "default greedy standard liberal",
        "logging": "default wandb tensorboard trackio none",
        "experiment": "quick_test full_training maxent_math grpo_math reasoning_vocab reasoning_vocab_baseline "
        "reasoning_vocab_starter reasoning_vocab_starter_baseline",
    }
    for group, options in promised.items():
        assert {path.stem for path in (CONF / group).glob("*.yaml")} == set(options.split()), group


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("dr_grpo", {"loss_type": "dr_grpo", "scale_rewards": "none"}),
        ("dapo", {"loss_type": "dapo", "epsilon_high": 0.28, "mask_truncated_completions": True, "beta": 0.0}),
        ("maxent", {"loss_type": "grpo"}),
        ("token_entropy", {"loss_type": "dr_grpo", "entropy_coef": 0.01}),
        *((name, {"loss_type": "dr_grpo"}) for name in ("maxrl", "xdr", "passk", "unique", "darling", "seed")),
    ],
)
def test_an_objective_brings_its_loss_even_where_a_model_brings_its_tuning(option: str, values: dict[str, Any]) -> None:
    training = load([f"objective={option}"]).training
    assert {name: getattr(training, name) for name in values} == values
    assert training.max_steps == load().training.max_steps


def test_an_objective_chosen_last_takes_the_place_of_the_recipes(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(
        "defaults: [override /objective: maxent, override /logging: wandb]\nobjective.maxent_tau: 0.5\n"
        "logging: {project: mine, sample_completions: 7}\ntraining.beta: 0.5\n"
    )
    first = load(recipe=path)
    assert (first.objective.name, first.objective.maxent_tau, first.training.report_to) == ("maxent", 0.5, "wandb")
    dapo = load(["objective=dapo"], path)
    # the recipe's own beta comes after the group; the settings of its other objective go
    assert (dapo.objective.name, dapo.objective.maxent_tau, dapo.training.beta) == ("grpo", 0.3, 0.5)
    assert (dapo.training.loss_type, dapo.training.report_to) == ("dapo", "wandb")


@pytest.mark.parametrize("tracker", ["wandb", "tensorboard", "trackio", "none"])
def test_a_tracker_leaves_the_other_logging_keys_alone(tmp_path: Path, tracker: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("logging: {project: mine, sample_completions: 7}\n")
    config = load([f"logging={tracker}"], path)
    assert config.training.report_to == tracker
    named = path.with_name("named.yaml")
    named.write_text("training.report_to: [wandb, tensorboard]\n")  # a recipe's keys come after all groups
    assert load([f"logging={tracker}"], named).training.report_to == ["wandb", "tensorboard"]
    assert load([f"report_to={tracker}"], named).training.report_to == tracker
    assert (config.logging.project, config.logging.sample_completions) == ("mine", 7)
    assert config.logging.completions_every_steps == load().logging.completions_every_steps


@pytest.mark.parametrize(
    ("option", "sampling"),
    [
        ("default", (1.0, 0, 1.0)),
        ("greedy", (0.0, 0, 1.0)),
        ("standard", (0.7, 50, 0.95)),
        ("liberal", (0.85, 2000, 1)),
    ],
)
def test_evaluation_presets_say_how_to_sample(option: str, sampling: tuple[float, int, float]) -> None:
    evaluation = load([f"evaluation={option}"]).evaluation
    assert (evaluation.temperature, evaluation.top_k, evaluation.top_p) == sampling


@pytest.mark.parametrize(
    ("a", "b", "keys"),
    [
        ("grpo_math", "maxent_math", {"objective"}),
        ("reasoning_vocab_baseline", "reasoning_vocab", {"model.reasoning_vocab_size"}),
        ("reasoning_vocab_starter_baseline", "reasoning_vocab_starter", {"model.reasoning_vocab_size"}),
    ],
)
def test_experiments_that_are_a_pair_differ_in_one_thing(a: str, b: str, keys: set[str]) -> None:
    assert_pair(load([f"+experiment={a}"]), load([f"+experiment={b}"]), keys)


@pytest.mark.parametrize("option", ["grpo_math", "maxent_math", "reasoning_vocab", "reasoning_vocab_baseline"])
def test_experiments_keep_the_weights_they_set(option: str) -> None:
    config = load([f"+experiment={option}"])
    assert (config.rewards.funcs, config.training.reward_weights) == (("accuracy", "format"), [1.0, 0.2])


def test_the_full_training_goes_over_all_data_once() -> None:
    config = load(["+experiment=full_training"])
    assert (config.training.max_steps, config.training.num_train_epochs) == (-1, 1)
    assert config.training.learning_rate == load().training.learning_rate  # the model's tuning stays


# --- data ----------------------------------------------------------------------------------------------------------


def test_every_preset_asks_for_the_tags_that_rewards_look_for() -> None:
    for name in (*MATH, "gsm8k", "countdown"):
        dataset, rewards = load([f"dataset={name}"]).dataset, load().rewards
        assert dataset.system_prompt is not None, name
        for tag in (rewards.think_tag, rewards.answer_tag):
            assert f"<{tag}> and </{tag}>" in " ".join(dataset.system_prompt.split()), name
    assert len({load([f"dataset={name}"]).dataset.system_prompt for name in MATH}) == 1


@pytest.mark.parametrize(
    ("preset", "file", "answer"),
    [
        ("gsm8k", "gsm8k_train.jsonl", "72"),
        ("deepscaler", "deepscaler_10k.jsonl", None),
        ("openr1_math", "deepscaler_10k.jsonl", None),
        ("math500", "math500_test.jsonl", None),
        ("aime24", "aime24.jsonl", "204"),
        ("amc23", "amc23.jsonl", "27"),
    ],
)
def test_presets_name_the_columns_of_the_real_files(
    shared_data: Path, preset: str, file: str, answer: str | None
) -> None:
    config = load([f"dataset={preset}", f"dataset.path='{shared_data / file}'"]).dataset
    assert config.path == str(shared_data / file)
    with (shared_data / file).open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    assert config.prompt_column is not None
    assert config.answer_column is not None
    assert all(str(row[config.prompt_column]).strip() and str(row[config.answer_column]).strip() for row in rows)
    if answer is not None:
        assert any(answer in str(row[config.answer_column]) for row in rows[:1]), rows[0]


# --- models --------------------------------------------------------------------------------------------------------


def test_the_distilled_models_template_leaves_thinking_to_the_model() -> None:
    jinja2 = pytest.importorskip("jinja2")
    template = load(["model=deepseek_r1_distill_qwen_1.5b"]).model.chat_template
    assert template is not None
    render = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(template).render
    turns = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "<think>1+1\nis 2</think> 2"},
        {"role": "user", "content": "2+2?"},
    ]
    text = render(messages=turns, bos_token="<b>", eos_token="<e>", add_generation_prompt=True)
    assert text == (
        "<b>Be short.<｜User｜>1+1?<｜Assistant｜><think>1+1\nis 2</think> 2<e><｜User｜>2+2?<｜Assistant｜>"  # noqa: RUF001
    )


# --- recipes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_a_recipe_is_what_its_header_and_its_place_say(name: str) -> None:
    header = script.read_header(RECIPES / name)
    config = recipe(name)
    model, objective, _ = name.split("/")
    chosen = {k: v for entry in read_yaml(RECIPES / name)["defaults"] for k, v in entry.items()}
    assert chosen["override /model"] == model
    assert config.objective.name == objective
    assert name in header.values["command"]
    command = "launch" if header.processes > 1 else "train"
    assert header.values["command"] == f"covey {command} recipes/{name}"
    if header.processes > 1:
        gpus = int(header.values["hardware"].split()[0])
        plan = make_plan(config, "r", Machine.of(gpus))
        assert plan.num_processes == header.processes
        assert [process.name for process in plan.processes] == ["server", "trainer"]
        assert f"{header.processes} train, 1 generates" in header.values["hardware"]
    assert "estimate" in header.values["time"] or "measured" in header.values["time"]


@pytest.mark.parametrize("name", ALL)
def test_what_covey_config_prints_of_a_recipe_is_the_same_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(script.read_header(RECIPES / name).processes))
    assert main(["config", str(RECIPES / name)]) == 0
    path = tmp_path / "printed.yaml"
    path.write_text(capsys.readouterr().out, encoding="utf-8")
    assert load(recipe=path) == load(recipe=RECIPES / name)


@pytest.mark.parametrize(
    ("a", "b", "keys"),
    [
        ("qwen2.5_1.5b_instruct/grpo/math.yaml", "qwen2.5_1.5b_instruct/maxent/math.yaml", {"objective"}),
        ("starter/grpo/arithmetic.yaml", "starter/maxent/arithmetic.yaml", {"objective"}),
        ("starter/dr_grpo/arithmetic.yaml", "starter/dr_grpo/arithmetic_token_entropy.yaml", {"training.entropy_coef"}),
        *(
            ("starter/dr_grpo/arithmetic.yaml", f"starter/{name}/arithmetic.yaml", {"objective"})
            for name in ("maxrl", "xdr", "passk", "quantile", "unlikely")
        ),
        (
            "qwen3_0.6b/grpo/deepscaler.yaml",
            "qwen3_0.6b/grpo/deepscaler_reasoning_vocab.yaml",
            {"model.reasoning_vocab_size"},
        ),
    ],
)
def test_recipes_that_are_a_pair_differ_in_one_thing(a: str, b: str, keys: set[str]) -> None:
    assert_pair(recipe(a), recipe(b), keys)


def assert_pair(a: Config, b: Config, keys: set[str]) -> None:
    changed = {key for key, _, _ in differences(a, b)}
    assert changed, "the two are the same run"
    assert {key for key in changed if key not in keys and key.partition(".")[0] not in keys} == set()


@pytest.mark.parametrize("name", ALL)
def test_rewards_of_recipes_exist_and_groups_keep_together(name: str) -> None:
    config = recipe(name)
    for function in config.rewards.funcs:
        assert callable(get_reward(function))
    training, processes = config.training, script.read_header(RECIPES / name).processes
    assert training.generation_batch * processes % training.num_generations == 0
    if config.objective.name == "maxent" and training.loss_type == "grpo":
        assert config.objective.maxent_length_normalize_ref  # both sides as means per token
        assert training.beta > 0


@pytest.mark.parametrize("option", ["math", "gsm8k_ladder", "countdown"])
def test_reward_presets_name_rewards_that_exist(option: str) -> None:
    config = load([f"rewards={option}"])
    assert [callable(get_reward(name)) for name in config.rewards.funcs]
    assert config.training.reward_weights is None


def test_the_page_lists_every_recipe_as_its_header_has_it() -> None:
    page = (RECIPES / "README.md").read_text(encoding="utf-8")
    assert page == script.with_table(page), "run scripts/recipes_table.py"
    assert all(f"]({name})" in page for name in ALL)
    assert all(f"](accelerate/{path.name})" in page for path in (RECIPES / "accelerate").glob("*.yaml"))
    assert len(ALL) >= 11


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("# Trains.\n# processes: 1\n# command: c\n", "lacks hardware, time"),
        ("# hardware: h\n# processes: 1\n# time: t\n# command: c\n", "lacks what it trains"),
        ("# Trains.\n# hardware: h\n# processors: 1\n", "neither a field"),
    ],
)
def test_a_header_with_a_gap_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=problem):
        script.read_header(path)


# --- accelerate ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "inside"),
    [
        ("single", "NO", {}),
        ("ddp", "MULTI_GPU", {}),
        (
            "fsdp2",
            "FSDP",
            {
                "fsdp_version": 2,
                "fsdp_cpu_ram_efficient_loading": True,
                "fsdp_state_dict_type": "FULL_STATE_DICT",
                "fsdp_reshard_after_forward": True,
            },
        ),
        ("zero2", "DEEPSPEED", {"zero_stage": 2, "zero3_init_flag": False}),
        ("zero3", "DEEPSPEED", {"zero_stage": 3, "zero3_init_flag": True, "zero3_save_16bit_model": True}),
    ],
)
def test_accelerate_reads_its_files(name: str, kind: str, inside: dict[str, Any]) -> None:
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import launch_command_parser

    config = load_config_from_file(str(RECIPES / "accelerate" / f"{name}.yaml"))
    assert config.distributed_type.value == kind
    assert config.mixed_precision == "bf16"
    assert config.num_processes == (1 if name == "single" else 8)
    plugin = {**config.fsdp_config, **config.deepspeed_config}
    assert {key: plugin[key] for key in inside} == inside
    known = {action.dest for action in launch_command_parser()._actions}
    assert plugin.keys() <= known, "keys that accelerate launch would pass over in silence"
