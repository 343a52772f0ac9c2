"""A synthetic run directory for tests of the report, written by the run log's own writers, with hostile completions.

python tests/support/made_run.py FOLDER [steps] [completions per step] [tools]
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from covey.runlog import MetricsWriter, RunDirectory, Value, names, write_completions
from covey.runlog.evaluations import training_file
from covey.runlog.files import json_line

UGLY = (
    "<script>window.pwned = 1</script>",
    '</script><img src="x" onerror="window.pwned = 2">',
    "\"quotes\" 'and' &amp; <b>tags</b> \u2028 \u2029 \x00 \x1b[31m",
    "<!-- <think>never closed",
)
CONFIG = """\
run_name: null
seed: 3
model: {name: 'starter </title><script>window.pwned = 3</script>'}
dataset: {task: arithmetic}
objective: {name: maxent, kl: {controller: adaptive, kl_target: 0.05}}
rewards: {funcs: [exact_match, format], think_tag: think, answer_tag: answer}
training: {num_generations: 8, learning_rate: 1.0e-05, beta: 0.02, max_steps: %d, max_completion_length: 96}
"""
ENVIRONMENT = """\
environment: {factory: 'games/<b>doors</b>.py:Doors', tools: [calculator], max_turns: 4}
"""
GROUP = 8


def make_run(root: Path, steps: int = 60, per_step: int = 16, seed: int = 0, *, tools: bool = False) -> Path:
    """Write a run of this many steps and completions per step; returns the folder.

    Args:
        tools: whether completions are episodes with tools.
    """
    run, draw = RunDirectory(root), random.Random(seed)
    root.mkdir(parents=True)
    run.config.write_text(CONFIG % steps + ENVIRONMENT * tools, encoding="utf-8")
    run.write_environment()
    writer = MetricsWriter(run.metrics, None)
    for step in range(steps + 1):
        writer.add(step, _row(step, steps, draw) | (_episode_row(step, steps, draw) if tools else {}))
        if step:
            columns = _completions(step, steps, per_step, draw)
            write_completions(run.completions, step, columns | (_episodes(columns, draw) if tools else {}))
    writer.flush()
    return root


def write_evaluation(root: Path, step: int, scores: Sequence[float], set_name: str = names.TEST_SET) -> Path:
    """Write the completions of an evaluation of training, one for each problem: right from a score of 1 on."""
    items = [
        {
            "problem": problem,
            "prompt": f"What is {problem} + 1?",
            "answer": str(problem + 1),
            "completion": "<think></think><answer></answer>",
            "outcome": "right" if score >= 1 else "wrong",
            "well_formed": True,
            "length": 10,
            "truncated": False,
            "sample": 0,
            "extracted": None,
            "partial": score >= 1,
            "reward": score,
            "rewards": {"exact_match": score},
        }
        for problem, score in enumerate(scores)
    ]
    file = training_file(root, set_name, step)
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(map(json_line, items)))
    return file


def _row(step: int, steps: int, draw: random.Random) -> dict[str, Value]:
    skill = 0.25 + 0.55 * (1 - math.exp(-4 * step / steps))
    row: dict[str, Value] = {}
    if step % max(1, steps // 10) == 0:
        for held_out, level in ((names.TEST_SET, skill), (names.HARD_SET, skill / 4)):
            for metric, value in (
                (names.ACCURACY, level),
                (names.ACCURACY_LOW, level - 0.04),
                (names.ACCURACY_HIGH, level + 0.04),
                (names.FORMAT, 0.98),
                (names.LENGTH, 30 + 20 * skill),
                (names.TRUNCATED, 0.01),
            ):
                row[names.eval_name(held_out, metric)] = value
    if not step:
        return row
    near = skill + draw.gauss(0, 0.04)
    right = min(max(near, 0.0), 0.9)
    row |= {
        names.REWARD: near + 0.2,
        names.REWARD_STD: 0.4 - 0.3 * skill + draw.gauss(0, 0.02),
        names.reward_mean("exact_match"): near,
        names.reward_mean("format"): min(1.0, 0.5 + 2 * step / steps),
        names.COMPLETION_LENGTH: 30 + 20 * skill + draw.gauss(0, 1),
        names.CLIPPED_RATIO: max(0.0, draw.gauss(0.02, 0.01)),
        names.KL: 0.09 * step / steps + abs(draw.gauss(0, 0.003)),
        names.BETA: 0.02 * (1 + step / steps),
        names.ENTROPY: 0.4 * math.exp(-2 * step / steps) + abs(draw.gauss(0, 0.01)),
        names.FRAC_REWARD_ZERO_STD: min(1.0, max(0.0, 0.9 * step / steps + draw.gauss(0, 0.08))),
        names.CLIP_LOW: 0.01,
        names.CLIP_HIGH: 0.02,
        names.CLIP_REGION: 0.03,
        names.LOSS: draw.gauss(0, 0.01),
        names.GRAD_NORM: 0.5 + abs(draw.gauss(0, 0.1)),
        names.LEARNING_RATE: 1e-5 * (1 - step / (steps + 1)),
        names.STEP_TIME: 2.0,
        names.GENERATION_TIME: 0.9 + draw.gauss(0, 0.05),
        names.SCORING_TIME: 0.3,
        names.REWARDS_TIME: 0.1,
        names.FORWARD_TIME: 0.25,
        names.BACKWARD_TIME: 0.35,
        names.COMPLETIONS_PER_SECOND: 60 + draw.gauss(0, 4),
        names.PROCESS_MEMORY: 7e8 + 1e6 * step,
        names.TARGET_ENTROPY: 1.8 - skill,
        names.EFFECTIVE_COMPLETIONS: 6 - 4 * skill,
        names.WEIGHT_ON_CORRECT: skill,
        names.grader_name("right"): right,
        names.grader_name("wrong"): 0.95 - right,
        names.grader_name("unparsable_prediction"): 0.04,
        names.grader_name("timed_out"): 0.01,
    }
    return row


def _completions(step: int, steps: int, count: int, draw: random.Random) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    for at in range(count):
        group = at // GROUP
        if at % GROUP == 0:
            first, second = draw.randrange(1000), draw.randrange(1000)
            question = f"What is {first} + {second}?" + (UGLY[1] if group == 1 else "")
        right = draw.random() < 0.25 + 0.6 * step / steps
        answer = first + second if right else draw.randrange(2000)
        thought = " ".join(f"{draw.randrange(10)}+{draw.randrange(10)}={draw.randrange(20)}" for _ in range(9))
        text = f"<think>{thought}</think>\n<answer>{answer}</answer>"
        if at < len(UGLY):
            text = UGLY[at] + text
        outcome = "right" if right else "timed_out" if draw.random() < 0.02 else "wrong"
        values = {
            names.COLUMN_PROMPT: [{"role": "user", "content": question}],
            names.COLUMN_COMPLETION: [{"role": "assistant", "content": text}],
            "exact_match": float(right),
            "format": float(draw.random() < 0.9),
            names.COLUMN_RENDERED: f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n",
            names.COLUMN_GROUP: group,
            names.COLUMN_ANSWER: str(first + second),
            names.COLUMN_OUTCOME: outcome,
            names.COLUMN_LENGTH: 30 + draw.randrange(20),
            names.COLUMN_TRUNCATED: draw.random() < 0.03,
            names.COLUMN_WEIGHT: 0.2 if right else 0.05,
            names.COLUMN_ADVANTAGE: draw.gauss(0, 1),
        }
        for name, value in values.items():
            columns.setdefault(name, []).append(value)
    return columns


def _episode_row(step: int, steps: int, draw: random.Random) -> dict[str, Value]:
    """The model stops calling tools at two thirds of the run."""
    calls = 1.5 if step < 2 * steps // 3 else 0.02
    row: dict[str, Value] = {}
    if step % max(1, steps // 10) == 0:
        held_out: dict[str, float] = {names.TURNS: 1 + calls, names.CALLS: calls, names.SECONDS: 0.2 * calls}
        shares = zip(names.ENDS, (0.7, 0.1, 0.12, 0.05, 0.03), strict=True)
        held_out |= {f"{names.EPISODE}{end}": share for end, share in shares}
        row |= {names.eval_name(names.TEST_SET, name): value for name, value in held_out.items()}
    if step:
        row |= {
            names.TOOL_CALLS: calls + abs(draw.gauss(0, 0.01)),
            names.TOOL_FAILURES: 0.6 if step < steps / 2 else 0.1,
            names.ENVIRONMENT_TURNS: 1 + calls,
            names.ENVIRONMENT_SECONDS: 0.2 * calls,
            names.ENVIRONMENT_TIMEOUTS: float(draw.random() < 0.3),
            names.ENVIRONMENT_CRASHES: float(draw.random() < 0.1),
            names.ENVIRONMENT_TIME: 0.5,
        }
    return row


_RESULTS = ("42", *UGLY, "{'error': 'division by zero'}", "", "a long result " * 200)


def _episodes(columns: dict[str, list[Any]], draw: random.Random) -> dict[str, list[Any]]:
    """The columns of episodes, and completions with calls and results: every fourth is a plain answer."""
    found: dict[str, list[Any]] = {name: [] for name in (names.COLUMN_COMPLETION, *_EPISODE_COLUMNS)}
    for at, (answer,) in enumerate(columns[names.COLUMN_COMPLETION]):
        calls = at % 4
        messages: list[dict[str, Any]] = []
        for number in range(calls):
            arguments = {"expression": f"{number} + {UGLY[at % len(UGLY)]}", "exact": True}
            function = {"name": "calculator" if at % 3 else UGLY[0], "arguments": arguments}
            calling = {"role": "assistant", "content": "<think>I need it.</think>" * (number == 0)}
            messages += [
                {**calling, "tool_calls": [{"type": "function", "function": function}]},
                {"role": "tool", "name": function["name"], "content": _RESULTS[(at + number) % len(_RESULTS)]},
            ]
        end = "answered" if calls < 3 else ("max_turns", "timed_out", "crashed", "truncated")[at // 4 % 4]
        completion = [*messages, answer] if end == "answered" else messages
        seconds = round(draw.random() * calls, 3)
        values = (completion, calls + (end == "answered"), calls, calls // 3, end, seconds)
        for name, value in zip(found, values, strict=True):
            found[name].append(value)
    return found


_EPISODE_COLUMNS = (
    *(names.COLUMN_TURNS, names.COLUMN_CALLS, names.COLUMN_FAILURES),
    *(names.COLUMN_EPISODE, names.COLUMN_SECONDS),
)


if __name__ == "__main__":
    make_run(
        Path(sys.argv[1]), *(int(number) for number in sys.argv[2:] if number != "tools"), tools="tools" in sys.argv
    )
