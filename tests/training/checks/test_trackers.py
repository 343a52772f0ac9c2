"""Trackers: what turns W&B on, a machine without a login or a server, a tracker that fails, and missing packages."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from tests.support.dead_keys import dead_lines

import fake_wandb
from covey.advice import install
from covey.cli.main import main
from covey.config import Config, load
from covey.errors import ConfigError
from covey.runlog.metrics import read_metrics
from covey.training.checks.trackers import tracker_environment, tracker_notes, trackers
from covey.training.doctor import examine

Train = Callable[..., tuple[int, str, str]]
_VARIABLES = (
    "API_KEY MODE BASE_URL DISABLED DIR CONFIG_DIR PROJECT IDENTITY_TOKEN_FILE NAME ENTITY TAGS NOTES RUN_GROUP"
)


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine where nobody is logged in."""
    for name in (*(f"WANDB_{name}" for name in _VARIABLES.split()), "NETRC", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    return fake_wandb.install(tmp_path / "packages", monkeypatch)


@pytest.fixture
def train(tiny_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Train:
    def call(*more: str) -> tuple[int, str, str]:
        words = [
            *("train", "model=starter", f"model.name={tiny_model}", f"output_dir={tmp_path}/out", "run_name=run"),
            *("training.per_device_train_batch_size=4", "training.gradient_accumulation_steps=1"),
            *("training.num_generations=4", "training.max_completion_length=4", "training.max_steps=2"),
            *("evaluation.every_steps=0", "rewards.workers=0", "dataset.test_size=4", "dataset.hard_size=0"),
            *("dataset.train_size=12", *more),
        ]
        code = main(words)
        captured = capsys.readouterr()
        return code, " ".join(captured.out.split()), " ".join(captured.err.split())

    return call


# --- what turns W&B on ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["logging.mode=offline"], "wandb"),
        (["logging.mode=online"], "wandb"),
        (["logging.mode=disabled"], "none"),
        (["wandb_mode=offline"], "wandb"),
        (["logging.enabled=true"], "wandb"),
        (["wandb_disabled=false"], "wandb"),
        (["wandb_project=mine"], "wandb"),
        (["wandb_entity=me"], "wandb"),
        (["wandb_run_group=g"], "wandb"),
        (["logging.project=mine"], "none"),
        (["logging.mode=offline", "logging=none"], "none"),
        (["logging.mode=offline", "logging=tensorboard"], "tensorboard"),
        (["logging.mode=offline", "training.report_to=none"], "none"),
        (["wandb_project=mine", "wandb_disabled=true"], "none"),
        (["logging.mode=offline", "logging.enabled=false"], "none"),
    ],
)
def test_the_same_in_a_word_a_flag_a_recipe_and_a_group(words: list[str], wanted: str) -> None:
    assert load(words).training.report_to == wanted
    keys = dict(word.split("=") for word in words)
    if "logging" in keys:
        return
    recipe = Path("r.yaml")
    recipe.write_text("".join(f"{key}: {value}\n" for key, value in keys.items()))
    assert load(recipe=recipe).training.report_to == wanted
    option = Path("mine/experiment/own.yaml")
    option.parent.mkdir(parents=True)
    nested: dict[str, dict[str, str]] = {}
    lines = []
    for key, value in keys.items():
        group, _, name = key.rpartition(".")
        nested.setdefault(group, {})[name] = value
    for group, inner in nested.items():
        lines += [f"{group}:"] * bool(group)
        lines += [f"{'  ' * bool(group)}{name}: {value}" for name, value in inner.items()]
    option.write_text("# @package _global_\n" + "\n".join(lines) + "\n")
    assert load(["+experiment=own"], config_dirs=["mine"]).training.report_to == wanted


def test_in_the_users_own_group_logging() -> None:
    option = Path("mine/logging/w.yaml")
    option.parent.mkdir(parents=True)
    for text in ("enabled: true\n", "mode: offline\n"):
        option.write_text(text)
        assert load(["logging=w"], config_dirs=["mine"]).training.report_to == "wandb"


def test_what_describes_a_run_for_no_tracker_has_no_effect() -> None:
    project, tags = dead_lines(["logging.project=mine", "logging.tags=[a]"])
    assert "logging.project; " in project
    assert "logging.tags; " in tags
    for more in ("logging=wandb", "logging.mode=offline", "logging.mode=disabled"):
        assert not dead_lines(["logging.project=mine", "logging.tags=[a]", more]), more
    (tags,) = dead_lines(["logging.project=mine", "logging.tags=[a]", "logging=trackio"])
    assert "has wandb" in tags


# --- without a login -----------------------------------------------------------------------------------------------


def online(*words: str) -> Config:
    return load(["logging=wandb", *words])


def mode_of(config: Config) -> str | None:
    with tracker_environment(config):
        return os.environ.get("WANDB_MODE")


