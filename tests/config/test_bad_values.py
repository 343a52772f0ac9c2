"""Every key with bad values of every kind: each is accepted, or rejected in one paragraph that names the key.

Nothing here loads torch except the last part, which passes accepted values to transformers and PyTorch.
"""

from __future__ import annotations

import datetime
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from completed import completed
from covey.cli.config_arguments import check_names
from covey.cli.main import main
from covey.config import build, compose, known_keys, load
from covey.config.aliases.aliases import table
from covey.config.groups.training import CHOICES, OWNED_ELSEWHERE, RANGES, training_fields
from covey.config.keys import GROUPS
from covey.config.values import members
from covey.errors import ConfigError, CoveyError, ModelError

FROM_PYTHON: list[Any] = [
    *(
        "abc",
        "",
        "  ",
        "a\0b",
        "a\x1b[31mb",
        "a\nb",
        "héllo→\U0001d518",
        "a\ud800b",
        "x" * 300,
        "x" * 100_000,
        "9" * 5000,
    ),
    *(1, -1, 0, 0.5, 1.5, 2**63, 10**400, 10**5000, 1e308, -1e308, 5e-324, float("nan"), float("inf"), -float("inf")),
    *("1e400", "nan", "none", "null", "%s%n{}", "{prompt", "${a}", "${", '{"a": 1', "a=b", "~nobody/x", "/no/../x"),
    *(None, True, False, [], {}, [1, 2], ["a"], [[1], [2]], [None, {}], [10**400], [float("nan")], ["a\0b"]),
    *({"a": 1}, {"a": {"b": [1]}}, {1: 2}, {None: 1}, {"a": "b\0"}, list(range(10_000)), (1, 2), {1}, b"x", object()),
    datetime.date(2020, 1, 1),
]
ON_THE_LINE = [
    *("3", "-1", "1e308", "1" + "0" * 400, "9" * 5000, "nan", "inf", "true", "{}", "[]", "[1,2]", "[[1],[2]]", "{a:1}"),
    *(
        "''",
        "' '",
        "'a\0b'",
        "a\x1bb",
        "'a\nb'",
        "'a\ud800b'",
        "x" * 300,
        "x" * 20_000,
        "null",
        "'${a}'",
        "'${'",
        "???",
    ),
    *(
        "[" * 3000 + "]" * 3000,
        "{a:" * 100 + "1" + "}" * 100,
        "'${'",
        "/proc/1/root/x",
        "~nobody/x",
        "'{\"a\": 1'",
        "abc",
    ),
]
IN_A_FILE = [
    *("3", "-1", "1.0e+308", "1" + "0" * 400, "9" * 5000, ".nan", ".inf", "true", "{}", "[]", "[1, 2]", "[[1], [2]]"),
    *("{a: 1}", "{1: 2}", "{null: 1}", "''", '"a\\0b"', '"a\\e[31mb"', '"a\\nb"', '"a\\ud800b"', "x" * 300, "null", ""),
    *(
        "2020-01-01",
        "!!set {a, b}",
        "!!binary aGVsbG8=",
        "!!int abc",
        "!!float abc",
        "!!python/object/apply:os.getcwd []",
    ),
    *(
        "!foo bar",
        "&a [*a]",
        "&a {b: *a}",
        "'${a}'",
        "'${'",
        "<<",
        "[",
        "? [a]: b",
        "~",
        "0o17",
        "1:30",
        "!!omap [a: 1]",
    ),
]
NAMES = [*known_keys(), *GROUPS, *(name for name in table() if name not in known_keys())]


def check_paragraph(error: BaseException, tried: object, *names: str) -> None:
    """The message is one printable line of limited length that names the key (or its alias)."""
    text = str(error)
    assert text.isprintable(), (tried, text)
    assert len(text) < 2500, (tried, text)
    assert any(name in text for name in names), (tried, text)


SET_BY_OTHERS = ("training.report_to=",)
"""What keys of other tools set, by which a package that is not installed is named."""


def nested(key: str, value: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"dataset": {"task": "arithmetic"}}
    *parents, last = key.split(".")
    node = values
    for parent in parents:
        node = node.setdefault(parent, {})
    node[last] = value
    return values


