"""`covey doctor` finds what is wrong, and a sound run passes.

Pinned here: the shipped run has nothing wrong; each kind of trouble (stop tokens, empty or wrong answers, leakage, too
little context, memory) is found and named.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from covey import data
from covey.answers import Outcome, Tags
from covey.answers.tasks import MODES
from covey.cli.main import main
from covey.config import load
from covey.errors import ConfigError
from covey.model.load import load_tokenizer
from covey.rewards import RewardSettings, find
from covey.training.checks.data import check_tokens, gold_completion
from covey.training.checks.findings import CHECKS, Mark, PreflightFinding, Stage, check, worst
from covey.training.doctor import examine

SMALL = ["dataset.train_size=64", "dataset.test_size=8", "dataset.hard_size=0"]


def found(overrides: list[str]) -> dict[str, PreflightFinding]:
    return {finding.check: finding for finding in examine(load([*SMALL, *overrides]))}


def test_a_sound_run_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *SMALL]) == 0
    out = capsys.readouterr().out
    assert "a prompt, as the model will see it" in out
    assert "What is" in out
    assert "0 wrong" in out


def test_a_listed_check_is_made_at_its_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads what is known by then; what it yields and raises are lines of the table, in the order of the stages."""
    monkeypatch.setattr("covey.training.examination.CHECKS", listed := [*CHECKS])
    monkeypatch.setattr("covey.training.checks.findings.CHECKS", listed)

    def planted(stage: Stage, *attributes: str) -> None:
        @check(f"planted {stage.name}", stage)
        def look(known: Any) -> Iterator[PreflightFinding]:
            """A planted one."""
            assert all(getattr(known, name) is not None for name in attributes)
            yield PreflightFinding(Mark.FINE, f"planted {stage.name}", "looked")
            raise ConfigError("and refused")

    needs = {Stage.MODEL: ("prompts",), Stage.MODEL_CONFIG: ("source", "tokenizer", "model"), Stage.DATA: ("loaded",)}
    for stage in reversed(Stage):
        planted(stage, "config", "run", *needs.get(stage, ()))
    lines = [(f.check, f.mark) for f in examine(load(SMALL)) if f.check.startswith("planted")]
    assert lines == [(f"planted {stage.name}", mark) for stage in Stage for mark in (Mark.FINE, Mark.WRONG)]
    assert listed[-1].doc == "A planted one."


def test_every_listed_check_has_a_name_of_its_own_and_says_what_it_looks_at() -> None:
    assert len({(check.name, check.stage) for check in CHECKS}) == len(CHECKS) >= 12
    assert {check.stage for check in CHECKS} == set(Stage)
    assert all(check.doc for check in CHECKS)


