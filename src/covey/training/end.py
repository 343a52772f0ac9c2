"""The end of an invocation: the report is written, the figures are shown, the model is pushed to the hub.

TRL's trainer creates the hub repository before the first step and pushes during training. Covey does neither: it uses
the network once, when all files are written, and a failed push costs nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from covey.advice import command
from covey.config import Config
from covey.config.secrets import redact
from covey.errors import CoveyError, HubError
from covey.evaluation.comparison import compare_evaluations, newest_in_common
from covey.report.completion_findings import Finding
from covey.report.live import conclusions, write_end_of_run
from covey.report.load import load_run, read_mapping
from covey.report.model_card import CARD, model_card
from covey.report.summary import Change, summary_line
from covey.report.tables import evaluation_rows
from covey.runlog.directory import FORMER, SCRIPT_FILES, DeletedError, RunDirectory
from covey.runlog.notes import has_failed
from covey.training.display import Command, before_after_table, print_commands, print_findings, print_summary
from covey.training.run import RunResult


def end_run(result: RunResult, config: Config, console: Any, *, resume: str | None = None) -> None:
    """Write the report and show how the run ended; push a finished model if the config says so. Main process only.

    Args:
        result: from `run_training`.
        resume: the command that resumes the run, if a launcher started it.

    Raises:
        CoveyError: the model cannot be pushed, or the run was deleted meanwhile.
    """
    if not result.main:
        return
    try:
        _end_run(result, config, console, resume)
    except FileNotFoundError as error:
        if result.run.config.exists():
            raise
        raise DeletedError(result.run.root, "the report") from error


def _end_run(result: RunResult, config: Config, console: Any, resume: str | None) -> None:
    run = result.run
    if result.trained or not run.report.exists():  # a run finished earlier is left as it is
        for problem in write_end_of_run(run, finished=result.finished):
            _print(console, f"· {problem}")
    if result.finished:
        _show_finished(result, console)
        if result.trained:
            _push_finished(config, run, console)
            line = summary_line(result.step, result.training_seconds, result.peak_memory_bytes, result.reason)
            _print(console, line)
    else:
        hint = "The same command resumes from it."
        # With a new timestamp for a name, say, the same command would not resume.
        if resume or config.run_name is None or config.resume not in ("auto", True) or config.overwrite:
            hint = f"To resume from it: {resume or _resume(config, run)}"
        _print(console, f"Stopped after step {result.step}, with a checkpoint. Reason: {result.reason}. {hint}")
    if not console.quiet:
        print_commands(console, _next(result, config, resume))


def _show_finished(result: RunResult, console: Any) -> None:
    if console.quiet:
        return
    run = result.run
    rows: list[Change] = []
    found: list[Finding] = []
    try:
        rows, found = conclusions(run)
    except CoveyError as error:  # the model does not depend on it
        _print(console, f"· {error}")
    if rows:
        console.print(before_after_table(rows, console.width))
    for row in evaluation_rows(run):
        _print(console, f"  {row.label} ({row.state}, {row.problems} problems, {row.sampling}): {row.main_text}")
    print_findings(console, found, rows)
    paths = [("report", run.report), ("curves", run.curves)] if run.report.exists() else []
    paths += [("model", run.final_model), ("metrics", run.metrics), ("completions", run.completions), ("log", run.log)]
    console.print()
    print_summary(console, None, paths)


def _resume(config: Config, run: RunDirectory) -> str:
    places = {"config": run.config, "folder": config.output_dir, "name": run.root.name}
    again = command("train --config {config} output_dir={folder} run_name={name}", **places)
    return f"accelerate launch … -m {again}" if os.environ.get("WORLD_SIZE", "1") != "1" else again


def _next(result: RunResult, config: Config, resume: str | None) -> list[Command]:
    """Three commands to go on with."""
    run = result.run
    view = "see every run", command("view {folder}", folder=run.root.parent)
    if not result.finished:
        newest = command("eval {run} --checkpoint {step}", run=run.root, step=result.step)
        return [("resume", resume or _resume(config, run)), view, ("evaluate it so far", newest)]
    other = _comparable(run)
    third = (
        ("evaluate, greedily", command("eval {run} evaluation=greedy", run=run.root))
        if other is None
        else ("compare with the run before", command("compare {first} {run}", first=other.root, run=run.root))
    )
    return [view, ("talk to the model", command("chat {run}", run=run.root)), third]


def _comparable(run: RunDirectory) -> RunDirectory | None:
    """The newest other finished run in the same folder on the same data with which `covey compare` compares it."""
    try:
        finished = run.root.parent.glob("*/summary.json")
        summaries = sorted(finished, key=lambda path: path.stat().st_mtime, reverse=True)
        mine = read_mapping(run.config).get("dataset")
        others = [RunDirectory(summary.parent) for summary in summaries if summary.parent != run.root][:_LOOKED_AT]
        for other in others:
            if not has_failed(other) and read_mapping(other.config).get("dataset") == mine:
                with suppress(CoveyError):  # such as other graders
                    compare_evaluations(*newest_in_common([other.root, run.root], None))
                    return other
    except (OSError, CoveyError):  # it is only an advice
        pass
    return None


_LOOKED_AT = 5
"""Runs whose configs are read."""


def _print(console: Any, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


LEFT_OUT = (
    *("optimizer.pt", "optimizer.bin", "scheduler.pt", "scaler.pt", "rng_state*", "progress_*", "reference_*"),
    *("training_args.bin", "trainer_state.json", "complete.json", "ref/*", "records/*", "pytorch_model_fsdp*"),
    *("optimizer_*/*", "global_step*/*", ".*", *SCRIPT_FILES, f"{FORMER}*", "checkpoint-*/*"),
)
"""Files of a checkpoint that only training uses; of the folder of a script's run, also its records."""


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


def _push_finished(config: Config, run: RunDirectory, console: Any) -> str | None:
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

    wanted = destination.repo or run.root.name
    with _hub_errors(wanted):
        api = HfApi(token=destination.token)
        created = api.create_repo(wanted, private=destination.private, exist_ok=True)
        name = created.repo_id
        branch = None if destination.revision == "main" else destination.revision
        if branch:
            api.create_branch(name, branch=branch, exist_ok=True)
        files = pushed_files(run, folder, replace(destination, repo=name, revision=branch), state=state)
        api.create_commit(
            name,
            [CommitOperationAdd(path, content) for path, content in files.items()],
            commit_message=f"{run.root.name}: {state}, with Covey",
            revision=destination.revision,
        )
    return str(created)


def pushed_files(run: RunDirectory, folder: Path, destination: Destination, *, state: str) -> dict[str, Any]:
    """What `push` uploads, a path or bytes by the name there; asks nobody. Raises a `HubError` for a bad name."""
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    with _hub_errors(name := str(destination.repo)):
        validate_repo_id(name)
    adapters, branch = (folder / "adapter_config.json").is_file(), destination.revision
    card = model_card(load_run(run.root), state=state, hub_id=name, revision=branch, adapters=adapters)
    files = {**_files(folder), CARD: card.encode()}
    kept, strategy = [path for _, path in run.complete_checkpoints()], destination.strategy
    for checkpoint in kept if strategy == "all_checkpoints" else kept[-1:] if strategy == "checkpoint" else ():
        files |= _files(checkpoint, "last-checkpoint/" if strategy == "checkpoint" else f"{checkpoint.name}/")
    return files


def _files(folder: Path, below: str = "") -> Mapping[str, Path]:
    names = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
    wanted = [name for name in names if not any(fnmatch(name, pattern) for pattern in LEFT_OUT)]
    return {below + name: folder / name for name in wanted}


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
