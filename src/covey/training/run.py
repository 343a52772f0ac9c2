"""A training run, from a config to a run directory: `covey train`, and with examples `covey sft`."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.answers import Tags
from covey.config import Config, to_yaml
from covey.config.named_code import own_code
from covey.config.secrets import redact
from covey.errors import CoveyError, EndedElsewhereError
from covey.evaluation.grading import SEED_OFFSET, HeldOutGrader, grader_name
from covey.model.reasoning_vocab.token_map import MAP_FILE
from covey.report.live import LiveReport, write_end_of_run
from covey.report.summary import before_and_after, write_summary
from covey.rewards.runner import RewardRunner
from covey.runlog.checkpoint import unmark
from covey.runlog.directory import DeletedError, RunDirectory, temporary_folder
from covey.runlog.files import bounded, write_atomically
from covey.runlog.notes import record_environment, write_failure
from covey.training.build import build_trainer, save_final_model, used_otherwise
from covey.training.checkpoint.resume import ResumePlan, plan_resume
from covey.training.checkpoint.vocab_expansion import expanded
from covey.training.checks.findings import print_findings
from covey.training.checks.needs import check_disk_space
from covey.training.checks.trackers import guard_trackers, log_benchmarks, tracker_environment
from covey.training.examination import Examination
from covey.training.memory_in_use import peak_memory
from covey.training.processes import (
    ACCELERATE,
    Processes,
    asks_for_fsdp,
    check_layout,
    environment_kept,
    silent_console,
)
from covey.training.recording import CompletionRecorder
from covey.training.terminal import logging_to, showing_warnings
from covey.training.trl.step_timer import StepTimer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from covey.data import LoadedData
    from covey.environments.runner import EnvironmentRunner
    from covey.evaluation.run import EvaluationResult
    from covey.runlog.metrics import MetricsWriter
    from covey.training.advantages import Given
    from covey.training.display import Display
    from covey.training.trl.sft import SFTTrainer
    from covey.training.trl.trainer import GRPOTrainer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunResult:
    """How an invocation ended."""

    run: RunDirectory
    finished: bool
    """Whether the run reached its last step and wrote `final_model/`."""
    step: int
    trained: bool = True
    """Whether this invocation trained; False if the run was finished before."""
    reason: str = ""
    """Why training ended, as a phrase; empty if this invocation did not train."""
    signal: int | None = None
    """The signal that stopped it, if one did."""
    training_seconds: float = 0.0
    peak_memory_bytes: int = 0
    main: bool = True
    """Whether this is the main process."""

    def _repr_html_(self) -> str:
        from covey.report.results import run_html

        return run_html(self.run)


def run_training(config: Config, run_name: str, console: Any, objective: Given = None) -> RunResult:
    """Train as `config` says, into `output_dir/run_name/`.

    The input is checked before anything is written; an existing run is resumed or not touched (see `plan_resume`).

    Args:
        config: the composed config; its own run_name has precedence.
        run_name: the run's name if the config has none.
        objective: an objective or its class, in place of the one that the config names; see `covey.train`.

    Raises:
        CoveyError: what is wrong with the input or the machine.
    """
    processes = Processes.join(config)
    with processes.ending_together(), environment_kept(*ACCELERATE):
        result = _run(config, run_name, console if processes.is_main else silent_console(), processes, objective)
    processes.leave()
    return result


def _run(config: Config, run_name: str, console: Any, processes: Processes, objective: Given) -> RunResult:
    config = dataclasses.replace(config, run_name=config.run_name or processes.agree_on(run_name))
    run = RunDirectory(Path(config.output_dir) / str(config.run_name))
    with _locked(run, processes):
        with processes.all_or_none(), console.status("Reading the run directory …"):
            plan = plan_resume(config, run) if processes.is_main else None
        plan = processes.agree_on(plan)
        assert plan is not None
        _print_notes(console, plan.notes)
        if plan.finished:
            return RunResult(run, finished=True, step=plan.step, trained=False, main=processes.is_main)
        return _begin(config, run, plan, console, processes, objective)


def _begin(
    config: Config, run: RunDirectory, plan: ResumePlan, console: Any, processes: Processes, given: Given
) -> RunResult:
    with temporary_folder("covey-run-") as temporary, ExitStack() as stack:
        early_log = temporary / run.log.name  # log output of libraries until it is certain that the run can start
        with processes.all_or_none(), console.status("Checking the run …") as status:
            checked = Examination(
                config=config,
                run=run,
                objective=given,
                processes=processes.count,
                is_main=processes.is_main,
                main_first=processes.main_of_machine_first,
                quietly=partial(logging_to, early_log),
                progress=status.update,
                output=early_log,
            )
            stack.callback(checked.close)
            findings, ignored = checked.must_pass()
        print_findings(console, findings)
        with early_log.open("a", encoding="utf-8") as log:
            for finding in ignored:
                now = time.strftime("%Y-%m-%d %H:%M:%S")
                log.write(f"{now} ignore_checks=[{finding.key}]: {redact(finding.text)}\n")
        return _build(checked, plan, console, processes, early_log)


def _build(checked: Examination, plan: ResumePlan, console: Any, processes: Processes, early_log: Path) -> RunResult:
    config, run = checked.config, checked.run
    loaded, runner, unrewarded = checked.loaded, checked.runner, checked.unrewarded
    with run.guard("the run"), tracker_environment(config), runner:
        with (
            processes.all_or_none(),
            logging_to(early_log),
            showing_warnings(lambda text: _print_notes(console, [text])),
            console.status("Building the trainer …"),
            expanded(config, run, plan, (checked.source, checked.tokenizer), processes) as (source, tokenizer),
        ):
            args = checked.args
            if plan.checkpoint is not None:
                check_layout(plan.checkpoint, shards=bool(args.fsdp) or asks_for_fsdp())
            trainer = build_trainer(
                config,
                args,
                source,
                loaded,
                runner.functions,
                tokenizer,
                checked.objective_arguments,
                checked.environments,
                checked.rollout_func,
                checked.examples,
            )
            if checked.examples is None:
                trainer.recorder = CompletionRecorder(
                    {*trainer.eos_token_ids, tokenizer.pad_token_id},
                    keeps_ids=(Path(source) / MAP_FILE).is_file(),
                    tags=Tags(config.rewards.think_tag, config.rewards.answer_tag),
                    prompt_prefix=runner.prompt_prefix,
                )
            if processes.is_main:
                check_disk_space(trainer, run, keeps_best=config.evaluation.keep_best)
        with processes.all_or_none():
            if processes.is_main:
                open_run_directory(config, run, plan, used_otherwise(config, trainer.args))
        own = run if processes.is_main else RunDirectory(early_log.parent)
        log = run.process_log(processes.index)
        with log.open("ab") as file:
            file.write(early_log.read_bytes())
        with logging_to(log), bounded(log), recording_failure(run, processes, console):
            runner.start(output=log)
            if checked.environments is not None:
                checked.environments.start(output=log)
            report = LiveReport(own)
            parts = (runner, report, processes, unrewarded, checked.environments)
            job = _Job(config, run, own, plan, trainer, loaded, tokenizer, *parts)
            result = _train(job, console)
            if result.main and result.finished:  # still under the lock: the next process finds a finished run
                processes.leave()
                used = result.training_seconds, result.peak_memory_bytes
                write_summary(run, before_and_after(run), *used, result.reason)
            return result


@dataclass(frozen=True, slots=True)
class _Job:
    """What an invocation trains and evaluates with."""

    config: Config
    run: RunDirectory
    own: RunDirectory
    """Where this process writes its records: the main one into the run, the others into a temporary folder."""
    plan: ResumePlan
    trainer: GRPOTrainer | SFTTrainer
    loaded: LoadedData
    tokenizer: PreTrainedTokenizerBase
    rewards: RewardRunner
    report: LiveReport
    processes: Processes
    unrewarded: Mapping[str, str]
    """Held-out sets without rewards, see `check_columns_for`."""
    environments: EnvironmentRunner | None = None
    timer: StepTimer = dataclasses.field(default_factory=StepTimer)


def _train(job: _Job, console: Any) -> RunResult:
    from covey.runlog.completions import drop_completions_after
    from covey.runlog.metrics import read_metrics
    from covey.training.callbacks import StopCallback
    from covey.training.checkpoint.write import open_metrics, relink_best
    from covey.training.display import Display

    config, run, own, plan, trainer = job.config, job.run, job.own, job.plan, job.trainer
    total = trainer.total_steps
    title = f"{config.model.name} on {config.sft.rows or config.dataset.label} · {run.root}"
    mine = plan.checkpoint if job.processes.is_main else None
    writer, repairs = open_metrics(own, plan.step if plan.checkpoint else None, mine)
    _print_notes(console, repairs)
    best_by = config.evaluation.best_by
    stop = StopCallback(config.stop_after_steps, job.processes)
    began = time.perf_counter()
    with (
        Display(title, total, start_step=plan.step, console=console, log_path=own.log, best_by=best_by) as display,
        showing_warnings(display.warn),
    ):
        if display.redraws:
            trainer.num_completions_to_print = 0  # TRL prints a table through the panel, which shows some itself
        if plan.checkpoint and job.processes.is_main:
            drop_completions_after(run.completions, plan.step)
            display.load_history(read_metrics(run.metrics))
        _add_callbacks(job, writer, display)
        guard_trackers(trainer)
        trainer.add_callback(stop)
        with stop.catching_signals(display), job.timer.timing(trainer):
            try:
                if plan.checkpoint is not None and plan.step >= total:
                    trainer.load_checkpoint_weights(plan.checkpoint)  # only the end of the run was interrupted
                    if config.evaluation.keep_best and job.processes.is_main:
                        relink_best(trainer.state, run)
                else:
                    trainer.train(resume_from_checkpoint=str(plan.checkpoint) if plan.checkpoint else None)
            finally:
                writer.flush()
                job.report.close()
                if config.rollout.own_engine is not None and not config.training.staleness:
                    trainer.engine.close()
        if not stop.stopped:
            _save(job, display)
        display.finish()
    return RunResult(
        run=run,
        finished=not stop.stopped,
        step=max(trainer.state.global_step, plan.step),
        reason=stop.reason(trainer.state, trainer.callback_handler.callbacks),
        signal=stop.signal if stop.stopped else None,
        training_seconds=time.perf_counter() - began,
        peak_memory_bytes=peak_memory(),
        main=job.processes.is_main,
    )


def _save(job: _Job, display: Display) -> None:
    """Save the final model, and evaluate it on the benchmarks."""
    from covey.evaluation.job import run_evaluations
    from covey.evaluation.stored import find_target

    config, run, trainer = job.config, job.run, job.trainer
    display.status("saving the model")
    merge = config.model.lora.active and config.model.lora.merge
    save_final_model(trainer, run, merge=merge, wait=job.processes.wait)
    job.processes.leave()  # the others need not wait for the rest of the main process
    if config.evaluation.benchmarks and job.processes.is_main:
        model = None if merge or job.processes.count > 1 else trainer.accelerator.unwrap_model(trainer.model)
        target = find_target(str(run.root))
        of_run = dataclasses.replace(config, model=dataclasses.replace(config.model, name=target.source))
        progress = lambda name, done, of: display.status(f"{name}: {done} of {of}")  # noqa: E731
        found = run_evaluations(of_run, target, {}, None, progress, model)
        log_benchmarks(trainer, found)


def _add_callbacks(job: _Job, writer: MetricsWriter, display: Display) -> None:
    """Add the callbacks that evaluate, and write metrics and completions to the run directory and the display."""
    from covey.model.reasoning_vocab.vocabulary import vocabulary_of
    from covey.training.callbacks import EvaluationCallback, OwnCodeCallback, ReasoningRate, RunLogCallback
    from covey.training.checkpoint.write import link_best

    config, run, own, trainer = job.config, job.run, job.own, job.trainer
    samples = config.logging.sample_completions
    every = config.evaluation.every_steps
    every_steps = trainer.steps_per_epoch if isinstance(every, str) else every
    if every_steps and (job.loaded.evaluation or config.sft.rows is None):
        display.shows_held_out = True
        keeps_best = config.evaluation.keep_best and trainer.args.save_strategy != "no"
        if keeps_best:
            trainer.checkpoints.after_marker.append(partial(link_best, run))
        evaluation = EvaluationCallback(
            trainer=trainer,
            evaluate=lambda: _evaluate(job),
            run=own,
            writer=writer,
            display=display,
            every_steps=every_steps,
            before_training=config.evaluation.before_training,
            sample_completions=samples,
            best_by=config.evaluation.best_by,
            keep_best_in=run if keeps_best else None,
        )
        trainer.add_callback(evaluation)  # before the log: evaluation metrics join the row of their step
    vocabulary = vocabulary_of(trainer.model)
    if vocabulary is not None and config.model.reasoning_lr_multiplier != 1:
        trainer.add_callback(ReasoningRate(trainer.model, vocabulary, config.model.reasoning_lr_multiplier))
    log = RunLogCallback(
        trainer=trainer,
        run=own,
        writer=writer,
        display=display,
        completions_every_steps=config.logging.completions_every_steps,
        sample_completions=samples,
        take_times=job.timer.take,
        report=job.report,
    )
    trainer.add_callback(log)
    trainer.checkpoints.before_marker.append(log.keep_records)
    trainer.add_callback(OwnCodeCallback(own_code(config), run.code))


def _evaluate(job: _Job) -> Mapping[str, EvaluationResult]:
    from covey.evaluation.play import Players
    from covey.evaluation.run import Shard, evaluate, sampling_of
    from covey.training.trl.generation import evaluation_engine, vocab_size

    config, trainer = job.config, job.trainer
    settings = config.evaluation
    trainer.check_finite()
    policy = trainer.accelerator.unwrap_model(trainer.model)
    playing = Players.of(config, job.environments, job.tokenizer, policy).playing()
    results, grader = {}, grader_name(config)
    for name, problems in job.loaded.evaluation.items():
        chosen = problems
        if settings.max_problems is not None:
            chosen = problems.select(range(min(settings.max_problems, len(problems))))
        with evaluation_engine(trainer) as engine:
            results[name] = evaluate(
                engine,
                job.tokenizer,
                chosen,
                sampling_of(config),
                grade=HeldOutGrader(config, job.rewards, grader, name not in job.unrewarded, trainer.state),
                tags=Tags(config.rewards.think_tag, config.rewards.answer_tag),
                num_samples=settings.num_samples,
                batch_size=settings.batch_size,
                chat_template_kwargs=config.training.chat_template_kwargs,
                prompt_prefix=job.rewards.prompt_prefix,
                seed=config.seed + SEED_OFFSET,
                start=config.dataset.seed + SEED_OFFSET,
                shard=Shard(job.processes.index, job.processes.count, job.processes.gather),
                vocab_size=vocab_size(trainer),
                playing=playing,
                ks=settings.k,
                grader=grader,
            )
    return results


def open_run_directory(config: Config, run: RunDirectory, plan: ResumePlan, used: Sequence[str] = ()) -> None:
    """Prepare the folder for the start of the run. A kill in between must not lose the run: the config is written
    first, but after the marks of a finished run are removed; what `used_otherwise` gives is a comment there."""
    if plan.clear:
        run.clear(keep_first=config.model.reasoning_vocab_size != 0, keep_config=True)
    run.summary.unlink(missing_ok=True)
    # Without the settings of this invocation only: run again, the file makes a complete new run.
    stored = dataclasses.replace(config, run_name=None, resume="auto", overwrite=False, stop_after_steps=None)
    comment = f"# Used here in place of what stands above: {', '.join(used)}\n" if used else ""
    write_atomically(run.config, to_yaml(stored) + comment)
    for step, checkpoint in run.complete_checkpoints():
        if step > plan.step:  # it was skipped: damaged in a way that file sizes do not show
            unmark(checkpoint)
    for folder in (run.completions, run.evaluation):
        folder.mkdir(parents=True, exist_ok=True)
    for leftover in run.root.glob("*/.*.tmp"):  # of a killed process
        leftover.unlink()
    shutil.rmtree(run.rollouts, ignore_errors=True)  # likewise
    record_environment(run, own_code(config), used)


@contextlib.contextmanager
def recording_failure(run: RunDirectory, processes: Processes, console: Any) -> Iterator[None]:
    """Context manager: an error is logged with its traceback and written to the run, by the first process that fails.

    A second Ctrl-C is no error: the run was stopped, and goes on from its newest checkpoint. An unexpected error of a
    run whose folder was emptied or deleted is a `DeletedError`.
    """
    try:
        yield
    except (KeyboardInterrupt, EndedElsewhereError):
        raise
    except BaseException as error:
        if not isinstance(error, CoveyError):
            run.refuse_deleted()
        if processes.is_first_to_fail(error) and run.config.exists() and not isinstance(error, DeletedError):
            logger.error("The run failed.", exc_info=True)
            with contextlib.suppress(OSError, CoveyError):  # such as a full disk, of which the error itself tells
                write_failure(run, error)
            if processes.count == 1:  # others end soon, and a launcher then ends this one before its message
                _write_report(run, console)
        raise


def _write_report(run: RunDirectory, console: Any) -> None:
    try:
        with console.status("Writing the report …"):
            problems = write_end_of_run(run, finished=False)
    except Exception:  # it must not take the place of the error
        logger.warning("The report could not be written.", exc_info=True)
        return
    more = f", and {run.report} what it did until then" if run.report.is_file() and not problems else ""
    text = f"· The run failed: {run.log} has the traceback{more}."
    console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _locked(run: RunDirectory, processes: Processes) -> Iterator[None]:
    """The run's lock, taken by the main process for all."""
    with ExitStack() as stack:
        with processes.all_or_none():
            if processes.is_main:
                stack.enter_context(run.lock())
        yield


def _print_notes(console: Any, notes: Iterable[str]) -> None:
    for note in notes:
        console.print(f"· {redact(note)}", markup=False, highlight=False)
