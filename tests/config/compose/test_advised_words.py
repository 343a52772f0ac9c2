"""Words that cannot be read: what the message advises is given in their place, and taken."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from covey.cli.config_arguments import value_of
from covey.cli.main import main
from covey.config import compose, load, to_yaml
from covey.config.compose.flags import split
from covey.config.keys import kinds
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
    assert "is not an override" in str(caught.value)
    assert "seed=1 " not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("rewards.funcs=accuracy,format", "'rewards.funcs=[accuracy,format]'"),
        ("rewards.funcs=[accuracy", "'rewards.funcs=[…]'"),
        ("'rewards.funcs=a=b'", "'rewards.funcs=[…]'"),
        ("'dataset.system_prompt=a (b, c'", "'dataset.system_prompt=\"a (b, c\"'"),
        ("'run_name=a (b, c'", "'run_name=\"a (b, c\"'"),
        ("'run_name=a \"b\", c'", "'run_name=\"…\"'"),
    ],
)
def test_the_word_to_write_is_given(line: str, found: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = advice(line, capsys)
    assert text.endswith(f"into quotes of the shell: {found}.\n")
    assert "--run_name" not in text  # which is the name in trackers only


def test_a_sweep_of_a_number_advises_no_quotes(capsys: pytest.CaptureFixture[str]) -> None:
    text = advice("seed=1,2", capsys)
    assert "`covey train --multirun` runs them all." in text
    assert "quotes" not in text


@pytest.mark.parametrize(
    ("word", "key"),
    [
        *[("batch_size=4", "training.per_device_train_batch_size"), ("--batch-size 4", "training.per_device_train")],
        *[
            ("max_len=64", "training.max_completion_length or dataset.max_prompt_length"),
            ("use_wandb=true", "training.report_to"),
        ],
        ("data.train_batch_size=64", "training.generation_batch_size"),
    ],
)
def test_a_name_of_several_meanings_leads_to_the_keys(word: str, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert re.search(rf"Did you mean {key}\w*\? [A-Z].+\. \(Set by", advice(word, capsys))


@pytest.mark.parametrize("word", ["--device cuda", "device=cpu", "cuda=true"])
def test_the_device_is_not_a_key(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = advice(word, capsys)
    assert "training takes the first GPU that PyTorch sees (another with CUDA_VISIBLE_DEVICES=N before" in text
    assert "training.use_cpu=true trains on the CPU" in text
    assert "rewards.model" not in text
    assert main(["config", "--doc", "device"]) == 0
    assert "where there is none the CPU is used" in capsys.readouterr().out


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


MISTAKES = (
    "rewards.funcs=[accuracy, format]",
    "rewards.funcs=[accuracy, format] training.reward_weights=[1, 0.5]",
    "training.report_to=[none, none] seed = 3",
    "rewards.funcs=accuracy,format",
    "'rewards.funcs=\"[accuracy, format]\"'",
    "callbacks='\"[a.py:B]\"'",
    "evaluation.k='\"[1]\"'",
    "seed = 3",
    "seed= 3",
    "epochs = 3 lr =1e-5",
    "--seed = 3",
    "--learning_rate = 1e-5",
    "'run_name=a (b, c'",
    "'dataset.system_prompt=it'\"'\"'s (b'",
    "dataset.system_prompt=Think before you answer",
    "run_name=of two",
)
"""Lines as they are typed in a shell, each with a mistake whose remedy the message gives."""
ADVISED = re.compile(
    r"(?:write|of the shell:) ((?:'[^']*'|\"'\"|--)?(?:[\w.]+=)?(?:[^\s'\"]|'[^']*'|\"'\")*?)(?=[.,] |\.?\n)"
)


def split_by_bash(line: str) -> list[str]:
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


def zsh_takes(line: str) -> bool:
    """Whether zsh passes the words on: outside of quotes it looks for files by `[`, `*`, `?` and `(`, and stops where
    there are none."""
    return re.search(r"[\[*?(]", re.sub(r"'[^']*'|\"[^\"]*\"", "", line)) is None


@pytest.mark.parametrize("line", MISTAKES)
def test_advice_is_followed_to_the_letter(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In bash and in zsh: the word of the message takes the place of what it repairs, until nothing is left."""
    words = split_by_bash(line)
    for _ in range(3):
        if main(["config", *words]) == 0:
            break
        text = capsys.readouterr().err
        found = ADVISED.search(text)
        assert found is not None, text
        assert zsh_takes(found[1]), found[1]
        (word,) = split_by_bash(found[1])
        words = repaired(words, word)
    else:
        pytest.fail(f"{line}: {text}")
    written = capsys.readouterr().out
    assert line.partition("=")[0].strip("'- ").rpartition(".")[2].replace("epochs", "num_train_epochs") in written


def repaired(words: list[str], word: str) -> list[str]:
    """The words with those replaced that this one is made of."""
    plain = re.sub(r"[\s\"\[\]]", "", word)
    for start in range(len(words)):
        for end in range(len(words), start, -1):
            if re.sub(r"[\s\"\[\]]", "", "".join(words[start:end])) == plain:
                return [*words[:start], word, *words[end:]]
    raise AssertionError(f"{word} repairs nothing of {words}")


LISTS = sorted(
    key
    for key, kind in kinds().items()
    if re.match(r"(list|tuple)\[(str|int|float)", kind) and key not in ("evaluation.k",)
)


@pytest.mark.parametrize("key", LISTS)
def test_a_single_name_is_a_list_of_one(key: str, tmp_path: Path) -> None:
    """By the key's type, on the command line, as a flag and in a file."""
    name = {
        "training.reward_weights": "0.5",
        "training.include_for_metrics": "inputs",
        "evaluation.benchmarks": "gsm8k",
        "rewards.funcs": "accuracy",
        "ignore_checks": "all",
        "launch.slurm.options": "--mail-type=END",
    }.get(key, "+" if key.endswith("operators") else "a.py:b")
    more = [] if key != "training.reward_weights" else ["rewards.funcs=accuracy"]
    recipe = tmp_path / "r.yaml"
    recipe.write_text(f'{key}: "{name}"\n' if name != "0.5" else f"{key}: 0.5\n", encoding="utf-8")

    def value(config: Any) -> Any:
        return list(value_of(config, key) if not key.startswith("training.") else config.training.values[key[9:]])

    wanted = value(load([*more, f'{key}=["{name}"]']))
    assert len(wanted) == 1
    assert value(load([*more, f'{key}="{name}"'])) == wanted
    assert value(load(more, recipe)) == wanted
    assert value(load(split([*more, f"--{key}={name}"]).overrides)) == wanted


def test_a_list_of_one_is_of_its_type(capsys: pytest.CaptureFixture[str]) -> None:
    assert load(["evaluation.num_samples=4", "evaluation.k=4"]).evaluation.k == (4,)
    assert "rewards.funcs=true has the wrong type: it must be a list of strings." in advice(
        "rewards.funcs=true", capsys
    )
    assert "rewards.funcs='' has the wrong type" in advice("rewards.funcs=", capsys)
    assert "evaluation.k=many has the wrong type: it must be a list of integers." in advice("evaluation.k=many", capsys)
    assert load(["training.report_to=none"]).training.values["report_to"] == "none"  # a text is a text
