"""Secrets stay out of files, messages and output; recipes read harmless environment variables only.

Every text that a command writes is searched for its secrets.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from covey.cli.main import main
from covey.config import compose, differences, load, to_yaml
from covey.config.compose.build import flatten
from covey.config.compose.variables import ALLOW, HARMLESS
from covey.config.groups.model import ModelConfig
from covey.config.secrets import (
    VARIABLE,
    RedactingFormatter,
    environment_of_job,
    for_children,
    is_secret_key,
    redact,
    redact_words,
    without_secrets,
    without_words,
)
from covey.errors import ConfigError, ModelError
from covey.launch import execute
from covey.launch.machine import Machine
from covey.launch.plan import make_plan
from covey.model.load import load_tokenizer
from covey.runlog.directory import describe_environment

TOKEN = "hf_AbCdEfGhIjKlMnOpQrStUvWx"  # by its shape
VALUE = "correct-horse-battery"  # by the environment alone


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", VALUE)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "aws-" + VALUE)
    monkeypatch.setenv("SOME_PRIVATE_THING", "private")
    monkeypatch.setenv("SLURM_JWT", "private-too")
    monkeypatch.setattr(sys, "argv", ["covey"])


def recipe_of(folder: Path, content: str) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(content, encoding="utf-8")
    return path


def test_secret_keys_are_known_and_tokenizer_keys_are_none() -> None:
    secret = """hub_token push_to_hub_token token hf_token HF_TOKEN HUGGING_FACE_HUB_TOKEN use_auth_token authToken
        training.hub_token api_key apiKey OPENAI_API_KEY WANDB_API_KEY AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY
        AWS_SESSION_TOKEN GITHUB_TOKEN KAGGLE_KEY password DB_PASSWORD passwd client_secret credentials private_key
        SLURM_JWT COVEY_ENGINE_KEY my_token Authorization"""
    plain = """pad_token eos_token bos_token unk_token image_token decoder_start_token max_tokens num_tokens tokens
        token_map mask_truncated_completions reasoning_token_ids tokenizer eos_token_id num_input_tokens_seen
        average_tokens_across_devices key keep_best monkey secretary passes_over_data key_names max_think_token"""
    assert [key for key in secret.split() if not is_secret_key(key)] == []
    assert [key for key in plain.split() if is_secret_key(key)] == []


def test_only_the_token_of_the_hub_is_a_secret_among_the_keys_of_a_config() -> None:
    assert [key for key in flatten(load()) if is_secret_key(key)] == []
    assert list(for_children(flatten(load()))) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"uses {VALUE} here", "uses *** here"),
        (f"a {TOKEN}, b", "a ***, b"),
        ("sk-proj-abcdefghijklmnop1234", "***"),
        ("covey train training.hub_token=abc seed=1", "covey train training.hub_token=*** seed=1"),
        ("covey train --hub_token abc --seed 1", "covey train --hub_token *** --seed 1"),
        ("the override `training.hub_token=abc`", "the override `training.hub_token=***`"),
        ("{'hub_token': 'a b', 'pad_token': '<pad>'}", "{'hub_token': '***', 'pad_token': '<pad>'}"),
        ("model_init_kwargs={token: abc, x: 1}", "model_init_kwargs={token: ***, x: 1}"),
        ("export HF_TOKEN=abc", "export HF_TOKEN=***"),
        ("https://me:pw@host:80/x", "https://***@host:80/x"),
        ("training.hub_token=['a', 'b'] has", "training.hub_token=*** has"),
        ("hub_token: null", "hub_token: null"),
        ("training.hub_token=${oc.env:HF_TOKEN}", "training.hub_token=${oc.env:HF_TOKEN}"),
        (
            "Check the token (hf auth login, or HF_TOKEN) and more",
            "Check the token (hf auth login, or HF_TOKEN) and more",
        ),
        ("see https://x/?token=abcdef&n=1", "see https://x/?token=***&n=1"),
        ("https://ghtoken12345678@host/x", "https://***@host/x"),
        ("Bearer abcdefghijklmno", "Bearer ***"),
        ("launcher: basic\n  hydra/job_logging: basic arithmetic_problems",) * 2,
        (
            "sk-fold5-qwen2-experiment-3 org/hf_qwen25math7binstruct",
            "sk-fold5-qwen2-experiment-3 org/hf_qwen25math7binstruct",
        ),
        ("pad_token=<pad> task-based hf_dataset_of_mine", "pad_token=<pad> task-based hf_dataset_of_mine"),
    ],
)
def test_texts_are_redacted(text: str, expected: str) -> None:
    assert redact(text) == expected
    assert redact(expected) == expected


def test_words_of_a_command_line() -> None:
    words = ["train", "--hub-token", "abc", "+training.hub_token=x", "--seed", "1", f"logging.notes={TOKEN}"]
    assert redact_words(words) == [
        "train",
        "--hub-token",
        "***",
        "+training.hub_token=***",
        *words[4:6],
        "logging.notes=***",
    ]
    assert without_words(words) == ["train", "--seed", "1", "logging.notes=***"]


@pytest.mark.parametrize(
    "reads",
    [
        "${oc.env:HF_TOKEN}",
        "${oc.env:HF_TOKEN,none}",
        "${oc.env:AWS_SECRET_ACCESS_KEY}",
        "${oc.env:SOME_PRIVATE_THING,x}",
        "${oc.env:SLURM_JWT,x}",
        "${oc.decode:${oc.env:HF_TOKEN}}",
        "${oc.decode:'${oc.env:HF_TOKEN}'}",
        "${oc.env:${run_name}}",
        "a/${oc.env:HF_TOKEN}/b",
        "${oc.create:{a:'${oc.env:HF_TOKEN}'}}",
    ],
)
@pytest.mark.parametrize("key", ["logging.notes", "training.hub_model_id", "logging.tags"])
def test_a_recipe_reads_no_secret(tmp_path: Path, reads: str, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    value: Any = [reads] if key.endswith("tags") else reads
    path = recipe_of(tmp_path, yaml.safe_dump({"run_name": "HF_TOKEN", key: value}))
    with pytest.raises(ConfigError) as error:
        load(recipe=path)
    assert "reads the environment variable" in str(error.value)
    assert ALLOW in str(error.value)
    assert main(["config", str(path)]) == 2
    output = capsys.readouterr()
    assert VALUE not in output.out + output.err
    assert output.err.count("\n") == 1


def test_config_groups_read_no_secret_either(tmp_path: Path) -> None:
    (tmp_path / "logging").mkdir()
    (tmp_path / "logging" / "mine.yaml").write_text("notes: ${oc.env:HF_TOKEN}\n", encoding="utf-8")
    (tmp_path / "logging" / "whole.yaml").write_text(
        "# @package _global_\ndefaults:\n  - ${oc.env:HF_TOKEN}\n", encoding="utf-8"
    )
    for option in ("mine", "whole"):
        with pytest.raises(ConfigError) as error:
            load([f"logging={option}"], config_dirs=[tmp_path])
        assert VALUE not in str(error.value)


def test_harmless_variables_and_those_that_the_user_names_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("SCRATCH", "/scratch")
    path = recipe_of(
        tmp_path, "output_dir: ${oc.env:SCRATCH}/${oc.env:SLURM_JOB_ID}\nlogging.project: ${oc.env:MINE,p}\n"
    )
    assert load(recipe=path).logging.project == "p"  # what is not set discloses nothing
    monkeypatch.setenv("MINE", "here")
    with pytest.raises(ConfigError, match="variable MINE"):
        load(recipe=path)
    monkeypatch.setenv(ALLOW, "OTHER, MINE")
    config = load(recipe=path)
    assert (config.output_dir, config.logging.project) == ("/scratch/77", "here")
    typed = load(["training.hub_token='${oc.env:HF_TOKEN}'"])
    assert typed.training.hub_token == VALUE
    assert VALUE not in to_yaml(typed)
    assert not any(is_secret_key(name) for name in HARMLESS)
    assert OmegaConf.create({"a": "${oc.env:HF_TOKEN}"}).a == VALUE  # elsewhere OmegaConf is as it was


def test_a_config_is_written_without_secrets_and_is_the_same_run(tmp_path: Path) -> None:
    words = [
        *("training.hub_token=abc", f"logging.notes=see {TOKEN}", f"dataset.system_prompt=say {TOKEN}"),
        "training.model_init_kwargs={token: abcdef, attn_implementation: sdpa}",
    ]
    config = load(words)
    text = to_yaml(config)
    assert not {"abc", "abcdef", TOKEN} & set(text.replace("'", " ").split())
    assert "secret: training.hub_token" in text
    assert "attn_implementation: sdpa" in text
    again = load(recipe=recipe_of(tmp_path, text))
    assert again.training.hub_token is None
    assert differences(config, again) == []
    assert differences(again, load([words[1], "seed=1"]))[0][0] == "seed"
    given = json.loads(for_children(flatten(config))[VARIABLE])
    assert given["training.hub_token"] == "abc"
    assert given["dataset.system_prompt"] == f"say {TOKEN}"


def test_ordinary_words_of_a_config_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt may mention tokens, and a dummy key may be a word in the config."""
    monkeypatch.setenv("OPENAI_API_KEY", "starter")
    monkeypatch.setenv("WANDB_API_KEY", "accuracy")
    prompt = "The last token: END. You keep a secret: the answer, password = 5."
    words = [f"dataset.system_prompt='{prompt}'", "rewards.funcs=[accuracy]"]
    config = load(words)
    again = load(recipe=recipe_of(tmp_path, to_yaml(config)))
    assert again.dataset.system_prompt == prompt
    assert again.model.name == "starter"
    assert tuple(again.rewards.funcs) == ("accuracy",)
    other = load([words[0].replace("END", "STOP"), words[1]])
    assert [key for key, *_ in differences(again, other)] == ["dataset.system_prompt"]


