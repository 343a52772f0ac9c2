"""A training run, from a config to a run directory: what `covey train` does."""

from __future__ import annotations

import dataclasses
import logging
import resource
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey import data
from covey.answers import Tags
from covey.config import Config, to_yaml
from covey.evaluation.job import load_benchmark, run_benchmarks
from covey.model.loading import check_model, load_tokenizer
from covey.model.prompts import cut_left, opened_thinking, prompt_lengths
from covey.model.reasoning_vocab.token_map import MAP_FILE
from covey.report.live import LiveReport
from covey.rewards.execution import RewardRunner
from covey.runlog.directory import RunDirectory
from covey.runlog.files import write_atomically
from covey.training import objectives
from covey.training.build import (
    build_trainer,
    check_disk_space,
    check_rewards,
    check_size,
    check_supported,
    grpo_config,
    save_final_model,
)
from covey.training.doctor import glance
from covey.training.processes import Processes, silent_console
from covey.training.recording import Recorder
from covey.training.resume import Start, decide_start
from covey.training.sharding import asks_for_fsdp, check_layout, launcher_environment
from covey.training.stages import StageClock
from covey.training.trackers import tell_benchmarks, tell_trackers, tracker_environment, trackers
from covey.training.widening import check_reasoning, widened

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from covey.data import LoadedData
    from covey.evaluation.run import EvaluationResult
    from covey.runlog.metrics import MetricsWriter
    from covey.training.display import Display
    from covey.training.trainer import GRPOTrainer


@dataclass(frozen=True, slots=True)
class RunResult:
    """How an invocation ended."""

    run: RunDirectory
    finished: bool
    """Whether the run reached its last step and `final_model/` is there."""
    step: int
    trained: bool = True
    """Whether this invocation trained; False for a run that was finished before."""
    signal: int | None = None
    """The signal that stopped it, if one did."""
    training_seconds: float = 0.0
    peak_memory_bytes: int = 0
    main: bool = True
    """Whether this is the process that reports, where there are several."""


def run_training(config: Config, run_name: str, console: Any) -> RunResult:
    """Train as `config` says, into `output_dir/run_name/`.

    Everything that can be wrong with the input is found before anything is written; a run that is there goes on or is
    left alone (see `decide_start`).

    Args:
        config: the composed config; its own run_name wins.
        run_name: the run's name where the config gives none.
        console: a rich console.

    Raises:
        CoveyError: one paragraph on what is wrong with the input or the machine.
    """
    processes = Processes.join(config)
    with processes.as_one(), launcher_environment():
        result = _run(config, run_name, console if processes.is_main else silent_console(), processes)
    processes.leave()
    return result


def _run(config: Config, run_name: str, console: Any, processes: Processes) -> RunResult:
    config = dataclasses.replace(config, run_name=config.run_name or processes.agree_on(run_name))
    run = RunDirectory(Path(config.output_dir) / str(config.run_name))
    with processes.together():
        start = decide_start(config, run) if processes.is_main else None
    start = processes.agree_on(start)
    assert start is not None
    if start.finished:
        _say(console, start.notes)
        return RunResult(run, finished=True, step=start.step, trained=False, main=processes.is_main)
    recorder = Recorder()
    with processes.together(), console.status("Loading data and model …"):
        notes = check_supported(config)
        trackers(config)
        objective = objectives.build(config, on_weights=recorder.weights)
        runner = RewardRunner.of(config.rewards, max_completion_length=config.training.max_completion_length)
        with processes.main_of_machine_first():
            source = check_model(config.model)
            loaded = data.load(config.dataset, config.seed)
        check_rewards(config, loaded)
        tokenizer = load_tokenizer(config.model)
        template = config.training.chat_template_kwargs
        measure, cut = prompt_lengths(tokenizer, template), cut_left(tokenizer)
        loaded = data.filter_by_length(loaded, measure, cut, config.dataset)
        check_size(config, loaded, processes.count)
        for name in config.evaluation.benchmarks:
            load_benchmark(name, config)  # one that is missing is told now, and not after hours of training
        runner.opened = opened_thinking(tokenizer, loaded.train[0]["prompt"], config.rewards.think_tag, template)
        notes += check_reasoning(config, source, tokenizer)
        notes += glance(config, source, tokenizer, loaded)
    _say(console, (*start.notes, *notes, *loaded.notes))
    with (
        tempfile.TemporaryDirectory() as aside,
        _locked(run, processes),
        run.guard("the run"),
        tracker_environment(config),
        runner,
    ):
        said = Path(aside) / run.log.name  # what libraries say while it is not yet sure that the run can begin
        with (
            processes.together(),
            _logging_to(said),
            console.status("Building the trainer …"),
            widened(config, run, start, (source, tokenizer), processes) as (source, tokenizer),
        ):
            args, notes = grpo_config(config, run)
            if start.checkpoint is not None:
                check_layout(start.checkpoint, shards=bool(args.fsdp) or asks_for_fsdp())
            functions = recorder.around(runner.functions)
            trainer = build_trainer(config, args, source, loaded, functions, tokenizer, objective)
            recorder.ends = {*trainer.eos_token_ids, tokenizer.pad_token_id}
            recorder.keeps_ids = (Path(source) / MAP_FILE).is_file()
            if processes.is_main:
                check_disk_space(trainer, run, keeps_best=config.evaluation.keep_best)
        _say(console, notes)
        with processes.together():
            if processes.is_main:
                _open_run_directory(config, run, start)
        own = run if processes.is_main else RunDirectory(Path(aside))
        log = run.process_log(processes.index)
        with log.open("ab") as file:
            file.write(said.read_bytes())
        with _logging_to(log):
            runner.start(output=log)
            report = LiveReport(own)
            job = _Job(config, run, own, start, trainer, loaded, tokenizer, runner, recorder, report, processes)
            return _train(job, console)


