"""The trainer's side of environments and tools that run in worker processes.

TRL finds tools on the class of an instance, so a proxy's class is made for each class of environment: its functions
carry the names, docstrings, type hints and signatures of the original's methods, and call them in the process of the
instance. A proxy has one name that its original cannot use: `covey`, the control of its episodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Literal

EndedBy = Literal["timed_out", "crashed"]
"""How an episode ends that its environment or a tool cannot go on with."""


class ToolError(Exception):
    """A tool raised an exception; its text is the model's result, as in TRL."""


class ToolCall(Future[Any]):
    """A call under way, of `tool.submit(…)`.

    `result()` is what the model is told: a text, a number, a dictionary or a list of content blocks. It raises
    `ToolError` where the tool raised, which is a failure of the call and no end of the episode.

    Attributes:
        ended: why the call ended its episode: its result is {"error": …} then.
        seconds: that the call took; waiting for a core does not count.
    """

    ended: EndedBy | None = None
    seconds: float = 0.0


class EpisodeControl:
    """The episodes of one instance: `environment.covey`. Not thread-safe; one episode at a time.

    Attributes:
        outcome: why the current episode ended early; None for one that goes on. Set by a deadline, by the death of the
            process, and by an exception of `reset` or `get_reward`; cleared by the next reset.
        seconds: in the environment in this episode so far.
    """

    outcome: EndedBy | None
    seconds: float

    def begin_reset(self, row: Mapping[str, Any], seed: int | None = None) -> None:
        """Begin an episode without waiting: the next `reset` of the proxy returns its observation.

        Args:
            row: the arguments of `reset`.
            seed: for the generators of `random`, NumPy and (where it is loaded) PyTorch in the process; None: new ones.
        """
        raise NotImplementedError

    def begin_reward(self) -> None:
        """Begin `get_reward` without waiting: the next `get_reward` of the proxy returns its result."""
        raise NotImplementedError


def control_of(environment: object) -> EpisodeControl | None:
    """The control of a proxy; None for an object that runs in this process."""
    control = getattr(type(environment), "covey", None) and getattr(environment, "covey", None)
    return control if isinstance(control, EpisodeControl) else None
