"""Grading against the project's own cases, and against public corpora: labelled cases of other graders, labelled model
outputs, gold answers of datasets.

The project's own have a case a line: completions in `cases.jsonl`, with the question where it matters, and as verdict
an outcome, or `not_right` where any but `right` will do; pairs of answers in `pairs.jsonl`; what is found in a text in
`texts.jsonl`. benchmarks/grading_corpora.md lists every disagreement with a public corpus and its
reason; a disagreement that is not listed there fails. What agrees is told at the end of the run (see conftest.py).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from corpus import Case, assert_verdicts, disagreements, read_cases
from covey.answers import (
    Outcome,
    Tags,
    answers_agree,
    canonical_number,
    extract_answer_tag,
    extract_boxed,
    extract_gsm8k,
    extract_prediction,
    grade_exact,
    grade_math,
    has_reasoning_format,
    has_think_format,
    holds_gold_value,
    repeats_prompt,
)
from covey.answers.maths.expression import parse
from covey.answers.maths.value import NoValueError, evaluate
from covey.rewards import get_reward
from load_scripts import load_script

HERE = Path(__file__).parent
OWN, PAIRS, TEXTS = (read_cases(HERE / f"{name}.jsonl") for name in ("cases", "pairs", "texts"))
Agreement = Callable[[str, int, int], None]


@pytest.fixture
def agreement(record_property: Callable[[str, object], None]) -> Agreement:
    """Tells at the end of the run how many cases of a corpus agree."""
    return lambda corpus, agreed, count: record_property("graded", [corpus, agreed, count])


@pytest.mark.parametrize("kind", sorted(OWN))
def test_own_cases(kind: str, agreement: Agreement) -> None:
    """The grader, and the reward made of it, which has to share its verdict."""

    def find(case: Case) -> str:
        question, completion, gold = case.get("question", ""), case["completion"], case["gold"]
        found = grade_math(completion, gold, question=question)
        (reward,) = get_reward("accuracy")(prompts=[question], completions=[completion], answer=[gold])
        assert (reward == 1) is (found is Outcome.RIGHT)
        return "not_right" if case["verdict"] == "not_right" and found is not Outcome.RIGHT else found.value

    wrong = disagreements(OWN[kind], find)
    agreement("own cases", len(OWN[kind]) - len(wrong), len(OWN[kind]))
    assert not wrong, "".join(wrong)


@pytest.mark.parametrize("kind", sorted(PAIRS))
def test_pairs_of_answers(kind: str) -> None:
    """Bare, in a box, in tags, and the other way round."""

    def find(case: Case) -> str:
        gold, answer = case["gold"], case["completion"]
        found = [answers_agree(answer, gold), grade_math(rf"So it is $\boxed{{{answer}}}$.", gold)]
        if kind in ("same", "different"):
            found.append(grade_math(f"<think>…</think><answer>{answer}</answer>", gold))
        if kind == "different":
            assert answers_agree(gold, gold) is Outcome.RIGHT
            found.append(answers_agree(gold, answer))
        if case["verdict"] == "right":
            agrees = set(found) == {Outcome.RIGHT}
        else:
            others = (Outcome.WRONG,) if case["verdict"] == "wrong" else (Outcome.WRONG, Outcome.UNPARSABLE_PREDICTION)
            agrees = found[0] in others and Outcome.RIGHT not in found
        return case["verdict"] if agrees else ", ".join(found)

    assert_verdicts(PAIRS[kind], find)


def value(case: Case, no_value: tuple[type[Exception], ...], **more: Any) -> object:
    """The verdict is a fraction, or why there is none."""
    node = parse(case["completion"])
    if node is None:
        return "no expression"
    try:
        found = evaluate(node, **more)
    except no_value:
        return "none"
    return case["verdict"] if case["verdict"][-1].isdigit() and found == Fraction(case["verdict"]) else found


READ: dict[str, Callable[[Case], Any]] = {
    "answer tag": lambda case: extract_answer_tag(case["completion"]),
    "boxed": lambda case: extract_boxed(case["completion"]),
    "gsm8k": lambda case: extract_gsm8k(case["completion"]),
    "stated answer": lambda case: extract_prediction(case["completion"]),
    "number": lambda case: canonical_number(case["completion"]),
    "reasoning format": lambda case: has_reasoning_format(case["completion"]),
    "think format": lambda case: has_think_format(case["completion"]),
    "exact grade": lambda case: grade_exact(case["completion"], case["gold"]).value,
    "repeats the prompt": lambda case: repeats_prompt(case["completion"], case["question"], case["gold"]),
    "holds the gold value": lambda case: holds_gold_value(case["completion"], case["gold"]),
    "value": lambda case: value(case, (NoValueError, KeyError)),
    "value at x = 2": lambda case: value(case, (), at={"x": Fraction(2)}),
    "value with i": lambda case: value(case, (NoValueError,), imaginary=True),
}


@pytest.mark.parametrize("kind", sorted(TEXTS))
def test_what_is_read_in_a_text(kind: str) -> None:
    assert_verdicts(TEXTS[kind], READ[kind])


def test_long_thinking_that_is_not_closed_states_nothing() -> None:
    assert extract_prediction("<think>" + "x " * 60_000 + "The answer is 5") is None
    assert extract_prediction("<think>" + "x " * 60_000 + "</think>The answer is 5") == "5"


def test_statements_are_read_in_the_configured_tags() -> None:
    tags = Tags("reasoning", "result")
    assert extract_prediction("<reasoning>6</reasoning><result>The answer is 5.</result>", tags) == "5"
    assert extract_prediction("<result>1</result> or <result>2</result>", tags) == "1, 2"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """It has the corpora and the reasons."""
    return load_script("scripts/grading_report.py")


def test_labelled_cases_of_public_graders(script: ModuleType, shared_data: Path, agreement: Agreement) -> None:
    cases = script.rows(shared_data / "graders" / "pairs.jsonl")
    clean = [i for i, case in enumerate(cases) if not case["suspect"]]
    wrong = set(script.disagreements(cases)) & set(clean)
    assert wrong == set(script.PAIRS), "run scripts/grading_report.py and say why"
    assert len(wrong) <= 0.03 * len(clean)
    agreement("graders/pairs.jsonl, rows without suspect labels", len(clean) - len(wrong), len(clean))


def test_bare_boxed_and_tagged_answers_get_the_same_grade(script: ModuleType, shared_data: Path) -> None:
    """The cases that compare two bare answers; a backslash at the end would escape the closing brace of a box."""
    for case in script.rows(shared_data / "graders" / "pairs.jsonl"):
        prediction = case["prediction"]
        if case["source"].endswith("#equiv") and prediction and not prediction.endswith("\\"):
            bare = grade_math(prediction, case["gold"]) is Outcome.RIGHT
            for form in script.FORMS:
                graded = grade_math(form.replace("%s", prediction), case["gold"])
                assert (graded is Outcome.RIGHT) is bare, (case, form)


@pytest.mark.parametrize("name", ["gsm8k_model_outputs.jsonl", "model_outputs.jsonl"])
def test_labelled_model_outputs(script: ModuleType, shared_data: Path, agreement: Agreement, name: str) -> None:
    """Each source agrees, but for the rows that the script lists with a reason."""
    cases = script.rows(shared_data / "graders" / name)
    assert len(cases) >= 2000
    wrong = script.disagreements(cases)
    counts, missed = (Counter(script.source(cases[i]) for i in rows) for rows in (range(len(cases)), wrong))
    for source, count in sorted(counts.items()):
        agreement(f"{name}: {source}", count - missed[source], count)
    listed = {row for file, row in script.OUTPUTS if file == name}
    assert set(wrong) == listed, "run scripts/grading_report.py and say why"


@pytest.mark.parametrize("name", ["math500_test.jsonl", "aime24.jsonl", "amc23.jsonl"])
def test_every_gold_answer_scores(script: ModuleType, shared_data: Path, name: str) -> None:
    _all_score(script, shared_data, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gsm8k_train.jsonl", "gsm8k_test.jsonl", "deepscaler_10k.jsonl"])
def test_every_gold_answer_of_the_large_sets_scores(script: ModuleType, shared_data: Path, name: str) -> None:
    _all_score(script, shared_data, name)


def _all_score(script: ModuleType, shared_data: Path, name: str) -> None:
    answers = script.gold_answers(shared_data, name)
    assert len(answers) >= 30
    assert all(answers)
    listed = [row for file, row in script.GOLD if file == name]
    assert script.misses(answers) == listed, "run scripts/grading_report.py and say why"


@pytest.mark.parametrize("name", ["math500_test.jsonl", "aime24.jsonl", "amc23.jsonl"])
def test_every_gold_answer_can_be_read(script: ModuleType, shared_data: Path, name: str) -> None:
    """An answer that cannot be read scores too, where the completion states the same text."""
    assert script.unreadable(script.gold_answers(shared_data, name)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gsm8k_train.jsonl", "gsm8k_test.jsonl", "deepscaler_10k.jsonl"])
def test_gold_answers_of_the_large_sets_can_be_read(script: ModuleType, shared_data: Path, name: str) -> None:
    answers = script.gold_answers(shared_data, name)
    assert len(script.unreadable(answers)) <= (0.002 * len(answers) if name == "deepscaler_10k.jsonl" else 0)


def test_answers_in_natural_wordings(script: ModuleType, shared_data: Path) -> None:
    """A right answer is right in any wording, and a wrong one wrong."""
    answers = script.gold_answers(shared_data, "math500_test.jsonl")[::10]
    count, missed, rewarded = script.in_natural_wordings(answers)
    assert count >= 2_000
    assert rewarded == []
    assert len(missed) <= 0.001 * count, missed


@pytest.mark.slow
def test_no_gold_answer_takes_any_answer(script: ModuleType, shared_data: Path) -> None:
    """Every answer that is not a whole number, against two that it cannot equal: these reach all rules."""
    slowest = 0.0
    for name in ("math500_test.jsonl", "deepscaler_10k.jsonl"):
        for answer in sorted({a for a in script.gold_answers(shared_data, name) if not a.lstrip("-").isdigit()}):
            for other in ("987654", "x^{17}+7"):
                started = time.perf_counter()
                outcome: Any = grade_math(f"<answer>{other}</answer>", answer)
                slowest = max(slowest, time.perf_counter() - started)
                assert outcome in (Outcome.WRONG, Outcome.UNPARSABLE_GOLD), answer
    print(f"slowest {slowest:.2f} s")


def test_the_documentation_lists_every_reason(script: ModuleType, root: Path) -> None:
    text = (root / "benchmarks" / "grading_corpora.md").read_text(encoding="utf-8")
    for row, reason in script.PAIRS.items():
        assert f"| {row} |" in text
        assert reason in text
    for (name, row), reason in (*script.GOLD.items(), *script.OUTPUTS.items()):
        assert f"| {name} | {row} | {reason} |" in text
