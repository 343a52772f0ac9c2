"""The command line's options, and what `covey config` and `covey train` print without running anything."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import yaml

from completed import completed
from covey.cli import config_arguments
from covey.cli.main import main, parse
from covey.config import load


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the user's groups and recipes in my_conf."""
    files = {
        "my_conf/model/mine.yaml": "name: org/mine\ndtype: bfloat16\n",
        "my_conf/experiment/both.yaml": (
            "# @package _global_\ndefaults:\n  - override /model: mine\n  - override /dataset: gsm8k\nseed: 5\n"
        ),
        "my_conf/first.yaml": "defaults:\n  - override /model: mine\ntraining:\n  beta: 0.25\n",
        "second.yaml": "training.beta: 0.5\nlogging.project: birds\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    return tmp_path


def config_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main(list(words)) == 0
    content = yaml.safe_load(capsys.readouterr().out)
    assert isinstance(content, dict)
    return content


# --- options and other words --------------------------------------------------------------------------------------


def test_options_may_be_anywhere_and_the_rest_keeps_its_order():
    words = ["r.yaml", "seed=1", "-cd", "a", "--beta", "0.1", "--multirun", "--config-dir=b", "model=x", "-i", "+a=-c"]
    arguments = parse(["train", *words])
    assert arguments.words == ["r.yaml", "seed=1", "--beta", "0.1", "model=x", "+a=-c"]
    assert (arguments.config_dir, arguments.multirun, arguments.info) == (["a", "b"], True, "defaults-tree")
    assert arguments.given == ["train", *words]


@pytest.mark.parametrize(
    "value", ["-1.0", "-1e-5", "- be brief", "-c = 5", "--cfgs", "-inf", "--configure=x", "a --cfg b", "", "--"]
)
def test_values_that_look_like_options_are_values(value: str) -> None:
    arguments = parse(["config", "--flag", value, "--cfg", "job"])
    assert arguments.words == ["--flag", value]
    assert arguments.cfg == "job"


def test_options_with_an_optional_value_take_only_what_fits():
    assert parse(["train", "--info", "seed=1"]).words == ["seed=1"]
    assert parse(["train", "--info", "defaults-tree", "seed=1"]).info == "defaults-tree"
    assert parse(["config", "--diff", "seed=1"]).diff == ""
    assert parse(["config", "r.yaml", "--diff", "other.yaml"]).diff == "other.yaml"
    assert parse(["config", "--diff", "--beta", "1"]).words == ["--beta", "1"]


def test_a_recipe_is_named_once(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["second.yaml"],
        ["--config", "second.yaml"],
        ["--config=second.yaml"],
        ["-cn", "second", "-cd", "."],
    ):
        assert config_arguments.read_request(parse(["config", *words])).compose().config.training.beta == 0.5
    assert main(["config", "second.yaml", "--config", "my_conf/first.yaml"]) == 2
    assert "2 recipes were given, second.yaml and --config my_conf/first.yaml" in capsys.readouterr().err
    assert main(["config", "--config-name", "zebra", "-cd", "my_conf"]) == 2
    assert "my_conf/zebra.yaml" in capsys.readouterr().err
    assert main(["config", "--config-name", "first"]) == 2
    assert "--config-dir" in capsys.readouterr().err


# --- what is printed ----------------------------------------------------------------------------------------------


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian", "seed=1"]) == 2
    assert "no command trian. Did you mean train?" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 0
    assert "covey train" in capsys.readouterr().out


def test_a_missing_run_is_not_searched_on_the_hub(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "out" / "first").mkdir(parents=True)
    (here / "out" / "first" / "config.yaml").touch()
    assert main(["eval", "out/frist"]) == 1
    assert "There is no run out/frist. Did you mean out/first?" in capsys.readouterr().err


def test_cfg_job_prints_what_covey_config_prints(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["second.yaml", "model=qwen3_0.6b", "seed=3"]
    found = config_of(capsys, "config", *words)
    assert (found["model"], found["seed"]) == ({**found["model"], "name": "Qwen/Qwen3-0.6B"}, 3)  # type: ignore[dict-item]
    assert config_of(capsys, "train", *words, "--cfg", "job") == found
    assert config_of(capsys, "train", "-c", "job", "--resolve", *words) == found
    assert not (here / "out").exists()


def test_groups_of_the_users_own(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = config_of(capsys, "config", "--config-dir", "my_conf", "model=mine")
    assert found["model"]["name"] == "org/mine"  # type: ignore[index]
    found = config_of(capsys, "config", "+experiment=both", "seed=6", "-cd", "my_conf")
    assert (found["seed"], found["dataset"]["id"]) == (6, "openai/gsm8k")  # type: ignore[index]
    found = config_of(capsys, "train", "--config-dir", "my_conf", "--config-name", "first", "--cfg", "job")
    assert found["training"]["beta"] == 0.25  # type: ignore[index]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ["model: starter", "dataset: arithmetic", "tuning: starter"]),
        (["model=qwen3_0.6b", "dataset=gsm8k"], ["model: qwen3_0.6b", "dataset: gsm8k"]),
        (["model.name=org/other", "dataset.path=my.jsonl"], ["model: other"]),
        (["--config-dir=my_conf", "+experiment=both"], ["model: mine", "dataset: gsm8k", "experiment: both"]),
        (["--config-dir=my_conf", "my_conf/first.yaml"], ["model: mine", "dataset: arithmetic"]),
    ],
)
def test_the_defaults_tree_is_that_of_the_chosen_groups(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: list[str]
) -> None:
    assert main(["train", *words, "--info", "defaults-tree"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert "Defaults Tree" in lines
    for line in expected:
        assert line in lines
    group = {line.partition(":")[0]: line for line in expected}
    assert sum(line.startswith("model:") for line in lines) == 1
    assert [line for line in lines if line.startswith("model:")] == [group["model"]]


def test_unsupported_views_name_the_supported_ones(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--cfg", "hydra"], ["--cfg", "all"], ["--info", "plugins"], ["-i", "searchpath"]):
        assert main(["config", *words]) == 2
        message = capsys.readouterr().err
        assert words[1] in message
        assert "`--cfg job`" in message
        assert "`--info defaults-tree`" in message
    assert main(["config", "--info", "defaults-tree", "model=zebra"]) == 2
    assert main(["config", "--info", "defaults-tree", "hydra/launcher=zebra"]) == 2
    assert "hydra/launcher/zebra" in capsys.readouterr().err


def test_views_of_a_sweep_show_every_job(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "-m", "seed=3,4", "--cfg", "job"]) == 0
    jobs = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [job["seed"] for job in jobs if job] == [3, 4]
    assert main(["train", "--cfg", "job", "seed=3,4"]) == 2


def test_a_complete_config_has_no_tree(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "seed=9"]) == 0
    (here / "whole.yaml").write_text(capsys.readouterr().out, encoding="utf-8")
    assert main(["train", "whole.yaml", "--info", "defaults-tree"]) == 0
    assert (
        capsys.readouterr().out
        == "whole.yaml is a complete config (`defaults: []`): nothing is composed from groups.\n"
    )


def test_diff_shows_what_differs_from_the_defaults(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def rows(*words: str) -> list[list[str]]:
        assert main(["config", *words]) == 0
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        return [line for line in lines if (len(line) == 3 and "." in line[0]) or line[:1] == ["seed"]]

    changed = [["seed", "0", "3"], ["training.beta", "0.01", "0.5"], ["logging.project", "null", "birds"]]
    assert rows("second.yaml", "--diff", "seed=3") == changed
    assert rows("seed=3", "--diff", "second.yaml") == changed
    against = rows("second.yaml", "training.beta=0.75", "--diff", "second.yaml")
    assert against == [["training.beta", "0.5", "0.75"]]
    assert main(["config", "--diff"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "Nothing differs from the defaults.\n")


def test_doc_names_the_origin_of_a_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--doc", "training.beta"]) == 0
    assert "TRL's GRPOConfig" in capsys.readouterr().out
    assert main(["config", "--doc", "rewards.timeout"]) == 0
    out = capsys.readouterr().out
    assert "origin   Covey" in out
    assert "default  5.0" in out
    assert main(["config", "--doc", "trainng.beta"]) == 2
    assert "Did you mean training.beta" in capsys.readouterr().err


def test_doc_of_an_alias_names_the_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--doc", "init_kl_coeff"]) == 0
    assert "init_kl_coeff is another tool's name; it stands for this key:\ntraining.beta\n" in capsys.readouterr().out
    assert main(["config", "--doc", "wandb_disabled"]) == 0
    assert "is converted into this key:\ntraining.report_to\n" in capsys.readouterr().out
    assert main(["config", "--doc", "vf_coef"]) == 0
    assert "has no effect here" in capsys.readouterr().out


def test_doc_shows_the_value_in_this_run_and_where_it_is_set(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def line(*words: str) -> str:
        assert main(["config", "--doc", "training.beta", *words]) == 0
        (found,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  here ")]
        return found.split(maxsplit=1)[1]

    assert line() == "0.01, from Covey's defaults and groups"
    assert line("second.yaml") == "0.5, set by second.yaml, line 1"
    assert line("second.yaml", "--beta", "0.25") == "0.25, set by the flag `--beta 0.25`"


def test_notes_go_to_stderr(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "old.yaml").write_text("vf_coef: 0.1\nlearning_rate: 1.0e-5\n", encoding="utf-8")
    assert main(["config", "old.yaml"]) == 0
    captured = capsys.readouterr()
    assert yaml.safe_load(captured.out)["training"]["learning_rate"] == 1e-5
    (line,) = [line for line in captured.err.splitlines() if "vf_coef" in line]
    assert line.startswith("· ")


def test_a_sweep_without_multirun_names_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "seed=1,2"]) == 2
    assert "--multirun" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["train", "--cfg", "job", "seed=1"], 0),
        (["train", "--info"], 0),
        (["config", "--diff", "--num_generations", "4"], 0),
        (["config", "--doc", "model.name"], 0),
        (["train", "--multirun", "seed=1,zebra"], 2),
        (["train", "modle=starter"], 2),
        (["train", "missing.yaml"], 2),
        (["train", "rewards.funcs=[acuracy]"], 1),
        (["train", "--multirun", "rewards.funcs=[accuracy],[acuracy]"], 1),
        (["train", "dataset.path=missing.jsonl"], 1),
        (["train", "dataset.mixture.datasets=[{path: missing.jsonl}]"], 1),
        (["train", "--multirun", "model.name=./a,./b"], 1),
    ],
)
def test_nothing_heavy_is_loaded_before_it_is_needed(words: list[str], code: int, root: Path, tmp_path: Path) -> None:
    script = (
        f"import sys\nfrom covey.cli.main import main\nassert main({words}) == {code}\n"
        "assert not {'torch', 'transformers', 'trl', 'datasets'} & set(sys.modules)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    command = [sys.executable, "-c", script]
    done = completed(command, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())


def test_the_resolved_config_loads_again(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--cfg", "job", "second.yaml", "dataset.system_prompt='a, ${seed}'", "seed=4"]) == 0
    (here / "again.yaml").write_text(capsys.readouterr().out, encoding="utf-8")
    again = load(recipe=here / "again.yaml")
    assert (again.dataset.system_prompt, again.training.beta, again.seed) == ("a, 4", 0.5, 4)


def test_single_process_commands_run_on_rank_0_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise `torchrun -m covey.cli.main eval …` would write every result twice."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert main(["config", "--diff", "training.beta=0.5"]) == 0
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("RANK", "0")
    assert main(["config", "--diff", "training.beta=0.5"]) == 0
    out, err = capsys.readouterr()
    assert "beta" in out
    assert err.count("works in one process: the other ends at once") == 1


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "config seed=1"),
        (1, "train dataset.path=nowhere.jsonl"),
        (1, "train rewards.funcs=[acuracy]"),
        (1, "eval out/nowhere"),
        (1, "eval Qwen/Qwen3-0.6B dataset=gsm8k dataset.path=nowhere.jsonl"),
        (1, "eval Qwen/Qwen3-0.6B benchmarks=[gsm8k] --path gsm8k=nowhere.jsonl"),
        (1, "report out/nowhere"),
        (1, "generate starter nowhere.jsonl"),
        (2, "trian"),
        (2, "train sed=1"),
        (2, "train seed=-1"),
        (2, "train first.yaml second.yaml"),
        (2, "eval"),
        (2, "eval Qwen/Qwen3-0.6B benchmarks=[gsm9k]"),
        (2, "generate starter"),
        (2, "generate starter --prompt="),
    ],
)
def test_exit_codes_have_one_rule(code: int, words: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """2: the command line or the config is wrong; 1: what it names cannot be used (docs/configuration.md)."""
    (here / "out" / "first").mkdir(parents=True)
    (here / "out" / "first" / "config.yaml").touch()
    assert main(words.split()) == code
    error = capsys.readouterr().err
    assert not code or error.startswith("covey: ")
    assert "Traceback" not in error
