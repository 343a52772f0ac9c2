"""Completions as the pages show them, from the rows of training and of evaluations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from covey.report.completions import RewardColumns, evaluated_group, in_groups, sources_of, tags_of, training_group
from covey.report.load import load_run, title_of
from covey.runlog import read_completions, write_completions
from covey.runlog.evaluations import append_completions, begin_evaluation
from made_run import make_run, write_evaluation

REWARDS = RewardColumns(("exact_match", "format"), (2.0,))


def _row(**values: Any) -> dict[str, Any]:
    return {"step": 1, "prompt": "p", "completion": "c"} | values


def test_a_training_completion_has_its_figures() -> None:
    prompt = [{"role": "system", "content": "s"}, {"role": "user", "content": "What is 1 + 1?"}]
    row = _row(
        prompt=prompt,
        completion=[{"role": "assistant", "content": "<answer>2</answer>"}],
        rendered_prompt="<|user|>What is 1 + 1?<|assistant|>",
        answer="2",
        exact_match=1.0,
        format=0.5,
        advantage=0.123456,
        maxent_weight=0.25,
        length=7,
        truncated=False,
        outcome="right",
        weight_version=3,
        completion_ids=[1, 2],
        mode="1+1",
        own={"a": [1]},
    )
    assert training_group([row], REWARDS) == {
        "step": 1,
        "prompt": "<|user|>What is 1 + 1?<|assistant|>",
        "question": "What is 1 + 1?",
        "answer": "2",
        "completions": [
            {
                "text": "<answer>2</answer>",
                "outcome": "right",
                "reward": 2.5,  # 2 * 1.0 + 1 * 0.5
                "rewards": {"exact_match": 1, "format": 0.5},
                "advantage": 0.1235,
                "weight": 0.25,
                "length": 7,
                "truncated": False,
                "extra": {"weight_version": "3", "mode": "1+1", "own": '{"a": [1]}'},
            }
        ],
    }


def test_rows_of_older_runs_without_groups_outcomes_and_rendered_prompts() -> None:
    rows = [_row(exact_match=1.0), _row(exact_match=0.0), _row(prompt="q", exact_match=None, format=float("nan"))]
    groups = in_groups(rows)
    assert [len(group) for group in groups] == [2, 1]
    first, second = (training_group(group, REWARDS) for group in groups)
    assert [one.get("outcome") for one in first["completions"]] == ["right", "wrong"]
    assert (first["prompt"], second["prompt"]) == ("p", "q")
    (last,) = second["completions"]
    assert last == {"text": "c", "rewards": {"exact_match": None, "format": None}}


def test_an_episode_of_an_evaluation_begins_with_its_prompt() -> None:
    call = {"function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
    messages = [
        {"role": "system", "content": "Use tools."},
        {"role": "user", "content": "What is 1 + 2?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "add", "content": "3"},
        {"role": "user", "content": "Go on."},  # an environment's answer
        {"role": "assistant", "content": "<answer>3</answer>"},
    ]
    item = {
        "problem": 4,
        "prompt": "What is 1 + 2?",
        "answer": "3",
        "completion": "…",
        "outcome": "right",
        "reward": 1.0,
    }
    item |= {"rewards": {"exact_match": 1.0}, "messages": messages, "turns": 2, "tool_calls": 1, "tool_failures": 0}
    item |= {"environment_seconds": 0.5, "episode": "answered", "extracted": "3", "well_formed": False, "length": 12}
    group = evaluated_group([item], 10)
    assert (group["step"], group["problem"], group["question"], group["answer"]) == (10, 4, "What is 1 + 2?", "3")
    assert group["prompt"] == "[system] Use tools.\n[user] What is 1 + 2?"
    (shown,) = group["completions"]
    assert shown["turns"] == [["", [["add", "a=1, b=2"]]], ["3"], ["Go on."], ["<answer>3</answer>", []]]
    assert [shown[name] for name in ("num_turns", "calls", "failures", "seconds", "ended")] == [
        2,
        1,
        0,
        0.5,
        "answered",
    ]
    assert shown["extra"] == {"extracted": "3", "well_formed": "no"}
    assert shown["rewards"] == {"exact_match": 1}


def test_a_huge_result_is_cut_in_a_report_only(tmp_path: Path) -> None:
    root = make_run(tmp_path / "made", steps=1, tools=True)
    (file,) = (root / "completions").glob("*.parquet")
    rows = read_completions(file)
    rows[1]["completion"][1]["content"] = "x" * 100_000
    write_completions(
        root / "completions", 1, {name: [row[name] for row in rows] for name in rows[0] if name != "step"}
    )
    (source,) = sources_of(root)
    (result,) = source.groups(1)[0][1]["completions"][1]["turns"][1]
    assert result == "x" * 20_000 + "… (80,000 more letters in the run's folder completions)"
    assert len(source.groups(1)[0][1]["completions"][1]["text"]) < 20_100
    assert source.groups(1, most=None)[0][1]["completions"][1]["turns"][1] == ["x" * 100_000]


def test_the_sources_of_a_run_and_of_an_evaluation(tmp_path: Path) -> None:
    root = make_run(tmp_path / "made", steps=4)
    for name, step in (("test", 0), ("test", 4), ("hard", 4)):
        write_evaluation(root, step, [1.0, 0.0, 1.0], name)
    for folder, set_name in ((root / "evaluation" / "gsm8k-final-greedy", "gsm8k"), (tmp_path / "alone", "test")):
        begin_evaluation(folder, {"name": set_name})
        append_completions(folder, [{"problem": at // 2, "completion": f"c{at}"} for at in range(5)])
    found = {one.name: (one.kind, one.steps, [one.count(step) for step in one.files]) for one in sources_of(root)}
    assert found == {
        "training": ("training", [1, 2, 3, 4], [16, 16, 16, 16]),
        "held-out/hard": ("held-out", [4], [3]),
        "held-out/test": ("held-out", [0, 4], [3, 3]),
        "evaluation/gsm8k-final-greedy": ("benchmark", [], [5]),
    }
    (alone,) = sources_of(tmp_path / "alone")
    assert (alone.kind, alone.title) == ("evaluation", "alone")
    groups = alone.groups(None)
    assert [places for places, _ in groups] == [[0, 1], [2, 3], [4]]
    assert [one["text"] for one in groups[1][1]["completions"]] == ["c2", "c3"]
    assert [places for places, _ in alone.groups(None, only={3})] == [[2, 3]]
    assert tags_of(root) == ["think", "answer"]
    assert sources_of(tmp_path / "nothing") == []
    assert load_run(root).rows


def test_the_title_of_a_run_has_no_folders() -> None:
    config = {"model": {"name": "/models/mine"}, "dataset": {"path": "data/rows.jsonl"}}
    assert title_of(config) == "mine on rows.jsonl"
    assert title_of({**config, "model": {"name": "owner/name"}}) == "owner/name on rows.jsonl"
