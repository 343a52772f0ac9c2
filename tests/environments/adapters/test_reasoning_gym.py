"""reasoning-gym's tasks as environments, with the real library."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

from commands import TINY
from covey.cli.main import main
from covey.environments.contract import EnvironmentSource, check_environment, load_environment, tool_methods
from covey.errors import EnvironmentSetupError


def test_without_the_library_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(EnvironmentSetupError, match=r"not installed.*\[reasoning-gym\]"):
        load_environment(EnvironmentSource("reasoning_gym:chain_sum"))


@pytest.mark.adapter("reasoning_gym")
def test_an_episode() -> None:
    settings = {"min_terms": 2, "max_terms": 2, "min_digits": 2, "max_digits": 2}
    environment = load_environment(EnvironmentSource("reasoning_gym:chain_sum", settings))()
    check_environment(environment, "here")
    assert tool_methods(type(environment)) == ["submit_answer"]
    random.seed(5)
    first = environment.reset(prompt="ignored")  # type: ignore[attr-defined]
    assert environment.get_reward() == 0.0  # type: ignore[attr-defined]
    answer = sum_of(first)
    assert environment.submit_answer(str(answer)) == "The answer is handed in."  # type: ignore[attr-defined]
    assert environment.get_reward() == 1.0  # type: ignore[attr-defined]
    assert environment.submit_answer("0") == "No further answer is accepted."  # type: ignore[attr-defined]
    assert environment.get_reward() == 1.0  # type: ignore[attr-defined]
    random.seed(5)
    assert environment.reset() == first  # type: ignore[attr-defined]
    assert environment.get_reward() == 0.0  # type: ignore[attr-defined]
    assert environment.reset(seed=1) == environment.reset(seed=1)  # type: ignore[attr-defined]
    assert environment.reset(seed=1) != environment.reset(seed=2)  # type: ignore[attr-defined]


def sum_of(question: str) -> int:
    """The answer, by reading the question: "…: 12 + 34 - 5 =\n\n…"."""
    words = question.partition(":")[2].partition("=")[0].split()
    numbers = [int(word) for word in words[::2]]
    return numbers[0] + sum(n if sign == "+" else -n for sign, n in zip(words[1::2], numbers[1:], strict=True))


@pytest.mark.slow
@pytest.mark.adapter("reasoning_gym")
@pytest.mark.parametrize(
    "words",
    [
        ("environment.factory=reasoning_gym:chain_sum", "environment.settings={max_terms: 2}"),
        ("dataset=reasoning_gym", "dataset.task=chain_sum", "dataset.settings={max_terms: 2}"),
        ("dataset=reasoning_gym", "environment=calculator"),
    ],
    ids=["environment", "data", "data with a tool"],
)
def test_trained_with_and_evaluated_by_the_commands(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", *words, "run_name=gym", *TINY]) == 0
    assert main(["eval", "out/gym"]) == 0
    metrics = [json.loads(line) for line in Path("out/gym/metrics.jsonl").read_text().splitlines()]
    name = "ReasoningGym" if words[0].startswith("environment") else "reasoning_gym"
    assert any("eval/accuracy" in line and f"eval/reward/{name}" in line for line in metrics)


@pytest.mark.adapter("reasoning_gym")
def test_several_attempts_are_told_whether_they_are_right() -> None:
    make = load_environment(EnvironmentSource("reasoning_gym:chain_sum", {"attempts": 2}))
    environment = make()
    answer = sum_of(environment.reset(seed=3))  # type: ignore[attr-defined]
    assert environment.submit_answer("none") == "That is not right. You may try again, 1 more."  # type: ignore[attr-defined]
    assert environment.submit_answer(f"{answer}") == "That is right."  # type: ignore[attr-defined]
    assert environment.get_reward() == 1.0  # type: ignore[attr-defined]


@pytest.mark.adapter("reasoning_gym")
@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("chain_sums", {}, "no task chain_sums. Did you mean chain_sum"),
        ("chain_sum", {"attempts": 0}, "attempts=0 must be"),
        ("chain_sum", {"min_term": 3}, "does not take the settings.*It has the settings min_terms, max_terms"),
        ("chain_sum", {"min_terms": 30}, "max_terms must be >= min_terms"),
        ("chain_sum", {"seed": 30}, "seed is not a setting"),
    ],
)
def test_what_does_not_fit(name: str, settings: dict[str, int], said: str) -> None:
    with pytest.raises(EnvironmentSetupError, match=said):
        load_environment(EnvironmentSource(f"reasoning_gym:{name}", settings))
