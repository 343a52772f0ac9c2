"""Where the time of a step goes: generation, scoring, rewards, forward and backward pass.

Measured on the host. On a GPU, work that is queued is counted where the host waits for it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from covey.runlog import names

if TYPE_CHECKING:
    from covey.training.trainer import GRPOTrainer

_PROFILED = {
    "transformers.generate": names.GENERATION_TIME,
    "transformers.generate_batch": names.GENERATION_TIME,
    "vLLM.generate": names.GENERATION_TIME,
    "sync_weights": names.SYNC_TIME,
    "calculate_rewards": names.REWARDS_TIME,
}
"""What TRL and Covey's trainer time under a name of their own, and what it counts as."""


class StageClock:
    """Adds up the seconds of each stage. A stage within another one counts for itself only."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._within: list[str] = []
        self._since = 0.0

    def enter(self, stage: str) -> None:
        """Begin a stage; the one around it stands still."""
        self._turn()
        self._within.append(stage)

    def leave(self) -> None:
        """End the innermost stage."""
        self._turn()
        self._within.pop()

    def take(self) -> dict[str, float]:
        """The seconds of every stage since the last time."""
        taken = dict(self._seconds)
        self._seconds.clear()
        return taken

    @contextmanager
    def watching(self, trainer: GRPOTrainer) -> Iterator[None]:
        """Within, the stages of this trainer are timed."""
        from trl.extras import profiling

        plain, clock = profiling.ProfilingContext, self

        class Timed(plain):  # type: ignore[misc,valid-type]
            """TRL's own timer, which tells trackers only; this one tells the clock too."""

            def __enter__(self) -> Any:
                self._stage = _PROFILED.get(self.name.partition(".")[2].lstrip("_"))
                if self._stage:
                    clock.enter(self._stage)
                return super().__enter__()

            def __exit__(self, *exception: Any) -> Any:
                if self._stage:
                    clock.leave()
                return super().__exit__(*exception)

        watched = (
            (trainer, "training_step", names.SCORING_TIME),  # what is in no other stage
            (trainer, "compute_loss", names.FORWARD_TIME),
            (trainer.accelerator, "backward", names.BACKWARD_TIME),
        )
        for holder, method, stage in watched:
            setattr(holder, method, self._timed(getattr(holder, method), stage))
        profiling.ProfilingContext = Timed
        try:
            yield
        finally:
            profiling.ProfilingContext = plain
            for holder, method, _ in watched:
                delattr(holder, method)  # the class's own method is below it

    def _timed(self, method: Callable[..., Any], stage: str) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.enter(stage)
            try:
                return method(*args, **kwargs)
            finally:
                self.leave()

        return timed

    def _turn(self) -> None:
        now = self._clock()
        if self._within:
            self._seconds[self._within[-1]] += now - self._since
        self._since = now
