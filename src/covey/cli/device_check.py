"""`covey doctor --device`: checks of this machine's device, as a table and as JSON."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from covey.cli.config_arguments import make_console
from covey.cli.json_output import json_text, print_json
from covey.errors import ConfigError
from covey.launch.machine import this_machine
from covey.runlog.files import write_atomically
from covey.runlog.overlap import Round


def run_checks(*, quick: bool, file: str | None) -> int:
    """Run the checks, print them, and write them to a file if one is given; an empty name prints them as JSON. Raises a
    `ConfigError` if there is no folder for the file."""
    if file and not Path(file).absolute().parent.is_dir():
        raise ConfigError(f"--json {file}: there is no folder {Path(file).absolute().parent}; make it first.")
    console = make_console(stderr=file == "")
    with console.status("Loading PyTorch …") as status, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        from transformers.utils.logging import set_verbosity_error

        set_verbosity_error()
        from covey.training.device_check.run import check_device

        found = check_device(quick=quick, say=lambda text: status.update(f"{text} …"))
    if file == "":
        print_json(found)
    else:
        _print(console, found)
    if file:
        write_atomically(Path(file), json_text(found) + "\n")
    return 0 if all(check["ok"] for check in found["checks"]) else 1


def _print(console: Any, found: dict[str, Any]) -> None:
    from rich.table import Table

    device = {name: value for name, value in found["device"].items() if name != "packages"}
    console.print(", ".join(f"{name} {value}" for name, value in device.items()), highlight=False)
    packages = found["device"]["packages"]
    console.print(", ".join(f"{name} {value}" for name, value in packages.items() if value), highlight=False)
    table = Table("", "check", "error", "allowed", "what", box=None, padding=(0, 1))
    for check in found["checks"]:
        mark = "[green]✓[/]" if check["ok"] else "[red]✗[/]"
        table.add_row(mark, check["name"], _short(check["error"]), _short(check["allowed"]), check["what"])
    console.print(table)
    for check in (check for check in found["checks"] if not check["ok"]):
        more = f" ({check['note']})" if check["note"] else ""
        text = f"{check['name']} is wrong on this device{more}: train with {check['switch']}, and please report it."
        console.print(text, style="red", markup=False, highlight=False)
    table = Table(
        *("a step", "prompt + completion", "seconds", "generation", "scoring", "backward", "peak GiB", "waits"),
        box=None,
        padding=(0, 1),
    )
    errors = []
    for one in found["speed"]:
        peak, waits = one.get("peak_gib"), one.get("waits_per_step")
        shown = "" if peak is None else f"{peak:.1f}", "" if waits is None else f"{waits:.0f}"
        if "error" in one:
            errors.append(f"{one['name']}, {one['prompt']} + {one['completion']}: {one['error']}")
            continue
        seconds = (f"{value:.3f}" for value in (one["seconds"], *one["parts"].values()))
        table.add_row(one["name"], f"{one['prompt']} + {one['completion']}", *seconds, *shown)
    console.print(table)
    for text in [*errors, *_staleness(found["speed"])]:
        console.print(text, markup=False, highlight=False)


def _staleness(speed: list[dict[str, Any]]) -> Iterator[str]:
    """Advice on training.staleness from the seconds of Covey's own steps."""
    from covey.training.staleness_advice import Hardware, advised

    machine = this_machine()
    for one in speed:
        if one["name"] == "covey" and "error" not in one:
            generation = one["parts"]["generation"]
            rounds = [Round(generation, one["seconds"] - generation)]
            best, why = advised(rounds, Hardware(len(machine.gpus), machine.cpus).shared())
            yield f"{one['prompt']} + {one['completion']} tokens: training.staleness={best}: {why}."


def _short(number: float | None) -> str:
    return "" if number is None else f"{number:.2g}"
