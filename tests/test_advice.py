"""`covey.advice.command`: what a shell and the reader of overrides make of the text is what was given."""

from __future__ import annotations

import shlex

import pytest

from covey.advice import command
from covey.cli.main import parse
from covey.config import load


def test_values_are_quoted_for_the_shell() -> None:
    text = command("eval {run} --checkpoint {step}", run="out/a run; rm", step=100)
    assert text == "covey eval 'out/a run; rm' --checkpoint 100"
    assert command("", "train", "run_name=a b") == "covey train 'run_name=a b'"


@pytest.mark.parametrize(
    "name", ["out/plain", "out/two words", "out/a (1), [b]", "it's", 'a "quoted" one', "ünï/cöde", "a=b", "lr=1e-5,x"]
)
def test_a_folder_of_any_name_is_read_back(name: str) -> None:
    words = shlex.split(command("train output_dir={folder} model.name={model}", folder=name, model=name))
    config = load(parse(words[1:]).words)
    assert (config.output_dir, config.model.name) == (name, name)