def test_each_job_of_a_sweep_has_its_own_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{VARIABLE}_1", "first")
    monkeypatch.setenv(f"{VARIABLE}_2", "second")
    first, second, third = (environment_of_job(number) for number in (1, 2, 3))
    assert (first[VARIABLE], second[VARIABLE], third.get(VARIABLE)) == ("first", "second", None)
    assert not any(name.startswith(f"{VARIABLE}_") for one in (first, second, third) for name in one)


@pytest.mark.parametrize(
    "command",
    [
        ["config"],
        ["config", "--diff"],
        ["config", "--doc", "training.hub_token"],
        ["config", "--doc", "training.model_init_kwargs"],
        ["config", "--cfg", "job"],
        ["config", "--info"],
        ["launch", "--dry-run"],
        ["launch", "--dry-run", "--slurm"],
    ],
)
def test_no_command_prints_a_secret(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    given = [
        *("--hub_token", "flag-secret", "training.hub_token=typed-secret", f"logging.notes={TOKEN}"),
        *("training.model_init_kwargs={token: nested-secret}", "logging.project='x-${oc.env:HF_TOKEN}'"),
        *('launch.slurm.setup=["export HF_TOKEN=setup-secret"]', "launch.gpus=1"),
    ]
    assert main([*command, *given]) == 0
    output = capsys.readouterr()
    for secret in ("flag-secret", "typed-secret", "nested-secret", "setup-secret", TOKEN, VALUE):
        assert secret not in output.out + output.err


@pytest.mark.parametrize(
    "words",
    [
        ["training.hub_token=[typed-secret]"],
        ["training.hub_token=typed-secret", "seed=x"],
        ["--hub_token=typed-secret", "trainin.x=1"],
    ],
)
def test_no_message_holds_a_secret(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", *words]) == 2
    assert "typed-secret" not in capsys.readouterr().err


def test_what_a_launcher_writes_and_passes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = load(["training.hub_token=typed-secret", "training.use_vllm=true", "training.vllm_mode=server"])
    plan = make_plan(config, "r", Machine.of(2))
    execute._write(config, plan)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in plan.logs.iterdir()}
    assert modes["config.yaml"] == modes["engine-key"] == 0o600
    key = plan.key_file.read_text(encoding="utf-8")
    assert len(key) > 40
    server, trainer = execute._with_secrets(config, plan).processes
    assert server.environment["COVEY_ENGINE_KEY"] == trainer.environment["COVEY_ENGINE_KEY"] == key
    assert VARIABLE not in server.environment
    assert json.loads(trainer.environment[VARIABLE]) == {"training.hub_token": "typed-secret"}
    for process in (*plan.processes, server, trainer):
        assert not {key, "typed-secret"} & set(" ".join(process.command).replace("=", " ").split())
    assert "typed-secret" not in plan.config_file.read_text(encoding="utf-8")
    execute._write(config, plan)
    assert plan.key_file.read_text(encoding="utf-8") == key  # other nodes may have read it; the run's end deletes it


def test_a_process_that_a_launcher_starts_has_the_secrets_and_its_children_have_not(root: Path, tmp_path: Path) -> None:
    script = (
        "import os\nfrom covey.cli.config_arguments import Request\nfrom covey.config.secrets import VARIABLE\n"
        "config = Request(None, ('seed=3',), (), ()).compose().config\n"
        "assert config.training.hub_token == 'typed-secret' and config.seed == 3\n"
        "assert config.training.model_init_kwargs == {'token': 'nested'}\n"
        "assert config.dataset.system_prompt == \"a\\n'b' [c], {d}: $e\"\n"
        f"assert config.logging.tags == ('a,b', {TOKEN!r})\n"
        "assert VARIABLE not in os.environ\n"
    )
    secrets = {
        "training.hub_token": "typed-secret",
        "training.model_init_kwargs": {"token": "nested"},
        "dataset.system_prompt": "a\n'b' [c], {d}: $e",
        "logging.tags": ["a,b", TOKEN],
    }
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), VARIABLE: json.dumps(secrets)}
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, check=True)


