"""The meters of `scripts/meters.py` stay at or below their ceilings, and light commands load nothing heavy."""

from __future__ import annotations

import ast
import sys

import yaml

from load_scripts import load_script

meters = load_script("scripts/meters.py")


def test_nothing_rises() -> None:
    ceilings = yaml.safe_load(meters.CEILINGS.read_text(encoding="utf-8"))
    measured = dict(meters.held())
    assert measured.keys() == ceilings.keys()
    above = [
        f"{name}: {value}, ceiling {ceilings[name]}"
        for name, value in measured.items()
        if meters.above(value, ceilings[name])
    ]
    assert above == [], "see CONTRIBUTING, Meters"
    heavy = {name: set(value) & meters.HEAVY for name, value in measured.items() if isinstance(value, list)}
    assert set().union(*heavy.values()) == set(), heavy
    assert measured["files of a step"] > 20
    assert measured["files of a key"] > 5
    assert all(value > 10 for name, value in measured.items() if name.startswith("modules of"))


def test_a_meter_sees() -> None:
    assert meters.above(3, 2)
    assert not meters.above(2, 2)
    assert meters.above(["torch", "yaml"], ["yaml"])
    assert not meters.above([], ["yaml"])
    swapping = ast.parse("with replaced(a, 'b', c): setattr(a, 'b', c)")
    assert [meters._swaps(f"{folder}/a.py", swapping) for folder in ("training", "training/trl", "model")] == [1, 2, 0]
    from covey.advice import command

    entered = meters.Entered()
    sys.setprofile(entered)
    try:
        command("covey runs {folder}", folder="a b")
        meters.above(1, 2)
    finally:
        sys.setprofile(None)
    assert entered.files == ["advice.py"]
    assert entered.named >= 1
