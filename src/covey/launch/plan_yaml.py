"""A plan as YAML."""

from __future__ import annotations

import shlex
from typing import Any

import yaml

from covey.config.secrets import ENGINE_KEY
from covey.launch.plan import LaunchPlan


def as_text(plan: LaunchPlan) -> str:
    """The plan as YAML, processes in starting order."""
    server = plan.server
    content: dict[str, Any] = {
        "run": str(plan.run),
        "logs": str(plan.logs),
        "nodes": plan.nodes,
        "gpus_per_node": plan.gpus,
        "num_processes": plan.num_processes,
        "serving_gpus": list(plan.sampling),
        "ports": dict(plan.ports),
    }
    if server is not None:
        content["server"] = {
            "url": server.url,
            "model": server.model,
            "health": server.health,
            "started_by": "this launcher" if server.is_ours else "somebody else: it must be up",
            "key": "made for this run, in the environment" if server.is_ours else f"{ENGINE_KEY}, if it needs one",
        }
    content["processes"] = [
        {
            "name": process.name,
            "node": process.node,
            "gpus": list(process.gpus),
            "environment": dict(process.environment),
            "command": shlex.join(process.command),
            "log": str(process.log),
        }
        for process in plan.processes
    ]
    if plan.accelerate is not None:
        content["accelerate"] = {"file": str(plan.accelerate_file), "config": dict(plan.accelerate)}
    if plan.notes:
        content["notes"] = list(plan.notes)
    text: str = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)
    return text


class _Dumper(yaml.SafeDumper):
    """Writes short lists on one line."""


def _list(dumper: yaml.SafeDumper, value: list[Any]) -> yaml.Node:
    flow = all(isinstance(item, str) and len(item) < 50 for item in value)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=flow)


_Dumper.add_representer(list, _list)
