"""Runs both engines step by step, each in its own process, one at a time, and sums up what they took."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from side_by_side.settings import ENGINES, ROLLOUTS, Engine, Rollout, Setting
from side_by_side.work import least_work

BENCHMARKS = Path(__file__).resolve().parents[1]
TIMED = ("step", "generation", "scoring", "backward", "scoring and backward", "rewards", "rest")


class Worker:
    """A process that runs one engine."""

    def __init__(self, process: subprocess.Popen[str], errors: Path) -> None:
        self._process = process
        self._errors = errors
        self.about = self._answer()

    def ask(self, command: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._answer()

    def notes(self) -> list[str]:
        """What the engine reported as not applying to this setting."""
        return sorted({line.strip() for line in self._said().splitlines() if "does not apply" in line})

    def _said(self) -> str:
        return self._errors.read_text(encoding="utf-8", errors="replace")

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            raise SystemExit(f"An engine stopped (exit status {self._process.returncode}):\n{self._said()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def worker(setting: Setting, engine: Engine, rollout: str) -> Iterator[Worker]:
    """Start an engine; it is gone afterwards."""
    job = json.dumps({"engine": engine, "rollout": rollout, "setting": setting.to_json()})
    path = os.pathsep.join([str(BENCHMARKS), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-W", "ignore", "-m", "side_by_side.worker", job]
    with (
        tempfile.NamedTemporaryFile() as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
        ) as process,
    ):
        try:
            yield Worker(process, Path(errors.name))
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()


def find_baseline(setting: Setting) -> tuple[Rollout, dict[str, Any]]:
    """The fastest way that stock TRL has to sample this setting, and what each one took."""
    with worker(setting, "trl", "try") as stock:
        tried = stock.ask("try")
    works: dict[Rollout, float] = {name: tried[name] for name in ROLLOUTS if isinstance(tried[name], float)}
    if not works:
        raise SystemExit(f"Stock TRL can sample in no way here: {tried}")
    return min(works, key=lambda name: works[name]), tried


def measure(setting: Setting, rollout: Rollout | None = None, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Both engines, alternating.

    Args:
        setting: what is measured.
        rollout: how stock TRL samples; None tries all and takes the fastest.
        say: called with the progress.

    Returns:
        `machine`, `setting`, `parameters` (without the embeddings), `rival`, `notes` (what of Covey did not apply),
        `tokens` (by engine, of the steps that count), and the `rows` of the table.
    """
    tried: dict[str, Any] = {}
    if setting.vllm:
        rollout = "generate"
    if rollout is None:
        rollout, tried = find_baseline(setting)
        say(f"Stock TRL samples fastest with: {rollout}. Seconds per batch: {tried}")
    records: dict[Engine, list[dict[str, Any]]] = {engine: [] for engine in ENGINES}
    with ExitStack() as stack:
        workers = {
            engine: stack.enter_context(worker(setting, engine, rollout if engine == "trl" else "generate"))
            for engine in ENGINES
        }
        rates = [workers["trl"].ask("matmul")["flops_per_s"]]
        for step in range(setting.warmup + setting.steps):
            for engine in ENGINES if step % 2 == 0 else reversed(ENGINES):
                record = workers[engine].ask("step")
                if step >= setting.warmup:
                    records[engine].append(record)
            say(f"step {step + 1} of {setting.warmup + setting.steps} done")
        rates.append(workers["trl"].ask("matmul")["flops_per_s"])
        about = workers["trl"].about
        notes = workers["covey"].notes()
        before = {engine: workers[engine].about["memory"] for engine in ENGINES}
    rate = max(rates)
    return {
        "machine": {**machine(), **{key: about[key] for key in ("threads", "device", "versions")}, "flops_per_s": rate},
        "setting": json.loads(setting.to_json()),
        "parameters": about["parameters"],
        # The key of result files, which `page.py` reads.
        "rival": {"rollout": "vllm" if setting.vllm else rollout, "tried": tried},
        "notes": notes,
        "tokens": {engine: tokens(records[engine]) for engine in ENGINES},
        "rows": [
            *timed_rows(setting, about["parameters"], rate, records),
            tokens_row(records),
            *memory_rows(records, before),
        ],
    }


def tokens(records: list[dict[str, Any]]) -> dict[str, int]:
    """Completion tokens that were sampled, and those that a loss was computed on."""
    return {
        "sampled": sum(completion for record in records for _, completion in record["rows"]),
        "trained": sum(record["trained"] for record in records),
    }


def timed_rows(
    setting: Setting, body: int, rate: float, records: dict[Engine, list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Seconds per step by part: medians, ranges, the ratio (how many times faster Covey is), shares of the machine."""
    rows = []
    for name in TIMED:
        row: dict[str, Any] = {"row": name}
        for engine in ENGINES:
            seconds = [part(record["seconds"], name) for record in records[engine]]
            row[f"{engine}_s"] = statistics.median(seconds)
            row[f"{engine}_range_s"] = [min(seconds), max(seconds)]
        row["ratio"] = row["trl_s"] / row["covey_s"] if row["covey_s"] else None
        work = [least_work(setting, body, record["rows"]) for record in records["trl"]]
        needed = {
            "step": [one.step for one in work],
            "generation": [one.generation for one in work],
            "scoring and backward": [one.learning for one in work],
        }
        if name in needed:
            for engine in ENGINES:
                row[f"{engine}_of_machine"] = statistics.median(needed[name]) / rate / row[f"{engine}_s"]
        rows.append(row)
    return rows


def part(seconds: dict[str, float], name: str) -> float:
    if name == "scoring and backward":
        return part(seconds, "scoring") + part(seconds, "backward")
    return seconds.get(name, 0.0)


def tokens_row(records: dict[Engine, list[dict[str, Any]]]) -> dict[str, Any]:
    """Completion tokens per second of the whole step."""
    row: dict[str, Any] = {"row": "tokens per second"}
    for engine in ENGINES:
        rates = [sum(c for _, c in one["rows"]) / one["seconds"]["step"] for one in records[engine]]
        row[f"{engine}_per_s"] = statistics.median(rates)
        row[f"{engine}_range_per_s"] = [min(rates), max(rates)]
    row["ratio"] = row["covey_per_s"] / row["trl_per_s"]
    return row


def memory_rows(records: dict[Engine, list[dict[str, Any]]], before: dict[Engine, int]) -> list[dict[str, Any]]:
    """The most that the process held, and how much of that came on top of the loaded trainer."""
    peaks = {engine: max(record["peak"] for record in records[engine]) for engine in ENGINES}
    above = {engine: max(peaks[engine] - before[engine], 1) for engine in ENGINES}
    return [
        {
            "row": name,
            "trl_bytes": found["trl"],
            "covey_bytes": found["covey"],
            "ratio": found["trl"] / found["covey"],
            "share": found["covey"] / found["trl"],
        }
        for name, found in (("peak memory", peaks), ("peak memory above the start", above))
    ]


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        name = models[0] if models else name
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"processor": name, "cores": cores, "system": platform.system(), "python": platform.python_version()}
