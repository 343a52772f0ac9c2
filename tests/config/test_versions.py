"""The ranges that a dry run knows without importing TRL are those that the installed TRL declares."""

from __future__ import annotations

from importlib.metadata import requires

from packaging.requirements import Requirement

from covey.config.keys import VLLM_RANGE


def test_the_range_of_vllm_is_that_of_trl() -> None:
    declared = next(one for one in map(Requirement, requires("trl") or []) if one.name == "vllm")
    bounds = {one.operator: tuple(map(int, one.version.split(".")[:2])) for one in declared.specifier}
    assert (bounds[">="], bounds["<="]) == VLLM_RANGE