def accepted(key: str, value: Any) -> Any:
    """The config with this value; None where it is rejected as it should be."""
    try:
        return build(nested(key, value), 1)
    except ConfigError as error:
        check_paragraph(error, (key, value), key.rpartition(".")[2])
        return None


@pytest.mark.parametrize("key", known_keys())
def test_every_key_from_python(key: str) -> None:
    for value in FROM_PYTHON:
        accepted(key, value)


@pytest.mark.parametrize("part", range(4))
def test_every_name_on_the_command_line(part: int) -> None:
    chance = random.Random(part)
    for name in NAMES[part::16]:
        word = f"{name}={chance.choice(ON_THE_LINE)}"
        try:
            check_names(compose([word]).config)
        except CoveyError as error:
            known = (
                table()[name].key if name in table() else None
            )  # two keys that disagree are named as Covey calls them
            own = (known or name).rpartition(".")[2]
            check_paragraph(error, word[:200], "override", name.rpartition(".")[2], own, "model.name=", *SET_BY_OTHERS)


@pytest.mark.parametrize("part", range(4))
def test_every_name_in_a_recipe(part: int, tmp_path: Path) -> None:
    chance, path = random.Random(part), tmp_path / "recipe.yaml"
    for name in NAMES[part::16]:
        value = chance.choice(IN_A_FILE)
        path.write_text(f"{name}: {value}\n", encoding="utf-8")
        try:
            check_names(compose(recipe=path).config)
        except CoveyError as error:
            check_paragraph(error, (name, value[:200]), "recipe.yaml", name.rpartition(".")[2], *SET_BY_OTHERS)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("rewards.funcs=3", r"rewards\.funcs=3 has the wrong type: it must be a list of strings"),
        ("rewards.funcs=true", r"rewards\.funcs=true has the wrong type"),
        ("rewards.funcs={}", r"rewards\.funcs=\{\} has the wrong type"),
        (
            "training.reward_weights={}",
            r"reward_weights=\{\} has the wrong type: it must be a list of numbers",
        ),
        ("training.adam_epsilon=-1", r"training\.adam_epsilon=-1 is out of range: it must be at least 0"),
        ("training.optim_args=abc", r"training\.optim_args=abc cannot be read: write name=value pairs"),
        ("training.log_level=abc", r"training\.log_level=abc is not possible: it must be one of detail, debug, info"),
        (
            "training.chat_template_kwargs=abc",
            r"training\.chat_template_kwargs=abc is not a mapping: write one, such",
        ),
        ("training.max_completion_length=1e308", r"out of range: it must lie between -4294967295 and 4294967295"),
        ("logging.sample_completions=1e308", r"out of range: it must lie between"),
        ("training.include_num_input_tokens_seen=abc", r"must be one of all, non_padding, no, true, false"),
        ("rewards.think_tag='a\0b'", r"rewards\.think_tag='a\\x00b' is not a tag name"),
        ("rewards.think_tag='a b'", r"write one word without brackets"),
        ("rewards.answer_tag='a>b'", r"is not a tag name"),
        ("dataset.train_size=200000000", r"dataset\.train_size=200000000 is out of range.*at most 1,000,000"),
        ("training.learning_rate=1e-320", r"0 or further from 0 than 1\.2e-38"),
        ("rewards.timeout=1e9", r"at most 31536000"),
        ("evaluation.temperature=1e-9", r"it must be 0 or at least 1e-6"),
        ("model.name='~nobody_of_this_name/x'", r"begins with the home of a user"),
        ("dataset.system_prompt='a\x1b[31m'", r"holds a control character \(U\+001B\)"),
        ("training.generation_kwargs={temperature:-1}", r"generation_kwargs\.temperature=-1 is out of range"),
        ("training.generation_kwargs={eos_token_id:abc}", r"generation_kwargs\.eos_token_id=abc has the wrong type"),
        ("training.chat_template_kwargs={tokenize:false}", r"chat_template_kwargs\.tokenize is for the call"),
        (
            "training.gradient_checkpointing_kwargs={abc:1}",
            r"checkpointing_kwargs\.abc is not an argument here",
        ),
        ("training.dataloader_persistent_workers=true", r"training\.dataloader_num_workers=0 has none"),
        ("training.lr_scheduler_type=greedy", r"lr_scheduler_type=greedy cannot be used: it needs TRL's own"),
        ("model.lora.target_modules='('", r"model\.lora\.target_modules=\( is not a regular expression"),
        ("run_name=" + "x" * 250, r"is too long: at most 200 bytes"),
        ("x" * 5000 + "=1", r"is not a key that Covey knows"),
        ("training.generation_kwargs." + "a." * 2000 + "b=1", r"is not a key that Covey knows"),
    ],
)
def test_known_bad_values(word: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        load([word])
    check_paragraph(caught.value, says, "")


@pytest.mark.parametrize("sweep", ["seed=range(1,100000000)", "seed=" + ",".join(map(str, range(1001)))])
def test_a_sweep_of_too_many_jobs(sweep: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--multirun", sweep]) == 2
    assert "The sweep has more than 1,000 jobs" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [["x" * 300], ["--config", "x" * 300], [""], ["--config", "/"], ["--config-dir", "x" * 300], ["~nobody/x.yaml"]],
)
def test_invalid_file_names(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("covey: ")
    assert error.count("\n") == 1


def test_long_and_multi_line_texts_where_allowed() -> None:
    text = "Think.\n\tThen answer. " * 1000
    assert load([f"dataset.system_prompt='{text}'"]).dataset.system_prompt == text
    assert load(["training.max_grad_norm=inf"]).training.max_grad_norm == float("inf")
    assert load(["training.chat_template_kwargs='{\"a\": [1]}'"]).training.chat_template_kwargs == {"a": [1]}
    assert load(["training.optim_args='rank=64, scale=0.5'"]).training.optim_args == "rank=64, scale=0.5"


def test_every_field_of_trl_has_limits() -> None:
    """A new field of TRL's needs an entry: a number its range, a text its choices or none."""
    fields = {name: field for name, field in training_fields().items() if name not in OWNED_ELSEWHERE}
    numbers = {name for name, field in fields.items() if is_number(field.type)}
    assert numbers == set(RANGES)
    texts = {name for name, field in fields.items() if "str" in members(field.type) and not field.choices}
    free = {name for name in texts if name not in CHOICES and "dict" not in fields[name].type}
    assert free == {
        *("optim_args", "optim_target_modules", "torch_compile_backend", "project", "trackio_space_id"),
        *("trackio_bucket_id", "trackio_static_space_id", "hub_token", "hub_model_id", "hub_revision", "fsdp"),
        *("metric_for_best_model", "length_column_name", "vllm_structured_outputs_regex", "vllm_server_base_url"),
        *("vllm_server_host", "log_completions_hub_repo", "pad_to_multiple_of", "schedule", "vllm_servers"),
    }


def is_number(kind: str) -> bool:
    return any(member in ("int", "float", "list[float]") for member in members(kind))


# --- YAML -------------------------------------------------------------------------------------------------------------

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("seed: " + "[" * 5000 + "]" * 5000, r"line 1: the values are nested more than 50 levels deep"),
        ("seed: " + "{a: " * 5000, r"line 1: the values are nested more than 50 levels"),
        ("- " * 5000 + "a", r"nested more than 50 levels"),
        ("".join(" " * n + f"a{n}:\n" for n in range(2000)), r"line 50: the values are nested"),
        ('{"a": ' * 5000 + "1" + "}" * 5000, r"nested more than 50 levels"),
        ("a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 5000)), r"nested more than 50"),
        (LAUGHS, r"line 5: up to here the file holds more than 20,000 values"),
        (
            "a0: &a0 {k: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 60)),
            r"more than 20,000 values",
        ),
        ("training: &t\n  generation_kwargs: *t\n", r"line 2: the alias \*t contains itself"),
        ("logging.tags: [" + "a, " * 100_000 + "a]", r"more than 20,000 values"),
        ("dataset.system_prompt: '" + "x" * 6_000_000 + "'", r"is too long for a config: 6,000,025 characters"),
    ],
)
def test_oversized_yaml_is_rejected_before_it_is_built(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"recipe\.yaml.*{says}"):
        load(recipe=path)
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "large.yaml").write_text(text)
    (tmp_path / "conf" / "model" / "outer.yaml").write_text("defaults: [large]\nname: x\n")
    for option in ("large", "outer"):  # Hydra reads these files itself
        with pytest.raises(ConfigError, match=rf"large\.yaml.*{says}"):
            load([f"model={option}"], config_dirs=[tmp_path / "conf"])


