"""The cost of recording a run: per step, and per report.

python benchmarks/recording.py [--steps 500] [--completions 128]

Processor time on one core, of a run that is made up (`tests/support/made_run.py` draws its figures and completions):
the row of metrics, the completions (in a background thread), and the report, which a separate process makes at the
lowest priority, at most once a minute.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from covey.report.page import write_report
from covey.runlog import MetricsWriter, RunDirectory, read_completions, read_metrics, write_completions
from covey.runlog.names import STEP
from made_run import make_run


def measured(call: Callable[[], object], times: int = 1) -> float:
    """Seconds of processor time that a call takes, all threads together."""
    began = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - began) / times


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--completions", type=int, default=128, help="of a step")
    asked = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory(make_run(Path(folder) / "run", steps=asked.steps, per_step=asked.completions))
        rows = read_metrics(run.metrics)
        batch = read_completions(next(iter(sorted(run.completions.iterdir()))))
        columns = {name: [row[name] for row in batch] for name in batch[0] if name != STEP}
        writer = MetricsWriter(Path(folder) / "again" / "metrics.jsonl", None)
        steps = iter(rows)
        row = measured(lambda: writer.add((one := next(steps))[STEP], one), len(rows))
        numbers = iter(range(50))
        stored = measured(lambda: write_completions(Path(folder) / "again" / "completions", next(numbers), columns), 50)
        page = measured(lambda: write_report(run.root))
        size = run.report.stat().st_size / 1e6
        kept = sum(path.stat().st_size for path in run.completions.iterdir()) / asked.steps / 1e3
    print(f"row of metrics: {1e3 * row:.2f} ms a step")
    print(f"{asked.completions} completions: {1e3 * stored:.1f} ms a step, {kept:.0f} kB")
    print(
        f"report of {asked.steps} steps, {asked.steps * asked.completions:,} completions: {page:.1f} s, {size:.2f} MB"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
