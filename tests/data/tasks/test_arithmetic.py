"""The built-in task `arithmetic`: answers, disjoint splits, and the written method that the starter learns."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from covey.data.tasks.arithmetic import Difficulty, Problem
from covey.data.tasks.drawing import problems, take
from covey.errors import DataError
from covey.model.starter.styles import STYLE_SHARES, careful, document, hasty, steps

DIFFICULTIES = (
    Difficulty(),
    Difficulty(min_digits=1, max_digits=2),
    Difficulty(min_digits=5, max_digits=5),
    Difficulty(min_operands=2, max_operands=4, operators=("+", "-", "*"), allow_negative=True),
)


def test_drawing_rare_problems_is_given_up_soon() -> None:
    """Few draws in a thousand have a non-negative answer: two thousand of these take over a million draws."""
    rare = Difficulty(min_digits=2, max_digits=2, min_operands=5, max_operands=5, operators=("-",))
    with pytest.raises(DataError, match=r"gives only \d+ different train problems, but 2000 were requested"):
        take(rare, "train", 0, 2000)


def sorted_form(problem: Problem) -> str:
    """An independent key for equal problems: the order of sums and products does not matter."""
    if set(problem.operators) in ({"+"}, {"*"}):
        return problem.operators[0] + " ".join(map(str, sorted(problem.operands)))
    return problem.expression


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_answers_are_right_and_within_the_difficulty(difficulty: Difficulty) -> None:
    for problem in islice(problems(difficulty, "train", seed=3), 500):
        assert problem.answer == eval(problem.expression)
        assert problem.text == f"What is {problem.expression}?"
        assert difficulty.allow_negative or problem.answer >= 0
        assert difficulty.min_operands <= len(problem.operands) <= difficulty.max_operands
        assert set(problem.operators) <= set(difficulty.operators)
        assert all(difficulty.min_digits <= len(str(n)) <= difficulty.max_digits for n in problem.operands)


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_no_training_problem_is_held_out_with_any_seed(difficulty: Difficulty) -> None:
    sets = {
        split: {sorted_form(p) for seed in range(4) for p in islice(problems(difficulty, split, seed), 500)}
        for split in ("train", "test")
    }
    assert sets["train"]
    assert sets["test"]
    assert not sets["train"] & sets["test"]


def test_a_sum_and_its_reverse_are_one_problem() -> None:
    for a, b, c in islice(((i * 37 % 97, i * 53 % 89, i * 11 % 83) for i in range(400)), 400):
        assert Problem((a, b), ("+",)).split == Problem((b, a), ("+",)).split
        assert Problem((a, b, c), ("*", "*")).split == Problem((c, a, b), ("*", "*")).split
    unique = take(Difficulty(min_digits=1, max_digits=1, operators=("+",)), "train", seed=0, count=40, unique=True)
    assert len({sorted_form(p) for p in unique}) == 40


def test_about_one_problem_in_eight_is_held_out() -> None:
    pairs = [Problem((a, b), ("+",)) for a in range(100, 200) for b in range(a, 200)]
    share = sum(problem.split == "test" for problem in pairs) / len(pairs)
    assert 0.10 < share < 0.15  # 5,050 problems: the standard error is 0.005


def test_the_same_arguments_give_the_same_problems() -> None:
    first, again, other = (take(Difficulty(), "train", seed, 50) for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert take(Difficulty(), "train", 0, 20) == first[:20]


def test_the_error_of_an_exhausted_difficulty_counts_its_problems() -> None:
    """Two digits 0..9 make 55 sums; fewer are held out, and all of these can be drawn."""
    tiny = Difficulty(min_digits=1, max_digits=1, operators=("+",))
    everything = {split: list(problems(tiny, split, 0, unique=True)) for split in ("train", "test")}
    assert sum(map(len, everything.values())) == 55
    held_out = len(everything["test"])
    with pytest.raises(
        DataError, match=rf"gives only {held_out} different test problems, but {held_out + 1} were requested"
    ):
        take(tiny, "test", 0, held_out + 1, unique=True)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"min_digits": 3, "max_digits": 2}, "min_digits=3 and max_digits=2"),
        ({"min_digits": 0}, "min_digits=0"),
        ({"max_operands": 1}, "max_operands=1"),
        ({"operators": ("+", "/")}, r"operators=\['\+', '/'\]"),
        ({"operators": ()}, r"operators=\[\]"),
    ],
)
def test_impossible_difficulties(values: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Difficulty(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("problem", "lines"),
    [
        (Problem((478, 856), ("+",)), ["8+6=14", "7+5+1=13", "4+8+1=13"]),
        (Problem((503, 78), ("-",)), ["13-8=5", "10-7-1=2", "5-0-1=4"]),
        (Problem((7, 95), ("+",)), ["7+5=12", "0+9+1=10"]),
        (Problem((100, 1), ("-",)), ["10-1=9", "10-0-1=9", "1-0-1=0"]),
        (Problem((12, 12), ("-",)), ["2-2=0", "1-1=0"]),
    ],
)
def test_written_method(problem: Problem, lines: list[str]) -> None:
    assert steps(problem) == lines


def test_the_last_digits_of_the_written_method_are_the_answer() -> None:
    for problem in islice(problems(Difficulty(min_digits=1, max_digits=5), "train", 0), 500):
        results = [line.rpartition("=")[2] for line in steps(problem)]
        digits = results[-1] + "".join(result[-1] for result in reversed(results[:-1]))
        assert int(digits) == problem.answer == eval(problem.expression)
        for line in steps(problem):
            left, _, right = line.partition("=")
            assert eval(left) == int(right)


@pytest.mark.parametrize("problem", [Problem((1, 2, 3), ("+", "+")), Problem((2, 3), ("*",)), Problem((1, 2), ("-",))])
def test_no_written_method(problem: Problem) -> None:
    with pytest.raises(ValueError, match="no written method"):
        steps(problem)


def test_styles_are_drawn_by_their_shares_and_keep_to_their_kind() -> None:
    rng = random.Random(0)
    drawn = [(p, document(p, rng)) for p in islice(problems(Difficulty(), "train", 0), 2000)]
    for style, share in STYLE_SHARES.items():
        assert abs(sum(doc.style == style for _, doc in drawn) / len(drawn) - share) < 0.05
    for problem, doc in drawn:
        found = f"<answer>{problem.answer}</answer>" in doc.completion
        assert found if doc.style == "careful" else True
        assert not found if doc.style == "sloppy" else True
    guesses = [hasty(problem, rng) == hasty(problem, rng) for problem, _ in drawn[:50]]
    assert not all(guesses)
    assert careful(Problem((7, 95), ("+",))) == "<think>\n7+5=12\n0+9+1=10\n</think>\n<answer>102</answer>"
