"""A user's own objective: its class by name, its settings checked before anything else; how an object is recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor

from covey.config.values import option
from covey.errors import ConfigError
from covey.objective import GRPO, MaxEnt, Objective
from covey.objective.interface import adapted, check_objective, needs_of, passer
from covey.objective.registry import RECORDED, load, make_own, record
from own_objective import RunningBaseline

if TYPE_CHECKING:
    from pathlib import PurePath

FILE = """
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass
class Fields:
    weight: float
    passes: int = 2
    names: tuple[str, ...] = ()
    limit: float | None = field(default=None)
    mode: Literal["a", "b"] = "a"

    def advantages(self, **given):
        return given["rewards_PG"] * self.weight, {}


class NoObjective:
    def __init__(self, weight: float = 1.0):
        self.weight = weight


class Failing(Fields):
    def __init__(self, weight=1.0):
        raise ValueError(f"no {weight} here")


def function():
    pass
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FILE, encoding="utf-8")
    return path


class Plain:
    """Settings are the keyword arguments of the constructor."""

    def __init__(self, *, weight: float, mode: str = "a", root: PurePath | None = None, sizes: Sequence[int] = ()):
        self.weight, self.mode, self.root, self.sizes = weight, mode, root, sizes

    def advantages(self, rewards_PG: Tensor, mask_PG: Tensor, **_: Any) -> Any:
        return self.weight * rewards_PG, {}


def test_a_dataclass_takes_its_fields(file: Path) -> None:
    made: Any = load(f"{file}:Fields", {"weight": 3, "names": ["a", "b"], "limit": "1e-3"})
    assert (made.weight, made.passes, made.names, made.limit) == (3, 2, ("a", "b"), 0.001)


def test_a_class_with_settings_gets_an_instance_of_them() -> None:
    made: Any = make_own(RunningBaseline, {"decay": 0.75}, "m:RunningBaseline")
    assert made.settings == RunningBaseline.Settings(decay=0.75, start=0.25)


def test_any_other_class_takes_keyword_arguments() -> None:
    made: Any = make_own(Plain, {"weight": 0.5, "sizes": [1, 2]}, "m:Plain")
    assert (made.weight, made.mode, made.sizes) == (0.5, "a", [1, 2])
    with pytest.raises(ConfigError, match=r"settings\.weight=much has the wrong type"):
        make_own(Plain, {"weight": "much"}, "m:Plain")


