"""`covey doctor`: find what would go wrong in a run before it starts."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from covey.cli import config_arguments
from covey.cli.json_output import json_alone, print_json
from covey.config.secrets import redact
from covey.errors import ConfigError, CoveyError
from covey.launch.machine import keep_one_gpu, this_machine

if TYPE_CHECKING:
    from covey.config.compose.compose import Composed
    from covey.training.checks.findings import PreflightFinding


_COLOURS = {"✓": "green", "·": "dim", "!": "yellow", "✗": "red"}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        help="check a run before it starts",
        description=(
            "Check a run before it starts: the config, packages, weights, end-of-sequence tokens, the data and their "
            "answers, prompt lengths, the batch, and the memory it will need. Exits with 1 when something is wrong: "
            "training makes the same checks, and does not start then."
        ),
    )
    config_arguments.add_arguments(parser)
    parser.add_argument("--try", dest="trial", action="store_true", help="also run three steps and time them")
    parser.add_argument("--profile", action="store_true", help="also sample some problems: can it learn?")
    parser.add_argument(
        "--device", action="store_true", help="check this machine's GPU (or CPU) instead: right numbers, and how fast"
    )
    parser.add_argument("--quick", action="store_true", help="with --device: small shapes, under a minute")
    parser.add_argument(
        "--json",
        nargs="?",
        const="",
        metavar="FILE",
        help="print JSON in place of tables, for scripts; --device --json FILE: print tables, and write JSON there",
    )
    parser.add_argument(
        "--yes", action="store_true", help="run the code and commands that the recipe names, without asking"
    )
    parser.add_argument("--quiet", action="store_true", help="print only why training would not start")
    parser.add_argument("--processes", type=int, help="training processes of the run, where `covey launch` starts more")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    with json_alone(arguments.json == "" or (arguments.json is not None and not arguments.device)):
        if arguments.device:
            from covey.cli.device_check import run_checks

            return run_checks(quick=arguments.quick, file=arguments.json)
        if arguments.quick:
            raise ConfigError(
                "--quick and --json FILE go with --device, which checks this machine: `covey doctor --device`."
            )
        return _check_run(arguments)


def _check_run(arguments: argparse.Namespace) -> int:
    as_json = arguments.json is not None
    if arguments.json:  # without --device it takes no file: this is the recipe
        arguments.words.insert(0, arguments.json)
    request = config_arguments.read_request(arguments)
    composed = request.compose(lambda config: arguments.processes or config_arguments.processes_of(config))
    processes = arguments.processes or config_arguments.processes_of(composed.config)
    if not arguments.quiet:
        config_arguments.print_without_effect(composed)
    not_run = {} if arguments.yes else _not_run(composed, ask=not as_json)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    console = config_arguments.make_console(stderr=as_json)
    from covey.training.checks.findings import Mark, PreflightFinding, worst
    from covey.training.doctor import examine, try_steps
    from covey.training.staleness_advice import CHECK, Hardware

    prompts: list[str] = []
    machine = this_machine()
    hardware = Hardware(len(machine.gpus), machine.cpus)
    one_gpu = keep_one_gpu() if arguments.trial else None
    findings = [PreflightFinding(Mark.NOTE, "config", note) for note in (*composed.notes, *filter(None, [one_gpu]))]
    with console.status("Looking …") as status:
        for finding in examine(
            composed.config,
            processes=processes,
            hardware=hardware,
            show_prompt=prompts.append,
            naming_places=composed.naming_places,
            progress=status.update,
            not_run=not_run,
        ):
            status.update(f"Looking … {finding.check} {finding.mark}")
            findings.append(finding)
    if arguments.quiet:
        findings, prompts = [finding for finding in findings if finding.mark is Mark.WRONG], []
        for finding in findings if not as_json else ():
            print(f"covey: {redact(str(finding.refusal()))}", file=sys.stderr)
    if arguments.trial and not_run:
        skipped = "the recipe names code that is not run without --yes"
        findings.append(PreflightFinding(Mark.NOTE, "three steps", f"skipped: {skipped}"))
    elif arguments.trial and not arguments.quiet and worst(findings) is not Mark.WRONG:
        measured = list(try_steps(composed.config, console, hardware))
        replaced = {CHECK} & {finding.check for finding in measured}
        findings = [*(one for one in findings if one.check not in replaced), *measured]
    if arguments.profile and not not_run and not arguments.quiet and worst(findings) is not Mark.WRONG:
        from covey.cli.commands.profile import measure
        from covey.evaluation.stored import find_target

        try:
            profiled = measure(composed.config, find_target(composed.config.model.name), console)
            mark = Mark.FINE if profiled["verdict"] == "learn" else Mark.WARNING
            text = f"{profiled['verdict']}: {profiled['reason']}"
        except CoveyError as error:  # the other findings stand
            mark, text = Mark.WARNING, str(error)
        findings.append(PreflightFinding(mark, "profile", text))
    if as_json:
        found = [
            {"severity": one.mark.name.lower(), "check": one.check, "result": one.result, "advice": one.advice}
            for one in findings
        ]
        print_json({"findings": found, "prompts": prompts})
    elif not arguments.quiet:
        show_findings(console, findings, prompts)
    return 1 if worst(findings) is Mark.WRONG else 0


def _not_run(composed: Composed, *, ask: bool) -> Mapping[str, Sequence[str]]:
    """The code that the recipe names and the user did not type, by key, unless they agree to run it."""
    from covey.config.named_code import not_typed

    found = not_typed(composed.config, composed.given)
    if not found or not ask or not sys.stdin.isatty():
        return found
    named = "".join(f"  {key}: {redact(', '.join(names))}\n" for key, names in found.items())
    print(f"The recipe names code, which would run with all your rights:\n{named}", end="", file=sys.stderr)
    return {} if config_arguments.agreed("Run it for the checks?") else found


def show_findings(
    console: Any, findings: Sequence[PreflightFinding], prompts: Sequence[str] = (), *, fine: bool = True
) -> None:
    """Print prompts, findings and their counts; without `fine`, only trial calls of what is fine."""
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    for prompt in prompts:
        console.print(Panel(Text(prompt), title="a prompt, as the model will see it", title_align="left"))
    table = Table(show_header=False, box=None, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in (one for one in findings if fine or one.mark != "✓" or one.check.startswith("reward ")):
        seen = Text(finding.result)
        if finding.advice:
            seen.append(f"\n→ {finding.advice}", style="bold")
        table.add_row(Text(finding.mark, style=_COLOURS[finding.mark]), finding.check, seen)
    console.print(table)
    counts = {mark: sum(f.mark == mark for f in findings) for mark in _COLOURS}
    notes = f"{counts['·']} note{'' if counts['·'] == 1 else 's'}"
    text = f"{counts['✓']} fine, {notes}, {counts['!']} to look at, {counts['✗']} wrong"
    console.print(text, style="red" if counts["✗"] else "yellow" if counts["!"] else "green", highlight=False)
