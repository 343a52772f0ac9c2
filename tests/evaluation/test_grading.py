"""The grader of held-out answers: which one a run has, what it finds right, and the rewards beside it, by hand."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerState

from covey.answers import Outcome, Tags
from covey.config import Config, compose
from covey.errors import ConfigError, RewardError
from covey.evaluation.grading import (
    HeldOutGrader,
    answer_asked_by,
    check_columns_for,
    check_evaluation,
    grade_batch,
    grader_name,
    grader_of_rewards,
    grader_settings,
    weighted_reward,
)
from covey.evaluation.metrics import compute_metrics
from covey.evaluation.run import summarise
from covey.rewards.registry import GRADERS, IMPLIED_GRADERS, REGISTRY
from covey.rewards.runner import RewardRunner
from covey.rollout import Completion

OWN = """
def letters(prompts, completions, **kwargs):
    texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
    return [None if "?" in text else float(len(text)) for text in texts]

def logs(completions, completion_ids, trainer_state, log_metric, log_extra, kind, **kwargs):
    log_metric("mine", 1.0)
    log_extra("column", [1] * len(completions))
    assert trainer_state.global_step == 0
    return [len(ids) if k == "long" else None for ids, k in zip(completion_ids, kind)]

def judged(prompts, completions, answer, **kwargs):
    return [1.0 if wanted in c[-1]["content"] else 0.25 for c, wanted in zip(completions, answer)]

def raises(completions, **kwargs):
    raise ValueError("not today")

def moded(completions, log_extra, **kwargs):
    texts = [c[-1]["content"] for c in completions]
    log_extra("mode", [text.lower() if len(text) == 2 else None for text in texts])
    return [float(len(text) == 2) for text in texts]

def badly(completions, log_extra, **kwargs):
    log_extra("mode", [7] * len(completions))
    return [1.0] * len(completions)
