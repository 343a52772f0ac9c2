"""The settings of rewards for programs, `rewards.code.*`."""

from __future__ import annotations

from dataclasses import dataclass

from covey.sandbox import Limits


@dataclass(frozen=True, slots=True)
class CodeSettings:
    """What a test may use, and how programs of other languages are run."""

    timeout: float = 5.0
    memory_mb: int = 512
    processes: int = 16
    output_kb: int = 1024
    max_tests: int | None = None
    commands: tuple[tuple[str, str], ...] = ()
    paths: tuple[str, ...] = ()

    @property
    def limits(self) -> Limits:
        """Of one test."""
        return Limits(
            seconds=self.timeout, memory_mb=self.memory_mb, processes=self.processes, output_kb=self.output_kb
        )
