"""Rollouts as their trainers write them, read into one form; the sources of each format are named in the module."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from covey.data.rollouts import Rollouts, read_rollouts
from covey.errors import ConfigError, DataError
from covey.runlog import write_completions

ASKED = [{"role": "user", "content": "1+1?"}]


def _write(path: Path, *rows: Mapping[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def _read(path: Path, **given: str) -> Rollouts:
    return read_rollouts([str(path)], given)


def _values(found: Rollouts, *names: str) -> list[Sequence[Any]]:
    return [tuple(row[name] for name in names) for row in found.rows]


def test_trl(tmp_path: Path) -> None:
    """completions_00005.parquet: step, prompt, completion, one column per reward function, advantage."""
    folder = tmp_path / "completions"
    folder.mkdir()
    for step in (5, 10):
        answers = [[{"role": "assistant", "content": text}] for text in ("2", "3")]
        rewards = {"accuracy_reward": [1.0, None], "format_reward": [0.5, 0.25]}
        table = {"step": [step] * 2, "prompt": [ASKED] * 2, "completion": answers, **rewards, "advantage": [1.0, -1.0]}
        pd.DataFrame(table).to_parquet(folder / f"completions_{step:05d}.parquet")
    (tmp_path / "trainer_state.jsonl").write_text('{"loss": 1}\n')  # beside the folder: not read
    found = _read(tmp_path)
    assert found.columns["reward"] == ["accuracy_reward", "format_reward"]
    assert found.columns["compared"] == ["accuracy_reward"]
    assert _values(found, "step", "row", "reward") == [(5, 1, 1.0), (5, 2, None), (10, 1, 1.0), (10, 2, None)]
    assert found.rows[0]["rewards"] == {"accuracy_reward": 1.0, "format_reward": 0.5}
    assert found.rows[0]["prompt"] == ASKED
    assert found.rows[1]["completion"] == [{"role": "assistant", "content": "3"}]
    assert found.rows[0]["gold"] is None
    assert "gold" not in found.columns
    assert _values(_read(tmp_path, reward="format_reward"), "reward") == [(0.5,), (0.25,), (0.5,), (0.25,)]


def test_verl(tmp_path: Path) -> None:
    """{step}.jsonl with input, output, gts, score, step and what the reward function returned besides."""
    for step in (2, 10):
        row = {"input": "user\n1+1?\nassistant\n", "output": "2", "gts": "2", "score": 1.0, "step": step}
        _write(
            tmp_path / f"{step}.jsonl", row | {"acc": True, "pred": "2", "uid": "a"}, row | {"score": 0.0, "uid": "a"}
        )
    found = _read(tmp_path)
    assert [Path(file).name for file in found.files] == ["2.jsonl", "10.jsonl"]
    assert _values(found, "step", "reward", "gold", "group") == [
        (step, reward, "2", "/a") for step in (2, 10) for reward in (1.0, 0.0)
    ]
    assert found.columns["reward"] == found.columns["compared"] == ["score"]


def test_prime_rl_and_verifiers(tmp_path: Path) -> None:
    """step_{n}/train_rollouts.jsonl, a row for each rollout; verifiers leaves out an empty answer and empty info."""
    answer = [{"role": "assistant", "content": "2"}]
    row = {"example_id": 0, "prompt": ASKED, "completion": answer, "task": "sums", "reward": 1.0, "metrics": {"a": 1.0}}
    other = {**row, "example_id": 0, "task": "words", "reward": 0.0, "is_truncated": True}
    _write(tmp_path / "rollouts" / "step_3" / "train_rollouts.jsonl", row, row | {"answer": "2"}, other)
    (tmp_path / "rollouts" / "step_3" / "metadata.json").write_text("{}")
    found = _read(tmp_path / "rollouts")
    assert _values(found, "step", "group", "gold", "truncated") == [
        (3, "sums/0", None, None),
        (3, "sums/0", "2", None),
        (3, "words/0", None, True),
    ]


def test_areal(tmp_path: Path) -> None:
    """{version}/{task}.jsonl, a line for each sample, decoded with its special tokens."""
    row = {"task_id": 7, "sample_idx": 0, "seqlen": 9, "prompt_len": 5, "head_version": 1, "tail_version": 1}
    row |= {"reward": 1.0, "prompt": "<|im_start|>user\n1+1?<|im_end|>\n", "completion": "2<|im_end|>\n"}
    _write(tmp_path / "4" / "7.jsonl", row, row | {"completion": "<|im_end|>"})
    assert _values(_read(tmp_path), "step", "group", "completion") == [(4, "/7", "2"), (4, "/7", "")]


def test_nemo_rl(tmp_path: Path) -> None:
    """train_data_step{n}.jsonl: each value a batch of one, the conversation a list of texts."""
    turns = [["<user> 1+1?", "It is 2", "Environment: correct"]]
    _write(tmp_path / "train_data_step12.jsonl", {"content": turns, "rewards": [1.0], "input_lengths": [9], "idx": 0})
    (row,) = _read(tmp_path).rows
    assert (row["step"], row["reward"], row["prompt"]) == (12, 1.0, [{"role": "user", "content": "<user> 1+1?"}])
    assert [message["role"] for message in row["completion"]] == ["assistant", "user"]


def test_openrlhf_and_whole_conversations(tmp_path: Path) -> None:
    found = _read(_write(tmp_path / "a.jsonl", {"input": "1+1?", "output": "2", "reward": 0.5}))
    assert _values(found, "step", "prompt", "completion", "reward") == [(0, "1+1?", "2", 0.5)]
    talk = [*ASKED, {"role": "assistant", "content": "2"}]
    (row,) = _read(_write(tmp_path / "b.jsonl", {"messages": talk, "correct": True})).rows
    assert (row["prompt"], row["completion"], row["reward"]) == (talk[:1], talk[1:], 1.0)


def test_coveys_own(tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        "prompt": [ASKED],
        "completion": ["2"],
        "accuracy": [1.0],
        "format": [0.0],
        "answer": ["2"],
    }
    write_completions(tmp_path / "completions", 3, columns | {"advantage": [0.1], "group": [0], "length": [4]})
    (tmp_path / "metrics.jsonl").write_text('{"step": 3}\n')
    found = _read(tmp_path)
    assert found.columns["reward"] == ["accuracy", "format"]
    assert _values(found, "step", "prompt", "reward", "gold", "group") == [(3, ASKED, 1.0, "2", "/0")]


def test_ms_swift(tmp_path: Path) -> None:
    """completions.jsonl: a line a generation, an object of lists; `gen_step` in newer versions, a column a reward."""
    one = {"gen_step": [0, 0], "prompt": ["1+1?"] * 2, "completion": ["2", "3"], "advantages": [0.7, -0.7]}
    two = {"gen_step": [4], "prompt": ["2+2?"], "completion": ["4"], "advantages": [0.0], "MathAccuracy": [0.5]}
    path = _write(tmp_path / "completions.jsonl", one | {"MathAccuracy": [1.0, 0.25], "Format": [0.5, 0.5]}, two)
    found = _read(path)
    assert found.columns["reward"] == ["MathAccuracy", "Format"]
    assert _values(found, "row", "step", "prompt", "completion", "reward") == [
        (1, 0, "1+1?", "2", 1.0),
        (1, 0, "1+1?", "3", 0.25),
        (2, 4, "2+2?", "4", 0.5),
    ]
    talk = {"prompt": ASKED, "completion": [{"role": "assistant", "content": "2"}], "logps": [0.5], "reward": 1.0}
    assert _values(_read(_write(tmp_path / "talk.jsonl", talk)), "prompt", "reward") == [(ASKED, 1.0)]


def test_skyrl(tmp_path: Path) -> None:
    """dumped_evals: {data source}.jsonl, a score a token or one, the answer deep inside; figures lie beside them."""
    extras = {
        "data_source": "gsm8k",
        "reward_spec": {"method": "rule", "ground_truth": "2"},
        "extra_info": {"index": 1},
    }
    row = {"input_prompt": "1+1?", "output_response": "2", "stop_reason": "length", "env_extras": extras}
    folder = tmp_path / "dumped_evals" / "global_step_5_evals"
    _write(folder / "gsm8k.jsonl", row | {"score": [0.0, 0.25, 0.5]}, row | {"score": [1.0, float("nan")]})
    _write(folder / "aggregated_results.jsonl", {"eval/gsm8k/avg_score": 0.5})
    found = _read(tmp_path)
    assert _values(found, "step", "prompt", "completion", "reward", "gold", "truncated") == [
        (5, "1+1?", "2", 0.75, "2", True),
        (5, "1+1?", "2", None, "2", True),
    ]
    assert [Path(file).name for file in found.left_out] == ["aggregated_results.jsonl"]
    assert found.notes == ["score holds a list of scores, one a token or turn: the reward is their sum."]
    given = _read(tmp_path, completion="output_response", gold="env_extras.extra_info.index")
    assert _values(given, "gold") == [("1",), ("1",)]
    with pytest.raises(ConfigError, match=r"--gold env_extras\.nothing"):
        _read(tmp_path, gold="env_extras.nothing")


def test_held_out_files_are_not_pooled(tmp_path: Path) -> None:
    """NeMo-RL writes both into one folder, prime-rl both into one step."""
    for place in (
        "train_data_step2.jsonl",
        "val_data_step2.jsonl",
        "step_3/train_rollouts.jsonl",
        "step_3/eval/a.jsonl",
    ):
        _write(tmp_path / place, {"completion": place, "reward": 1.0})
    found = _read(tmp_path)
    assert {row["completion"] for row in found.rows} == {"train_data_step2.jsonl", "step_3/train_rollouts.jsonl"}
    (note,) = found.notes
    assert "val_data_step2.jsonl" in note
    assert "step_3/eval/a.jsonl" in note
    alone = _read(tmp_path / "val_data_step2.jsonl")
    assert (len(alone.rows), alone.notes) == (1, [])


def test_any_names(tmp_path: Path) -> None:
    path = _write(tmp_path / "x.jsonl", {"q": "1+1", "said": "2", "points": {"exact": 1, "style": 0.5}, "truth": 2.5})
    with pytest.raises(DataError, match=r"has no column that looks like completions \(completion,.*; it has q, said"):
        _read(path)
    with pytest.raises(
        ConfigError, match=r"--gold nothing: .*x\.jsonl has no such column; it has q, said, points, tru"
    ):
        _read(path, completion="said", gold="nothing")
    found = _read(path, prompt="q", completion="said", reward="points", gold="truth")
    assert _values(found, "prompt", "completion", "reward", "gold") == [("1+1", "2", 1.0, "2.5")]
    assert found.columns["compared"] == ["points.exact"]
    assert _values(_read(path, completion="said", reward="points.style"), "reward", "prompt") == [(0.5, None)]
    path = _write(tmp_path / "y.jsonl", {"prompt": "a", "answer": "b", "label": "c"})
    assert _values(_read(path, completion="answer"), "completion", "gold") == [("b", "c")]


def test_gold_answers_of_another_file(tmp_path: Path) -> None:
    """TRL logs none: they come from the data, by the question, around which a template may have put more."""
    data = _write(
        tmp_path / "data.jsonl", {"question": "1+1?", "answer": "one #### 2"}, {"question": "1+1", "answer": "x"}
    )
    rows = [{"prompt": ASKED, "completion": "2"}, {"prompt": "<user>1+1?<end>", "completion": "2"}]
    found = _read(_write(tmp_path / "r.jsonl", *rows, {"prompt": "2+2?", "completion": "4"}), gold=str(data))
    assert _values(found, "gold") == [("one #### 2",), ("one #### 2",), (None,)]
    with pytest.raises(DataError, match=r"--gold .*r\.jsonl: no columns look like questions and answers"):
        _read(tmp_path / "r.jsonl", gold=str(tmp_path / "r.jsonl"))


def test_files_without_completions(tmp_path: Path) -> None:
    _write(tmp_path / "1.jsonl", {"prompt": "a", "completion": None, "reward": 0}, {"prompt": "a", "completion": "b"})
    _write(tmp_path / "losses.jsonl", {"loss": 1.0})
    (tmp_path / "2.jsonl").write_text("")
    found = _read(tmp_path)
    assert _values(found, "completion", "reward") == [("", 0.0), ("b", None)]
    assert [*map(Path, found.left_out)] == [tmp_path / "losses.jsonl"]
    with pytest.raises(DataError, match="there are no rollouts, as no file has any rows"):
        _read(tmp_path / "2.jsonl")
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="this folder has no data files"):
        _read(tmp_path / "none")


@pytest.mark.parametrize(
    ("place", "step"),
    [
        ("step_3/rollouts.jsonl", 3),
        ("7/100.jsonl", 7),
        ("train_data_step12.jsonl", 12),
        ("global_step_5/rank_1.jsonl", 5),
        ("9.jsonl", 9),
        ("rollouts-04.jsonl", 4),
        ("gsm8k.jsonl", 0),
    ],
)
def test_the_step_of_a_place(place: str, step: int, tmp_path: Path) -> None:
    _write(tmp_path / place, {"completion": "x"})
    assert _values(_read(tmp_path), "step") == [(step,)]
