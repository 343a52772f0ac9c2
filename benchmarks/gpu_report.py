"""What a GPU confirms of Covey, in parts of under ten minutes: `make gpu-report`.

    python benchmarks/gpu_report.py [--only NAME ...] [--minutes 9] [--limit 570] [--list] [--again]

Runs the tests marked `gpu`, `covey doctor --device`, and steps next to stock TRL's (SDPA and, where it is installed,
FlashAttention 2) on random weights of 0.5B and 1.5B in bfloat16, sampled by Covey's own engine and by vLLM; on two
GPUs or more, a run with vLLM servers behind it. Needs no network. Each part's result is kept in `out/gpu`: the same
command goes on with the parts that are missing or failed. Writes `benchmarks/gpu.md`. Without a GPU it rehearses: the
same parts on the CPU with tiny sizes, and the tests on tensors that claim to be on a GPU; the page then goes to
`out/gpu_rehearsal`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from side_by_side.cells import GPU, Cell, all_cells
from side_by_side.page import costs, times
from side_by_side.settings import Setting

from covey.launch.machine import this_machine

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Part:
    """What runs in a process of its own."""

    name: str
    command: tuple[str, ...]
    result: Path | None = None
    """The JSON that it writes."""
    needs: str | None = None
    """A module without which there is nothing to run."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--only", nargs="+", help="parts, by the beginnings of their names")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no part after this time")
    parser.add_argument("--limit", type=float, default=570, help="seconds after which a part is stopped")
    parser.add_argument("--list", action="store_true", help="only name the parts")
    parser.add_argument("--again", action="store_true", help="also run the parts whose results are there")
    arguments = parser.parse_args()
    has_gpu = on_gpu()
    folder = ROOT / "out" / ("gpu" if has_gpu else "gpu_rehearsal")
    cells = cells_of(has_gpu)
    chosen = [
        part
        for part in parts_of(cells, folder, has_gpu)
        if arguments.only is None or part.name.startswith(tuple(arguments.only))
    ]
    if arguments.list:
        print("\n".join(part.name for part in chosen))
        return
    folder.mkdir(parents=True, exist_ok=True)
    if not has_gpu:
        print("No GPU here: a rehearsal, on the CPU with tiny sizes. Its figures say nothing about a GPU.", flush=True)
    began, failed, left = time.monotonic(), [], []
    for number, part in enumerate(chosen, start=1):
        file = folder / f"{part.name}.part.json"
        known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        if known.get("ok") and not arguments.again:
            continue
        if time.monotonic() - began > 60 * arguments.minutes:
            left.append(part.name)
            continue
        print(f"{number}/{len(chosen)}: {part.name}", flush=True)
        found = run(part, folder / f"{part.name}.log", arguments.limit)
        file.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        print(f"  {found['said']} ({found['seconds']:.0f} s)", flush=True)
        failed += [part.name] if not found["ok"] and not found.get("left_out") else []
    written = (ROOT / "benchmarks" if has_gpu else folder) / "gpu.md"
    written.write_text(page(cells, parts_of(cells, folder, has_gpu), folder, has_gpu), encoding="utf-8")
    print(f"Written: {written}; logs are in {folder}.")
    if left:
        print(f"Not begun, as the time is up: {', '.join(left)}. The same command goes on with them.")
    if failed:
        raise SystemExit(f"Failed: {', '.join(failed)}. The same command tries these again.")


def on_gpu() -> bool:
    """Whether PyTorch finds a GPU; asked in another process, so that this one holds no memory of it."""
    text = "import torch; raise SystemExit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", text], check=False).returncode == 0


def cells_of(has_gpu: bool) -> list[Cell]:
    """The steps that are measured; tiny ones for a rehearsal."""
    cells = [cell for cell in all_cells(steps=3, seed=0) if GPU in cell.tables]
    if has_gpu:
        return cells
    tiny: dict[str, Any] = {"size": "1m", "prompt_length": 16, "completion_length": 12, "prompts": 1, "steps": 1}
    return [replace(cell, setting=replace(cell.setting, **tiny, generations=4)) for cell in cells]


