"""The built-in task `countdown`: its solutions reach the target by the rules, and its splits are disjoint."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from fractions import Fraction
from itertools import islice, permutations

import pytest

from covey import data
from covey.answers.tasks import countdown_modes
from covey.config import DatasetConfig, DifficultyConfig
from covey.data.tasks.countdown import OPERATORS, CountdownDifficulty, CountdownProblem
from covey.data.tasks.drawing import problems, take
from covey.errors import DataError

DIFFICULTIES = (
    CountdownDifficulty(),
    CountdownDifficulty(min_digits=2, max_digits=3, min_operands=2, max_operands=2),
    CountdownDifficulty(min_operands=5, max_operands=6),
    CountdownDifficulty(operators=("-", "/"), allow_negative=True),
)
APPLY = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: Fraction(a, b),
}


def value(node: ast.expr, met: list[Fraction]) -> Fraction:
    """The value of an expression, by this file's own arithmetic; every intermediate value is added to `met`."""
    if isinstance(node, ast.Constant):
        return Fraction(node.value)
    assert isinstance(node, ast.BinOp)
    met.append(APPLY[type(node.op)](value(node.left, met), value(node.right, met)))
    return met[-1]


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_the_known_solution_reaches_the_target_with_every_number_once(difficulty: CountdownDifficulty) -> None:
    seen: Counter[str] = Counter()
    for problem in islice(problems(difficulty, "train", seed=3), 400):
        met: list[Fraction] = []
        assert value(ast.parse(problem.solution, mode="eval").body, met) == problem.target
        assert all(step.denominator == 1 for step in met), problem.solution
        if not difficulty.allow_negative:
            assert all(step > 0 for step in met), problem.solution
        used = [int(word) for word in re.findall(r"\d+", problem.solution)]
        assert sorted(used) == sorted(problem.numbers)
        assert difficulty.min_operands <= len(used) <= difficulty.max_operands
        assert all(difficulty.min_digits <= len(str(n)) <= difficulty.max_digits for n in used)
        assert abs(problem.target) <= max(99, 10**difficulty.max_digits - 1)
        assert problem.target >= 1 or difficulty.allow_negative
        seen.update(re.findall(r"[-+*/]", problem.solution))
    assert set(seen) == set(difficulty.operators)


def test_parentheses_only_where_they_are_needed() -> None:
    for problem in islice(problems(CountdownDifficulty(min_operands=3, max_operands=5), "train", seed=0), 300):
        bare = problem.solution.replace("(", "").replace(")", "")
        if bare != problem.solution:
            for start in (i for i, c in enumerate(problem.solution) if c == "("):
                end = closing(problem.solution, start)
                without = problem.solution[:start] + problem.solution[start + 1 : end] + problem.solution[end + 1 :]
                tree = ast.dump(ast.parse(without))
                assert tree != ast.dump(ast.parse(problem.solution)), problem.solution


def closing(text: str, start: int) -> int:
    depth = 0
    for i in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0:
            return i
    raise AssertionError(text)


def test_the_splits_are_disjoint_for_all_seeds_and_orders_of_the_numbers() -> None:
    sets = {
        split: {(tuple(sorted(p.numbers)), p.target) for s in range(4) for p in islice(problems(d, split, s), 400)}
        for split in ("train", "test")
        for d in [CountdownDifficulty(max_digits=1)]
    }
    assert sets["train"]
    assert sets["test"]
    assert not sets["train"] & sets["test"]
    for numbers in permutations((3, 7, 25)):
        assert CountdownProblem(numbers, 28, "", ()).split == CountdownProblem((3, 7, 25), 28, "", ()).split


def test_the_same_seed_gives_the_same_problems() -> None:
    assert take(CountdownDifficulty(), "train", 5, 50) == take(CountdownDifficulty(), "train", 5, 50)
    assert take(CountdownDifficulty(), "train", 5, 50) != take(CountdownDifficulty(), "train", 6, 50)
    unique = take(CountdownDifficulty(max_digits=1, max_operands=3), "test", 0, 60, unique=True)
    assert len({problem.canonical for problem in unique}) == 60


