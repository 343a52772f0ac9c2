"""Every command, flag, key and default of the documents that the other projects' users read, and what it means here.

Their programs are replaced by those of the table in docs/coming_from.md. Each command is composed twice: as it is
written, and with the preset that holds the rest of its project's defaults. `test_seed_runs.py` trains with them.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml

from commands import covey_words
from completed import completed
from compose_config import from_words
from covey.cli.config_arguments import read_request
from covey.cli.main import main, parse
from covey.cli.sweep.plan import make_plan
from covey.config import Composed
from covey.errors import ConfigError
from covey.rewards import get_reward
from seed_commands import (
    COSINE,
    DEFAULTS,
    FLAGS,
    MESH,
    OTHER_PROGRAMS,
    SERVER,
    SWEEP,
    TRAIN,
    TRAINER,
    SeedCommand,
    programs,
    translated,
)

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "coming_from.md"


@pytest.fixture(autouse=True)
def _empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty current folder, on a machine where W&B is installed: the projects that turn it on demand it."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site" / "wandb").mkdir(parents=True)
    (tmp_path / "site" / "wandb" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "site"))


def words_of(command: SeedCommand) -> list[str]:
    found = translated(command.line, programs(PAGE))
    assert found[0] == "train"
    return found[1:]


def resolved(composed: Composed, key: str) -> Any:
    training = composed.config.training
    if key == "prompts":  # of a micro-batch
        return training.per_device_train_batch_size / training.num_generations
    return reduce(getattr, key.split("."), composed.config)


def check_meaning(composed: Composed, meaning: dict[str, Any]) -> None:
    found = {key: resolved(composed, key) for key in meaning}
    assert found == meaning


def notes_with(composed: Composed, *texts: str) -> list[str]:
    return [note for note in composed.notes if all(text in note for text in texts)]


def name(command: SeedCommand) -> str:
    return f"{command.document} {' '.join(command.line.split()[-3:])}"


@pytest.mark.parametrize("command", TRAIN, ids=name)
def test_with_its_preset_a_command_means_all_that_it_means_there(command: SeedCommand) -> None:
    check_meaning(from_words(f"+preset={command.preset}", *words_of(command)), command.meaning)


@pytest.mark.parametrize("command", [one for one in TRAIN if one.selects == "run"], ids=name)
def test_a_key_of_one_project_selects_its_preset(command: SeedCommand) -> None:
    composed = from_words(*words_of(command))
    check_meaning(composed, command.meaning)
    assert len(notes_with(composed, command.preset, "preset=none")) == 1
    without = from_words(*words_of(command), "preset=none")
    assert not notes_with(without, command.preset)
    assert resolved(without, "training.beta") != command.meaning["training.beta"]


@pytest.mark.parametrize("command", [one for one in TRAIN if one.selects == "note"], ids=name)
def test_where_the_rest_differs_a_note_names_the_preset_and_the_recipe(command: SeedCommand) -> None:
    words = words_of(command)
    composed, without = from_words(*words), from_words(*words, "preset=none")
    notes = notes_with(composed, f"+preset={command.preset}", "recipes/")
    assert len(notes) == 1
    recipe = re.search(r"recipes/[\w./-]+\.yaml", notes[0])
    assert recipe is not None
    assert (ROOT / recipe[0]).is_file()
    assert composed.config == without.config  # nothing of the preset is taken
    assert not notes_with(without, command.preset)


@pytest.mark.parametrize("command", [one for one in TRAIN if one.selects == "refused"], ids=name)
def test_what_does_not_fit_the_starter_is_refused_and_fits_a_model_of_ones_own(command: SeedCommand) -> None:
    with pytest.raises(ConfigError, match=r"num_generations=8 does not divide"):
        from_words(*words_of(command))
    check_meaning(from_words(*words_of(command), "model=qwen3_0.6b", f"+preset={command.preset}"), command.meaning)


@pytest.mark.parametrize("command", [one for one in TRAIN if one.changes and one.selects != "refused"], ids=name)
def test_what_a_command_sets_holds_without_the_preset_too(command: SeedCommand) -> None:
    composed = from_words(*words_of(command))
    alone = {key: value for key, value in command.changes.items() if key != "model.lora.rank" or "lora" in command.line}
    check_meaning(composed, alone)


@pytest.mark.parametrize(("document", "line", "meaning"), FLAGS, ids=[f"{one[0]} {one[1][:60]}" for one in FLAGS])
def test_a_flag_or_a_key(document: str, line: str, meaning: dict[str, Any]) -> None:
    words = shlex.split(line)
    for more in ((), ("model.name=some/model",)) if "model" not in line else ((),):
        check_meaning(from_words(*words, *more), meaning)


def test_without_wandb_a_preset_logs_nothing_and_says_so(tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "site")
    if importlib.util.find_spec("wandb") is not None:
        pytest.skip("W&B is installed here")
    for preset in ("agent_tunix", "rlvr_vocab"):
        composed = from_words(f"+preset={preset}")
        assert composed.config.training.report_to == "none"
        assert len(notes_with(composed, "W&B", "[wandb]")) == 1


def test_the_defaults_of_open_r1s_trl_and_of_its_rewards() -> None:
    words = [
        "--model_name_or_path",
        "some/model",
        "--dataset_name",
        "some/data",
        "--reward_funcs",
        "accuracy",
        "cosine",
    ]
    check_meaning(from_words("+preset=open_r1", *words), {**DEFAULTS["open_r1"], **COSINE})
    check_meaning(from_words("+preset=open_r1", *words, "--beta", "0.001"), {"training.beta": 0.001})


def test_the_rewards_of_xdans_guide_by_their_defaults() -> None:
    def rewards(name: str, *texts: str) -> list[float | None]:
        chats = [[{"role": "assistant", "content": text}] for text in texts]
        return get_reward(name)(completions=chats, solution=["4"] * len(texts), prompts=["p"] * len(texts))

    think, answer = "<think>\nreasoning process\n</think>\n", "<answer>\n{}\n</answer>"
    assert rewards("format_reward", think + answer.format(4), answer.format(4)) == [1.0, 0.0]
    assert rewards("accuracy_reward", think + answer.format(4), think + answer.format(5)) == [1.0, 0.0]
    long = f"<think>\n{'so ' * 400}\n</think>\n"  # over a thousand characters
    assert rewards("cosine_scaled_reward", long + answer.format(4), long + answer.format(5)) == [0.5, -0.5]
    short = rewards("cosine_scaled_reward", answer.format(4), answer.format(5))
    assert short == pytest.approx([1.0, 0.0], abs=0.01)
    assert rewards("repetition_penalty_reward", "one two three four", "so so so so so so") == [
        0.0,
        -0.75,
    ]  # 1 of 4 differs
    assert rewards("reasoning_steps_reward", "First, a.\nSecond, b.\nFinally, c.", "d") == [1.0, 0.0]
    shortest, longest = rewards("len_reward", answer.format(4), long + answer.format(4))
    assert (shortest, longest) == (0.5, -0.5)


def test_a_mixture_keeps_its_columns_and_weights() -> None:
    recipe = {
        "model_name_or_path": "some/model",
        "dataset_mixture": {
            "datasets": [
                {"id": "a/b", "config": "all", "columns": ["problem", "answer"], "weight": 0.5},
                {"id": "c/d", "columns": ["problem", "answer"], "weight": 1.0},
            ]
        },
    }
    Path("r.yaml").write_text(yaml.safe_dump(recipe))
    sources = from_words(recipe=Path("r.yaml")).config.dataset.mixture.sources
    assert [(one.id, one.columns, one.weight) for one in sources] == [
        ("a/b", ("problem", "answer"), 0.5),
        ("c/d", ("problem", "answer"), 1.0),
    ]


def test_a_sweep_has_a_job_for_each_value() -> None:
    for preset, more in (((), {}), (("+preset=agent_tunix",), SWEEP.meaning)):
        words = translated(SWEEP.line, programs(PAGE))
        plan = make_plan(read_request(parse([*words, *preset])))
        configs = [plan.configs[number] for number in sorted(plan.configs)]
        assert [config.training.learning_rate for config in configs] == [1e-6, 3e-6, 1e-5]
        same = {key: value for key, value in more.items() if key not in ("training.learning_rate", "prompts")}
        for config in configs:
            assert {key: reduce(getattr, key.split("."), config) for key in same} == same


def test_a_model_of_the_users_own_folder() -> None:
    """003: `model=qwen3_1.5b`, a file that its user makes in `conf/model/`."""
    words = translated("python grpo_train.py model=qwen3_1.5b", programs(PAGE))[1:]
    with pytest.raises(ConfigError, match=r"no option model=qwen3_1\.5b"):
        from_words(*words)
    Path("conf/model").mkdir(parents=True)
    option = {"name": "Qwen/Qwen2.5-1.5B", "reasoning_vocab_size": 0, "model_kwargs": {"torch_dtype": "bf16"}}
    Path("conf/model/qwen3_1.5b.yaml").write_text(yaml.safe_dump(option))
    composed = read_request(parse(["train", "--config-dir", "conf", *words])).compose()
    check_meaning(composed, {"model.name": "Qwen/Qwen2.5-1.5B", "model.dtype": "bfloat16"})


def test_a_tensor_parallel_mesh_is_four_shards_with_half_the_batch(capsys: pytest.CaptureFixture[str]) -> None:
    """002: its `fsdp` x `tp`, on four GPUs; a step is that of two processes with four prompts each."""
    words = [f"+preset={MESH.preset}", *translated(MESH.line, programs(PAGE))[1:]]
    assert main(["launch", *words, "launch.gpus=4", "--dry-run"]) == 0
    planned = capsys.readouterr()
    plan = yaml.safe_load(planned.out)
    layout = plan["accelerate"]["config"]["parallelism_config"]
    assert (plan["num_processes"], layout["parallelism_config_dp_shard_size"]) == (4, 4)
    assert planned.err.count("training.per_device_train_batch_size=8 (was 16)") == 1
    assert planned.err.count("a step takes 8 prompts") == 1
    composed = from_words(*words)
    check_meaning(composed, {**MESH.meaning, "prompts": 2, "model.mesh_shape": [[4], ["fsdp"]]})
    assert not notes_with(from_words(f"+preset={MESH.preset}"), "a step takes")
    assert main(["train", *words]) != 0
    assert "takes 4 = 4 training processes, but this is one process" in capsys.readouterr().err


def test_eight_bit_weights_without_adapters_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"load_in_8bit.*set model\.lora\.rank"):
        from_words("model.model_kwargs.load_in_8bit=true")


def test_the_server_and_the_trainer_of_a_slurm_step_are_one_plan(capsys: pytest.CaptureFixture[str]) -> None:
    """001: vLLM on one of seven GPUs, training on the other six, with ZeRO-3."""
    recipe = {
        "model_name_or_path": "Qwen/Qwen2.5-1.5B-Instruct",
        "dataset_name": "some/data",
        "num_generations": 4,
        "per_device_train_batch_size": 8,
        "train_grpo_objective": True,
    }
    Path("config.yaml").write_text(yaml.safe_dump(recipe))
    server = dict(zip(SERVER.split()[2::2], SERVER.split()[3::2], strict=True))
    flags = TRAINER.replace("NAME-TIME", "mine-1").partition("--config CONFIG ")[2].split()
    words = [
        *("launch", "config.yaml", "launch.accelerate=zero3", "launch.main_process_port=29525", *flags),
        *("--vllm_mode", "server", "--vllm_server_port", server["--port"]),
        *("--max_model_len", server["--max-model-len"]),
        *("--gpu_memory_utilization", server["--gpu-memory-utilization"]),
        *("launch.gpus=7", "--dry-run"),
    ]
    assert main(words) == 0
    plan = yaml.safe_load(capsys.readouterr().out)
    assert plan["run"] == "out/mine-1"
    assert (plan["gpus_per_node"], plan["num_processes"], len(plan["serving_gpus"])) == (7, 6, 1)
    serving, training = plan["processes"]
    assert [serving["name"], training["name"]] == ["server", "trainer"]
    options = serving["command"].split()
    for option, value in (("--port", "8000"), ("--max-model-len", "2048"), ("--model", server["--model"])):
        assert options[options.index(option) + 1] == value
    assert "--main_process_port 29525" in training["command"]
    assert plan["accelerate"]["config"]["deepspeed_config"]["zero_stage"] == 3
    composed = from_words(*words[2:-1], recipe=Path("config.yaml"))
    check_meaning(composed, {"seed": 42, "training.use_vllm": True, "training.ignore_data_skip": True})
    check_meaning(composed, {"overwrite": False, "objective.name": "grpo", "launch.accelerate": "zero3"})


def test_the_script_of_a_slurm_job_passes_its_variables_on(tmp_path: Path) -> None:
    """001: `sbatch training.sh` and `bash training.sh`, MAXENT=1 and the variables of vLLM."""
    clone = a_clone(tmp_path)
    variables = {"VLLM_PORT": "8001", "VLLM_TP_SIZE": "1", "VLLM_MAX_LEN": "2048", "VLLM_MEM_UTIL": "0.90"}
    call(clone, clone / "training.sh")
    assert launched(clone) == []
    call(clone, clone / "training.sh", MAXENT="1", VLLM_MODEL="Qwen/Qwen2.5-1.5B-Instruct", **variables)
    meaning = {
        "objective.name": "maxent",
        "launch.vllm_model": "Qwen/Qwen2.5-1.5B-Instruct",
        "training.vllm_server_port": 8001,
        "training.vllm_tensor_parallel_size": 1,
        "training.vllm_max_model_length": 2048,
        "training.vllm_gpu_memory_utilization": 0.9,
    }
    check_meaning(from_words(*launched(clone)), meaning)
    spool = tmp_path / "slurm_script"  # sbatch runs a copy
    shutil.copy(clone / "training.sh", spool)
    call(clone, spool, SLURM_JOB_ID="7", SLURM_SUBMIT_DIR=str(clone))
    assert launched(clone) == []
    other = clone / "grpo.py"
    other.touch()
    call(clone, clone / "training.sh", TRAIN_ENTRYPOINT=str(other))
    assert launched(clone) == [str(other)]


@pytest.mark.parametrize(("script", "size"), [("train_baseline", 0), ("train_reasoning", 20000)])
def test_the_scripts_of_the_vocabulary_experiments(script: str, size: int, tmp_path: Path) -> None:
    clone = a_clone(tmp_path)
    for start, more in ((clone / "slurm" / f"{script}.sh", {}), (tmp_path / "job", {"SLURM_SUBMIT_DIR": str(clone)})):
        if more:
            shutil.copy(clone / "slurm" / f"{script}.sh", start)
        call(clone, start, **more)
        recipe, *words = launched(clone)
        composed = from_words(*words, recipe=Path(recipe))
        check_meaning(composed, {"model.name": "Qwen/Qwen3-0.6B", "model.reasoning_vocab_size": size})
        check_meaning(composed, {"dataset.id": "agentica-org/DeepScaleR-Preview-Dataset", "objective.name": "grpo"})


def a_clone(tmp_path: Path) -> Path:
    """The repository's scripts with an environment whose programs write down what they are called with."""
    clone = tmp_path / "clone"
    for folder in ("scripts", ".venv/bin"):
        (clone / folder).mkdir(parents=True)
    shutil.copy(ROOT / "training.sh", clone)
    shutil.copytree(ROOT / "slurm", clone / "slurm")
    (clone / "recipes").symlink_to(ROOT / "recipes")
    programs = {"scripts/setup.sh": "", ".venv/bin/covey": "shift\n", ".venv/bin/python": ""}
    for place, text in programs.items():
        write = "" if place.startswith("scripts") else f'printf "%s\\n" "$@" >{clone}/words\n'
        (clone / place).write_text(f"#!/usr/bin/env bash\n{text}{write}")
        (clone / place).chmod(0o755)
    return clone