@pytest.mark.parametrize(
    ("name", "settings", "text"),
    [
        ("Fields", {}, r"objective\.settings\.weight is missing, and .*mine\.py:Fields needs it: set it to a number"),
        (
            "Fields",
            {"weight": 1, "pases": 3},
            r"settings\.pases is not a setting of .*mine\.py:Fields, which",
        ),
        ("Fields", {"weight": 1, "pases": 3}, r"has weight, passes, names, limit, mode\. Did you mean passes\?"),
        ("Fields", {"weight": "much"}, r"objective\.settings\.weight=much has the wrong type: it must be a number\."),
        ("Fields", {"weight": 1, "passes": 1.5}, r"settings\.passes=1\.5 .*an integer\. \(A setting of .*:Fields\.\)"),
        ("Fields", {"weight": 1, "limit": True}, r"settings\.limit=true .*a number or null"),
        ("Fields", {"weight": 1, "mode": "c"}, r"settings\.mode=c is not possible: it must be one of a, b\."),
        ("NoObjective", {}, r"mine\.py:NoObjective is not an objective: the class has no method advantages"),
        ("function", {}, r"mine\.py:function is not a class but of type function"),
        (
            "Failing",
            {"weight": 2},
            r"settings=.* cannot make .*:Failing: ValueError: no 2 here \(.*mine\.py",
        ),
        ("Feilds", {}, r"objective\.name: .*mine\.py has no Feilds; it has Fields"),
    ],
)
def test_what_is_wrong_is_named(file: Path, name: str, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        load(f"{file}:{name}", settings)


def test_bounds_are_checked() -> None:
    @dataclass
    class Bounded(Objective):
        weight: float = option(1.0, above=0)
        mode: str = option("a", choices=("a", "b"))

        def advantages(self, *_: Any, **__: Any) -> Any: ...

    wrong: list[tuple[dict[str, Any], str]] = [
        ({"weight": 0}, "weight=0 is out of range: it must be above 0"),
        ({"mode": "c"}, "one of a, b"),
    ]
    for settings, text in wrong:
        with pytest.raises(ConfigError, match=text):
            make_own(Bounded, settings, "m:Bounded")
    with pytest.raises(ConfigError, match="abstract class"):
        make_own(Objective, {}, "m:Objective")


# -- What the interface asks for


def test_the_least_that_an_objective_has() -> None:
    class Least:
        def advantages(self, **given: Any) -> Any:
            return given["rewards_PG"], {}

    check_objective(Least())
    assert needs_of(Least()) == frozenset()
    given = {"ref_logps_PG": None, "policy_logps_PG": None, "lengths_PG": None, "beta": 0.0}
    assert passer(Least())(rewards_PG=1, mask_PG=2, **given) == (1, {})
    assert adapted(Least(), loss_type="grpo", num_generations=4, max_completion_length=8).advantages


def test_names_of_its_own_for_the_first_two_arguments() -> None:
    class Named:
        def advantages(self, rewards: Any, mask: Any, **_: Any) -> Any:
            return rewards, mask

    given = {"ref_logps_PG": None, "policy_logps_PG": None, "lengths_PG": None, "beta": 0.0}
    assert passer(Named())(rewards_PG=1, mask_PG=2, **given) == (1, 2)


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        (
            {"advantages": lambda self, rewards_PG, mask_PG: None},
            r"cannot be called .* def advantages\(self, ",
        ),
        (
            {"advantages": GRPO.advantages, "needs": frozenset({"rewards"})},
            "frozenset of correct, modes, policy, reference, reference_logps",
        ),
        (
            {"advantages": GRPO.advantages, "needs": None},
            "frozenset of correct, modes, policy, reference, reference_logps",
        ),
        (
            {"advantages": GRPO.advantages, "needs": "policy"},
            "frozenset of correct, modes, policy, reference, reference_logps",
        ),
        ({"advantages": GRPO.advantages, "state_dict": dict}, "has state_dict alone"),
    ],
)
def test_objectives_that_cannot_be_used(broken: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        check_objective(type("Broken", (), broken)())


def test_a_class_in_place_of_an_object() -> None:
    with pytest.raises(ConfigError, match="is the class GRPO itself, not an instance"):
        check_objective(GRPO)


def test_for_run_gets_what_it_takes() -> None:
    class Old(GRPO):
        def for_run(self, *, loss_type: str, num_generations: int) -> Any:  # type: ignore[override]
            self.seen = (loss_type, num_generations)
            return self

    class Forgets(GRPO):
        def for_run(self, **run: Any) -> Any:
            self.seen = run

    run: dict[str, Any] = {"loss_type": "dapo", "num_generations": 4, "max_completion_length": 9}
    assert adapted(Old(), **run).seen == ("dapo", 4)
    forgets = Forgets()
    with pytest.raises(ConfigError, match="for_run of Forgets returned of type NoneType has no method advantages"):
        adapted(forgets, **run)
    assert forgets.seen == run
    broken = type("Broken", (GRPO,), {"for_run": lambda self, **_: 1 / 0})()
    with pytest.raises(ConfigError, match="objective Broken failed in for_run: ZeroDivisionError: division by zero"):
        adapted(broken, **run)


# -- Recording what `covey.train` was given


def test_one_of_coveys_is_recorded_by_its_keys() -> None:
    keys, settings = record(MaxEnt(tau=0.7, fit="mle"))
    assert settings == {}
    assert (keys["objective.name"], keys["objective.maxent_tau"], keys["objective.maxent_fit"]) == (
        "maxent",
        0.7,
        "mle",
    )
    assert record(GRPO()) == ({"objective.name": "grpo"}, {})


def test_ones_own_is_recorded_by_what_makes_it_again(file: Path) -> None:
    name = {"objective.name": f"{__name__}:Plain"}
    assert record(Plain) == (name, None)
    assert record(Plain(weight=2.0, sizes=(1, 2))) == (
        name,
        {"weight": 2.0, "mode": "a", "root": None, "sizes": (1, 2)},
    )
    own = RunningBaseline(RunningBaseline.Settings(decay=0.1))
    assert record(own) == ({"objective.name": "own_objective:RunningBaseline"}, {"decay": 0.1, "start": 0.25})
    from_file: Any = load(f"{file}:Fields", {"weight": 1.0})
    keys, found = record(from_file)
    assert keys == {"objective.name": f"{file}:Fields"}
    assert load(keys["objective.name"], found or {}) == from_file


def test_else_by_its_text() -> None:
    class Lacking(Plain):
        def __init__(self, weight: float) -> None:
            self.twice = 2 * weight

        def __repr__(self) -> str:
            return f"<twice {self.twice} at 0x7f00aa>"

    _, settings = record(Lacking(1.5))
    assert settings == {RECORDED: "<twice 3.0>"}
    assert record(Plain(weight=np.float64(0.5)))[1] == {"weight": 0.5, "mode": "a", "root": None, "sizes": ()}
    of_a_tensor: Any = Plain(weight=torch.ones(2))  # type: ignore[arg-type]
    assert record(of_a_tensor)[1] == {RECORDED: f"<{__name__}.Plain object>"}
    with pytest.raises(ConfigError, match=r"covey\.train\(objective=…\) as a Python object, which cannot be made"):
        load("m:Lacking", settings or {})
    with pytest.raises(ConfigError, match="resume by the same call, or put the class into a file"):
        load("__main__:Plain", {"weight": 1.0})


def test_settings_in_a_mapping(file: Path) -> None:
    class Nested:
        def __init__(self, by_name: Mapping[str, float], **more: Any) -> None:
            self.by_name, self.more = by_name, more

        def advantages(self, **_: Any) -> Any: ...

    made: Any = make_own(Nested, {"by_name": {"a": 1, "b": "0.5"}, "other": [1]}, "m:Nested")
    assert (made.by_name, made.more) == ({"a": 1, "b": 0.5}, {"other": [1]})
