"""The plan of a sweep, made before anything runs: every job's config, name, run directory and resume state."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from covey.cli.config_arguments import Request, check_names, default_name, print_without_effect
from covey.cli.sweep.expand import Variant, expand
from covey.config import Composed, Config, compose
from covey.config.compose.build import as_dict
from covey.config.compose.derived_values import keep_of_run
from covey.config.compose.group_files import Roots
from covey.errors import ConfigError, CoveyError, RunDirectoryError
from covey.runlog.directory import RunDirectory
from covey.runlog.sweep import Sweep, SweepDirectory, SweepJob
from covey.training.checkpoint.resume import plan_resume
from covey.training.checks.needs import check_supported

_MAX_NAME = 80  # still readable in a table
_MAX_VALUE = 24
_NOT_IN_NAMES = re.compile(r"[^\w.+-]+")


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """A sweep, checked and ready to be launched."""

    directory: SweepDirectory
    sweep: Sweep
    """All its jobs, those of earlier invocations included."""
    configs: dict[int, Config]
    """The configs of this invocation's jobs by number."""
    finished: tuple[int, ...]
    """Those of them that are finished already."""
    notes: tuple[str, ...]
    """Notes on composing the configs."""

    @property
    def to_run(self) -> list[int]:
        return [number for number in self.configs if number not in self.finished]


def make_plan(request: Request) -> SweepPlan:
    """Expand the jobs and check every one. Writes nothing. Raises a `CoveyError` for a job that cannot be run, jobs
    that are the same, or a folder that holds something else."""
    variants = expand(request.overrides, Roots.of(request.config_dirs))
    composed = [_compose(request, number, variant) for number, variant in enumerate(variants)]
    print_without_effect(*composed)
    _reject_duplicates(variants, composed)
    configs = [one.config for one in composed]
    named = any(config.run_name is not None for config in configs)
    name = _one(configs, "run_name", variants) if named else default_name(request.source, configs)
    directory = SweepDirectory(Path(_one(configs, "output_dir", variants)) / name)
    keys = tuple(variants[0].swept)
    known = _known_jobs(directory, keys)
    jobs = _numbered(variants, known, configs)
    final = {
        job.number: dataclasses.replace(config, output_dir=str(directory.root), run_name=job.name)
        for job, config in zip(jobs, configs, strict=True)
    }
    for job, one in zip(jobs, composed, strict=True):  # as `compose` does where it knows the run's folder
        if keep_of_run(values := as_dict(final[job.number]), one.origins):
            dataset = dataclasses.replace(final[job.number].dataset, seed=values["dataset"]["seed"])
            final[job.number] = dataclasses.replace(final[job.number], dataset=dataset)
    finished = tuple(job.number for job in jobs if _is_finished(job, final[job.number], directory))
    others = [job for job in known if job.number not in final]
    return SweepPlan(
        directory=directory,
        sweep=Sweep(keys, tuple(sorted([*jobs, *others], key=lambda job: job.number)), str(Path.cwd())),
        configs=final,
        finished=finished,
        notes=tuple(dict.fromkeys(note for one in composed for note in one.notes)),
    )


def _compose(request: Request, number: int, variant: Variant) -> Composed:
    try:
        composed = compose(variant.overrides, request.recipe, request.config_dirs, config_name=request.config_name)
        check_names(composed.config)
        check_supported(composed.config)
    except CoveyError as error:
        raise _in_job(error, number, variant.text) from None
    return composed


def _in_job(error: CoveyError, number: int, text: str) -> CoveyError:
    """The same error with the job it is about, when there are several."""
    kind = ConfigError if isinstance(error, ConfigError) else type(error)
    return kind(f"Job {number} ({text}): {error}") if text else error


def _reject_duplicates(variants: Sequence[Variant], composed: Sequence[Composed]) -> None:
    for number, (variant, one) in enumerate(zip(variants, composed, strict=True)):
        for other in range(number):
            if composed[other].config == one.config:
                raise ConfigError(
                    f"Two jobs of this sweep are the same run: {variants[other].text} and {variant.text}. A value is "
                    "repeated, or a later word of the command line sets a swept key again."
                )


def _one(configs: Sequence[Config], key: str, variants: Sequence[Variant]) -> str:
    """The value of a key that names the folder of the whole sweep, which all jobs must share."""
    values = {getattr(config, key) for config in configs}
    if len(values) > 1:
        raise ConfigError(
            f"{key} names the folder of the whole sweep, but its jobs disagree on it "
            f"({', '.join(sorted(map(str, values)))}). Set it once; each job gets its own folder inside."
        )
    return str(values.pop())


def _known_jobs(directory: SweepDirectory, keys: tuple[str, ...]) -> tuple[SweepJob, ...]:
    """The jobs that are in the folder already. Raises a `RunDirectoryError` if it holds anything but a sweep over these
    keys."""
    if directory.table.is_file():
        there = directory.read()
        if set(there.keys) != set(keys):
            before, now = (" and ".join(names) or "nothing" for names in (there.keys, keys))
            raise RunDirectoryError(
                f"{directory.root} holds a sweep over {before}, and this one is over {now}. Nothing was touched. "
                "Choose another run_name."
            )
        return there.jobs
    if not RunDirectory(directory.root).is_empty():
        raise RunDirectoryError(
            f"{directory.root} exists and is not a sweep. Nothing was touched. Choose another run_name."
        )
    return ()


def _numbered(variants: Sequence[Variant], known: Sequence[SweepJob], configs: Sequence[Config]) -> list[SweepJob]:
    """Number and name the jobs; existing ones keep theirs, and so their run directories."""
    before = {frozenset(job.swept.items()): job for job in known}
    free = max((job.number for job in known), default=-1) + 1
    jobs = []
    for variant, config in zip(variants, configs, strict=True):
        steps = config.training.max_steps if config.training.max_steps > 0 else None
        job = before.get(frozenset(variant.swept.items()))
        if job is None:
            job = SweepJob(free, job_name(free, variant.swept), variant.swept)
            free += 1
        jobs.append(dataclasses.replace(job, max_steps=steps))
    return jobs


def job_name(number: int, swept: dict[str, str]) -> str:
    """A job's run name: its number, then each swept key (shortened if unambiguous) and value, in plain characters."""
    last = {key: re.split(r"[./]", key)[-1] for key in swept}
    shorts = {key: _plain(key) if [*last.values()].count(short) > 1 else short for key, short in last.items()}
    parts = [f"{shorts[key]}-{_plain(value)}" for key, value in swept.items()]
    return "_".join([str(number), *parts])[:_MAX_NAME].rstrip("._-")


def _plain(text: str) -> str:
    kept = _NOT_IN_NAMES.sub("-", text).strip("-.") if not text.startswith("-") else _NOT_IN_NAMES.sub("-", text)
    return kept[-_MAX_VALUE:] or "empty"


def _is_finished(job: SweepJob, config: Config, directory: SweepDirectory) -> bool:
    try:
        return plan_resume(config, directory.run(job), verify=False).finished
    except CoveyError as error:
        raise _in_job(error, job.number, " ".join(f"{k}={v}" for k, v in job.swept.items())) from None