@dataclass(frozen=True, slots=True)
class _Job:
    """All that an invocation trains and evaluates with."""

    config: Config
    run: RunDirectory
    own: RunDirectory
    """What this process alone writes: the main one into the run, the others into a folder that goes at the end."""
    start: Start
    trainer: GRPOTrainer
    loaded: LoadedData
    tokenizer: PreTrainedTokenizerBase
    rewards: RewardRunner
    recorder: Recorder
    report: LiveReport
    processes: Processes
    stages: StageClock = dataclasses.field(default_factory=StageClock)


def _train(job: _Job, console: Any) -> RunResult:
    from covey.runlog.completions import drop_completions_after
    from covey.runlog.metrics import MetricsWriter, read_metrics
    from covey.training.callbacks import StopCallback
    from covey.training.display import Display

    config, run, own, start, trainer = job.config, job.run, job.own, job.start, job.trainer
    total = trainer.total_steps
    title = f"{config.model.name} on {config.dataset.label} · {run.root}"
    writer = MetricsWriter(own.metrics, keep_until=start.step if start.checkpoint else None)
    stop = StopCallback(config.stop_after_steps, job.processes)
    began = time.perf_counter()
    with Display(title, total, start_step=start.step, console=console, log_path=own.log) as display:
        if start.checkpoint and job.processes.is_main:
            drop_completions_after(run.completions, start.step)
            display.recall(read_metrics(run.metrics))
        _watch(job, writer, display)
        trainer.add_callback(stop)
        with stop.catching_signals(display), job.stages.watching(trainer):
            try:
                if start.checkpoint is not None and start.step >= total:
                    trainer.load_checkpoint_weights(start.checkpoint)  # every step is done, only the end was cut off
                else:
                    trainer.train(resume_from_checkpoint=str(start.checkpoint) if start.checkpoint else None)
            finally:
                writer.flush()
                job.report.close()
        if not stop.stopped:
            display.status("saving the model")
            merge = config.model.lora.active and config.model.lora.merge
            save_final_model(trainer, run, merge=merge, wait=job.processes.wait)
            job.processes.leave()  # the others need not wait for what the main one still does
            if config.evaluation.benchmarks and job.processes.is_main:
                model = None if merge or job.processes.count > 1 else trainer.accelerator.unwrap_model(trainer.model)
                found = run_benchmarks(
                    config, run, lambda name, done, of: display.status(f"{name}: {done} of {of}"), model
                )
                tell_benchmarks(trainer, found)
        display.finish()
    return RunResult(
        run=run,
        finished=not stop.stopped,
        step=max(trainer.state.global_step, start.step),
        signal=stop.signal if stop.stopped else None,
        training_seconds=time.perf_counter() - began,
        peak_memory_bytes=_peak_memory(),
        main=job.processes.is_main,
    )


