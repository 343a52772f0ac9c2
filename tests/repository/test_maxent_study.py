"""The study in studies/maxent: when two answers count as one, what is counted, and the table that is made of it."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from covey.answers import Outcome
from covey.answers.tasks.countdown import evaluate
from covey.config import compose
from covey.rewards import RewardSettings
from covey.rewards.library.countdown import countdown

FOLDER = Path(__file__).resolve().parents[2] / "studies" / "maxent"


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The scripts, which find each other as neighbours in their folder."""
    monkeypatch.syspath_prepend(str(FOLDER))
    names = ("expressions", "measure", "tables", "task")
    return SimpleNamespace(**{name: load(name) for name in names})


def load(name: str) -> ModuleType:
    return importlib.import_module(name)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("3+5", "5 + 3", True),
        ("3-5", "5-3", False),
        ("8-(3-2)", "8-3+2", True),
        ("8-(3+2)", "8-3+2", False),
        ("2*(3+4)*5", "5*2*(4+3)", True),
        ("6/(3/2)", "6*2/3", True),
        ("6/3/2", "6/(3*2)", True),
        ("6/3/2", "6/(3/2)", False),
        ("(4-1)*(2-5)", "(1-4)*(5-2)", True),
        ("(4-1)*(2-5)", "(4-1)*(5-2)", False),
        ("8-3*(2-1)", "8+3*(1-2)", True),
        ("-(3-5)", "5-3", True),
        ("3-(2-2)", "3-2+2", True),
        ("(1+2)*3+4", "4+3*(2+1)", True),
        ("2*1", "2/1", False),
        ("2*3+2*4", "2*(3+4)", False),
        ("3+5=8", "05+3", True),
    ],
)
def test_one_answer_written_in_two_ways_counts_once(study: SimpleNamespace, one: str, other: str, same: bool) -> None:
    assert (study.expressions.canonical(one) == study.expressions.canonical(other)) is same


def test_equal_forms_have_equal_values(study: SimpleNamespace) -> None:
    """Of all expressions over a few shapes, those with one form have one value: the form loses nothing that counts."""
    shapes = ("a{0}b{1}c", "(a{0}b){1}c", "a{0}(b{1}c)", "-(a{0}b){1}c")
    values: dict[str, set[object]] = {}
    for shape in shapes:
        for first in "+-*/":
            for second in "+-*/":
                for order in ("752", "725", "572", "527", "275", "257"):
                    text = shape.format(first, second).translate(str.maketrans("abc", order))
                    values.setdefault(study.expressions.canonical(text), set()).add(evaluate(text)[0])
    assert all(len(found) == 1 for found in values.values())
    assert len(values) < len(shapes) * 16 * 6 / 2


@pytest.mark.parametrize("text", ["2**3", "a+1", "1.5+2", "", "1+", "f(2)", "True"])
def test_what_is_no_expression_is_refused(study: SimpleNamespace, text: str) -> None:
    with pytest.raises(ValueError, match="no arithmetic expression"):
        study.expressions.canonical(text)


def test_figures_of_graded_completions_by_hand(study: SimpleNamespace) -> None:
    texts = ["3+5", "5+3", "(5+3)", "4*2", "9-1"] + ["1"] * 11
    outcomes = [Outcome.RIGHT] * 5 + [Outcome.WRONG] * 11
    solved = [graded(0, text, outcome) for text, outcome in zip(texts, outcomes, strict=True)]
    unsolved = [graded(1, "1", Outcome.WRONG, truncated=True) for _ in range(16)]
    figures = study.measure.summarise(solved + unsolved)
    assert figures.accuracy == pytest.approx(5 / 32)
    assert figures.pass_at_8 == pytest.approx((1 - math.comb(11, 8) / math.comb(16, 8)) / 2)
    assert figures.distinct == pytest.approx(3 / 2)
    assert figures.truncated == pytest.approx(1 / 2)


def graded(problem: int, text: str, outcome: Outcome, *, truncated: bool = False) -> SimpleNamespace:
    completion = f"<think>\n</think>\n<answer>{text}</answer>"
    return SimpleNamespace(problem=problem, completion=completion, outcome=outcome, truncated=truncated)


def test_the_table_by_hand(study: SimpleNamespace, tmp_path: Path) -> None:
    tables = study.tables
    written = [
        tables.Result("start", -1, 0.2, 0.6, 1.0, 0.5, 0.0, 0.0),
        *(tables.Result("grpo", s, a, 0.7, 2.0, 0.30, 0.0, 60.0) for s, a in enumerate((0.40, 0.50, 0.60))),
        *(tables.Result("mle τ=1", s, a, 0.8, 2.5, 0.45, 0.0, 60.0) for s, a in enumerate((0.41, 0.52, 0.63))),
    ]
    file = tmp_path / "results.csv"
    tables.write_csv(written, file)
    results = tables.read_csv(file)
    assert results == written
    # t(2) = 4.3027: 0.5 ± 4.3027 · 0.1 / √3, and for the differences 0.02 ± 4.3027 · 0.01 / √3.
    spread = tables.over_seeds(results, "grpo", "accuracy")
    assert (spread.value, spread.low, spread.high) == pytest.approx((0.5, 0.25159, 0.74841), abs=1e-4)
    paired = tables.difference(results, "mle τ=1", "accuracy")
    assert (paired.value, paired.low, paired.high) == pytest.approx((0.02, -0.00484, 0.04484), abs=1e-4)
    lines = tables.page(results).splitlines()
    assert "| start |  | 20.0 | 60.0 | 1.00 | 0.500 |" in lines
    assert "| grpo | 3 | 50.0 [25.2, 74.8] | 70.0 [70.0, 70.0] | 2.00 [2.00, 2.00] | 0.300 [0.300, 0.300] |" in lines
    assert (
        "| mle τ=1 | +2.0 [-0.5, +4.5] | +10.0 [+10.0, +10.0] | +0.50 [+0.50, +0.50] | +0.150 [+0.150, +0.150] |"
        in lines
    )


def test_the_recipe_trains_on_the_problems_that_are_measured(study: SimpleNamespace) -> None:
    config = compose([f"model.name={FOLDER}"], str(FOLDER / "study.yaml"), []).config
    wanted, trained = study.task.DIFFICULTY, config.dataset.difficulty
    for key in ("min_digits", "max_digits", "min_operands", "max_operands", "operators", "allow_negative"):
        assert getattr(trained, key) == getattr(wanted, key), key
    assert config.training.max_completion_length == study.measure.MAX_LENGTH
    problem = study.task.held_out()[0]
    own = countdown(f"<answer>{problem.solution}</answer>", {"answer": problem.answer}, RewardSettings())
    assert own.outcome is Outcome.RIGHT


def test_the_committed_tables_belong_together(study: SimpleNamespace) -> None:
    results = study.tables.read_csv(FOLDER / "results.csv")
    assert (FOLDER / "results.md").read_text(encoding="utf-8") == study.tables.page(results)
