"""A positive control: reasoning tokens that are worth something by construction.

    python studies/reasoning_vocabulary/positive_control.py [--seeds 0 1 2] [--steps 1500] [--arms ARM ...] [--jobs 1]

The task is the sum of five numbers of two digits, modulo 100, under a cap of four thinking tokens. Careful thinking
writes down each of four running sums: eight digits, which do not fit. In the code of this control each of a hundred
reasoning tokens stands for a number from 0 to 99, so that four tokens hold all running sums. Every arm continues the
starter with the ordinary next-token loss on its own way of writing, with the same problems, steps and seeds.

Without a gain here, reinforcement learning could not find one. Finished runs are kept, and a later call resumes; writes
positive_control.csv and positive_control.md next to this file.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import re
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import accumulate
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey.evaluation.estimators import mean, t_estimate
from covey.model.reasoning_vocab.expansion import expand, fold
from covey.model.starter import STARTER_PATH
from covey.rollout import LocalEngine, SamplingSettings
from covey.runlog import write_atomically

HERE = Path(__file__).resolve().parent
TABLE, PAGE = HERE / "positive_control.csv", HERE / "positive_control.md"
NUMBERS, MODULUS = 5, 100
BATCH, LEARNING_RATE, WARMUP = 64, 1e-3, 50
HELD_OUT = 1000
CAP = 4
"""Thinking tokens."""
AROUND = 7
"""Tokens of a completion besides the thinking: four tags, two digits, the end of the turn."""

Problem = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to write the thinking."""

    name: str
    every: int | None
    """Every how many running sums are written, the last always; None writes none."""
    coded: bool = False
    cap: int = CAP


ARMS = (
    Arm("no thinking", None),
    Arm("digits, every second sum", 2),
    Arm("digits, every sum", 1),
    Arm("digits, every sum, without the cap", 1, cap=2 * CAP),
    Arm("code, every sum", 1, coded=True),
)
BASE = ARMS[1].name
FOLDED = "code, every sum, folded back"


def sums(problem: Problem) -> list[int]:
    """The running sums, from that of the first two numbers on."""
    return [total % MODULUS for total in accumulate(problem)][1:]


def thinking(arm: Arm, problem: Problem, first: int, digits: Sequence[int]) -> list[int]:
    """The thinking tokens: those of the digits, or one reasoning token, `first + number`, for each sum."""
    if arm.every is None:
        return []
    written = sums(problem)[:: -arm.every][::-1]
    if arm.coded:
        return [first + number for number in written]
    return [digits[int(digit)] for number in written for digit in f"{number:02d}"]


def problems(seed: int | str) -> Iterator[Problem]:
    rng = random.Random(f"positive-control-{seed}")
    while True:
        yield tuple(rng.randrange(10, 100) for _ in range(NUMBERS))


class Writer:
    """Prompts and completions as tokens."""

    def __init__(self, tokenizer: Any, first: int) -> None:
        self._tokenizer, self._first = tokenizer, first
        self._digits = [self._ids(str(digit))[0] for digit in range(10)]
        self._open, self._close = self._ids("<think>"), self._ids("</think>")

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def prompt(self, problem: Problem) -> list[int]:
        messages = [{"role": "user", "content": f"{'+'.join(map(str, problem))} mod {MODULUS}"}]
        return list(
            self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
        )

    def completion(self, arm: Arm, problem: Problem) -> list[int]:
        answer = self._ids(f"<answer>{sums(problem)[-1]:02d}</answer>")
        inside = thinking(arm, problem, self._first, self._digits)
        return [*self._open, *inside, *self._close, *answer, self._tokenizer.eos_token_id]


