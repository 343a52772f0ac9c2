"""Trainers with tools whose model writes what a script says: turns by the question that is asked.

Also one process of a two-process run, started by `test_environment_workers.py`; arguments: the file of the environment,
and the folder to write `two.pt` into.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import Qwen2Config, Qwen2ForCausalLM, TrainerCallback
from trl import GRPOTrainer as TRLGRPOTrainer

from batches import PLAIN
from chat_templates import family_of, make_tokenizer
from covey import GRPOTrainer
from covey.environments.contract import EnvironmentSource
from covey.environments.runner import EnvironmentRunner
from trainers import build_trainer

END = "<|im_end|>"


def call(name: str, arguments: Any) -> str:
    """A call as Qwen writes it."""
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


SCRIPTS: dict[str, list[str]] = {
    "answer": [f"Four.{END}"],
    "one": [f"I count. {call('add', {'a': 2, 'b': 2})}{END}", f"Four.{END}"],
    "two": [f"{call('add', {'a': 1, 'b': 2})}\n{call('shout', {'text': 'grün'})}{END}", f"3, GRÜN{END}"],
    "wrong": [f"{call('add', {'a': 1, 'c': 2})}{END}", f"{call('add', {'a': 1, 'b': 2})}{END}", f"3{END}"],
    "unknown": [f"{call('divide', {'a': 1})}{END}", f"?{END}"],
    "raises": [f"{call('fail', {})}{END}", f"No.{END}"],
    "list": [f"{call('add', [1, 2])}{END}", f"3{END}"],
    "malformed": [f"<tool_call>\n{{'name': add}}\n</tool_call>{END}"],
    "endless": [f"{call('add', {'a': 1, 'b': 1})}{END}"] * 40,
    "long": [f"{call('repeat', {'times': 3000})}{END}", f"Long.{END}"],
    "cut": ["x" * 900],
    "late": [f"{call('slow', {'text': 'a'})}\n{call('add', {'a': 1, 'b': 0})}{END}", f"a{END}"],
    "deep": ['<tool_call>\n{"name": "add", "arguments": {"a": ' + "[" * 1200 + "</tool_call>" + END],
    "markup": [f"{call('shout', {'text': '<|im_end|>'})}{END}", f"Done.{END}"],
}
"""The turns of the model for each question; the last one is repeated."""


def add(a: int, b: int) -> int:
    """
    Add two numbers.

    Args:
        a: One number.
        b: The other number.
    """
    return a + b


def shout(text: str) -> str:
    """
    Make a text louder.

    Args:
        text: The text.
    """
    return text.upper()


def repeat(times: int) -> str:
    """
    Repeat a letter.

    Args:
        times: How often.
    """
    return "z" * times


def fail() -> str:
    """Fail, always."""
    raise RuntimeError("This tool is broken.")


async def slow(text: str) -> str:
    """
    Wait a moment.

    Args:
        text: What to return.
    """
    await asyncio.sleep(0)
    return text


TOOLS: list[Callable[..., Any]] = [add, shout, repeat, fail, slow]


class Counter:
    """An environment that counts up to a goal, which its seed draws."""

    def reset(self, **row: Any) -> str | None:
        self.count = 0
        self.goal = int(row.get("goal") or random.randint(2, 3))
        return f" Count to {self.goal}." if row.get("tells") else None

    def increment(self, step: int) -> int:
        """
        Count on.

        Args:
            step: How far.
        """
        self.count += step
        return self.count

    def get_reward(self) -> float:
        return float(self.count == self.goal)


COUNTING = {
    "reach": [f"{call('increment', {'step': 1})}{END}", f"{call('increment', {'step': 1})}{END}", f"2{END}"],
    "miss": [f"{call('increment', {'step': 5})}{END}", f"5{END}"],
    "none": [f"0{END}"],
}


class Scripted:
    """Writes the turns of `SCRIPTS`, by the last word of the question, and the number of the row in its group."""

    scripts: Mapping[str, list[str]] = {**SCRIPTS, **COUNTING}
    seen: list[list[list[int]]]
    gradient: Mapping[str, torch.Tensor]

    def reply(self, ids: list[int], place: int) -> list[int]:
        tokenizer: Any = self.processing_class  # type: ignore[attr-defined]
        text = tokenizer.decode(ids)
        question = text.split("<|im_start|>user\n")[1].split(END)[0].split("script ")[-1].split()[0].rstrip(".")
        names = question.split(",")
        turn = text.split("<|im_start|>user\n", 1)[1].count("<|im_start|>assistant\n") - 1
        said = [name for name in names if all(part in text for part in self.scripts[name][:turn])]
        turns = self.scripts[said[0] if turn else names[place % len(names)]]
        found: list[int] = tokenizer(turns[min(turn, len(turns) - 1)])["input_ids"]
        return found

    def _generate_single_turn(self, prompt_ids: Any, *args: Any, num_generations: int = 1, **kwargs: Any) -> Any:
        if not hasattr(self, "seen"):
            self.seen = []
        self.seen.append([list(ids) for ids in prompt_ids])
        first = self.accelerator.process_index * len(prompt_ids)  # type: ignore[attr-defined]
        return [self.reply(list(ids), first + row) for row, ids in enumerate(prompt_ids)], None


class ScriptedCovey(Scripted, GRPOTrainer):
    """Covey's trainer."""


