"""Generation and learning side by side (`training.staleness`): simulated, and real on this machine's cores.

    python benchmarks/async.py [--simulated] [--real] [--curves] [--seeds 0 1 2] [--output out/async]

`--simulated` (six minutes) runs the scheduler around an engine that only waits, for N = 0, 1, 2 and 4, next to the
ideal overlap. `--real` (twenty minutes) times `covey train` in turns and with Covey's engine in a process of its own,
for the starter and for a shape in which generation and learning take about as long. `--curves` (an hour) is the
learning curve of the first run for N = 0, 1, 2 and 4. Without any of them: the first two. Results are kept in the
output folder, so that an interrupted benchmark goes on; `--again` measures anew. Writes `benchmarks/async.md`. Run it
on an otherwise idle machine of two or more cores.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from overlap.page import finished_curves, page
from overlap.real import learn_all, time_all
from overlap.simulation import simulate_all

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "benchmarks" / "async.md"
STALENESS = (0, 1, 2, 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for part in ("simulated", "real", "curves", "again"):
        parser.add_argument(f"--{part}", action="store_true")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the curves")
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of each shape and way")
    parser.add_argument("--output", type=Path, default=ROOT / "out" / "async")
    arguments = parser.parse_args()
    asked = [part for part in ("simulated", "real", "curves") if getattr(arguments, part)] or ["simulated", "real"]
    output = arguments.output.absolute()
    simulated, timed = (
        _Results(output / f"{part}.json", arguments.again and part in asked) for part in ("simulated", "real")
    )

    def write() -> None:
        simulated.keep()
        timed.keep()
        curves = finished_curves(output, STALENESS, arguments.seeds)
        TABLE.write_text(page(simulated.rows, timed.rows, curves), encoding="utf-8")

    if "simulated" in asked and not simulated.rows:
        for one in simulate_all(say):
            simulated.rows.append({**dataclasses.asdict(one), "case": one.case.name})
            write()
    if "real" in asked:
        time_all(output, arguments.repeats, timed.rows, say, write)
    if "curves" in asked:
        learn_all(output, STALENESS, arguments.seeds, say, write)
    write()
    say(f"Written: {TABLE}")


class _Results:
    """Rows in a file, kept after each piece of work."""

    def __init__(self, file: Path, again: bool) -> None:
        self._file = file
        self.rows: list[dict[str, Any]] = json.loads(file.read_text()) if file.is_file() and not again else []

    def keep(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(self.rows, indent=1))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