def call(clone: Path, script: Path, **variables: str) -> None:
    environment = {"PATH": os.environ["PATH"], **variables}
    done = completed(["bash", str(script)], cwd=clone, env=environment)
    assert done.returncode == 0, done.stderr


def launched(clone: Path) -> list[str]:
    """What the last call passed on."""
    return [word for word in (clone / "words").read_text().splitlines() if word]


@pytest.mark.parametrize(("target", "does"), [("tensorboard", "tensorboard.main --logdir out"), ("docs", "-m sphinx")])
def test_make_has_the_targets(target: str, does: str) -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    done = completed(["make", "-n", target], cwd=ROOT, check=True)
    assert does in done.stdout


def test_every_program_is_in_the_table_or_another_tools_own() -> None:
    table = programs(PAGE)
    lines = [one.line for one in (*TRAIN, SWEEP)]
    assert all(translated(line, table)[0] == "train" for line in lines)
    for line in ("bash training.sh", "sbatch training.sh", "./training.sh", "make tensorboard", "make docs"):
        assert table[line] == line
    for script in ("baseline", "reasoning"):
        assert table[f"sbatch slurm/train_{script}.sh"] == f"sbatch slurm/train_{script}.sh"
    for line in OTHER_PROGRAMS:
        with pytest.raises(AssertionError, match="has nothing for"):
            translated(line, table)
    for words in filter(None, map(covey_words, table.values())):
        assert parse([word.replace("FILE", "zero3") for word in words])
