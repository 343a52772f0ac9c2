"""Stopping a run cleanly, with a checkpoint, on request."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from covey.training.callbacks.early_stopping import EarlyStopping
from covey.training.display.live_display import Display
from covey.training.distributed.processes import Processes, StopRequest
from covey.workers.signals import STOPS, signal_handler


class StopCallback(TrainerCallback):
    """Stops an invocation cleanly, with a checkpoint, after `stop_after_steps` steps or on a signal.

    The schedule of the run does not change: a resumed run equals one that never stopped.
    """

    def __init__(self, stop_after_steps: int | None, processes: Processes | None = None) -> None:
        """
        Args:
            stop_after_steps: steps of this invocation; None for all steps of the run.
            processes: stop together, whichever of them gets the signal.
        """
        self._stop_after_steps = stop_after_steps
        self._processes = processes or Processes()
        self._first_step = 0
        self._caught: int | None = None
        self.signal: int | None = None
        """The signal that requested the stop, if any."""
        self.stopped = False
        """Whether the run was stopped before its last step."""

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._first_step = state.global_step

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        done_here = state.global_step - self._first_step
        enough = self._stop_after_steps is not None and done_here >= self._stop_after_steps
        self.signal = self._processes.any_signal(self._caught)
        if (enough or self.signal is not None) and state.global_step < state.max_steps:
            self.stopped = True
            control.should_save = True
            control.should_training_stop = True

    def reason(self, state: TrainerState, callbacks: Iterable[object]) -> str:
        """Why training ended, as a phrase."""
        if self.signal is not None and self.stopped:
            return f"the signal {signal.Signals(self.signal).name}"
        if self.stopped:
            return f"stop_after_steps={self._stop_after_steps}"
        if state.global_step >= state.max_steps:
            return "all steps are done"
        early = [callback.reason for callback in callbacks if isinstance(callback, EarlyStopping) and callback.reason]
        return early[0] if early else f"a callback ended it at step {state.global_step} of {state.max_steps}"

    @contextmanager
    def catching_signals(self, display: Display) -> Iterator[None]:
        """Context manager: the first signal of `STOPS` requests a clean stop; a second Ctrl-C interrupts at once."""

        def request_stop(number: int) -> None:
            self._caught = number
            # A status, not a note: a handler that prints above the panel could interrupt a redraw.
            display.status(f"{signal.Signals(number).name}: finishing this step, then writing a checkpoint")
            display.hint = _AGAIN

        with signal_handler(STOPS, StopRequest(request_stop, alone=self._processes.count == 1)):
            display.hint = _STOPS
            try:
                yield
            finally:
                display.hint = ""


_STOPS = "Ctrl-C finishes the step, writes a checkpoint and stops"
_AGAIN = "Ctrl-C again stops at once, without a checkpoint"
