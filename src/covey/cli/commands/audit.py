"""`covey audit`: the rollouts of any trainer, their rewards checked."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from covey.advice import command
from covey.cli import config_arguments
from covey.cli.json_output import add_json, print_json

_COLUMNS = ("prompt", "completion", "reward", "gold", "step", "group")
_GRADERS = ("accuracy", "exact_match", "countdown", "graph_coloring", "check_answer", "check_numbers")
_SHOWN = 10


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "audit",
        help="examine the rollouts of any trainer, and check their rewards",
        description=(
            "Read the rollouts that TRL, verl, prime-rl, verifiers, AReaL, NeMo-RL, OpenRLHF or a program of your own "
            "wrote (JSON lines, Parquet, CSV), compare every reward with Covey's grader, look for groups without "
            "signal and signs of hacked rewards, and write a run directory with a page, which covey view shows too."
        ),
    )
    parser.add_argument("rollouts", nargs="+", metavar="ROLLOUTS", help="files, folders of them, or a run")
    for name in _COLUMNS:
        more = ", or a file of questions and answers" if name == "gold" else ""
        parser.add_argument(f"--{name}", metavar="NAME", help=f"the column of the {name}, if not recognised{more}")
    parser.add_argument("--right", type=float, default=1.0, metavar="REWARD", help="of right answers, or less (1.0)")
    parser.add_argument("--grader", choices=_GRADERS, help="in place of the one that the gold answers are for")
    parser.add_argument("--out", metavar="DIR", help="the run directory (out/audit-NAME), or a .html file for the page")
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from covey.data.rollouts import read_rollouts
    from covey.report.audit import audit
    from covey.report.live import conclusions
    from covey.report.load import read_mapping
    from covey.report.page import write_report
    from covey.runlog import RunDirectory
    from covey.training.display import print_findings

    given = {name: value for name in _COLUMNS if (value := getattr(arguments, name)) is not None}
    rollouts = read_rollouts(arguments.rollouts, given)
    name = Path(arguments.rollouts[0]).resolve().name.partition(".")[0]
    out = Path(arguments.out or Path("out", f"audit-{name}"))
    number, first = 1, rollouts.files[:1]
    while arguments.out is None and read_mapping(RunDirectory(out).audit).get("files", first)[:1] != first:
        number, out = number + 1, Path("out", f"audit-{name}-{number + 1}")  # others' audits keep their folders
    root, page = (out.with_suffix(""), out) if out.suffix == ".html" else (out, None)
    found = audit(rollouts, root, arguments.right, arguments.grader)
    page, (_, findings) = write_report(root, page), conclusions(RunDirectory(root))
    if arguments.as_json:
        print_json(found | {"findings": findings, "folder": root, "page": page})
        return 0
    console = config_arguments.make_console()
    show = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    show(f"{found['rows']:,} rollouts (files: {len(found['files']):,}, steps: {len(found['steps']):,})")
    read = {what: " + ".join(names) for what, names in found["columns"].items()}
    shown = [f"{what} = {name}" for what, name in read.items() if what != "compared" or name != read["reward"]]
    show(f"read: {', '.join(shown)}")
    if found["left_out"]:
        show(f"Left out, as they have no such columns: {', '.join(found['left_out'])}")
    show("\n".join(found["notes"]) + "\n" * bool(found["notes"]), end="")
    print_findings(console, findings)
    for one in (found["disagreements"] or ())[:_SHOWN]:
        where, verdict = f"{one['file']}, row {one['row']}, step {one['step']}", one["verdict"].replace("_", " ")
        values = f"gold {one['gold']!r}, extracted {one['extracted']!r}, reward {one['reward']:g}"
        show(f"    {where}: {values}, {verdict} by {found['grader']}")
    show(f"{page}\n{command('view {folder}', folder=root)}")
    return 0
