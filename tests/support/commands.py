"""Checking the commands on documentation pages: they are parsed and their config composed; nothing runs."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import yaml

from covey.cli import config_arguments
from covey.cli.config_arguments import Request
from covey.cli.main import parse

COMPOSED = ("train", "launch", "config", "doctor")
RECIPE = "my_recipe.yaml"
TINY = (
    *("training.max_steps=2", "training.per_device_train_batch_size=8", "training.gradient_accumulation_steps=1"),
    *("training.num_generations=4", "training.max_completion_length=16", "training.save_steps=2"),
    *("dataset.train_size=16", "dataset.test_size=8", "dataset.hard_size=0"),
    *("evaluation.every_steps=2", "evaluation.max_completion_length=16"),
)
"""The sizes of a `covey train` that takes seconds."""
PLACEHOLDERS = {
    **dict.fromkeys(("RECIPE", "[RECIPE]", "C", "…", "r.yaml", "rows.yaml", "rows.jsonl"), RECIPE),
    **dict.fromkeys(("recipes/X/grpo/config_demo.yaml", "out/<run_name>/config.yaml"), RECIPE),
    **{"KEY": "training.beta", "THEIR_KEY": "gen_temperature", "key=value": "seed=1"},
}
"""Placeholders on the pages, and what replaces them."""


def make_workspace(root: Path, folder: Path) -> None:
    """Make the files that the pages mention."""
    (folder / "recipes").symlink_to(root / "recipes")
    for name in (RECIPE, "my_open_r1_recipe.yaml", "out/my_run/config.yaml", "out/a/config.yaml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("training:\n  max_steps: 3\n" if "open_r1" not in name else "max_steps: 3\n")
    (folder / "my_conf" / "model").mkdir(parents=True)
    (folder / "my_conf" / "main.yaml").write_text("seed: 1\n")
    (folder / "my_conf" / "model" / "mine.yaml").write_text(yaml.safe_dump({"name": "somebody/model"}))


def filled_in(given: list[str]) -> list[str]:
    """The words of a command with placeholders replaced; `…` is a recipe where there is no other."""
    return [PLACEHOLDERS.get(word, word) for word in given if word != "…" or "RECIPE" not in given]


def check_command(given: list[str], where: str) -> None:
    """Fail if the words of a `covey` command cannot be parsed, or compose no config."""
    words = filled_in(given)
    if words[0] not in COMPOSED:
        if words[0] == "eval":
            assert config_arguments.read_request(parse(words)).recipe is not None, where
        else:
            parse(words)
        return
    assert request_of(given).compose().config.model.name, where


def request_of(given: list[str]) -> Request:
    """What the words of a `covey` command request; of a sweep, its first job."""
    arguments = parse(filled_in(given))
    sweep = getattr(arguments, "multirun", False)
    arguments.words = [_first(word) for word in arguments.words] if sweep else arguments.words
    request = config_arguments.read_request(arguments)
    if sweep:  # settings of Hydra for sweeps are none of a run's
        request = dataclasses.replace(request, hydra=())
    return request


def covey_words(line: str) -> list[str]:
    """The words after `covey` in a shell line, whatever launches it; empty for another command."""
    words = shlex.split(line, comments=True)
    if words and words[0] in ("accelerate", "torchrun", "env"):
        words = words[words.index("covey") :] if "covey" in words else []
    return words[1:] if words and Path(words[0]).name == "covey" else []


def _first(word: str) -> str:
    """The first value of a sweep."""
    key, equals, values = word.partition("=")
    return f"{key}={values.split(',')[0]}" if equals and not values.startswith("[") else word
