"""Fake jobs in place of `covey train`, and their states after a sweep."""

from __future__ import annotations

from pathlib import Path

from covey.runlog.sweep import SweepDirectory

JOB = """
import json, os, signal, sys, time
from pathlib import Path
import yaml
from covey.runlog.checkpoint import mark_complete
from covey.runlog.directory import RunDirectory

file = Path(sys.argv[sys.argv.index("--config") + 1])
config = yaml.safe_load(file.read_text())
run = RunDirectory(Path(config["output_dir"]) / config["run_name"])
with Path("calls").open("a") as calls:
    calls.write(config["run_name"] + "\\n")
behaviour = json.loads(Path("behaviours").read_text()).get(str(config["seed"])) if Path("behaviours").exists() else None
if behaviour == "fails":
    print("covey: no such weights.", file=sys.stderr)
    sys.exit(1)
if behaviour == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if behaviour == "stops the sweep":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(30)
run.root.mkdir(parents=True)
run.config.write_text(file.read_text())
value = 0.2 + config["seed"] / 100
rows = [
    {"step": 0, "eval/accuracy": 0.1, "eval/accuracy_low": 0.05, "eval/accuracy_high": 0.2},
    {"step": 1, "train/reward": value, "train/completions/mean_length": 30.0},
    {"step": 2, "train/reward": value + 0.5, "eval/accuracy": value, "eval/accuracy_low": value - 0.1,
     "eval/accuracy_high": value + 0.1, "eval/completion_length": 20.0},
]
run.metrics.write_text("".join(json.dumps(row) + "\\n" for row in rows))
run.checkpoint(2).mkdir()
mark_complete(run.checkpoint(2), 2)
run.final_model.mkdir()
run.summary.write_text("{}")
"""


def states(root: Path) -> dict[str, str]:
    directory = SweepDirectory(root)
    return {job.name: directory.state(job).state for job in directory.read().jobs}
