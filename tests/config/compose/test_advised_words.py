"""Words that cannot be read: what the message advises is given in their place, and taken."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from covey.cli.main import main
from covey.config import compose, load, to_yaml
from covey.config.compose.flags import split
from covey.errors import ConfigError


def advice(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["config", *shlex.split(line)]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("rewards.funcs=[accuracy, format]", "rewards.funcs", ["accuracy", "format"]),
        ("seed=4 rewards.funcs=[ accuracy , format ] run_name=x", "rewards.funcs", ["accuracy", "format"]),
        ("training.report_to=[none, none]", "training.report_to", ["none", "none"]),
        ("seed = 3", "seed", 3),
        ("seed= 3", "seed", 3),
        ("seed =3", "seed", 3),
        ("run_name=r training.max_steps = 3", "training.max_steps", 3),
        ("dataset.system_prompt=Think before you answer", "dataset.system_prompt", "Think before you answer"),
        ("seed=1 run_name=of two", "run_name", "of two"),
    ],
)
def test_an_override_that_the_shell_has_split(
    line: str, key: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    found = re.search(r"If the shell has split one word at its spaces, write (.+)\.\n", advice(line, capsys))
    assert found is not None
    word, *more = shlex.split(found[1])
    assert not more
    config: object = compose([word]).config
    for name in key.split("."):
        config = config.values[name] if name in ("max_steps", "report_to") else getattr(config, name)  # type: ignore[attr-defined]
    assert (list(config) if isinstance(config, tuple) else config) == value


@pytest.mark.parametrize("line", ["seed=1 recipe.yaml", "seed=1 justaword", "justaword", "a b c"])
def test_words_that_are_no_part_of_an_override(line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(split(["run_name=r", *line.split()]).overrides)
    assert "is not an override: write key=value" in str(caught.value)
    assert "seed=1 " not in str(caught.value)


@pytest.mark.parametrize("line", ["rewards.funcs=accuracy,format", "'rewards.funcs=a=b'", "rewards.funcs=[accuracy"])
def test_a_list_is_written_in_brackets_and_quotes_around_the_word(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = re.search(r"into quotes of the shell: '(rewards\.funcs)=\[…\]'\.", advice(line, capsys))
    assert found is not None
    assert load([f"{found[1]}=[accuracy, format]"]).rewards.funcs == ("accuracy", "format")


def test_a_text_is_written_in_two_pairs_of_quotes(capsys: pytest.CaptureFixture[str]) -> None:
    for key in ("dataset.system_prompt", "run_name"):  # no flag: --run_name is the name in trackers only
        text = advice(f"'{key}=a (b, c'", capsys)
        assert f"into quotes of the shell: '{key}=\"…\"'." in text
        assert "--" not in text
    assert load(['dataset.system_prompt="a (b, c"']).dataset.system_prompt == "a (b, c"


def test_a_list_in_quotes_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert "For a list, leave out the quotes around [accuracy, format]." in advice(
        "'rewards.funcs=\"[accuracy, format]\"'", capsys
    )
    assert "For a list of one, write [accuracy]." in advice("rewards.funcs=accuracy", capsys)
    assert load(["rewards.funcs=[accuracy]"]).rewards.funcs == ("accuracy",)


def test_a_sweep_of_a_number_advises_no_quotes(capsys: pytest.CaptureFixture[str]) -> None:
    text = advice("seed=1,2", capsys)
    assert "`covey train --multirun` runs them all." in text
    assert "quotes" not in text


@pytest.mark.parametrize(
    ("word", "key"),
    [
        *[("epochs=3", "training.num_train_epochs"), ("--epochs 3", "training.num_train_epochs")],
        *[("batch_size=4", "training.per_device_train_batch_size"), ("lr=1e-5", "training.learning_rate")],
        *[("group_size=4", "training.num_generations"), ("max_tokens=64", "training.max_completion_length")],
    ],
)
def test_short_names_lead_to_the_key_that_they_mean(word: str, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"Did you mean {key}?" in advice(word, capsys)
    assert load([f"{key}=64"]).training.values[key.removeprefix("training.")] == 64


@pytest.mark.parametrize("word", ["--device cuda", "device=cpu", "cuda=true"])
def test_the_device_is_not_a_key(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = advice(word, capsys)
    assert "training.use_cpu=true trains on the CPU" in text
    assert "rewards.model" not in text


@pytest.mark.parametrize(("option", "sampling"), [("greedy", (0, 0, 1)), ("standard", (0.7, 50, 0.95))])
def test_an_option_of_sampling_keeps_the_rest_of_a_runs_evaluation(
    option: str, sampling: tuple[float, ...], tmp_path: Path
) -> None:
    words = ["evaluation.grader=accuracy", "evaluation.num_samples=4", "evaluation.k=[1,4]", "evaluation.top_k=7"]
    run = tmp_path / "config.yaml"
    run.write_text(to_yaml(load(words)), encoding="utf-8")
    found = compose([f"evaluation={option}"], run).config.evaluation
    assert (found.grader, found.num_samples, found.k) == ("accuracy", 4, (1, 4))
    assert (found.temperature, found.top_k, found.top_p) == sampling