def _watch(job: _Job, writer: MetricsWriter, display: Display) -> None:
    """Let the trainer evaluate and tell: metrics and completions into the run directory, figures onto the display."""
    from covey.training.best import announce_evaluation, share_from_main
    from covey.training.callbacks import EvaluationCallback, RunLogCallback

    config, own, trainer = job.config, job.own, job.trainer
    samples = config.logging.sample_completions
    every = config.evaluation.every_steps
    every_steps = trainer.steps_per_epoch if isinstance(every, str) else every
    if every_steps:
        display.shows_held_out = True
        evaluation = EvaluationCallback(
            lambda: _evaluate(job),
            own,
            writer,
            display,
            every_steps=every_steps,
            before_training=config.evaluation.before_training,
            sample_completions=samples,
            keep_best_in=job.run if config.evaluation.keep_best and trainer.args.save_strategy != "no" else None,
            tell=partial(tell_trackers, trainer),
            announce=lambda figures: announce_evaluation(trainer, figures),
            share=share_from_main,
        )
        trainer.add_callback(evaluation)  # before the log: an evaluation's figures join the row of its step
    log = RunLogCallback(
        trainer,
        own,
        writer,
        display,
        completions_every_steps=config.logging.completions_every_steps,
        sample_completions=samples,
        recorder=job.recorder,
        stages=job.stages,
        report=job.report,
    )
    trainer.add_callback(log)


def _evaluate(job: _Job) -> Mapping[str, EvaluationResult]:
    from covey.evaluation.grading import SEED_OFFSET, grader_name, grader_of
    from covey.evaluation.run import Share, evaluate
    from covey.rollout import SamplingSettings
    from covey.training.rollout_step import in_step, policy_in_reach

    config, trainer = job.config, job.trainer
    settings = config.evaluation
    sampling = SamplingSettings(
        max_completion_length=settings.max_completion_length or trainer.args.max_completion_length,
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        chat_template_kwargs=config.training.chat_template_kwargs or {},
    )
    results = {}
    for name, problems in job.loaded.evaluation.items():
        chosen = problems
        if settings.max_problems is not None:
            chosen = problems.select(range(min(settings.max_problems, len(problems))))
        with policy_in_reach(trainer) as model:
            results[name] = evaluate(
                model,
                job.tokenizer,
                chosen,
                sampling,
                grade=grader_of(grader_name(config), config, job.rewards),
                tags=Tags(config.rewards.think_tag, config.rewards.answer_tag),
                num_samples=settings.num_samples,
                batch_size=settings.batch_size,
                shared_prefill=config.speed.shared_prefill,
                opened=job.rewards.opened,
                seed=config.seed + SEED_OFFSET,
                share=Share(job.processes.index, job.processes.count, job.processes.gather, in_step(model)),
            )
    return results


@contextmanager
def _locked(run: RunDirectory, processes: Processes) -> Iterator[None]:
    """The run's lock, taken by the main process for all."""
    with ExitStack() as stack:
        with processes.together():
            if processes.is_main:
                stack.enter_context(run.lock())
        yield


def _open_run_directory(config: Config, run: RunDirectory, start: Start) -> None:
    if start.clear:
        run.clear(keep_first=config.model.reasoning_vocab_size != 0)
    for folder in (run.root, run.completions, run.evaluation):
        folder.mkdir(parents=True, exist_ok=True)
    run.summary.unlink(missing_ok=True)  # it marks a finished run, and this one goes on
    # What belongs to this invocation alone stays out: the file, run again, makes a whole new run.
    again = dataclasses.replace(config, run_name=None, resume="auto", overwrite=False, stop_after_steps=None)
    kept = {name: value for name, value in again.training.values.items() if name != "hub_token"}  # a secret
    again = dataclasses.replace(again, training=dataclasses.replace(again.training, values=kept))
    write_atomically(run.config, to_yaml(again))
    run.write_environment()


@contextmanager
def _logging_to(file: Path) -> Iterator[None]:
    """Send what libraries log and warn to a file; the screen belongs to the display."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    handler = logging.FileHandler(file, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    loggers = [
        logging.getLogger(name) for name in ("transformers", "trl", "accelerate", "vllm", "covey", "py.warnings")
    ]
    before = [(logger.handlers[:], logger.propagate) for logger in loggers]
    logging.captureWarnings(True)
    for logger in loggers:
        logger.handlers, logger.propagate = [handler], False
    try:
        yield
    finally:
        logging.captureWarnings(False)
        for logger, (handlers, propagate) in zip(loggers, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagate
        handler.close()


def _say(console: Any, notes: Iterable[str]) -> None:
    for note in notes:
        console.print(f"· {note}", markup=False, highlight=False)


def _peak_memory() -> int:
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