def parts_of(cells: Sequence[Cell], folder: Path, has_gpu: bool) -> list[Part]:
    """Everything that is run, the quickest answers first."""
    python, doctor = sys.executable, folder / "device.json"
    pytest = (python, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    quick = () if has_gpu else ("--quick",)
    parts = [Part("device", (python, "-m", "covey", "doctor", "--device", *quick, "--json", str(doctor)), doctor)]
    parts += [Part("tests", (*pytest, "-m", "gpu", "tests"))]
    if not has_gpu:
        parts += [Part("claimed", (*pytest, "-m", "not slow", "tests/claimed_gpu"))]
    gpus = len(this_machine().gpus) if has_gpu else 0
    if gpus != 1:  # one that trains, and one or two servers behind one client
        asked = (
            "training.use_vllm=true",
            "training.vllm_mode=server",
            f"training.vllm_servers={min(2, gpus - 1) if gpus else 2}",
        )
        asked += ("training.max_steps=3", "training.bf16=true") if gpus else ("training.max_steps=2",)
        asked += (f"output_dir={folder}", "run_name=servers", "overwrite=true", f"launch.log_dir={folder / 'logs'}")
        parts.append(Part("servers", (python, "-m", "covey", "launch", "model=starter", *asked), needs="vllm"))
    for cell in cells:
        result = folder / f"{cell.name}.json"
        command = (python, "benchmarks/step.py", *words(cell.setting), "--json", str(result))
        needs = "vllm" if cell.setting.vllm else "flash_attn" if cell.setting.attention else None
        parts.append(Part(cell.name, command, result, needs))
    return parts


def words(setting: Setting) -> list[str]:
    """The options of `benchmarks/step.py` for a setting."""
    numbers = {
        "--prompt-length": setting.prompt_length,
        "--completion-length": setting.completion_length,
        "--generations": setting.generations,
        "--prompts": setting.prompts,
        "--steps": setting.steps,
        "--seed": setting.seed,
    }
    found = ["--size", setting.size, *(str(one) for pair in numbers.items() for one in pair)]
    found += ["--bf16"] * setting.bf16 + ["--vllm"] * setting.vllm
    return found + (["--attention", setting.attention] if setting.attention else [])


def run(part: Part, log: Path, limit: float) -> dict[str, Any]:
    """Run a part, with all processes that it starts: `ok`, `seconds` and what it `said`."""
    if part.needs is not None and find_spec(part.needs) is None:
        return {"ok": False, "left_out": True, "seconds": 0.0, "said": f"left out: {part.needs} is not installed"}
    if part.result is not None:
        part.result.unlink(missing_ok=True)
    began, environment = time.monotonic(), {**os.environ, "HF_HUB_OFFLINE": "1"}
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            part.command, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT, env=environment, start_new_session=True
        )
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    seconds = time.monotonic() - began
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    said = f"stopped after {limit:.0f} s" if code is None else lines[-1].strip("= ") if lines else ""
    if part.result is not None and part.result.exists():
        found = json.loads(part.result.read_text(encoding="utf-8"))
        if "checks" in found:
            said = f"{sum(one['ok'] for one in found['checks'])} of {len(found['checks'])} checks are right"
        elif "rows" in found:
            said = f"{found['rows'][0]['ratio']:.2f} times as fast as TRL"
    nothing = code == 5 and part.result is None  # pytest's code for no tests; without a GPU they are skipped
    return {
        "ok": (code == 0 or nothing) and (part.result is None or part.result.exists()),
        "seconds": seconds,
        "said": said,
    }


def page(cells: Sequence[Cell], parts: Sequence[Part], folder: Path, has_gpu: bool) -> str:
    """All that is known so far, as Markdown."""
    what = "Covey on a GPU, measured" if has_gpu else "A rehearsal without a GPU: no figure here is of one"
    lines = [f"# {what}", "", f"Made by `make gpu-report`{'' if has_gpu else ' on a machine without a GPU'}.", ""]
    device = folder / "device.json"
    if device.exists():
        found = json.loads(device.read_text(encoding="utf-8"))
        about = {name: value for name, value in found["device"].items() if name != "packages"}
        packages = (f"{name} {number}" for name, number in found["device"]["packages"].items() if number)
        lines += [
            ", ".join(f"{name} {value}" for name, value in about.items()) + ".",
            "",
            ", ".join(packages) + ".",
            "",
        ]
    lines += ["| part | result | seconds |", "|---|---|---|"]
    for part in parts:
        file = folder / f"{part.name}.part.json"
        known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"said": "not run", "seconds": 0}
        mark = "✓ " if known.get("ok") else "" if known.get("left_out") or not file.exists() else "✗ "
        lines.append(f"| {part.name} | {mark}{said(known['said'])} | {known['seconds']:.0f} |")
    if device.exists():
        lines += [
            "",
            "## The numbers of this device",
            "",
            "Against float64 on the CPU, by `covey doctor --device`.",
            "",
        ]
        lines += ["| check | error | allowed |", "|---|---|---|"]
        for check in found["checks"]:
            mark = "✓" if check["ok"] else "✗"
            lines.append(
                f"| {mark} {check['name']}: {check['what']} | {number(check['error'])} | {number(check['allowed'])} |"
            )
    done = [
        (cell, json.loads((folder / f"{cell.name}.json").read_text(encoding="utf-8")))
        for cell in cells
        if (folder / f"{cell.name}.json").exists()
    ]
    if done:
        lines += ["", "## A step next to stock TRL's", ""]
        lines += [
            "Random weights, bfloat16, from the same prompts, with completions of the same lengths; medians, and the"
        ]
        lines += ["range. Cells with `vllm` sample with vLLM in both, the others each with its own engine.", ""]
        lines += [*times(done), "", *costs(done)]
    return "\n".join([*lines, ""])


def said(text: str) -> str:
    """A part's last words within a table's cell."""
    return text.replace("|", "\\|")[:160]


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


if __name__ == "__main__":
    main()