def test_ordinary_aliases_are_read(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("training: {max_steps: &n 5, logging_steps: *n, generation_kwargs: &g {a: {b: [1]}}}\n")
    assert load(recipe=path).training.logging_steps == 5
    deep: Any = 1
    for _ in range(40):
        deep = {"a": deep}
    path.write_text(yaml.safe_dump({"training": {"generation_kwargs": deep}}))
    assert load(recipe=path).training.generation_kwargs == deep


def test_a_bad_value_ends_the_command_before_torch_is_loaded_or_anything_is_written(root: Path, tmp_path: Path) -> None:
    """A fake torch module ends the process with another exit code."""
    (tmp_path / "torch.py").write_text("import os\nos._exit(99)\n")
    done = completed(
        [sys.executable, "-m", "covey.cli.main", "train", "training.optim_args=abc", f"output_dir={tmp_path / 'out'}"],
        env={"PYTHONPATH": f"{tmp_path}:{root / 'src'}", "PATH": "/usr/bin:/bin"},
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("covey: training.optim_args=abc cannot be read")
    assert not (tmp_path / "out").exists()


# --- values that transformers and PyTorch check ------------------------------------------------------------------


@pytest.mark.slow
def test_trl_accepts_the_rest_or_rejects_it_in_one_paragraph(tmp_path: Path) -> None:
    """A fixed sample: of every field one value that the config accepts, if there is any."""
    from covey.runlog.directory import RunDirectory
    from covey.training.build import trl_config

    chance, tried = random.Random(5), 0
    every = [*FROM_PYTHON, *(choice for found in CHOICES.values() for choice in found)]
    for name in training_fields():
        if name in OWNED_ELSEWHERE:
            continue
        for value in chance.sample(every, len(every)):
            config = accepted(f"training.{name}", value)
            if config is None:
                continue
            tried += 1
            try:
                trl_config(config, RunDirectory(tmp_path / "run"))
            except CoveyError as error:
                check_paragraph(error, (name, value), "training.")
            break
    assert tried > 150


@pytest.mark.parametrize(
    ("template", "says"),
    [("{% if %}", "Expected an expression"), ("{{ 1/0 }}", "division by zero"), ("{{ x }}", "as an empty text")],
)
def test_a_chat_template_that_fails(template: str, says: str) -> None:
    from transformers import AutoTokenizer

    from covey.model.prompts import render
    from covey.model.starter import STARTER_PATH

    tokenizer = AutoTokenizer.from_pretrained(STARTER_PATH)
    tokenizer.chat_template = template
    with pytest.raises(ModelError, match=rf"The chat template .*{says}.*model\.chat_template") as caught:
        render(tokenizer, [{"role": "user", "content": "What is 1 + 1?"}])
    check_paragraph(caught.value, template, "")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["training.accelerator_config={abc:1}"], r"TRL does not accept training\.accelerator_config=.*abc"),
        (["training.accelerator_config=gone.json"], r"training\.accelerator_config=gone\.json: .*No such file"),
        (["training.optim=adamw_bnb_8bit"], r"training\.optim=adamw_bnb_8bit, with .*, cannot be used: .*bitsandbytes"),
        (["training.optim=adagrad", "training.optim_args='eps=abc'"], r"training\.optim=adagrad.*cannot be used"),
        (
            ["training.lr_scheduler_type=cosine", "training.lr_scheduler_kwargs={abc:1}"],
            r"training\.lr_scheduler_type=cosine, with training\.lr_scheduler_kwargs=.*abc",
        ),
        (["training.optim=lomo"], r"training\.optim=lomo needs the package lomo_optim"),
    ],
)
def test_settings_that_only_pytorch_rejects(tmp_path: Path, words: list[str], says: str) -> None:
    from covey.training.processes import silent_console
    from covey.training.run import run_training

    config = load([*words, f"output_dir={tmp_path}", "dataset.train_size=128", "dataset.test_size=4"])
    with pytest.raises(ConfigError, match=says) as caught:
        run_training(config, "run", silent_console())
    check_paragraph(caught.value, says, "")
    assert not (tmp_path / "run" / "config.yaml").exists()
