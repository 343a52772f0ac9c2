"""`covey config`: print the config that a command would run, without running it or loading PyTorch."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from covey.cli import config_arguments
from covey.cli.config_arguments import Request, value_of
from covey.cli.json_output import add_json, print_json
from covey.config import Config, differences, document, known_keys
from covey.config.aliases.resolve import explain_alias
from covey.config.compose.build import as_dict
from covey.config.compose.render import is_compared
from covey.config.keys import GROUPS
from covey.config.secrets import redact_value, without_secrets
from covey.config.values import show as show_value
from covey.errors import ConfigError

_DEFAULTS = ""
"""--diff without a recipe compares with the defaults."""
_ORIGINS = {"covey": "Covey", "trl": "TRL's GRPOConfig"}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "config",
        help="print the resolved config",
        description="Print the config that `covey train` would run with the same arguments, as a recipe.",
    )
    config_arguments.add_arguments(parser)
    parser.add_argument("--doc", metavar="KEY", help="explain one key instead: its type, default, meaning and origin")
    parser.add_argument(
        "--diff",
        nargs="?",
        const=_DEFAULTS,
        metavar="RECIPE",
        help="print only what differs from a run without arguments, or from another recipe",
    )
    add_json(parser, "print the config, or with --diff what differs, as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from covey.config import to_yaml

    request = config_arguments.read_request(arguments)
    if arguments.as_json and (arguments.doc or arguments.cfg or arguments.info):
        raise ConfigError("--json goes with the config and with --diff, not with --doc, --cfg or --info.")
    if arguments.doc:
        print(_explanation(arguments.doc, request), end="")
        return 0
    if arguments.cfg or arguments.info:
        from covey.cli.hydra_views import show

        return show(request, arguments.cfg, arguments.info)
    if arguments.diff is not None:
        return _compare(arguments.diff, request, as_json=arguments.as_json)
    composed = request.compose(config_arguments.processes_of)
    config_arguments.check_registered(composed.config)
    config_arguments.print_notes(composed)
    config_arguments.print_without_effect(composed)
    if arguments.as_json:
        print_json(without_secrets(as_dict(composed.config)))
    else:
        print(to_yaml(composed.config), end="")
    return 0


def _explanation(name: str, request: Request) -> str:
    """The meaning of a key, or of another tool's name for one, its origin, and its value in this run."""
    key, alias = explain_alias(name)
    if not key:
        return f"{alias}\n"
    doc = document(key)
    fields = {"type": doc.type, "default": show_value(doc.default), "origin": _ORIGINS[doc.origin]}
    if key in GROUPS:
        fields = {"type": doc.type}
    else:
        composed = request.compose()
        origin = composed.origins.get(key)
        place = "from Covey's defaults and groups" if origin is None else f"set by {origin}"
        fields["here"] = f"{show_value(redact_value(key, value_of(composed.config, key)))}, {place}"
    lines = [key, *(f"  {field:<8} {text}" for field, text in fields.items()), "", doc.doc]
    if alias:
        lines.insert(0, alias)
    return "\n".join(lines) + "\n"


def _compare(other: str, request: Request, *, as_json: bool) -> int:
    """Print the keys that differ. A single recipe is compared with the defaults."""
    if other and request.source is None:
        request, other = request.with_recipe(other), _DEFAULTS
    base = Request(other or None, (), (), request.config_dirs).compose()
    here = request.compose(config_arguments.processes_of)
    config_arguments.check_registered(here.config)
    config_arguments.print_notes(here)
    config_arguments.print_without_effect(here)
    rows = _differences(base.config, here.config)
    if as_json:
        values = [(key, *(redact_value(key, value) for value in both)) for key, *both in rows]
        print_json([{"key": key, "before": before, "here": after} for key, before, after in values])
        return 0
    if not rows:
        print(f"Nothing differs from {other or 'the defaults'}.", file=sys.stderr)
        return 0
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("key", other or "default", "here"):
        table.add_column(heading, overflow="fold")
    for key, before, after in rows:
        table.add_row(Text(key), *(Text(show_value(redact_value(key, value))) for value in (before, after)))
    config_arguments.make_console().print(table)
    return 0


def _differences(base: Config, here: Config) -> list[tuple[str, Any, Any]]:
    """Every key that differs, those that do not change a run's numbers (names, folders, logging, launch) included."""
    found = {key: (before, after) for key, before, after in differences(base, here)}
    for key in known_keys():
        if not is_compared(key):
            before, after = value_of(base, key), value_of(here, key)
            if before != after:
                found[key] = (before, after)
    return [(key, *found[key]) for key in known_keys() if key in found]
