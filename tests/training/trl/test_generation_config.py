"""The model's `generation_config.json` has no effect on training: what it sets, `generate` would fill in."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from covey import GRPOTrainer
from covey.config import SpeedConfig, load
from covey.runlog.directory import RunDirectory
from covey.training.asynchronous.settings import Asynchronous
from covey.training.build import trl_config
from trainers import build_trainer

OPTIONS: dict[str, Any] = {
    "min_p": 0.5,
    "temperature": 0.1,
    "top_k": 3,
    "repetition_penalty": 5.0,
    "typical_p": 0.2,
    "epsilon_cutoff": 0.003,
    "eta_cutoff": 0.01,
    "no_repeat_ngram_size": 1,
    "suppress_tokens": list(range(20, 120)),
    "begin_suppress_tokens": list(range(20, 120)),
    "bad_words_ids": [[token] for token in range(20, 120)],
    "sequence_bias": [[[30], 50.0]],
    "forced_eos_token_id": 1,
    "exponential_decay_length_penalty": [1, 50.0],
    "stop_strings": ["a", "e", "1"],
    "min_new_tokens": 6,
    "num_beams": 2,
    "max_time": 0.0,
}
ALONE = ("min_p", "suppress_tokens", "no_repeat_ngram_size", "typical_p")
ENGINES: dict[str, dict[str, Any]] = {
    "own": {},
    "generate": {"more": {"speed": SpeedConfig(shared_prefill=False)}},
    "generate-logprobs": {"more": {"speed": SpeedConfig(shared_prefill=False), "sampler_gap": True}},
}


@pytest.fixture(scope="module")
def models(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The tiny model with all of these options in its generation config, or with one."""
    found = {}
    for name in ("all", *ALONE):
        values = OPTIONS if name == "all" else {name: OPTIONS[name]}
        folder = tmp_path_factory.mktemp(name)
        shutil.copytree(tiny_model, folder, dirs_exist_ok=True)
        file = folder / "generation_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **values}))
        found[name] = str(folder)
    return found


def completions(model: str, folder: Path, **settings: Any) -> list[Any]:
    settings = {"max_steps": 1, "save_strategy": "no", **settings}
    trainer = build_trainer(GRPOTrainer, model, folder, prompts=2, **settings)
    trainer.train()
    return list(trainer.latest_completions["completion"])


@pytest.mark.parametrize("engine", ENGINES)
def test_what_the_file_sets_changes_no_completion(
    tiny_model: str, models: dict[str, str], tmp_path: Path, engine: str
) -> None:
    expected = completions(tiny_model, tmp_path / "plain", **ENGINES[engine])
    for name, model in models.items():
        assert completions(model, tmp_path / name, **ENGINES[engine]) == expected, name


@pytest.mark.slow
@pytest.mark.long
def test_nor_in_a_rollout_process(tiny_model: str, models: dict[str, str], tmp_path: Path) -> None:
    ahead = {"more": {"asynchronous": Asynchronous(staleness=1)}}
    found = [completions(model, tmp_path / name, **ahead) for name, model in (("plain", tiny_model), *models.items())]
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize("name", ALONE)
def test_what_is_asked_for_by_a_key_of_training_counts(
    tiny_model: str, models: dict[str, str], tmp_path: Path, name: str
) -> None:
    """And alone. So the options above would have shown."""
    asked = {"generation_kwargs": {name: OPTIONS[name]}}
    found = completions(models["all"], tmp_path / "asked", **asked)
    assert found == completions(tiny_model, tmp_path / "alone", **asked)
    assert found != completions(tiny_model, tmp_path / "plain")


def test_it_is_named_once_and_saved_as_it_was(
    models: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        trainer = build_trainer(GRPOTrainer, models["all"], tmp_path, prompts=2, max_steps=2, min_p=0.5)
        trainer.train()
    (text,) = [one.getMessage() for one in caplog.records if "generation_config.json" in one.getMessage()]
    assert all(f"{name}=" in text for name in OPTIONS.keys() - {"min_p"})
    assert "min_p=" not in text  # the same as training's
    saved = json.loads((tmp_path / "checkpoint-2" / "generation_config.json").read_text())
    assert {name: saved[name] for name in OPTIONS} == OPTIONS


def test_nothing_is_named_without_it(tiny_model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        build_trainer(GRPOTrainer, tiny_model, tmp_path, prompts=2, max_steps=1)
    assert "generation_config" not in caplog.text


def test_the_key_asks_for_all_of_it(models: dict[str, str], tmp_path: Path) -> None:
    words = [f"model.name={models['all']}", "model.use_generation_config=true", f"output_dir={tmp_path}"]
    args, notes = trl_config(load(words), RunDirectory(tmp_path))
    assert (args.min_p, args.temperature, args.top_k, args.repetition_penalty) == (0.5, 0.1, 3, 5.0)
    five = {"min_p", "temperature", "top_k", "repetition_penalty"}
    assert args.generation_kwargs.keys() == OPTIONS.keys() - five
    assert any("typical_p=0.2" in note for note in notes)
    only = [f"model.name={models['suppress_tokens']}", *words[1:]]
    assert trl_config(load(only), RunDirectory(tmp_path))[0].generation_kwargs == {
        "suppress_tokens": OPTIONS["suppress_tokens"]
    }
    args, _ = trl_config(load([*words, "training.staleness=1"]), RunDirectory(tmp_path))
    assert args.generation_kwargs is None