def test_without_a_login_it_is_offline_with_a_note(wandb: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    (note,) = tracker_notes(online())
    assert "nobody is logged in" in note
    assert "wandb login" in note
    assert mode_of(online()) == "offline"
    assert "WANDB_MODE" not in os.environ
    monkeypatch.setenv("WANDB_MODE", "online")
    assert mode_of(online()) == "offline"
    assert os.environ["WANDB_MODE"] == "online"


@pytest.mark.parametrize(
    "login", ["key", "token", "netrc", "named netrc", "settings", "own server", "offline settings"]
)
def test_with_a_login_it_is_online(
    login: str, wandb: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home, entry = tmp_path / "home", "machine api.wandb.ai\n  login user\n  password secret\n"
    if login in ("key", "token"):
        monkeypatch.setenv(f"WANDB_{'API_KEY' if login == 'key' else 'IDENTITY_TOKEN_FILE'}", "x")
    elif login == "netrc":
        (home / ".netrc").write_text(entry)
    elif login == "named netrc":
        (tmp_path / "logins").write_text(entry)
        monkeypatch.setenv("NETRC", str(tmp_path / "logins"))
    elif login == "own server":
        monkeypatch.setenv("WANDB_BASE_URL", "https://w.example.org")
        (home / ".netrc").write_text(entry)
        assert tracker_notes(online())  # that is a login elsewhere
        (home / ".netrc").write_text(entry.replace("api.wandb.ai", "w.example.org"))
    else:
        folder = home / ".config" / "wandb" if login == "settings" else tmp_path / "wandb"
        folder.mkdir(parents=True)
        (folder / "settings").write_text(
            "[default]\n" + ("api_key = x\n" if login == "settings" else "mode = offline\n")
        )
    assert tracker_notes(online()) == []
    assert mode_of(online()) is None


def test_no_login_is_needed_where_nothing_is_uploaded(wandb: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (["logging.mode=offline"], ["logging.mode=disabled"], ["logging=none"], ["logging=tensorboard"]):
        assert tracker_notes(load(words)) == []
    for mode in ("offline", "disabled"):
        monkeypatch.setenv("WANDB_MODE", mode)
        assert tracker_notes(online()) == []
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setenv("WANDB_DISABLED", "true")
    assert trackers(online()) == []
    assert tracker_notes(online()) == []


def test_broken_logins_are_none(wandb: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "home" / ".netrc").write_text("machine\n")
    folder = tmp_path / "home" / ".config" / "wandb"
    folder.mkdir(parents=True)
    (folder / "settings").write_text("no section\n")
    assert len(tracker_notes(online())) == 1


def test_the_doctor_reports_it(wandb: ModuleType, tiny_model: str) -> None:
    config = online("model=starter", f"model.name={tiny_model}", "dataset.train_size=8", "dataset.test_size=4")
    results = [finding.result for finding in examine(config) if finding.check == "settings"]
    assert [result for result in results if "nobody is logged in" in result]


# --- during the run ------------------------------------------------------------------------------------------------


def test_a_run_without_a_login_keeps_its_logs(wandb: ModuleType, train: Train, tmp_path: Path) -> None:
    code, out, _ = train("logging.mode=online", "logging.project=p", "logging.run_name=shown", "logging.tags=[a,b]")
    assert code == 0
    assert out.count("nobody is logged in") == 1
    assert wandb.calls == [{"project": "p", "name": "shown", "mode": "offline", "tags": "a,b"}]
    assert [row["train/global_step"] for row in wandb.logged if "train/reward" in row] == [1, 2]


def test_a_server_that_cannot_be_reached(
    wandb: ModuleType, train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "wrong")
    wandb.errors.append(RuntimeError("no route to host"))
    code, out, err = train("logging=wandb")
    assert code == 0
    assert out.count("W&B cannot be reached, so it keeps its logs in files") == 1
    assert "no route to host" in out
    assert "Traceback" not in out + err
    assert [call["mode"] for call in wandb.calls] == ["online", "offline"]
    assert [row["train/global_step"] for row in wandb.logged if "train/reward" in row] == [1, 2]
    assert [row["step"] for row in read_metrics(tmp_path / "out/run/metrics.jsonl")] == [1, 2]
    assert (tmp_path / "out/run/summary.json").is_file()


def test_a_tracker_that_fails_is_left_out(wandb: ModuleType, train: Train, tmp_path: Path) -> None:
    wandb.broken = True
    code, out, _ = train("logging.mode=offline")
    assert code == 0
    assert out.count("The tracker Wandb failed and is left out from here on: disk gone") == 1
    assert wandb.logged == []
    assert [row["step"] for row in read_metrics(tmp_path / "out/run/metrics.jsonl")] == [1, 2]


def test_one_that_fails_offline_too_is_left_out(wandb: ModuleType, train: Train, tmp_path: Path) -> None:
    wandb.errors += [RuntimeError("first"), RuntimeError("second")]
    code, out, _ = train("logging.mode=online")
    assert code == 0
    assert out.count("The tracker Wandb failed and is left out") == 1
    assert (tmp_path / "out/run/summary.json").is_file()


# --- missing packages ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "command"), [("wandb", "train"), ("trackio", "launch"), ("tensorboard", "train")])
def test_a_missing_package_is_one_message_before_anything_is_made(
    name: str, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("covey.training.checks.trackers.find_spec", lambda package: None)
    with pytest.raises(ConfigError, match=re.escape(install(name))):
        trackers(load([f"logging={name}"]))
    assert main([command, f"logging={name}", "run_name=run"]) == 2
    error = capsys.readouterr().err
    assert install(name) in error
    assert "Traceback" not in error
    assert not Path("out").exists()
    assert not Path("logs").exists()