def test_wrong_answers_leakage_and_duplicates_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"problem": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(40)]
    rows += [rows[0]] * 3
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:5]))
    data = [f"dataset.path={tmp_path / 'train.jsonl'}", f"dataset.test_path={tmp_path / 'test.jsonl'}"]
    findings = {f.check: f for f in examine(load([*data, "model=starter"]))}
    assert findings["duplicates"].mark is Mark.WARNING
    assert findings["duplicates"].result.startswith("3 of 43")
    assert "5 of the 5 held-out problems" in findings["data"].result
    assert worst(list(findings.values())) is Mark.WARNING

    rows = [{"problem": f"What is {n} + 1?", "answer": f"{n}</answer>"} for n in range(40)]  # cannot be matched
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["doctor", data[0], "dataset.test_size=0", "model=starter"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "40 of 40 gold answers do not score full marks" in out
    assert "also rows 3, 4," in out
    assert "28, 29 and more" in out


@pytest.mark.parametrize(
    ("question", "words", "warned"),
    [
        ("What is {} + 1?", ["model=starter"], False),
        ("Please work this out:\\n({} - 12) * 3 =", ["model=starter"], False),
        ("Anna has {} apples, and Tom gives her 3 - 1 of his own basket. How many?", ["model=starter"], True),
        ("城市{}在哪里?", ["model=starter"], True),
        ("Where is town {}?", ["model=starter", "dataset=gsm8k", "dataset.prompt_column=problem"], True),
    ],
)
def test_rows_of_which_the_starter_knows_nothing_are_a_warning(
    question: str, words: list[str], warned: bool, tmp_path: Path
) -> None:
    rows = [{"problem": question.format(n), "answer": f"#### {n}"} for n in range(40)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = load([*words, f"dataset.path={tmp_path / 'train.jsonl'}", "rewards=math"])
    findings = [f for f in examine(config) if f.check == "starter"]
    assert [(f.mark, "model.name=Qwen/Qwen2.5-0.5B-Instruct" in f.advice) for f in findings] == [
        (Mark.WARNING, True)
    ] * warned


def test_another_model_and_problems_of_a_task_are_not_the_starters_affair(tiny_model: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"prompt": "Town {n}?", "answer": {n}}}\n' for n in range(40)))
    for words in ([f"dataset.path={tmp_path / 'rows.jsonl'}", f"model.name={tiny_model}"], ["dataset=countdown"]):
        assert [f for f in examine(load([*words, *SMALL])) if f.check == "starter"] == []


def test_gold_answers_that_cannot_be_parsed_are_listed(tmp_path: Path) -> None:
    rows = [{"problem": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(40)]
    rows[7]["answer"] = "see the figure below, please"
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = [f"dataset.path={tmp_path / 'train.jsonl'}", "dataset.test_size=0", "model=starter"]
    findings = [f for f in examine(load([*data, "rewards=math"])) if f.check == "accuracy on train"]
    assert [f.mark for f in findings] == [Mark.FINE, Mark.WARNING]
    assert "1 of 40 gold answers cannot be read as mathematics (row 7: 'see the figure" in findings[1].result


def test_a_template_that_ends_with_no_stop_token_is_found() -> None:
    config = load(SMALL)
    tokenizer = load_tokenizer(config.model)
    known: Any = SimpleNamespace(config=config, tokenizer=tokenizer)
    assert [f.mark for f in check_tokens(known)] == [Mark.FINE]
    other = next(token for token in tokenizer.all_special_tokens if token != tokenizer.eos_token)
    tokenizer.chat_template = str(tokenizer.chat_template).replace(tokenizer.eos_token, other)
    wrong = list(check_tokens(known))
    assert wrong[0].mark is Mark.WRONG
    assert other in wrong[0].result


def test_too_little_context_and_too_little_memory_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = found(["training.max_completion_length=2040"])
    assert findings["lengths"].mark is Mark.WRONG
    assert "dataset.max_prompt_length=8" in findings["lengths"].advice
    monkeypatch.setattr("covey.training.checks.data.available_memory", lambda: (10**6, "a toaster"))
    findings = found([])
    assert findings["memory"].mark is Mark.WRONG
    assert "a toaster" in findings["memory"].result
    assert "all of these tokens are special ones" in found(["model.reasoning_vocab_size=3"])["reasoning"].result
    assert "4 reasoning tokens, 1 of them usable" in found(["model.reasoning_vocab_size=4"])["reasoning"].result


def test_the_gold_completion_is_in_the_runs_own_tags() -> None:
    row: dict[str, Any] = {"answer": "7", "solution": "3 + 4"}
    assert gold_completion(row, Tags("reasoning", "final"), "accuracy").endswith("<final>7</final>")
    assert gold_completion(row, Tags(), "countdown").endswith("<answer>3 + 4</answer>")


@pytest.mark.parametrize("grader", sorted(MODES))
def test_the_gold_completion_of_a_task_is_one_of_its_right_answers(grader: str) -> None:
    """Its answer is the task itself: with a solution that is given, else with the first of all right answers."""
    sample = find(grader, RewardSettings()).sample
    assert sample is not None
    dataset = load([f"dataset={grader}", *SMALL, "dataset.train_size=4"]).dataset
    for row in data.load(dataset, 0).train:
        for own in (row, {"answer": row["answer"]}):
            assert sample(gold_completion(own, Tags(), grader), own).outcome is Outcome.RIGHT