def train(arm: Arm, seed: int, steps: int, source: Path, first: int) -> Any:
    """The starter, continued on completions as this arm writes them."""
    torch.manual_seed(seed)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(source), AutoTokenizer.from_pretrained(source)
    writer, stream = Writer(tokenizer, first), problems(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / WARMUP) * max(0.0, 1 - step / steps)
    )
    model.train()
    for _ in range(steps):
        rows = [
            (writer.prompt(problem), writer.completion(arm, problem))
            for problem, _ in zip(stream, range(BATCH), strict=False)
        ]
        ids = torch.tensor([[*prompt, *completion] for prompt, completion in rows])  # all of one length
        labels = torch.tensor([[-100] * len(prompt) + completion for prompt, completion in rows])
        optimizer.zero_grad(set_to_none=True)
        model(input_ids=ids, labels=labels, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


def accuracy(model: Any, folder: Path, first: int, cap: int) -> float:
    """The share of held-out problems that are right in greedy decoding within the cap."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    writer = Writer(tokenizer, first)
    held_out = [problem for problem, _ in zip(problems("held-out"), range(HELD_OUT), strict=False)]
    sampling = SamplingSettings(cap + AROUND, temperature=0.0)
    found = LocalEngine(model, tokenizer, batch_size=250).generate([writer.prompt(one) for one in held_out], sampling)
    right = []
    for problem, one in zip(held_out, found, strict=True):
        answer = re.search(r"<answer>(\d+)</answer>", str(tokenizer.decode(one.ids)))
        right.append(float(answer is not None and int(answer[1]) == sums(problem)[-1]))
    return mean(right)


def run(arm: Arm, seed: int, steps: int) -> dict[str, float]:
    """The accuracies of one arm and seed by row of the table."""
    with tempfile.TemporaryDirectory(prefix="covey-control-") as temporary:
        source, folded = Path(temporary) / "start", Path(temporary) / "folded"
        first = expand(STARTER_PATH, source, MODULUS).map.base_vocab_size
        model = train(arm, seed, steps, source, first)
        found = {arm.name: accuracy(model, source, first, arm.cap)}
        if arm.coded:
            model.save_pretrained(source)
            fold(source, folded)
            found[FOLDED] = accuracy(AutoModelForCausalLM.from_pretrained(folded), folded, first, arm.cap)
    return found


Found = dict[tuple[int, str, int], float]
"""Accuracies by steps, arm and seed."""


def read() -> Found:
    if not TABLE.is_file():
        return {}
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        return {(int(row["steps"]), row["arm"], int(row["seed"])): float(row["accuracy"]) for row in rows}


def write(found: Found) -> None:
    rows = [f'{steps},"{arm}",{seed},{value:.4f}' for (steps, arm, seed), value in sorted(found.items())]
    write_atomically(TABLE, "\n".join(["steps,arm,seed,accuracy", *rows]) + "\n")
    head = (
        f"Written by positive_control.py: {BATCH} problems a step, {HELD_OUT} held-out problems, greedy, at most {CAP} "
        "thinking tokens. Means with 95% t intervals over seeds, and in parentheses the seeds in order. Differences "
        f"to `{BASE}`, the most that ordinary tokens can write within the cap, are paired by seed."
    )
    page = ["# A positive control of the reasoning vocabulary", "", head]
    for steps in sorted({steps for steps, *_ in found}):
        by_arm = {
            name: {seed: value for (count, arm, seed), value in sorted(found.items()) if (count, arm) == (steps, name)}
            for name in (*(arm.name for arm in ARMS), FOLDED)
        }
        page += ["", f"## {steps:,} steps", "", "| arm | seeds | accuracy | difference |", "|---|---|---|---|"]
        page += [f"| {name} | {_cells(values, by_arm[BASE])} |" for name, values in by_arm.items() if values]
    write_atomically(PAGE, "\n".join(page) + "\n")


def _cells(values: dict[int, float], base: dict[int, float]) -> str:
    less = [values[seed] - base[seed] for seed in values if seed in base]
    difference = "–" if values is base or len(less) < 2 else _percent(less, "+.1f")
    return f"{len(values)} | {_percent(list(values.values()), '.1f')} | {difference}"


def _percent(values: Sequence[float], form: str) -> str:
    one = ", ".join(format(100 * value, form) for value in values)
    if len(values) < 2:
        return one
    estimate = t_estimate(values)
    value, low, high = (format(100 * each, form) for each in (estimate.value, estimate.low, estimate.high))
    return f"{value} [{low}, {high}] ({one})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--arms", nargs="+", choices=[arm.name for arm in ARMS], help="all by default", metavar="ARM")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each (1)")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # of each run
    found = read()
    todo = [
        (arm, seed)
        for seed in arguments.seeds
        for arm in ARMS
        if arm.name in (arguments.arms or [arm.name]) and (arguments.steps, arm.name, seed) not in found
    ]
    with ProcessPoolExecutor(arguments.jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        runs = {pool.submit(run, arm, seed, arguments.steps): seed for arm, seed in todo}
        for done in as_completed(runs):
            seed, values = runs[done], done.result()
            print(f"seed {seed}: {', '.join(f'{name} {value:.1%}' for name, value in values.items())}", flush=True)
            found |= {(arguments.steps, name, seed): value for name, value in values.items()}
            write(found)


if __name__ == "__main__":
    main()