"""
CONVERSATION = [{"role": "user", "content": "How many?"}]
FIRST, SECOND = "ab", "<think>x</think><answer>7</answer>"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "own.py"
    file.write_text(OWN, encoding="utf-8")
    return file


def config(*words: str) -> Config:
    return compose(["rewards.workers=0", *words]).config


def graded(settings: Config, rows: list[dict[str, Any]], texts: list[str], *, rewarded: bool = True) -> list[Any]:
    runner = RewardRunner.of(settings.rewards, max_completion_length=16)
    grade = HeldOutGrader(settings, runner, grader_name(settings), rewarded, TrainerState())
    made = [Completion(list(range(len(text))), truncated=False, text=text) for text in texts]
    batch = [(index, 0, row) for index, row in enumerate(rows)]
    with runner:
        return grade_batch(batch, made, grade=grade, tags=Tags(), prompt_prefix="")


def test_which_grader_a_run_has() -> None:
    assert grader_name(config()) == "exact_match"
    for funcs, expected in {
        ("accuracy", "format"): "accuracy",
        ("accuracy", "exact_match"): "exact_match",
        ("exact_match", "countdown"): "countdown",
        ("pure_accuracy_math",): "exact_match",
        ("accuracy_reward", "cosine"): "accuracy",
        ("match_format_exactly", "check_answer", "check_numbers"): "accuracy",
        ("len",): "accuracy",
        ("cosine_scaled",): "accuracy",
        ("format", "tag_count", "soft_overlong", "repetition_penalty"): None,
        ("mine.py:judge",): None,
        ("mine.py:judge", "format"): None,
        ("mine.py:judge", "accuracy"): "accuracy",
    }.items():
        assert grader_of_rewards(funcs) == expected, funcs
    assert grader_name(config("rewards.funcs=[format]", "evaluation.grader=accuracy_reward")) == "accuracy"
    assert grader_name(config("evaluation.grader=a.py:b")) == "a.py:b"
    assert {*GRADERS} < {*REGISTRY}
    assert {*IMPLIED_GRADERS.values()} < {*GRADERS}


def test_every_reward_that_reads_answers_implies_a_grader(own: Path) -> None:
    for name in REGISTRY:
        asked = answer_asked_by(config(f"rewards.funcs=[{name}]"))
        other_columns = name in ("reasoning_gym", "code", "binary_code", "cf_code")
        assert (name in IMPLIED_GRADERS) == (asked is not None or other_columns), name
    assert answer_asked_by(config(f"rewards.funcs=['{own}:letters']")) is None
    assert answer_asked_by(config(f"rewards.funcs=['{own}:letters', '{own}:judged']")) == f"the reward {own}:judged"
    by_grader = config(f"rewards.funcs=['{own}:letters']", "evaluation.grader=exact_match")
    assert answer_asked_by(by_grader) == "the grader exact_match (evaluation.grader)"


@pytest.mark.parametrize("workers", [0, 1])
def test_an_own_grader_and_rewards_by_hand(own: Path, workers: int) -> None:
    settings = compose(
        [
            f"rewards.workers={workers}",
            f"rewards.funcs=['{own}:logs', '{own}:letters']",
            "training.reward_weights=[0.5, 10]",
            f"evaluation.grader='{own}:letters'",
            "evaluation.right_at=3",
        ]
    ).config
    rows = [{"prompt": CONVERSATION, "kind": kind} for kind in ("long", "short", "long", "short")]
    found = graded(settings, rows, ["ab", "abc", "abcd?", "?"])
    assert [one.rewards for one in found] == [
        {"logs": 2.0, "letters": 2.0},
        {"logs": None, "letters": 3.0},
        {"logs": 5.0, "letters": None},
        {"logs": None, "letters": None},
    ]
    assert [one.reward for one in found] == [0.5 * 2 + 10 * 2, 30.0, 2.5, None]
    assert [one.outcome for one in found] == ["wrong", "right", "unparsable_gold", "unparsable_gold"]
    assert [one.partial for one in found] == [False, True, False, False]
    assert found[0].answer is None
    result = summarise(found)
    assert result.metrics() | {"accuracy": 0.25, "reward": (21 + 30 + 2.5) / 3} == result.metrics()
    assert result.metrics()["grader/unparsable_gold"] == 0.5  # an evaluation says what it could not grade
    assert result.rewards == {"logs": 3.5, "letters": 2.5}
    again = compute_metrics([asdict(one) for one in found])
    assert (again["reward"].value, again["reward"].low) == (result.metrics()["reward"], result.metrics()["reward_low"])
    assert again["reward/letters"].value == 2.5
    assert again["reward/letters"].low < 2.5 < again["reward/letters"].high
    assert again["grader/unparsable_gold"].value == 0.5
    assert grader_settings(settings, f"{own}:letters") == {"grader": f"{own}:letters", "right_at": 3.0}


def test_a_grader_that_is_no_reward_reads_the_answers(own: Path) -> None:
    settings = config("rewards.funcs=[format]", f"evaluation.grader='{own}:judged'", "evaluation.right_at=0.5")
    rows = [{"prompt": CONVERSATION, "answer": "7"}] * 2
    found = graded(settings, rows, [FIRST, SECOND])
    assert [one.outcome for one in found] == ["wrong", "right"]
    assert [one.rewards for one in found] == [{"format": 0.0}, {"format": 1.0}]
    lenient = config("rewards.funcs=[format]", f"evaluation.grader='{own}:judged'", "evaluation.right_at=0.25")
    assert [one.outcome for one in graded(lenient, rows, [FIRST, SECOND])] == ["right", "right"]
    with_text = [{"prompt": "How many?"}]
    assert graded(config(f"rewards.funcs=['{own}:letters']"), with_text, ["abc"])[0].reward == 3.0


def test_without_a_grader_there_is_no_accuracy(own: Path) -> None:
    found = graded(config(f"rewards.funcs=['{own}:letters']"), [{"prompt": CONVERSATION}] * 2, ["ab", SECOND])
    assert [one.outcome for one in found] == [None, None]
    assert [one.extracted for one in found] == ["ab", "7"]
    assert not any(one.partial for one in found)
    result = summarise(found)
    assert result.accuracy is None
    assert set(result.metrics()) == {
        *("reward", "reward_low", "reward_high", "reward/letters", "format", "completion_length", "truncated"),
        "completions/repeats_prompt",
    }
    stored = compute_metrics([asdict(one) for one in found] * 2)  # two completions of each problem
    plain = {"reward", "reward/letters", "format", "truncated", "completion_length"}
    assert set(stored) == {*plain, "completions/repeats_prompt"}


def test_a_built_in_grader_decides_as_before() -> None:
    """The default: the last answer tag alone decides; the reward also wants the whole format."""
    rows = [{"prompt": CONVERSATION, "answer": "7"}] * 3
    found = graded(config(), rows, ["<answer>7.0</answer>", SECOND, "7"])
    assert [one.outcome for one in found] == ["right", "right", "unparsable_prediction"]
    assert [one.rewards["exact_match"] for one in found] == [0.0, 1.0, 0.0]
    plain = graded(config(), rows, ["<answer>7.0</answer>", SECOND, "7"], rewarded=False)
    assert [(one.outcome, one.reward, one.rewards) for one in plain] == [(one.outcome, None, {}) for one in found]
    countdown = '{"numbers": [2, 3], "target": 5}'
    found = graded(
        config("rewards.funcs=[countdown]"),
        [{"prompt": CONVERSATION, "answer": countdown}] * 2,
        ["<answer>2 + 3</answer>", "<answer>5</answer>"],
    )
    assert [one.outcome for one in found] == ["right", "wrong"]
    assert summarise(found).metrics()["reward/countdown"] == 0.5


def test_what_fails_on_held_out_rows_follows_on_error(own: Path) -> None:
    rows = [{"prompt": CONVERSATION}] * 2
    with pytest.raises(RewardError, match=r"The reward raises failed: it raised ValueError: not today .*on_error=skip"):
        graded(config(f"rewards.funcs=['{own}:raises']"), rows, ["a", "b"])
    both = [f"rewards.funcs=['{own}:letters','{own}:raises']", "rewards.on_error=skip"]
    found = graded(config(*both), rows, ["a", "bb"])
    assert [one.rewards for one in found] == [{"letters": 1.0, "raises": None}, {"letters": 2.0, "raises": None}]
    assert [one.reward for one in found] == [1.0, 2.0]
    failing = [f"rewards.funcs=['{own}:letters']", f"evaluation.grader='{own}:raises'"]
    with pytest.raises(RewardError, match=r"The grader .*own\.py:raises failed: it raised ValueError"):
        graded(config(*failing), rows, ["a", "b"])
    found = graded(config(*failing, "rewards.on_error=skip"), rows, ["a", "b"])
    assert [one.outcome for one in found] == [Outcome.CRASHED] * 2


def test_the_weighted_sum() -> None:
    assert weighted_reward([1.0, None, -2.0], [0.5, 9.0, 2.0]) == -3.5
    assert weighted_reward([1.0, 2.0]) == 3.0
    assert weighted_reward([None, None], [1.0, 1.0]) is None
    assert weighted_reward([]) is None


def test_mistakes_are_one_clear_paragraph(own: Path) -> None:
    only_own = f"rewards.funcs=['{own}:letters']"
    for words, message in {
        ("evaluation.grader=exact_mach",): r"evaluation\.grader: there is no grader called exact_mach\. Did you mean "
        r"exact_match\? Covey has exact_match, accuracy, countdown, graph_coloring, check_answer, check_numbers, "
        r"reasoning_gym, code; ",
        ("evaluation.grader=format",): "there is no grader called format",
        (f"evaluation.grader='{own}:leters'",): r"evaluation\.grader: .*own\.py has no leters; it has letters",
        ("evaluation.grader=none.py:f",): r"evaluation\.grader: none\.py:f names the file .* which does not exist",
        (only_own, "evaluation.best_by=accuracy"): r"best_by=accuracy needs a grader.*set evaluation\.grader, or",
        (only_own, "evaluation.best_by=reward/leters"): "Did you mean reward/letters",
        ("evaluation.early_stopping_threshold=1.5",): "out of range: the accuracy decides",
        ("evaluation.best_by=acuracy",): r"acuracy is no metric of this run's evaluations.*Did you mean accuracy\?",
    }.items():
        with pytest.raises((ConfigError, RewardError), match=message):
            check_evaluation(config(*words))
    check_evaluation(config())
    check_evaluation(config("evaluation.early_stopping_threshold=1.5", only_own))
    for best_by in ("accuracy", "reward", "reward/format", "format", "completion_length"):
        check_evaluation(config(f"evaluation.best_by={best_by}"))


def test_columns_of_every_held_out_set_are_checked(own: Path) -> None:
    settings = config(f"rewards.funcs=['{own}:logs']", f"evaluation.grader='{own}:judged'")
    assert check_columns_for(settings, {"test": ["prompt", "kind", "answer"]}) == {}
    ungraded = config(f"rewards.funcs=['{own}:logs']")
    with pytest.raises(
        RewardError, match=r"rewards\.funcs: .*:logs needs kind, but the set of held-out \(validation\) rows has no"
    ):
        check_columns_for(ungraded, {"test": ["prompt", "kind", "answer"], "validation": ["prompt", "answer"]})
    with pytest.raises(
        RewardError, match=r"evaluation\.grader: .*:judged needs answer, but the set of held-out rows has"
    ):
        check_columns_for(settings, {"test": ["prompt", "kind"]})


def test_where_the_accuracy_decides_rewards_may_lack_a_column(own: Path) -> None:
    sets = {"test": ["prompt", "answer"], "hard": ["prompt", "kind", "answer"]}
    graded = f"rewards.funcs=[accuracy,'{own}:logs']"
    (left_out,) = check_columns_for(config(graded), sets).items()
    assert left_out[0] == "test"
    assert left_out[1].endswith("it has answer. So there is no eval/reward on it.")
    with pytest.raises(RewardError, match="needs kind"):
        check_columns_for(config(graded, "evaluation.best_by=reward"), sets)


def test_evaluations_of_an_older_version_have_no_rewards() -> None:
    old = {"problem": 0, "outcome": "right", "partial": True, "well_formed": True, "truncated": False, "length": 3}
    rows = [{**old, "extracted": "7"}, {**old, "problem": 1, "extracted": "7", "reward": 1.0, "rewards": {"f": 1.0}}]
    assert not any(name.startswith("reward") for name in compute_metrics(rows))
    assert compute_metrics(rows)["accuracy"].value == 1.0


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("rewarded", [False, True])
def test_own_graders_name_modes(own: Path, workers: int, rewarded: bool) -> None:
    """Whether the grader is a reward of the run too, which is called once, or not."""
    funcs = f"rewards.funcs=['{own}:moded']" if rewarded else "rewards.funcs=[format]"
    settings = config(f"rewards.workers={workers}", funcs, f"evaluation.grader='{own}:moded'")
    rows = [{"prompt": CONVERSATION, "num_modes": 4}] * 4
    found = graded(settings, rows, ["Ab", "aB", "cd", "long"])
    assert [(one.outcome, one.mode, one.num_modes) for one in found] == [
        *((Outcome.RIGHT, mode, 4) for mode in ("ab", "ab", "cd")),
        (Outcome.WRONG, None, 4),
    ]
    assert "mode" not in found[3].record()


def test_modes_that_are_no_texts_are_left_out(own: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = config("rewards.funcs=[format]", f"evaluation.grader='{own}:badly'")
    (found,) = graded(settings, [{"prompt": CONVERSATION}], ["ab"])
    assert (found.outcome, found.mode) == (Outcome.RIGHT, None)
    assert "the mode of an answer is a text or None" in caplog.text


def test_the_graders_of_tasks_name_modes_of_right_answers() -> None:
    row = {"prompt": CONVERSATION, "answer": '{"numbers": [1, 2, 3], "target": 6}'}
    settings = config("dataset=countdown")
    texts = [f"<answer>{text}</answer>" for text in ("3+2+1", "(1)+(2+3)", "3*2*1", "3-2-1", "6")]
    found = graded(settings, [row] * 5, texts)
    assert [one.mode for one in found] == ["1+2+3", "1+2+3", "1*2*3", None, None]
    assert [one.extracted for one in found[:4]] == ["1+2+3", "1+2+3", "1*2*3", "3-1-2"]  # one vote for each
    result = summarise([replace(one, problem=0) for one in found], (1, 4), "countdown").metrics()
    assert result["coverage@4"] == pytest.approx((1 + 4 / 5) / 3)  # 1+2+3 is in all subsets of 4 of 5, 1*2*3 in 4 of 5
    assert result["coverage@4_low"] < result["coverage@4"] <= result["coverage@4_high"]
    assert result["chance/pass@1"] == pytest.approx(32 / 192)


def test_tasks_bring_their_grader_and_reward() -> None:
    for task in ("countdown", "graph_coloring"):
        assert config(f"dataset={task}").rewards.funcs == (task, "format")
        assert grader_name(config(f"dataset={task}")) == task
        assert grader_name(config(f"dataset={task}", "rewards.funcs=[mine.py:judge]")) == task
        assert grader_name(config(f"dataset={task}", "rewards.funcs=[accuracy]")) == "accuracy"
    several = config("dataset=graph_coloring", "evaluation.best_by=coverage@8")
    check_evaluation(several)
    with pytest.raises(ConfigError, match="coverage@8 is no metric"):
        check_evaluation(config("dataset=countdown", "evaluation.best_by=coverage@8"))


def test_lenient_evaluations_say_so_and_count_unevaluated_answers_as_right() -> None:
    rows = [{"prompt": [{"role": "user", "content": "What is 3 + 4?"}], "answer": "7"}] * 2
    texts = ["<answer>3 + 4</answer>", "<answer>7</answer>"]
    strict, lenient = (config("rewards.funcs=[accuracy]", f"rewards.unevaluated={how}") for how in ("reject", "accept"))
    assert [one.outcome for one in graded(strict, rows, texts)] == ["unevaluated", "right"]
    assert [one.outcome for one in graded(lenient, rows, texts)] == ["right", "right"]
    assert [one.repeats_prompt for one in graded(lenient, rows, texts)] == [True, False]
    assert [one.holds_gold for one in graded(lenient, rows, texts)] == [False, True]
    assert grader_settings(strict, "accuracy") == {"grader": "accuracy"}  # as of earlier evaluations
    assert grader_settings(lenient, "accuracy") == {"grader": "accuracy", "unevaluated": "accept"}
    assert grader_settings(lenient, "exact_match") == {"grader": "exact_match"}
