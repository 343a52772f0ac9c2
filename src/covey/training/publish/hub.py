"""Pushing a finished run's model to the hub, with a model card. A failed push costs nothing.

TRL's trainer creates the hub repository before the first step and pushes during training. Covey does neither: it uses
the network once, when all files are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from covey.advice import command
from covey.config import Config
from covey.config.secrets import redact
from covey.errors import CoveyError, HubError
from covey.report.model_card import CARD, model_card
from covey.runlog.directory import RunDirectory

LEFT_OUT = (
    *("optimizer.pt", "optimizer.bin", "scheduler.pt", "scaler.pt", "rng_state*", "progress_*", "reference_*"),
    *("training_args.bin", "trainer_state.json", "complete.json", "ref/*", "records/*", "pytorch_model_fsdp*"),
    *("optimizer_*/*", "global_step*/*", ".*"),
)
"""Files of a checkpoint that only training uses."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where on the hub to push a model."""

    repo: str | None
    """`owner/name`; without owner, the token's account."""
    revision: str | None = None
    """A branch; None is the main one."""
    private: bool | None = None
    token: str | None = None
    strategy: str = "end"
    """transformers' name; `checkpoint` and `all_checkpoints` push checkpoints too."""

    @classmethod
    def of(cls, config: Config) -> Destination:
        training = config.training
        return cls(
            training.hub_model_id,
            training.hub_revision,
            training.hub_private_repo,
            training.hub_token,
            str(training.hub_strategy or "end"),
        )


def push_finished(config: Config, run: RunDirectory, console: Any) -> str | None:
    """Push the final model if `training.push_to_hub` is set, and print the result.

    Returns:
        The address; None if it is not set, or the push failed: the error and the command to push later are printed.
    """
    if not config.training.push_to_hub:
        return None
    destination = Destination.of(config)
    try:
        with console.status("Pushing the model to the hub …"):
            address = push(run, run.final_model, destination)
    except HubError as error:
        words = ["--revision", destination.revision] if destination.revision else []
        words += ["--private"] if destination.private else []
        again = command("push {run} {repo}", *words, run=run.root, repo=destination.repo or run.root.name)
        text = f"{error} The run is complete in {run.root}; to push it later: {again}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
        return None
    console.print(f"Pushed to {address}", markup=False, highlight=False, soft_wrap=True)
    return address


def push(run: RunDirectory, folder: Path, destination: Destination, *, state: str = "final") -> str:
    """Push a model of a run.

    Args:
        run: for the card.
        folder: the final model, or a checkpoint.
        destination: repository and branch.
        state: which model of the run it is, for the card.

    Returns:
        The address of the repository.

    Raises:
        HubError: it could not be pushed.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    from covey.report.load import load_run

    wanted = destination.repo or run.root.name
    with _hub_errors(wanted):
        api = HfApi(token=destination.token)
        created = api.create_repo(wanted, private=destination.private, exist_ok=True)
        name = created.repo_id
        branch = None if destination.revision == "main" else destination.revision
        if branch:
            api.create_branch(name, branch=branch, exist_ok=True)
        adapters = (folder / "adapter_config.json").is_file()
        card = model_card(load_run(run.root), state=state, hub_id=name, revision=branch, adapters=adapters)
        files: dict[str, Path | bytes] = {**_files(folder), CARD: card.encode()}
        for checkpoint, place in _checkpoints(run, destination.strategy):
            files |= _files(checkpoint, f"{place}/")
        api.create_commit(
            name,
            [CommitOperationAdd(path, content) for path, content in files.items()],
            commit_message=f"{run.root.name}: {state}, with Covey",
            revision=destination.revision,
        )
    return str(created)


def _files(folder: Path, below: str = "") -> Mapping[str, Path]:
    names = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
    wanted = [name for name in names if not any(fnmatch(name, pattern) for pattern in LEFT_OUT)]
    return {below + name: folder / name for name in wanted}


def _checkpoints(run: RunDirectory, strategy: str) -> Iterator[tuple[Path, str]]:
    complete = run.complete_checkpoints()
    if strategy == "all_checkpoints":
        yield from ((path, path.name) for _, path in complete)
    elif strategy == "checkpoint" and complete:
        yield complete[-1][1], "last-checkpoint"


@contextmanager
def _hub_errors(repo: str) -> Iterator[None]:
    try:
        yield
    except CoveyError:
        raise
    except Exception as error:  # the hub client, its HTTP client and the network each raise their own types
        cause = redact(" ".join(str(error).split()))[:300] or type(error).__name__
        raise HubError(
            f"The model could not be pushed to {repo} ({type(error).__name__}: {cause}). Check the connection, the "
            "name, and the token (hf auth login, or HF_TOKEN) and whether it may write there."
        ) from error
