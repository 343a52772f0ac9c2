"""The time of each stage of a step: generation, tools, scoring, rewards, forward and backward pass.

Measured on the host. On a GPU, queued work counts in the stage in which the host waits for it.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from covey.errors import one_line
from covey.log_once import log_once
from covey.runlog import names
from covey.training.replaced import replaced

logger = logging.getLogger(__name__)

_PROFILED = {
    "transformers.generate": names.GENERATION_TIME,
    "transformers.generate_batch": names.GENERATION_TIME,
    "engine.generate": names.GENERATION_TIME,
    "vLLM.generate": names.GENERATION_TIME,
    "environment": names.ENVIRONMENT_TIME,
    "sync_weights": names.SYNC_TIME,
    "calculate_rewards": names.REWARDS_TIME,
}
"""Names that TRL and Covey's trainer profile, and the stages they count as."""


class StepTimer:
    """Adds up the seconds of each stage. Time in a nested stage counts for that stage only."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._within: list[str] = []
        self._since = 0.0

    def enter(self, stage: str) -> None:
        """Begin a stage; the enclosing one is paused."""
        self._count()
        self._within.append(stage)

    def leave(self) -> None:
        """End the innermost stage."""
        self._count()
        self._within.pop()

    def take(self) -> dict[str, float]:
        """The seconds of each stage since the last call."""
        taken = dict(self._seconds)
        self._seconds.clear()
        return taken

    @contextmanager
    def timing(self, trainer: Any) -> Iterator[None]:
        """Context manager: times the stages of this trainer."""
        from trl.extras import profiling

        stock, timer = profiling.ProfilingContext, self

        class Timed(stock):  # type: ignore[misc,valid-type]
            """TRL's own timer, which reports to trackers only; this one also reports to `StepTimer`."""

            def __enter__(self) -> Any:
                self._stage = _PROFILED.get(self.name.partition(".")[2].lstrip("_"))
                if self._stage:
                    timer.enter(self._stage)
                return super().__enter__()

            def __exit__(self, *exception: Any) -> Any:
                if self._stage:
                    timer.leave()
                return super().__exit__(*exception)

            def _log_metrics(self, duration: float) -> None:
                try:
                    super()._log_metrics(duration)
                except Exception as error:  # each tracker has errors of its own, and none ends a run
                    log_once(logger, "A tracker failed to take the times of a step: %s", one_line(error), key="times")

        step, loss = trainer.training_step, trainer.compute_loss
        with (
            # scoring is what is in no other stage of a training step
            replaced(
                trainer,
                training_step=self._timed(step, names.SCORING_TIME),
                compute_loss=self._timed(loss, names.FORWARD_TIME),
            ),
            replaced(trainer.accelerator, backward=self._timed(trainer.accelerator.backward, names.BACKWARD_TIME)),
            replaced(profiling, ProfilingContext=Timed),
        ):
            yield

    def _timed(self, method: Callable[..., Any], stage: str) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.enter(stage)
            try:
                return method(*args, **kwargs)
            finally:
                self.leave()

        return timed

    def _count(self) -> None:
        now = self._clock()
        if self._within:
            self._seconds[self._within[-1]] += now - self._since
        self._since = now
