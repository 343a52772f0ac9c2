"""Episodes of evaluations: grading, figures and seeds, by hand, with a model whose turns are known."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from datasets import Dataset
from transformers import TrainerState

from chat_templates import make_tokenizer
from covey.answers import Outcome
from covey.config import compose
from covey.environments.chat import ToolChat
from covey.environments.episodes import Limits
from covey.evaluation import run as evaluation
from covey.evaluation.grading import GradedCompletion, HeldOutGrader, grader_name
from covey.evaluation.metrics import compute_metrics
from covey.evaluation.play import Playing, start_seed
from covey.rewards.runner import RewardRunner
from covey.rollout import SamplingSettings
from fake_environments import Doors, FakeRunner, Model, Shelf, add, call, last_result

TOKENIZER = make_tokenizer("qwen2_5")
SUMS = [
    {"prompt": "12+30", "answer": "42"},  # text becomes the user's message
    {"prompt": "1+1", "answer": "2"},
    {"prompt": "5+5", "answer": "11"},
]


def adder(text: str) -> str:
    """Calls the tool, then answers with its result; `1+1` it knows, and `5+5` it gets wrong twice."""
    question = text.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]
    result = last_result(text)
    if "tool_response" in question:  # results lie in a user's turn in this template
        question = text.split("<|im_start|>user\n")[1].partition("<|im_end|>")[0]
    if "+" not in question:  # of a process that only takes part
        return ""
    if question == "1+1":
        return "<answer>2</answer>"
    if result is None:
        a, b = question.split("+")
        return call("add", a=int(a), b=int(b)) if question != "5+5" else call("multiply", a=5, b=5)
    if question == "5+5":
        return call("add", a=5)
    return f"It is <answer>{result}</answer>"


def play(
    runner: FakeRunner,
    speak: Callable[[str], str],
    rows: list[dict[str, Any]],
    *words: str,
    rewarding: tuple[str, ...] = (),
    max_turns: int = 3,
    longest: int = 400,
    **settings: Any,
) -> tuple[evaluation.EvaluationResult, Model]:
    config = compose(["rewards.workers=0", "training.max_completion_length=400", *words]).config
    engine = Model(TOKENIZER, speak, collective=settings.pop("collective", False))
    chat = ToolChat.of(TOKENIZER)
    playing = Playing(runner, chat, Limits(0, max_turns), rewarding=rewarding)
    with RewardRunner.of(config.rewards, max_completion_length=400) as rewards:
        result = evaluation.evaluate(
            engine,
            TOKENIZER,
            Dataset.from_list(rows),
            SamplingSettings(longest),
            **{"batch_size": 8, "seed": 7, **settings},
            grade=HeldOutGrader(config, rewards, grader_name(config), True, TrainerState()),
            playing=playing,
        )
    return result, engine


def tokens(text: str) -> int:
    return len(TOKENIZER(text, add_special_tokens=False)["input_ids"])


def figures(one: GradedCompletion) -> tuple[Any, ...]:
    return one.outcome, one.turns, one.tool_calls, one.tool_failures, one.episode


def test_the_answer_after_the_last_call_is_graded_and_the_calls_are_counted() -> None:
    result, engine = play(FakeRunner(tools=[add]), adder, SUMS)
    first, second, third = result.completions
    assert figures(first) == (Outcome.RIGHT, 2, 1, 0, "answered")
    assert figures(second) == (Outcome.RIGHT, 1, 0, 0, "answered")
    assert figures(third) == (Outcome.UNPARSABLE_PREDICTION, 3, 2, 2, "max_turns")  # a result is no answer
    assert first.completion == "add(a=12, b=30)\n← 42\nIt is <answer>42</answer>"
    assert first.messages is not None
    assert [one["role"] for one in first.messages] == ["user", "assistant", "tool", "assistant"]
    assert first.asked == "12+30"
    assert result.accuracy is not None
    assert result.accuracy.value == pytest.approx(2 / 3)
    metrics = result.metrics()
    assert {name: metrics[name] for name in ("turns", "tool_calls", "tool_failures", "truncated")} == {
        "turns": 2.0,
        "tool_calls": 1.0,
        "tool_failures": pytest.approx(2 / 3),
        "truncated": 0.0,
    }
    assert [metrics[f"episode/{end}"] for end in ("answered", "max_turns")] == pytest.approx([2 / 3, 1 / 3])
    assert [metrics[f"episode/{end}"] for end in ("truncated", "timed_out", "crashed")] == [0, 0, 0]
    # Sampled tokens only, as TRL counts: those of the two turns, and the end of each.
    assert first.length == tokens(call("add", a=12, b=30)) + 1 + tokens("It is <answer>42</answer>") + 1
    assert engine.rows == [3, 2, 1]  # later turns hold the episodes that go on
    assert engine.conversations == 1
    stored = compute_metrics([json.loads(json.dumps(one.record())) for one in result.completions])
    assert stored["tool_calls"].value == 1.0
    assert stored["tool_calls"].low == 0.0 < stored["tool_calls"].high  # at three problems: wide, but not negative
    assert stored["episode/max_turns"].value == pytest.approx(1 / 3)


def test_rewards_get_all_messages(tmp_path: Any) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "def calls(prompts, completions, **kwargs):\n"
        "    assert prompts[0] == [{'role': 'user', 'content': '12+30'}]\n"
        "    return [float(sum(m['role'] == 'tool' for m in c)) for c in completions]\n"
    )
    result, _ = play(FakeRunner(tools=[add]), adder, SUMS, f"rewards.funcs=['{file}:calls', exact_match]")
    assert [one.rewards["calls"] for one in result.completions] == [1.0, 0.0, 2.0]
    assert [one.rewards["exact_match"] for one in result.completions] == [0.0, 0.0, 0.0]  # it wants the whole format


def opener(text: str) -> str:
    """Opens the doors one after another until it has the prize."""
    opened = text.count("nothing\n</tool_response>")
    return "Done." if "the prize\n" in text else call("open", door=opened)


def doors(prizes: list[int | None]) -> FakeRunner:
    """A runner whose next instances hide their prizes here; None: the environment fails to reward."""
    hidden = list(prizes)

    class Placed(Doors):
        def reset(self, doors: int = 3, **row: Any) -> str:
            observation = super().reset(doors, **row)
            self.prize = hidden.pop(0)
            return observation

    Placed.__name__ = "Doors"
    return FakeRunner({None: Placed})


def test_an_environment_that_rewards_decides_the_accuracy() -> None:
    rows = [{"prompt": "Find it.", "doors": 3}] * 4
    result, _ = play(doors([0, 1, 2, None]), opener, rows, "environment.factory=number_guess", rewarding=("Doors",))
    # The first door, the second, one too few turns for the third, and no reward.
    assert [figures(one) for one in result.completions] == [
        (Outcome.RIGHT, 2, 1, 0, "answered"),
        (Outcome.WRONG, 3, 2, 0, "answered"),
        (Outcome.WRONG, 3, 2, 0, "max_turns"),
        (Outcome.CRASHED, 3, 2, 0, "max_turns"),
    ]
    assert [one.score for one in result.completions] == [1.0, 0.5, 0.0, 0.0]
    assert [one.rewards for one in result.completions] == [{"Doors": r} for r in (1.0, 0.5, 0.0, None)]
    metrics = result.metrics()
    assert metrics["accuracy"] == 1.5 / 4
    assert metrics["reward/Doors"] == metrics["reward"] == 0.5  # over the three that have one
    assert metrics["grader/crashed"] == 0.25
    assert result.completions[0].asked == "Find it. There are 3 doors."
    assert result.completions[0].prompt == "Find it."
    # Student's t of 1, 0.5, 0 (s = 0.5): 4.302653 * s / √3 on both sides; the accuracy stays within 0 and 1.
    assert metrics["reward_high"] == pytest.approx(0.5 + 4.302653 * 0.5 / 3**0.5, rel=1e-5)
    assert (metrics["accuracy_low"], metrics["accuracy_high"]) == (0.0, 1.0)
    share, _ = play(
        doors([0, 1, 2, 0]),
        opener,
        rows,
        "environment.factory=number_guess",
        "evaluation.right_at=0.5",
        rewarding=("Doors",),
    )
    assert [one.score for one in share.completions] == [1.0, 1.0, 0.0, 1.0]
    assert share.metrics()["accuracy"] == 0.75
    assert share.metrics()["reward"] == 2.5 / 4


def test_of_several_environments_only_some_reward() -> None:
    runner = FakeRunner({"doors": Doors, "shelf": Shelf})
    rows = [
        {"prompt": "Find it.", "environment": "doors", "answer": ""},
        {"prompt": "Which?", "environment": "shelf", "answer": "7"},
    ]

    def speak(text: str) -> str:
        return call("open", door=-1) if "doors" in text and "error" not in text else "<answer>7</answer>"

    result, _ = play(
        runner, speak, rows, "rewards.funcs=[format]", "evaluation.grader=exact_match", rewarding=("Doors",)
    )
    one, other = result.completions
    assert (figures(one), one.score) == ((Outcome.WRONG, 2, 1, 1, "answered"), 0.0)
    assert (figures(other), other.score) == ((Outcome.RIGHT, 1, 0, 0, "answered"), None)
    assert (one.rewards, other.rewards) == ({"format": 0.0, "Doors": 0.0}, {"format": 0.0, "Doors": None})
    assert result.metrics()["accuracy"] == 0.5
    assert result.metrics()["reward/Doors"] == 0.0


def test_a_plain_completion_is_stored_as_before() -> None:
    result, _ = play(FakeRunner(tools=[add]), adder, SUMS[1:2])
    (item,) = result.completions
    plain = {"problem", "prompt", "answer", "completion", "outcome", "well_formed", "length", "truncated", "sample"}
    plain |= {"extracted", "partial", "reward", "rewards", "repeats_prompt", "holds_gold"}
    of_episodes = {
        "messages",
        "turns",
        "tool_calls",
        "tool_failures",
        "malformed_calls",
        "environment_seconds",
        "episode",
        "row",
    }
    assert set(item.record()) == plain | of_episodes
    fields = {name: value for name, value in item.record().items() if name in plain}
    assert set(GradedCompletion(**fields).record()) == plain
    assert GradedCompletion(**item.record()) == item


def test_seeds_of_turns_and_starts_do_not_depend_on_what_was_done_before() -> None:
    many = [{"prompt": f"{n}+{n}", "answer": str(2 * n)} for n in range(10, 16)]
    whole, engine = play(FakeRunner(tools=[add]), adder, many, batch_size=2)
    # The first turn of a batch has the seed of a plain batch; two turns of each of three batches.
    assert engine.seeds[::2] == [7, 9, 11]
    assert len(set(engine.seeds)) == 6
    resumed, rest = play(FakeRunner(tools=[add]), adder, many, batch_size=2, done=whole.completions[:3])
    assert rest.seeds == engine.seeds[2:]  # the incomplete batch again
    assert [one.completion for one in resumed.completions] == [one.completion for one in whole.completions]
    assert start_seed(7, 0) == random.Random("7/0").getrandbits(32) != start_seed(7, 1)


def test_several_samples_of_a_problem_meet_the_same_start(monkeypatch: pytest.MonkeyPatch) -> None:
    from covey.evaluation import play as module

    given: list[Any] = []
    real = module.begin_episodes
    monkeypatch.setattr(module, "begin_episodes", lambda *a, seeds: given.extend(seeds) or real(*a, seeds=seeds))
    play(FakeRunner(tools=[add]), adder, SUMS, num_samples=2, batch_size=4)
    expected = [start_seed(7, problem) for problem in (0, 0, 1, 1, 2, 2)]
    assert given == expected


def test_processes_generate_equally_often_where_they_must() -> None:
    """Two processes, of which one has no batch: it takes part in the turns of the other, and samples nothing."""
    others = iter([1, 1, 1, 0])  # the other process: its first turn, calls, its second turn, no calls
    shard = evaluation.Shard(1, 2, lambda value: [value, next(others)] if isinstance(value, int) else [value])
    result, engine = play(FakeRunner(tools=[add]), adder, SUMS[:1], shard=shard, collective=True)
    assert result.completions == []
    assert engine.rows == [1, 1]
    alone = evaluation.Shard(1, 2, lambda value: [value])
    _, engine = play(FakeRunner(tools=[add]), adder, SUMS[:1], shard=alone)
    assert engine.rows == []


def test_an_episode_is_cut_at_the_length_of_all_its_tokens() -> None:
    first = tokens(call("add", a=12, b=30)) + 1
    result, _ = play(FakeRunner(tools=[add]), adder, SUMS[:1], longest=first - 3)
    (one,) = result.completions
    assert (one.truncated, one.episode, one.length) == (True, "truncated", first - 3)
    assert one.outcome is Outcome.UNPARSABLE_PREDICTION
