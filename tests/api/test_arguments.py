"""Python's arguments as words of a command line: values, objects in place of names, and messages about wrong ones."""

from __future__ import annotations

import functools
import re
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import covey
from covey import importing
from covey.api.arguments import ArgumentError, Words
from covey.config import compose
from covey.errors import ConfigError, CoveyError
from covey.importing import import_object


def right(completions: Any, **columns: Any) -> list[float]:
    return [1.0 for _ in completions]


class Scorer:
    def __call__(self, completions: Any, **columns: Any) -> list[float]:
        return [2.0 for _ in completions]

    def score(self, completions: Any, **columns: Any) -> list[float]:
        return [3.0 for _ in completions]


class Network(Scorer):
    """What the models of PyTorch have."""

    forward = parameters = Scorer.score


class Colour(Enum):
    RED = "red"


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "_given", {})


def _funcs(rewards: Any) -> tuple[str, ...]:
    return compose(Words("covey.train").parts(rewards, None, None)).config.rewards.funcs


def _called(name: str) -> list[float]:
    found: list[float] = import_object(name, "rewards.funcs", ConfigError)(completions=["a"])
    return found


def test_functions_go_by_a_name_that_leads_to_them() -> None:
    assert _funcs(right) == (f"{__name__}:right",)
    assert _funcs("exact_match") == ("exact_match",)
    names = _funcs(["format", right, Scorer(), functools.partial(right), Scorer().score])
    assert names == ("format", *(f"{__name__}:{one}" for one in ("right", "Scorer", "right-2", "Scorer.score")))
    assert [_called(name) for name in names[1:]] == [[1.0], [2.0], [1.0], [3.0]]
    assert [import_object(name, "key", ConfigError).__name__ for name in names[1:3]] == ["right", "Scorer"]


def test_a_mapping_names_functions_and_equal_names_are_told_apart() -> None:
    first, second = (lambda completions, **_: [0.5]), (lambda completions, **_: [0.25])
    names = _funcs({"half": first, "quarter": second})
    assert names == (f"{__name__}:half", f"{__name__}:quarter")
    assert [_called(name) for name in names] == [[0.5], [0.25]]
    environments = compose(
        Words("covey.train").of({"environment.factory": {"a": first, "b": second}})
    ).config.environment
    assert isinstance(environments.factory, dict)
    assert [_called(name) for name in environments.factory.values()] == [[0.5], [0.25]]


def test_an_object_may_stand_in_any_key_that_takes_a_name() -> None:
    words = Words("covey.train").of(
        {"rewards.funcs": [right], "evaluation.grader": right, "training": {"max_steps": 3}}
    )
    config = compose(words).config
    assert config.rewards.funcs == (f"{__name__}:right",)
    assert config.evaluation.grader == f"{__name__}:right"
    assert config.training.max_steps == 3


def test_one_tool_needs_no_list() -> None:
    named = [f"environment.tools=['{__name__}:right']"]
    assert Words("covey.train").parts(None, None, right) == named  # type: ignore[arg-type]
    assert Words("covey.train").parts(None, None, [right]) == named
    assert Words("covey.train").parts(None, None, "calculator") == ["environment.tools=['calculator']"]


def test_data_is_rows_an_option_a_file_or_a_dataset_of_the_hub() -> None:
    sources = Words("covey.train").sources
    assert sources(None, "gsm8k", []) == ["dataset='gsm8k'"]
    assert sources(None, "owner/name", [])[-1] == "dataset.id='owner/name'"
    assert sources(None, "rows.jsonl", [])[-1] == "dataset.path='rows.jsonl'"
    assert sources(None, [{"a": 1}], [])[-1] == "dataset.path=_data"


def test_values_of_other_types() -> None:
    words = Words("covey.train").of(
        {"a": Path("x/y"), "b": np.float64(0.5), "c": np.int64(3), "d": Colour.RED, "e": (1, 2), "f": range(2)}
    )
    assert words == ["a='x/y'", "b=0.5", "c=3", "d='red'", "e=[1,2]", "f=[0,1]"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rewards": 3}, r"covey\.train: rewards=3: give functions, or names of rewards"),
        ({"rewards": [right, 3]}, r"rewards=\[<function right .*: give functions"),
        ({"rewards": [right, Network()]}, r"rewards holds a Network, which is a model: name it, as 'model:FOLDER' or"),
        ({"overrides": 3}, r"overrides=3 is of type int: give a list of strings"),
        ({"overrides": "seed=1"}, r"overrides='seed=1' is a string"),
        ({"overrides": [{"seed": 1}]}, r"overrides holds \{'seed': 1\}, of type dict"),
        ({"recipe": 3}, r"recipe=3 is of type int"),
        ({"overrides": {"seed": object()}}, r"covey\.train: seed is of type object: a value is text"),
        ({"train_dataset": []}, r"covey\.train has no argument train_dataset: give data=rows"),
        ({"model": 3}, r"model is of type int: give its name on the hub, or its folder"),
        ({"data": "nothing"}, r"data='nothing' is neither a file nor one of aime24, "),
        ({"data": 3}, r"data is of type int"),
        ({"max_step": 3}, r"max_step"),
        ({"max_stpes": 3}, r"max_stpes .*Did you mean training\.max_steps"),
        ({"rewrads": right}, r"covey\.train has no argument rewrads\. Did you mean rewards\?"),
        ({"dat": [{"prompt": "a", "answer": "b"}]}, r"covey\.train has no argument dat\. Did you mean data\?"),
        ({"rewards": lambda x, /: x}, r"takes x by position only"),
    ],
)
def test_wrong_arguments_are_said_in_one_paragraph(
    arguments: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CoveyError, match=message) as caught:
        covey.train(**arguments)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_wrong_arguments_of_the_other_functions() -> None:
    for call, message in (
        (lambda: covey.evaluate(3), r"^covey\.evaluate: 3 is of type int: give a path"),  # type: ignore[arg-type]
        (lambda: covey.compare("out/a"), r"^covey\.compare needs two or more"),
        (lambda: covey.compare("a", 3), r"^covey\.compare: 3 is of type int"),  # type: ignore[arg-type]
        (lambda: covey.generate("starter", []), r"^covey\.generate: prompts=\[\] has no prompt"),
        (lambda: covey.generate("starter", [""]), r"^covey\.generate: prompts\[0\] has no prompt"),
        (
            lambda: covey.generate("starter", [{"role": "user", "content": "2 + 2"}]),
            r"prompts\[0\] has no prompt: .* A single conversation goes into a list of its own\.$",
        ),
    ):
        with pytest.raises(ArgumentError, match=message):
            call()


def test_a_name_of_another_program_says_so() -> None:
    for name in ("__main__:right", "covey.errors:make.<locals>.reward"):
        with pytest.raises(ConfigError, match=re.escape(name) + " was given to covey.train as a Python object"):
            import_object(name, "rewards.funcs", ConfigError)
