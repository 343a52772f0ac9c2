"""For any mix of config files, choices and keys, the resolved config is the one that Hydra composes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from tests.support import config_trees

from covey.config import Config, compose
from covey.config.compose.build import build
from covey.errors import ConfigError


def difference(seed: int, folder: Path) -> str:
    """What differs between Covey's config and Hydra's; empty when they agree."""
    case = config_trees.make(seed)
    mine, theirs = folder / "mine", folder / "theirs"
    for root in (mine, theirs):
        root.mkdir()
        case.write(root)
    expected: Config | str
    try:
        expected = build(case.reference(theirs))
    except (HydraException, OmegaConfBaseException, ConfigError) as error:
        expected = f"{type(error).__name__}: {error}"
    recipe = folder / "recipe.yaml" if case.recipe is not None else None
    try:
        found: Config | str = compose(case.words, recipe, [mine], config_name=case.primary).config
    except ConfigError as error:
        found = f"ConfigError: {error}"
    shutil.rmtree(folder)
    if isinstance(expected, Config) and expected == found:
        return ""
    if isinstance(expected, str) and isinstance(found, str):
        return "both refused" if "\n" not in found else f"several lines: {found}"
    return f"seed {seed}: {case}\nHydra: {expected}\nCovey: {found}"


def check(seeds: range, folder: Path) -> None:
    found = []
    for seed in seeds:
        (folder / str(seed)).mkdir()
        found.append(difference(seed, folder / str(seed)))
    refused = found.count("both refused")
    assert refused < 0.2 * len(found)
    wrong = [text for text in found if text not in ("", "both refused")]
    assert not wrong, f"{len(wrong)} of {len(found)}: {wrong[0]}"


def test_random_trees_compose_as_with_hydra(tmp_path: Path) -> None:
    check(range(24), tmp_path)


@pytest.mark.slow
@pytest.mark.long
def test_many_random_trees_compose_as_with_hydra(tmp_path: Path) -> None:
    check(range(100, 250), tmp_path)
