"""Prefills and histories of tool calls in the trainer: the template applied by hand, and messages as written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow.parquet
import pytest

from checked_runs import refused, words
from covey import GRPOTrainer
from covey.cli.main import main
from covey.data.table import encode, reading
from covey.errors import DataError
from tool_trainers import TOOLS, tool_trainer

ASKED = {"role": "user", "content": "What is 2 + 3?"}
BEGUN = {"role": "assistant", "content": "<think>\nTwo"}
CALLS = [{"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}]
HISTORY = [ASKED, {"role": "assistant", "content": None, "tool_calls": CALLS}, {"role": "tool", "content": "5"}]
PROMPTS: list[list[dict[str, Any]]] = [[ASKED, BEGUN], HISTORY, [ASKED], [*HISTORY, BEGUN]]
REWARD = """
import json
def seen(prompts, completions, **kwargs):
    with open({log!r}, "a") as file:
        file.writelines(json.dumps(prompt) + "\\n" for prompt in prompts)
    return [len(str(completion)) % 3 / 2 for completion in completions]
"""


def rows() -> datasets.Dataset:
    return reading(datasets.Dataset(encode({"prompt": PROMPTS})))


def shown(prompt: list[Any]) -> list[Any]:
    """With objects for arguments, and empty content for null."""
    calls = [{**CALLS[0], "function": {"name": "add", "arguments": {"a": 2, "b": 3}}}]
    return [{**one, "content": "", "tool_calls": calls} if "tool_calls" in one else one for one in prompt]


def by_hand(tokenizer: Any, prompt: list[Any]) -> list[int]:
    how = "continue_final_message" if prompt[-1] == BEGUN else "add_generation_prompt"
    found: list[int] = tokenizer.apply_chat_template(shown(prompt), return_dict=False, **{how: True})
    return found


def test_a_step_on_prefills_and_histories(tmp_path: Path) -> None:
    seen: list[Any] = []

    def own(prompts: Any, completions: Any, **_: Any) -> list[float]:
        seen.append((prompts, completions))
        return [float(i) for i in range(len(completions))]

    trainer = tool_trainer(
        *(GRPOTrainer, tmp_path, rows()),
        reward=own,
        more={"tools": None},
        max_completion_length=6,
        per_device_train_batch_size=8,
        num_generations=2,
    )
    tokenizer, made = trainer.processing_class, []
    keep = trainer._generate_single_turn

    def spy(ids: Any, *args: Any, **options: Any) -> Any:
        made.append((ids, keep(ids, *args, **options)))
        return made[-1][1]

    trainer._generate_single_turn = spy
    trainer.train()
    ((ids, (sampled, _)),) = made
    ((prompts, completions),) = seen
    assert prompts == [prompt for prompt in PROMPTS for _ in range(2)]  # as written
    assert ids == [by_hand(tokenizer, prompt) for prompt in prompts]
    # The completion is what was generated.
    assert [one[0]["content"] for one in completions] == tokenizer.batch_decode(sampled, skip_special_tokens=True)


def test_a_template_without_calls_is_refused_before_training(tmp_path: Path, capsys: Any) -> None:
    asked = [[{"role": "user", "content": f"What is {n} + 3?"}] for n in range(1100)]  # more than are all rendered
    asked[1050] = HISTORY
    rows = "".join(json.dumps({"prompt": one, "answer": "5"}) + "\n" for one in asked)
    (tmp_path / "rows.jsonl").write_text(rows)
    keys = (f"dataset.path={tmp_path / 'rows.jsonl'}", "dataset.test_size=0", "training.shuffle_dataset=false")
    assert "The chat template leaves the calls of tools out of a prompt." in refused(tmp_path, capsys, *keys)


@pytest.mark.slow
def test_a_run_evaluates_and_records_messages_as_written(tmp_path: Path) -> None:
    prompts = [[{**ASKED, "content": f"{n}?"}, *(HISTORY[1:], [BEGUN], [])[n % 3]] for n in range(24)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"prompt": one}) + "\n" for one in prompts))
    (tmp_path / "own.py").write_text(REWARD.format(log=str(tmp_path / "log")))
    run = words(tmp_path, "model=starter_agent", f"dataset.path={tmp_path / 'rows.jsonl'}", "evaluation.every_steps=1")
    run += [f"rewards.funcs=['{tmp_path / 'own.py'}:seen']"]
    for command in (["train", *run], ["eval", str(tmp_path / "out" / "run")]):
        assert main(command) == 0
        seen = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
        assert len(seen) >= 4
        assert all(one in prompts for one in seen)
        (tmp_path / "log").unlink()
    (first, *_) = sorted((tmp_path / "out" / "run" / "completions").iterdir())
    recorded = [json.loads(text) for text in pyarrow.parquet.read_table(first)["prompt"].to_pylist()]
    assert all(one in prompts for one in recorded)


def test_prefills_are_refused_with_tools(tmp_path: Path) -> None:
    trainer = tool_trainer(GRPOTrainer, tmp_path, [{"prompt": [ASKED, BEGUN]}])
    with pytest.raises(DataError, match="not possible with tools"):
        trainer._tokenize_prompts([[ASKED], [ASKED, BEGUN]])
    ids, images, fields = trainer._tokenize_prompts([HISTORY])
    tools = trainer.processing_class.apply_chat_template(
        shown(HISTORY),
        tools=TOOLS,
        add_generation_prompt=True,
        return_dict=False,
        chat_template=trainer.chat_template,
    )
    assert (len(ids), images, fields) == (1, None, {})
    assert ids == [list(tools)]