def test_rows() -> None:
    config = DatasetConfig(
        task="countdown",
        train_size=40,
        test_size=10,
        hard_size=5,
        system_prompt="Think.",
        difficulty=DifficultyConfig(min_digits=1, max_digits=2, min_operands=3, max_operands=4, operators=("+", "*")),
        hard_difficulty=DifficultyConfig(min_digits=1, max_digits=2, min_operands=5, max_operands=5),
    )
    loaded = data.load(config, seed=1)
    sizes = {name: len(rows) for name, rows in loaded.evaluation.items()}
    assert (len(loaded.train), sizes) == (40, {"test": 10, "hard": 5})
    for rows in (loaded.train, *loaded.evaluation.values()):
        assert rows.column_names == ["prompt", "answer", "solution"]
        for row in rows:
            answer = json.loads(row["answer"])
            assert list(answer) == ["numbers", "target"]
            assert eval(row["solution"]) == answer["target"]
            system, user = row["prompt"]
            assert system == {"role": "system", "content": "Think."}
            numbers = [int(word) for word in re.findall(r"\d+", user["content"])]
            assert numbers == [answer["target"], *answer["numbers"]]
    assert "with + * and parentheses" in loaded.train[0]["prompt"][1]["content"]
    assert {len(json.loads(text)["numbers"]) for text in loaded.evaluation["hard"]["answer"]} == {5}
    assert data.load(config, seed=1).train.to_list() == loaded.train.to_list()


def test_the_error_of_an_impossible_difficulty_names_its_key() -> None:
    tiny = DifficultyConfig(min_digits=1, max_digits=1, operators=("+",))
    with pytest.raises(
        DataError, match=r"^dataset\.test_size=100: countdown with 2 to 2 numbers .* only \d+ different"
    ):
        data.load(DatasetConfig(task="countdown", test_size=100, difficulty=tiny), seed=0)
    with pytest.raises(DataError, match=r"^dataset\.difficulty: min_digits=2 and max_digits=7 do not fit together"):
        data.load(DatasetConfig(task="countdown", difficulty=DifficultyConfig(max_digits=7)), seed=0)
    with pytest.raises(DataError, match=r"^dataset\.difficulty: operators=.* is not a list of arithmetic operators"):
        data.load(DatasetConfig(task="arithmetic", difficulty=DifficultyConfig(operators=("/",))), seed=0)


def test_problems_with_a_bounded_number_of_answers() -> None:
    config = DatasetConfig(
        task="countdown",
        train_size=60,
        test_size=20,
        single_size=10,
        difficulty=DifficultyConfig(
            min_digits=1, max_digits=1, min_operands=3, max_operands=4, operators=OPERATORS, min_modes=2, max_modes=16
        ),
    )
    loaded = data.load(config, seed=0)
    for rows, least, most in (
        (loaded.train, 2, 16),
        (loaded.evaluation["test"], 2, 16),
        (loaded.evaluation["single"], 1, 1),
    ):
        counts = [len(countdown_modes(answer) or ()) for answer in rows["answer"]]
        assert min(counts) >= least
        assert max(counts) <= most
    assert len(loaded.evaluation["single"]) == 10


def test_answers_are_counted_for_at_most_five_numbers() -> None:
    CountdownDifficulty(max_operands=6)
    with pytest.raises(DataError, match="set max_operands=5 or fewer, not 6"):
        CountdownDifficulty(max_operands=6, min_modes=2)


def test_a_file_of_problems_replaces_drawn_ones(shared_data: object) -> None:
    config = DatasetConfig(
        task="countdown",
        path=f"{shared_data}/countdown_tinyzero_train.jsonl",
        test_path=f"{shared_data}/countdown_tinyzero_test.jsonl",
    )
    loaded = data.load(config, seed=0)
    assert (len(loaded.train), len(loaded.evaluation["test"])) == (8001, 256)
    assert json.loads(loaded.train[0]["answer"]) == {"numbers": [44, 19, 35], "target": 98}
    assert loaded.train[0]["solution"] == "35 + (44 + 19)"
    assert all(json.loads(answer)["numbers"] for answer in loaded.train["answer"])
