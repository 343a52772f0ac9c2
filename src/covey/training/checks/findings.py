"""The list of checks before a run, and their findings: fine, a note, a warning, or wrong.

A check is a function with `@check(name, stage, severity)`. It reads what is `Known` at its stage, yields what it found,
and changes nothing. An error that it raises is a finding that nothing overrides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from covey.config import Config
from covey.config.secrets import redact
from covey.errors import CoveyError, PreflightError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from covey.data import LoadedData
    from covey.environments.runner import EnvironmentRunner
    from covey.runlog.directory import RunDirectory

SAMPLE = 1000
"""Rows of each set that are checked."""


class Mark(StrEnum):
    """The severity of a finding."""

    FINE = "✓"
    NOTE = "·"
    """Worth knowing, and nothing to do about it."""
    WARNING = "!"
    """The run would start; it may not do what is wanted."""
    WRONG = "✗"
    """The run would fail, or learn nothing: it is not started."""


@dataclass(frozen=True, slots=True)
class PreflightFinding:
    """One line of the doctor's table."""

    mark: Mark
    check: str
    """What was checked, in a word or two."""
    result: str
    """What the check found."""
    advice: str = ""
    """What to do about it."""
    error: CoveyError | None = None
    """Without what failed the run cannot go on; None for a judgement, which `ignore_checks` overrides."""
    name: str = ""
    """The check's name in `ignore_checks`, where that is not `check`."""

    @property
    def key(self) -> str:
        """The check's name in `ignore_checks`."""
        return self.name or self.check.replace(" ", "_")

    @property
    def text(self) -> str:
        """The finding in sentences."""
        result = self.result if self.result.endswith((".", "!", "?")) else f"{self.result}."
        if self.mark is Mark.NOTE and not self.advice:
            return result
        return f"{self.check}: {result} {self.advice}".rstrip()

    def is_ignored(self, ignored: Sequence[str]) -> bool:
        """Whether `ignore_checks` lets the run start all the same."""
        return self.error is None and (self.key in ignored or "all" in ignored)

    def refusal(self) -> CoveyError:
        """The error with which training refuses to start."""
        return self.error or PreflightError(
            f"{self.text} Nothing was started. `covey doctor` shows every check; 'ignore_checks=[{self.key}]' trains "
            "all the same."
        )


class Stage(StrEnum):
    """What a check needs to be known, in the order of its cost."""

    SETTINGS = "before PyTorch is loaded"
    DATA = "with the data"
    MODEL_CONFIG = "with the model's config and tokenizer"
    MODEL = "with the prompts as tokens, and all but the weights"


class Known(Protocol):
    """What is known of a run: at each stage what the stages before have loaded."""

    config: Config
    run: RunDirectory
    processes: int
    output: Path | None
    """The file to append what users' code prints to; None: standard error."""
    environments: EnvironmentRunner | None
    """From `DATA` on, as `loaded`."""
    loaded: LoadedData
    source: str
    """What `from_pretrained` takes; from `MODEL_CONFIG` on, as the next two."""
    tokenizer: PreTrainedTokenizerBase
    model: PretrainedConfig
    prompts: list[list[int]]
    """The tokens of some prompts; from `MODEL` on."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check of a run."""

    name: str
    stage: Stage
    severity: Mark
    """The worst that it finds."""
    look: Callable[[Any], Iterable[PreflightFinding]]
    """Takes what is `Known`."""
    main_only: bool = False
    """Whether its result is the same in all processes, and one makes it."""

    @property
    def doc(self) -> str:
        """What it looks at."""
        return (self.look.__doc__ or "").strip()


_Look = TypeVar("_Look", bound=Callable[[Any], Iterable[PreflightFinding]])

CHECKS: list[Check] = []
"""Every listed check, in the order in which those of one stage are made."""


def check(name: str, stage: Stage, severity: Mark = Mark.WRONG, *, main_only: bool = False) -> Callable[[_Look], _Look]:
    """List a function as a check."""

    def listed(look: _Look) -> _Look:
        CHECKS.append(Check(name, stage, severity, look, main_only))
        return look

    return listed


def print_findings(console: Any, findings: Iterable[PreflightFinding]) -> None:
    """Print the findings of a run that starts, each with its severity.

    Args:
        findings: without the fine ones; wrong ones are those that `ignore_checks` overrides.
    """
    for finding in findings:
        style = None if finding.mark is Mark.NOTE else "yellow"
        ignored = f" (ignore_checks=[{finding.key}])" if finding.mark is Mark.WRONG else ""
        console.print(f"{finding.mark} {redact(finding.text)}{ignored}", markup=False, highlight=False, style=style)


def worst(findings: Sequence[PreflightFinding]) -> Mark:
    """The worst mark among them."""
    marks = {finding.mark for finding in findings}
    return next((mark for mark in (Mark.WRONG, Mark.WARNING, Mark.NOTE) if mark in marks), Mark.FINE)
