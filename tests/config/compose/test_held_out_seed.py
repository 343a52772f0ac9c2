"""`dataset.seed` of new configs, of runs from before it existed, and of runs that are resumed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from covey.config import Config, compose, load, to_yaml
from covey.config.live import condition, is_live
from covey.report.load import read_run


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def seeds(config: Config) -> tuple[int, int]:
    return config.seed, config.dataset.seed


def stored(run: str, *words: str, older: bool = True) -> Path:
    """A run's config, as an older version wrote it: without `dataset.seed`."""
    content = yaml.safe_load(to_yaml(load(words)))
    if older:
        del content["dataset"]["seed"]
    file = Path(run, "config.yaml")
    file.parent.mkdir(parents=True)
    file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return file


def test_a_new_config_has_its_own() -> None:
    Path("recipe.yaml").write_text("seed: 5\ndataset: {test_size: 3}\n", encoding="utf-8")
    assert seeds(load()) == (0, 0)
    assert seeds(load(["seed=3"])) == (3, 0)
    assert seeds(load(["seed=3", "dataset.seed=4"])) == (3, 4)
    assert seeds(load(recipe="recipe.yaml")) == (5, 0)
    assert yaml.safe_load(to_yaml(load(["seed=3"])))["dataset"]["seed"] == 0


def test_a_stored_config_without_the_key_means_its_seed() -> None:
    file = stored("out/old", "seed=3")
    for recipe in (file, file.parent):
        assert seeds(load(recipe=recipe)) == (3, 3)
        assert seeds(load(["seed=8"], recipe)) == (8, 3)  # the rows that the run has not been trained on
        assert seeds(load(["dataset.seed=0"], recipe)) == (3, 0)
    assert read_run(file.parent).config["dataset"]["seed"] == 3
    newer = stored("out/new", "seed=3", "dataset.seed=1", older=False)
    assert seeds(load(recipe=newer)) == (3, 1)
    assert read_run(newer.parent).config["dataset"]["seed"] == 1


@pytest.mark.parametrize("older", [True, False])
def test_another_dataset_for_a_stored_run_keeps_its_seed(older: bool) -> None:
    """The file may be the one that the run was trained on."""
    run = stored("out/run", "seed=3", *(() if older else ("dataset.seed=3",)), older=older)
    config = load(["dataset=gsm8k", "dataset.path=rows.jsonl"], run)
    assert (config.dataset.path, config.dataset.task, config.dataset.seed) == ("rows.jsonl", None, 3)


@pytest.mark.parametrize("older", [True, False])
def test_a_resumed_run_keeps_its_seed_unless_another_is_set(older: bool) -> None:
    stored("out/run", "seed=3", *(() if older else ("dataset.seed=3",)), older=older)
    for words in (["run_name=run"], ["run_name=run", "resume=true"], ["resume=out/run/checkpoint-5", "run_name=b"]):
        composed = compose(["seed=3", *words])
        assert seeds(composed.config) == (3, 3)
        assert "dataset.seed=3, as the run in out/run has it" in composed.notes
        assert seeds(load(["seed=3", "dataset.seed=0", *words])) == (3, 0)
    for words in (["run_name=other"], ["run_name=run", "overwrite=true"], ["run_name=run", "resume=false"], []):
        assert seeds(load(["seed=3", *words])) == (3, 0)


@pytest.mark.parametrize("text", ["seed: 3\ndataset: [", "dataset: 7\n", "", "seed: 3\ndataset:\n"])
def test_a_damaged_config_of_a_run_is_left_to_its_resume(text: str) -> None:
    Path("out/run").mkdir(parents=True)
    Path("out/run/config.yaml").write_text(text, encoding="utf-8")
    assert seeds(load(["seed=1", "run_name=run"])) in ((1, 0), (1, 3))


def test_the_key_is_explained_where_it_has_no_effect() -> None:
    sets = "dataset.mixture.datasets=[{path: a.jsonl}, {path: b.jsonl}]"
    config = load(["dataset=none", sets, "dataset.seed=4"])
    assert not is_live("dataset.seed", config)
    assert re.search(
        r"dataset\.mixture\.datasets is not set or dataset\.validation_fraction", condition("dataset.seed")
    )
    assert is_live("dataset.seed", load(["dataset=none", sets, "dataset.validation_fraction=0.1"]))