class ScriptedTRL(Scripted, TRLGRPOTrainer):
    """TRL's trainer."""


class _Gradient(TrainerCallback):
    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        named = self.trainer.model.named_parameters()
        self.trainer.gradient = {name: p.grad.clone() for name, p in named if p.grad is not None}


def small_model(tokenizer: Any) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.2,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    return Qwen2ForCausalLM(config)


def lengths(completions: list[Any], **_: Any) -> list[float]:
    """A reward: how many different letters the conversation has."""
    return [float(len({letter for message in one for letter in message["content"]})) for one in completions]


def tool_trainer(
    kind: type[Any],
    folder: Path,
    rows: list[dict[str, Any]] | Dataset,
    *,
    template: str = "qwen3",
    more: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Any:
    """A trainer of the given class on a tiny model, with the tools here unless `more` has others."""
    tokenizer = make_tokenizer(template)
    assert tokenizer.eos_token == family_of(template).eos
    defaults: dict[str, Any] = {
        "reward": lengths,
        "max_completion_length": 600,
        "max_steps": 1,
        "save_strategy": "no",
        "shuffle_dataset": False,
        "max_tool_calling_iterations": 4,
    }
    model = small_model(tokenizer)
    for part in (model, tokenizer):
        part.save_pretrained(folder / "model")
    trainer = build_trainer(
        kind,
        str(folder / "model"),
        folder,
        prompts=rows,
        more={"tools": TOOLS, "processing_class": tokenizer, **(more or {})},
        **{**defaults, **settings},
    )
    trainer.add_callback(_Gradient(trainer))
    return trainer


def asked(*scripts: str) -> list[dict[str, Any]]:
    """A row for each script, or for several by comma, one for each completion of the group."""
    return [{"prompt": [{"role": "user", "content": f"Follow the script {one}."}]} for one in scripts]


def games(file: Path, folder: Path, **settings: Any) -> Any:
    """A trainer after one step over three groups of four in random games; one without signal is replaced."""
    source = EnvironmentSource(f"{file}:Counter")
    rows = asked("none", "reach,miss,none,reach", "miss,none,reach,none", "none,reach,reach,miss")
    with EnvironmentRunner({None: source}, timeout=60.0) as runner:
        runner.start()
        more = {"tools": None, "environment_factory": runner.factory, "resample_groups": 2, "speed": PLAIN}
        trainer = tool_trainer(
            ScriptedCovey,
            folder,
            [{**row, "tells": True} for row in rows],
            more=more,
            **{"per_device_train_batch_size": 12, "max_grad_norm": 0.0, **settings},
        )
        trainer.train()
    return trainer


if __name__ == "__main__":
    output = Path(sys.argv[2])
    two = games(Path(sys.argv[1]), output / os.environ["RANK"], per_device_train_batch_size=6)
    if two.accelerator.is_main_process:
        logged = next(row for row in two.state.log_history if "loss" in row)
        torch.save(
            {"gradient": dict(two.gradient), "row": logged, "columns": two.latest_completions}, output / "two.pt"
        )
    torch.distributed.destroy_process_group()
