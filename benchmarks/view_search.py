"""How long searches in `covey view` take, over 100,000 completions of a run, and how long it takes to read them.

Each search is a request from the folder to JSON, without the network. Besides the time on the clock the processor time
is shown, which other programs on the machine change little.

python benchmarks/view_search.py [--completions 100000] [--letters 1000] [--folder KEEP]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from covey.report.completions import sources_of
from covey.runlog import MetricsWriter, RunDirectory, names, write_completions
from covey.view.completions import CompletionStore, Query

PER_STEP, GROUP = 200, 8
QUERIES = {
    "a number that few have": Query(q="4813 apples"),
    "a word in every tenth": Query(q="Therefore"),
    "a word in all": Query(q="the"),
    "one letter": Query(q="e"),
    "text that none has": Query(q="no such words anywhere"),
    "a number, wrong, longest first": Query(q="4813", outcome="wrong", sort="length-down"),
    "no text, highest reward first": Query(sort="reward-down"),
}
WORDS = (
    "so",
    "we",
    "add",
    "the",
    "two",
    "numbers",
    "and",
    "carry",
    "one",
    "to",
    "get",
    "a",
    "sum",
    "of",
    "which",
    "both",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--completions", type=int, default=100_000)
    parser.add_argument("--letters", type=int, default=1000, help="of a completion, about")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--folder", type=Path, help="where the run is kept; else it is written to a temporary folder")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = (given.folder or Path(temporary)) / f"run-{given.completions}-{given.letters}"
        if not root.exists():
            write_run(root, given.completions, given.letters)
        measure(root, given.repeats)


def write_run(root: Path, count: int, letters: int) -> None:
    """A run with this many completions, 200 a step."""
    run, draw = RunDirectory(root), random.Random(0)
    root.mkdir(parents=True)
    run.config.write_text("rewards: {funcs: [exact_match]}\ntraining: {num_generations: 8}\n")
    writer = MetricsWriter(run.metrics, None)
    for step in range(1, count // PER_STEP + 1):
        writer.add(step, {names.reward_mean("exact_match"): 0.5, names.REWARD: 0.5})
        write_completions(run.completions, step, columns(draw, letters))
    writer.flush()


def columns(draw: random.Random, letters: int) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for at in range(PER_STEP):
        if at % GROUP == 0:
            question = f"A farmer has {draw.randrange(10_000)} apples and buys {draw.randrange(10_000)}. How many now?"
        text = " ".join(draw.choice(WORDS) for _ in range(letters // 5))
        text += " Therefore" * (draw.random() < 0.1) + f" {draw.randrange(10_000)}"
        values = {
            names.COLUMN_PROMPT: [{"role": "user", "content": question}],
            names.COLUMN_COMPLETION: [{"role": "assistant", "content": f"<think>{text}</think><answer>7</answer>"}],
            "exact_match": float(draw.random() < 0.5),
            names.COLUMN_GROUP: at // GROUP,
            names.COLUMN_ANSWER: "7",
            names.COLUMN_OUTCOME: draw.choice(["right", "wrong"]),
            names.COLUMN_LENGTH: draw.randrange(1000),
            names.COLUMN_ADVANTAGE: draw.gauss(0, 1),
            names.COLUMN_RENDERED: f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n",
        }
        for name, value in values.items():
            found.setdefault(name, []).append(value)
    return found


def measure(root: Path, repeats: int) -> None:
    store, (source,) = CompletionStore(), sources_of(root)
    began, before = time.perf_counter(), time.process_time()
    first = store.find(source, Query())
    shown = time.perf_counter() - began
    store.find(source, Query(q="7"))
    read, worked_for = time.perf_counter() - began, time.process_time() - before
    count = f"{first['count']:,} completions in {len(source.files):,} files"
    print(f"{count}: the first page after {shown:.2f} s, the first search after {read:.1f} s ", end="")
    print(f"({worked_for:.1f} s of processor time)\n")
    print("| search | found | median ms | slowest ms | processor ms |\n|---|---|---|---|---|")
    for name, query in QUERIES.items():
        times, worked = [], []
        for _ in range(repeats):
            began, before = time.perf_counter(), time.process_time()
            (here,) = sources_of(root)  # as a request does it
            found = store.find(here, query)
            json.dumps(found)
            times.append(1000 * (time.perf_counter() - began))
            worked.append(1000 * (time.process_time() - before))
        figures = statistics.median(times), max(times), statistics.median(worked)
        print(f"| {name} | {found['total']:,} | {' | '.join(f'{one:.0f}' for one in figures)} |")


if __name__ == "__main__":
    main()
