"""`covey push`: a run's model to the Hugging Face hub, with a card written from the run."""

from __future__ import annotations

import argparse
from typing import Any

from covey.errors import ConfigError


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "push",
        help="push a run's model to the hub",
        description=(
            "Push the final model of a run, or one of its checkpoints, to the Hugging Face hub: weights, tokenizer and "
            "a model card with data, reward, objective and figures. A token comes from `hf auth login` or HF_TOKEN."
        ),
    )
    parser.add_argument("run_directory", metavar="RUN|CHECKPOINT", help="what to push")
    parser.add_argument("repo", metavar="REPO", help="owner/name; created if missing")
    parser.add_argument("--revision", metavar="BRANCH", help="a branch; created if missing")
    parser.add_argument("--private", action="store_true", default=None, help="make a new repository private")
    parser.add_argument("--checkpoint", metavar="WHICH", help="of a run: final (the default), best, or a step")
    parser.add_argument("--dry-run", action="store_true", help="print the card and the files, and upload nothing")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from covey.evaluation.stored import find_target
    from covey.runlog.directory import RunDirectory

    target = find_target(arguments.run_directory, arguments.checkpoint)
    if target.run is None:
        raise ConfigError(
            f"{arguments.run_directory} belongs to no run, so there is nothing to write a model card from. Name a run "
            "directory or one of its checkpoints; other folders go up with `hf upload`."
        )
    from pathlib import Path

    from covey.report.model_card import CARD
    from covey.training.end import Destination, push, pushed_files

    destination = Destination(arguments.repo, arguments.revision, arguments.private)
    what = RunDirectory(target.run), target.adapter or Path(target.source), destination
    if not arguments.dry_run:
        print(push(*what, state=target.state))
        return 0
    files = pushed_files(*what, state=target.state)
    sizes = {name: one.stat().st_size if isinstance(one, Path) else len(one) for name, one in files.items()}
    print(files[CARD].decode())
    for name, size in sizes.items():
        print(f"{size:>15,} bytes  {name}")
    place = f"{arguments.repo}, branch {arguments.revision or 'main'}"
    print(f"{sum(sizes.values()):>15,} bytes  in {len(sizes)} files would go to {place}; nothing was uploaded.")
    return 0
