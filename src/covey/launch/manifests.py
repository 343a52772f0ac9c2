"""A run as one file for a scheduler, with the whole config inside: `covey launch RECIPE --render skypilot|slurm`."""

from __future__ import annotations

import dataclasses
from pathlib import Path, PurePosixPath

import yaml

from covey.config import Config, to_yaml
from covey.config.compose.build import flatten
from covey.config.secrets import for_children, redact
from covey.errors import ConfigError
from covey.launch.machine import Machine
from covey.launch.plan import make_plan
from covey.launch.slurm import render as job_script

_FILE = "covey-{name}.yaml"
_GPUS = ("H200", "H100", "A100-80GB")
"""What SkyPilot may take, since no key of Covey's names a kind."""


def render(config: Config, run_name: str, machine: Machine, kind: str) -> str:
    """The manifest.

    Args:
        run_name: the run's name where the config gives none.
        machine: this one; its number of GPUs counts where `launch.gpus` is not set.
        kind: `skypilot` or `slurm`.

    Raises:
        ConfigError: the plan cannot work, or nothing says what several nodes share.
    """
    source, _, path = (config.launch.volume or "").partition(":")
    folders = (PurePosixPath(config.output_dir), PurePosixPath(config.launch.log_dir))
    if config.launch.nodes > 1 and kind == "skypilot" and not path and not all(one.is_absolute() for one in folders):
        raise ConfigError(
            f"launch.nodes={config.launch.nodes} share output_dir and launch.log_dir: give launch.volume=NAME:/PATH, "
            "storage that all of them reach, or whole paths of both."
        )
    output, logs = (str(path / one) if path else str(one) for one in folders)
    given = dataclasses.replace(config, run_name=config.run_name or run_name, output_dir=output)
    plan = make_plan(given, run_name, machine)
    launch = dataclasses.replace(
        config.launch, backend="local", gpus=plan.gpus, log_dir=logs, node_rank=None, master=None
    )
    given = dataclasses.replace(given, launch=launch)
    secret = list(for_children(flatten(config)))
    file = _FILE.format(name=plan.run.name)
    words = ["covey", "launch", "--config", file, "resume=auto", "overwrite=false"]
    if kind == "slurm":
        return redact(job_script(given, plan.run.name, plan.gpus, words, Path.cwd(), to_yaml(given), file))
    if config.training.push_to_hub:
        secret.append("HF_TOKEN")
    if "wandb" in flatten(config)["training.report_to"]:
        secret.append("WANDB_API_KEY")
    extra = "[vllm]" if config.training.use_vllm else ""
    content = {
        "name": f"covey-{plan.run.name}",
        "num_nodes": config.launch.nodes,
        "resources": {
            **({"accelerators": dict.fromkeys(_GPUS, plan.gpus)} if plan.gpus else {}),
            **({"image_id": f"docker:{config.launch.image}"} if config.launch.image else {}),
        },
        **({"volumes": {path: source}} if path else {}),
        **({"secrets": dict.fromkeys(secret)} if secret else {}),
        "setup": f"pip install 'covey{extra}'\n",
        "run": f"cat > {file} <<'COVEY_CONFIG'\n{to_yaml(given)}COVEY_CONFIG\n{' '.join(words)}\n",
    }
    yaml_text: str = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)
    kinds = "any of these GPUs is taken; keep those that you want" if plan.gpus else ""
    by_value = f"; give {' and '.join(f'--secret {name}' for name in secret)}, by name" if secret else ""
    return f"# sky launch FILE{by_value}. The same again resumes the run{f'; {kinds}' if kinds else ''}.\n{yaml_text}"


class _Dumper(yaml.SafeDumper):
    """Writes long texts as blocks."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)