def test_the_command_is_recorded_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["covey", "train", "--hub_token", "abc", "training.hub_token=x", f"n={VALUE}"])
    assert describe_environment()["command"] == "covey train --hub_token '***' 'training.hub_token=***' 'n=***'"


@pytest.mark.parametrize("key", ["run_name", "output_dir"])
def test_no_folder_name_is_a_secret(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} holds a secret"):
        load([f"{key}='x-${{oc.env:HF_TOKEN}}'"])


def test_log_lines_hold_none() -> None:
    record = logging.LogRecord("n", logging.INFO, "f", 1, "pushing with %s", (TOKEN,), None)
    assert RedactingFormatter("%(message)s").format(record) == "pushing with ***"


@pytest.mark.parametrize("key", ["run_name", "launch.log_dir"])
def test_no_line_of_a_job_script_comes_from_another_key(
    tmp_path: Path, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recipe_of(tmp_path, yaml.safe_dump({key: "x\ntouch pwned #"}))
    assert main(["launch", "--slurm", "--dry-run", str(path)]) == 2
    assert "one line" in capsys.readouterr().err


def test_remote_code_of_a_model_is_warned_about() -> None:
    (note,) = [note for note in compose(["model.trust_remote_code=true", "model.name=a/b"]).notes if "WARNING" in note]
    assert "Python code that comes with a/b will run" in note
    (note,) = [note for note in compose(["model.attn_implementation=org/kernel"]).notes if "WARNING" in note]
    assert "attn_implementation=org/kernel: compiled code from the hub" in note
    assert [
        note for note in compose(["training.model_init_kwargs={trust_remote_code: true}"]).notes if "WARNING" in note
    ]
    plain = compose(["model.name=a/b", "model.attn_implementation=sdpa"])
    assert not [note for note in plain.notes if "WARNING" in note]


def test_the_documented_variables_are_those_that_are_read(root: Path) -> None:
    text = (root / "docs" / "security.md").read_text(encoding="utf-8")
    listed = text.partition("reads only these:")[2].partition("Any other is an error")[0]
    assert set(re.findall(r"`([^`]+)`", listed)) == {*HARMLESS, "SLURM_*", "PBS_*", "LSB_*"}


@pytest.mark.parametrize("option", ["../../secret", "{folder}/secret"])
def test_a_recipe_chooses_no_file_outside_of_the_groups(tmp_path: Path, option: str) -> None:
    (tmp_path / "secret.yaml").write_text("name: x\n", encoding="utf-8")
    option = option.format(folder=tmp_path)
    path = recipe_of(tmp_path, yaml.safe_dump({"defaults": [{"override /model": option}]}))
    with pytest.raises(ConfigError, match="leads out of the folders"):
        load(recipe=path, config_dirs=[tmp_path])


def test_no_file_but_a_template_becomes_the_chat_template(tiny_model: str, tmp_path: Path) -> None:
    (tmp_path / "id_rsa").write_text(VALUE, encoding="utf-8")
    with pytest.raises(ModelError, match="holds no Jinja template") as error:
        load_tokenizer(ModelConfig(name=tiny_model, chat_template=str(tmp_path / "id_rsa")))
    assert VALUE not in str(error.value)


@pytest.mark.parametrize("tag", ["!!python/object/apply:os.system ['touch pwned']", "!!python/name:os.system ''"])
def test_yaml_runs_nothing(tmp_path: Path, tag: str) -> None:
    with pytest.raises(ConfigError, match="not valid YAML"):
        load(recipe=recipe_of(tmp_path, f"logging:\n  notes: {tag}\n"))


def test_secrets_are_left_out_at_any_depth() -> None:
    given = {"a": {"token": "x", "b": [{"password": "y", "n": 1}]}, "pad_token": "<p>", "token": None, "api_key": ""}
    assert without_secrets(given) == {
        "a": {"b": [{"password": "***", "n": 1}]},
        "pad_token": "<p>",
        "token": None,
        "api_key": "",
    }
    assert dataclasses.is_dataclass(load())
