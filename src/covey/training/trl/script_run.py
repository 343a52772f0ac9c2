"""The run directory of a script: what `train()` of Covey's `GRPOTrainer` records in `args.output_dir`.

Nothing here ends a training: the first thing that cannot be recorded ends the record, with a warning.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import yaml
from transformers import TrainerCallback, TrainerState
from transformers import trainer as transformers_trainer
from transformers.utils.hub import hf_api

from covey.advice import command
from covey.config.compose.recipe import script_of
from covey.config.compose.render import escape
from covey.config.groups.training import training_fields
from covey.config.secrets import redact, without_secrets
from covey.errors import RunDirectoryError
from covey.model.device import base_model
from covey.objective.registry import record
from covey.report.live import LiveReport, write_end_of_run
from covey.report.summary import before_and_after, write_summary
from covey.runlog.completions import drop_completions_after
from covey.runlog.directory import FORMER, SCRIPT_FILES, RunDirectory
from covey.runlog.files import rename, write_atomically
from covey.runlog.notes import failure_text, write_failure
from covey.training.callbacks import RunLogCallback, StopCallback
from covey.training.checkpoint.write import open_metrics
from covey.training.display import Display
from covey.training.memory_in_use import peak_memory
from covey.training.processes import silent_console
from covey.training.recording import CompletionRecorder
from covey.training.replaced import replaced
from covey.training.trl.step_timer import StepTimer

logger = logging.getLogger(__name__)

_HEADER = "# What a script trained with covey.GRPOTrainer, as far as the trainer knows it: a record, no recipe.\n"
_ALWAYS = ("num_generations", "learning_rate", "beta", "loss_type", "max_steps", "max_completion_length")
_ELSEWHERE = ("output_dir", "run_name", "seed", "model_init_kwargs", "trust_remote_code", "accelerator_config")
"""Fields of `args` that are recorded at their defaults too, and those that are not recorded among them."""


class ScriptRun(TrainerCallback):
    """Context manager that records one call of `train()`, in the main process; on exit, how it ended and the report."""

    def __init__(self, trainer: Any) -> None:
        self._trainer, self._run = trainer, RunDirectory(Path(trainer.args.output_dir))
        self._began, self._opened = time.perf_counter(), ExitStack()
        self._log: RunLogCallback | None = None

    def __enter__(self) -> None:
        self._trainer.add_callback(self)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._trainer.remove_callback(self)
        with self._guarded():
            self._end(error)
        with self._guarded():
            self._opened.close()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._log = None
            logger.warning("This training goes on without a record: %s", redact(failure_text(error)))

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        trainer = self._trainer
        if trainer.recorder is None:  # in every process: they gather what it logs
            trainer.recorder = CompletionRecorder({*trainer.eos_token_ids, trainer._tokenizer.pad_token_id})
        if state.is_world_process_zero:
            with self._guarded():
                self._begin(state)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self._log is not None:
            with self._guarded():
                self._log.on_log(args, state, control, _by_set(logs or {}, self._trainer.eval_dataset))
                self._log.writer.flush()  # the next log may be many steps away
                self._log.report.refresh()

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if control.should_training_stop or state.global_step >= state.max_steps:
            control.should_log = True  # TRL logs every tenth step: else no row would hold the last ones
        if self._log is not None:
            with self._guarded():
                self._log.on_step_end(args, state, control)

    def _begin(self, state: TrainerState) -> None:
        run, trainer = self._run, self._trainer
        self._opened.close()  # transformers begins anew where it looks for a batch size that fits
        self._opened.enter_context(run.lock("the record", "Give each script an output_dir of its own."))
        checkpoint = None if trainer.resumed_from is None else Path(trainer.resumed_from)
        goes_on = checkpoint is not None and checkpoint.resolve().parent == run.root.resolve()
        _make_room(run, goes_on=goes_on)
        content = {"script": getattr(sys.modules["__main__"], "__file__", "notebook"), **_describe(trainer)}
        text = yaml.safe_dump(escape(without_secrets(content)), sort_keys=False, allow_unicode=True)
        write_atomically(run.config, _HEADER + text)
        run.write_environment()
        writer, _ = open_metrics(run, state.global_step if goes_on else None, checkpoint)
        drop_completions_after(run.completions, state.global_step)
        timer = StepTimer()
        display = Display(str(run.root), state.max_steps, console=silent_console(), log_path=Path(os.devnull))
        self._opened.enter_context(display)
        self._opened.enter_context(timer.timing(trainer))
        self._log = RunLogCallback(
            trainer=trainer,
            run=run,
            writer=writer,
            display=display,
            completions_every_steps=0 if trainer.args.log_completions_hub_repo else 1,  # TRL uploads what lies there
            sample_completions=0,
            take_times=timer.take,
            report=LiveReport(run),
            tells_trackers=False,
        )
        self._log.on_train_begin(trainer.args, state, trainer.control)

    def _end(self, error: BaseException | None) -> None:
        run, trainer, log = self._run, self._trainer, self._log
        if log is None:
            return
        log.on_train_end(trainer.args, trainer.state, trainer.control)
        log.writer.flush()
        log.report.close()
        if error is None:
            reason = StopCallback(None).reason(trainer.state, trainer.callback_handler.callbacks)
            write_summary(run, before_and_after(run), time.perf_counter() - self._began, peak_memory(), reason)
        elif isinstance(error, Exception):  # Ctrl-C is no failure
            write_failure(run, error)
        self._opened.close()  # it is no longer being written: the report says how it ended
        for problem in write_end_of_run(run, finished=error is None):
            logger.warning("%s", problem)
        if error is None:
            print(f"Recorded in {run.root}: {command('view {folder}', folder=run.root)} shows it.", file=sys.stderr)


def _by_set(logs: dict[str, Any], sets: Any) -> dict[str, Any]:
    """Logs of an evaluation on one of several sets, whose name TRL leaves out of most metrics, under its name."""
    name = next((one for one in sets if f"eval_{one}_loss" in logs), None) if isinstance(sets, dict) else None
    prefix = re.compile(f"^eval_({re.escape(str(name))}_)?(?!.*(runtime|per_second)$)")
    return logs if name is None else {prefix.sub(f"eval_{name}/", key): value for key, value in logs.items()}


def _make_room(run: RunDirectory, *, goes_on: bool) -> None:
    """Move the record of a former training, unless this one goes on with it, into a folder of its own.

    Raises:
        RunDirectoryError: files of these names are another program's, or of a run of `covey train`.
    """
    held = [path for pattern in SCRIPT_FILES for path in sorted(run.root.glob(pattern))]
    files = [path.name for path in held if path.parent == run.root]
    if files and script_of(run.config) is None:
        raise RunDirectoryError(
            f"{run.root} holds {', '.join(files)}, which no script's training has written. Take another output_dir, or "
            "run_directory=False."
        )
    if goes_on:
        run.summary.unlink(missing_ok=True)
    elif held:
        folder = next(one for number in count(1) if not (one := run.root / f"{FORMER}{number}").exists())
        for path in reversed(held):  # last the config, which says whose they are
            moved = folder / path.relative_to(run.root)
            moved.parent.mkdir(parents=True, exist_ok=True)
            rename(path, moved)


def _describe(trainer: Any) -> dict[str, Any]:
    """What a trainer knows of its training, under the keys of Covey's config where there are such."""
    args, fields, data, held_out = trainer.args, training_fields(), trainer.train_dataset, trainer.eval_dataset
    values = json.loads(json.dumps(args.to_dict(), default=str))
    objective = {"objective.name": "grpo"} if trainer._objective is None else record(trainer._objective)[0]
    rewards = zip(trainer.reward_funcs, trainer.reward_func_names, strict=True)
    adapters = getattr(trainer.model, "peft_config", {}).get("default")
    cached = re.search(r"/([^/]+)___([^/]+)/", str(getattr(data, "cache_files", "")))  # of `datasets`: OWNER___NAME
    return {
        "seed": args.seed,
        "model": {
            "name": str(base_model(trainer.model).config._name_or_path),
            **(values["model_init_kwargs"] or {}),
            "trust_remote_code": args.trust_remote_code,
            "lora": {"rank": getattr(adapters, "r", None)},
        },
        "dataset": {
            "id": f"{cached[1]}/{cached[2]}" if cached else None,
            "rows": _size(data),
            "eval_rows": _size(held_out),
        },
        "environment": {"tools": [tool.__name__ for tool in trainer.tools or ()]},
        "rewards": {"funcs": [f"{function.__module__}:{name}" for function, name in rewards]},
        "objective": {name.partition(".")[2]: value for name, value in objective.items()},
        "training": {
            name: value
            for name, value in values.items()
            if name in _ALWAYS
            or (name in fields and name not in _ELSEWHERE and value not in (None, [], {}, fields[name].default))
        },
    }


def _size(data: Any) -> Any:
    if isinstance(data, dict):
        return {name: _size(one) for name, one in data.items()}
    return len(data) if hasattr(data, "__len__") else None  # a stream has no length


def without_records() -> AbstractContextManager[None]:
    """Context manager: of the folder of a script's run, transformers uploads what Covey has not recorded there."""
    return replaced(transformers_trainer, hf_api=lambda: _Hub(hf_api()))


class _Hub:
    def __init__(self, api: Any) -> None:
        self._api = api

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    def upload_folder(self, *, folder_path: Any, ignore_patterns: Any = None, **more: Any) -> Any:
        if script_of(RunDirectory(Path(folder_path)).config) is not None:
            others = (f"{FORMER}*", "schedule.jsonl", ".lock", ".*.tmp")
            ignore_patterns = [*(ignore_patterns or ()), *SCRIPT_FILES, *others]
        return self._api.upload_folder(folder_path=folder_path, ignore_patterns=ignore_patterns, **more)
