"""The user's own rewards and grader are called once before anything is trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from checked_runs import refused, words
from covey.cli.main import main
from covey.config import load
from covey.training.checks.findings import Mark, PreflightFinding
from covey.training.doctor import examine

FUNCTIONS = """
import json

def raises(completions, answer, **kwargs):
    return [json.loads(completion[0]["content"])["value"] for completion in completions]

def too_few(completions, **kwargs):
    return [1.0]

def not_numbers(completions, **kwargs):
    return ["good"] * len(completions)

def nothing(completions, **kwargs):
    return [None] * len(completions)

def groups_of_four(prompts, completions, completion_ids, trainer_state, log_metric, **kwargs):
    assert len(completions) == 8 and prompts[0] == prompts[3] != prompts[4]
    assert trainer_state.global_step == 0 and all(completion_ids)
    log_metric("seen", 1.0)
    return [0.25 if "</think>" in completion[0]["content"] else 0.0 for completion in completions]

def right(completions, answer, **kwargs):
    return [float(f">{a}<" in completion[0]["content"]) for completion, a in zip(completions, answer)]

def counts(completions, **kwargs):
    with open(CALLS, "a") as file:
        file.write("called\\n")
    return [0.0] * len(completions)
"""


@pytest.fixture
def own(tmp_path: Path) -> Callable[[str], str]:
    (tmp_path / "own.py").write_text(FUNCTIONS.replace("CALLS", repr(str(tmp_path / "calls"))))
    return lambda name: f"{tmp_path / 'own.py'}:{name}"


def found(folder: Path, *overrides: str) -> list[PreflightFinding]:
    config = load(words(folder, "training.max_completion_length=64", *overrides))
    return [one for one in examine(config) if one.key == "reward_calls" or "own.py" in one.check]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raises", "a trial call with 8 completions failed: it raised JSONDecodeError"),
        ("too_few", "failed: it returned 1 rewards for 8 completions"),
        ("not_numbers", "it returned 'good' (of type str), which is neither a finite number nor None"),
    ],
)
def test_a_function_that_fails_stops_the_run(
    name: str, message: str, own: Callable[[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refused(tmp_path, capsys, f"rewards.funcs=['{own(name)}']")
    assert f"reward {own(name)}: " in error
    assert message in error
    assert "'ignore_checks=[reward_calls]' trains all the same" in error


def test_what_the_functions_gave(own: Callable[[str], str], tmp_path: Path) -> None:
    funcs = f"rewards.funcs=[exact_match,'{own('groups_of_four')}','{own('right')}']"
    checks = found(tmp_path, funcs)
    assert [(one.mark, one.result) for one in checks] == [
        (Mark.FINE, "a trial call with 8 completions gave 0.25"),
        (Mark.FINE, "a trial call with 8 completions gave 1"),
    ]


def test_no_reward_at_all_is_a_warning(own: Callable[[str], str], tmp_path: Path) -> None:
    (one,) = found(tmp_path, f"rewards.funcs=['{own('nothing')}']")
    assert (one.mark, "gave no value" in one.result) == (Mark.WARNING, True)


def test_failures_that_the_run_skips_are_a_warning(own: Callable[[str], str], tmp_path: Path) -> None:
    (one,) = found(tmp_path, f"rewards.funcs=['{own('raises')}']", "rewards.on_error=skip")
    assert one.mark is Mark.WARNING
    assert "rewards.on_error=skip" in one.advice


def test_the_grader_is_called_too_and_rows_need_no_answers(own: Callable[[str], str], tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"Say {n}."}) + "\n" for n in range(40)))
    data = (f"dataset.path={rows}", f"rewards.funcs=['{own('nothing')}']")
    checks = found(tmp_path, *data, f"evaluation.grader={own('groups_of_four')}")
    assert [one.check.partition(" ")[0] for one in checks] == ["grader", "reward"]
    assert [one.mark for one in checks] == [Mark.FINE, Mark.WARNING]


def test_it_is_called_once(own: Callable[[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--quiet", *words(tmp_path, f"rewards.funcs=['{own('counts')}']")]) == 0
    assert (tmp_path / "calls").read_text() == "called\n"
    assert capsys.readouterr().err == ""
