"""The values of the rewards for correctness, format and length, worked out by hand."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from trl.rewards import think_format_reward

from corpus import Case, assert_verdicts, read_cases
from covey.answers import Outcome
from covey.rewards import Graded, RewardSettings, find, get_reward
from covey.rewards.library import answers, length
from covey.rewards.library.answers import think_format

DEFAULT = RewardSettings()
VALUES = read_cases(Path(__file__).with_name("values.jsonl"))
"""A case a line: with a gold answer where one is needed, the value, and the outcome of graders."""
TASK = VALUES["countdown"][0]["gold"]
GRAPH = VALUES["graph_coloring"][0]["gold"]
RIGHT, WRONG = "<answer>2</answer>", "<answer>3</answer>"


def values(name: str, completions: list[str], *, settings: RewardSettings = DEFAULT, **columns: Any) -> list[Any]:
    """The rewards of some completions of one prompt whose answer is 2."""
    columns = {"prompts": ["p"] * len(completions), "answer": ["2"] * len(completions)} | columns
    found: list[Any] = get_reward(name, settings)(completions=completions, **columns)
    return found


@pytest.mark.parametrize("kind", sorted(VALUES))
def test_values_and_outcomes(kind: str) -> None:
    def find_value(case: Case) -> Any:
        settings, gold = DEFAULT, {"answer": case["gold"]} if "gold" in case else {}
        if "n_grams" in case:
            settings = RewardSettings(repetition_n_grams=case["n_grams"], repetition_max_penalty=-1.0)
        columns = {name: [one] for name, one in gold.items()}
        (value,) = get_reward(kind, settings)(["p"], [case["completion"]], **columns)
        if not isinstance(case["verdict"], list):
            return value if value is None else round(value, 9)
        sample = find(kind, settings).sample
        assert sample is not None
        found = sample(case["completion"], gold)
        assert (found.value, found.mode) == (value, case.get("mode", found.mode)), case
        return [value, found.outcome]

    assert_verdicts(VALUES[kind], find_value)


@pytest.mark.parametrize(
    ("name", "completion", "gold", "value", "outcome"),
    [
        ("check_answer", f"<think>so</think>\n<answer>{'9' * 4000}</answer>", "10", -0.5, Outcome.WRONG),
        ("countdown", f"<answer>{'8+' * 600}8</answer>", TASK, 0.0, Outcome.UNPARSABLE_PREDICTION),
        ("countdown", "<answer>1+2</answer>", "[" * 100_000, None, Outcome.UNPARSABLE_GOLD),
        ("countdown", "<answer>(19+35)+44</answer>", {"numbers": (44, 19, 35), "target": 98}, 1.0, Outcome.RIGHT),
        ("graph_coloring", f"<answer>{'B=green ' * 1000}</answer>", GRAPH, 0.0, Outcome.UNPARSABLE_PREDICTION),
        ("graph_coloring", "<answer>A=red</answer>", "[" * 100_000, None, Outcome.UNPARSABLE_GOLD),
    ],
)
def test_what_is_too_long_for_a_line(
    name: str, completion: str, gold: Any, value: float | None, outcome: Outcome
) -> None:
    sample = find(name, DEFAULT).sample
    assert sample is not None
    found = sample(completion, {"answer": gold})
    assert (found.value, found.outcome) == (value, outcome)


def test_repetition_is_scaled() -> None:
    for case in VALUES["repetition_penalty"]:
        settings = RewardSettings(repetition_n_grams=case["n_grams"], repetition_max_penalty=-0.5)
        (found,) = values("repetition_penalty", [case["completion"]], settings=settings)
        assert found == pytest.approx(0.5 * case["verdict"]), case
        assert str(found) != "-0.0"


@pytest.mark.parametrize(
    ("outcome", "value"),
    [
        (Outcome.RIGHT, 1.0),
        (Outcome.WRONG, 0.0),
        (Outcome.UNEVALUATED, 0.0),
        (Outcome.UNPARSABLE_PREDICTION, 0.0),
        (Outcome.WRONG_FORM, 0.0),
        (Outcome.TIMED_OUT, 0.0),
        (Outcome.UNPARSABLE_GOLD, None),
        (Outcome.CRASHED, None),
    ],
)
def test_the_reward_of_every_outcome(monkeypatch: pytest.MonkeyPatch, outcome: Outcome, value: float | None) -> None:
    monkeypatch.setattr(answers, "grade_math", lambda *given, question: outcome)
    assert answers.accuracy(RIGHT, {"answer": "2"}, DEFAULT) == Graded(value, outcome)
    assert set(answers.VALUES) == set(Outcome)


def test_accuracy_does_mathematics() -> None:
    completions = [r"So it is \boxed{\frac{1}{2}}.", "<think>?</think><answer>0.5</answer>", r"\boxed{\frac{1}{3}}"]
    assert values("accuracy", completions, answer=["1/2"] * 3) == [1.0, 1.0, 0.0]
    assert values("accuracy", [r"\boxed{2}"], answer=[None]) == [None]


def test_think_format_is_that_of_trl() -> None:
    pieces = ["", " ", "\n", "<think>", "</think>", "a", "<answer>2</answer>", "<think", "x</think>\n"]
    texts = ["".join(parts) for count in (1, 2, 3, 4) for parts in itertools.product(pieces, repeat=count)]
    texts = sorted(set(texts))
    assert len(texts) > 2_000
    expected = think_format_reward([[{"role": "assistant", "content": text}] for text in texts])
    assert 50 < sum(expected) < len(texts) - 50
    assert [think_format(text, DEFAULT) for text in texts] == expected
    assert get_reward("think_format")(prompts=["?"] * len(texts), completions=texts) == expected


@pytest.mark.parametrize(
    ("characters", "right", "wrong"),
    [
        (0, 1.0, 0.0),
        (250, 0.5 + 0.25 * (1 + 2**-0.5), -0.25 * (1 - 2**-0.5)),  # cos(pi/4) = 1/sqrt(2)
        (500, 0.75, -0.25),
        (1000, 0.5, -0.5),
        (1001, 0.5, -0.5),
        (2000, 0.5, -0.5),  # where the cosine itself would be back at its start
    ],
)
def test_cosine_scaled_at_the_ends_and_in_between(characters: int, right: float, wrong: float) -> None:
    assert length.cosine_value(Graded(1.0), characters, DEFAULT) == pytest.approx(right)
    assert length.cosine_value(Graded(0.0), characters, DEFAULT) == pytest.approx(wrong)
    assert length.cosine_value(Graded(None), characters, DEFAULT) is None


def test_cosine_scaled_counts_characters_and_takes_its_parameters() -> None:
    settings = RewardSettings(
        cosine_min_value_wrong=-1.0,
        cosine_max_value_wrong=-0.2,
        cosine_min_value_correct=0.1,
        cosine_max_value_correct=2.1,
        cosine_max_len=100,
    )
    completions = [RIGHT.ljust(50), RIGHT.ljust(100), RIGHT.ljust(400), WRONG.ljust(50), WRONG.ljust(100), ""]
    expected = [1.1, 0.1, 0.1, -0.6, -0.2, -1.0]
    assert values("cosine_scaled", completions, settings=settings) == pytest.approx(expected)
    assert values("cosine_scaled", [RIGHT], answer=[None]) == [None]


def test_len_compares_the_completions_of_one_prompt() -> None:
    rows = [
        ("long", RIGHT.ljust(20), 0.5),
        ("long", RIGHT.ljust(30), 0.5 - 10 / 40),
        ("short", WRONG.ljust(20), 0.0),  # the shortest, but a wrong answer earns nothing
        ("short", RIGHT.ljust(30), -0.5),
        ("long", WRONG.ljust(50), 0.5 - 30 / 40),
        ("long", WRONG.ljust(60), -0.5),
        ("even", RIGHT, 0.0),
        ("even", WRONG, 0.0),
    ]
    prompts, completions, expected = map(list, zip(*rows, strict=True))
    assert values("len", completions, prompts=prompts) == pytest.approx(expected)
    talks = [[{"role": "user", "content": prompt}] for prompt in prompts]
    assert values("len", completions, prompts=talks) == pytest.approx(expected)
    assert values("len", [RIGHT, RIGHT + " ", RIGHT + "  "], answer=["2", None, "2"]) == [0.5, None, -0.5]


@pytest.mark.parametrize(
    ("tokens", "value"), [(0, 0.0), (80, 0.0), (81, -0.05), (90, -0.5), (100, -1.0), (101, -1.0), (999, -1.0)]
)
def test_soft_overlong(tokens: int, value: float) -> None:
    assert length.soft_overlong(tokens, limit=100, cache=20) == pytest.approx(value)


def test_soft_overlong_takes_the_limit_of_the_run_and_a_fifth_of_it() -> None:
    ids = [[7] * 80, [7] * 90, [7] * 100]
    of_run = RewardSettings(max_completion_length=100)
    own = RewardSettings(max_completion_length=100, soft_overlong_max_length=90, soft_overlong_cache=40)
    assert values("soft_overlong", [""] * 3, settings=of_run, completion_ids=ids) == [0.0, -0.5, -1.0]
    assert values("soft_overlong", [""] * 3, settings=own, completion_ids=ids) == [-0.75, -1.0, -1.0]


def test_what_empty_completions_earn_is_as_documented() -> None:
    words = " ".join(str(number) for number in range(1000))
    wrong, right = (
        f"<think>{words[: 1000 - len('<think></think>') - len(answer)]}</think>{answer}" for answer in (WRONG, RIGHT)
    )
    assert len(wrong) == len(right) == 1000
    page = Path(__file__).parents[2] / "docs" / "custom_rewards.md"
    table = page.read_text(encoding="utf-8").partition("## What an empty completion earns")[2].partition("## ")[0]
    documented = {}
    for row in re.findall(r"^\| (`.*)\|$", table, re.MULTILINE):
        names, *cells = row.split("|")
        documented |= {name: [float(cell) for cell in cells] for name in re.findall(r"`(\w+)`", names)}
    assert {"accuracy", "cosine_scaled", "len", "soft_overlong", "format", "repetition_penalty"} <= documented.keys()
    for name, expected in documented.items():
        ids = [[7] * tokens for tokens in (0, 512, 512)]
        assert values(name, ["", wrong, right], completion_ids=ids) == pytest.approx(expected), name


ADVERSARIAL = (
    *("<think>" * 30_000, "<answer>" * 30_000, "</think><answer>" * 15_000, "x<think>y" * 20_000),
    *("<think>a</think>" + "<answer>" * 20_000, "<think>a</think><answer>1" + "</answer>x" * 20_000),
    *(
        "\u4f60" * 200_000,
        "ab" * 100_000,
        "\n" * 200_000,
        " " * 200_000,
        "<answer>" + "9" * 200_000,
        "<answer>" + "-" * 200_000 + "</answer>",
    ),
    *("<answer>" + "(" * 100_000 + ")" * 100_000 + "</answer>", "\\boxed{" * 20_000, "1." * 100_000),
)


@pytest.mark.parametrize(
    "name",
    [
        *("exact_match", "format", "tag_count", "think_format", "reasoning_steps", "repetition_penalty"),
        *("match_format_exactly", "match_format_approximately", "check_answer", "check_numbers", "countdown"),
    ],
)
def test_long_texts_take_linear_time(name: str) -> None:
    gold = '{"numbers": [1, 2], "target": 3}' if name == "countdown" else "3"
    found = values(name, list(ADVERSARIAL), answer=[gold] * len(ADVERSARIAL))
    assert len(found) == len(ADVERSARIAL)
    assert max(found) < (3.0 if "match_format" not in name else 3.1)
