"""Every check of a run before it starts: what `covey doctor` shows, and what stops training.

The checks follow the order of their cost: settings, files and data before PyTorch is imported, then the tokenizer, the
prompts and TRL's arguments, last the gold answers and the memory. What they load is what the run goes on with. They
write nothing.

Left to the run itself: the checksums of a checkpoint that it resumes from; an engine of the user's own, which loads the
weights; files of a hub model that are not downloaded yet; `model_init_kwargs` that only the model's class knows; a vLLM
server, which may not be up yet.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from covey import data
from covey.config import Config
from covey.errors import CoveyError
from covey.evaluation.grading import answer_asked_by, check_evaluation
from covey.model.adapters import check_adapters, quantization_config
from covey.model.architecture import check_architecture
from covey.model.loading import check_files, check_model, load_tokenizer, source_options
from covey.model.prompts import cut_left, prompt_lengths, render, thinking_prefix
from covey.rewards.runner import RewardRunner
from covey.runlog.directory import RunDirectory
from covey.training.build import check_optimizer, grpo_config
from covey.training.checkpoint.vocab_expansion import check_reasoning
from covey.training.preflight.checks import (
    check_batch,
    check_lengths,
    check_memory,
    check_prompt_prefix,
    check_router,
    check_rows,
    check_tokens,
)
from covey.training.preflight.findings import Mark, PreflightFinding
from covey.training.preflight.gold_answer_check import check_answers
from covey.training.preflight.packages import check_attention, check_hardware
from covey.training.preflight.requirements import check_rewards, check_supported
from covey.training.preflight.trackers import tracker_notes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from covey.data import LoadedData
    from covey.training.advantages.objectives import Given
    from covey.training.trl.trainer import GRPOConfig

T = TypeVar("T")
Findings = Generator[PreflightFinding, None, T]


def _ignore(text: str) -> None:
    """No progress display."""


@dataclass(slots=True, kw_only=True)
class Examination:
    """The checks of one run: iterate over it for the findings. What they loaded is in the last attributes."""

    config: Config
    run: RunDirectory
    objective: Given = None
    """In place of the one that the config names, see `covey.train`."""
    processes: int = 1
    is_main: bool = True
    """Whether this process makes the checks whose result is the same in all of them."""
    main_first: Callable[[], AbstractContextManager[None]] = nullcontext
    """See `Processes.main_of_machine_first`."""
    naming_places: Callable[[], AbstractContextManager[None]] = nullcontext
    """Adds to an error about a key where the user set it, as `Composed.naming_places` does."""
    quietly: Callable[[], AbstractContextManager[None]] = nullcontext
    """Where libraries log while they check their arguments."""
    progress: Callable[[str], None] = _ignore
    """Called with what is loaded now, where that takes time."""
    show_prompt: Callable[[str], None] = _ignore
    """Called with a prompt as the model will see it."""

    objective_arguments: dict[str, Any] = field(init=False)
    runner: RewardRunner = field(init=False)
    source: str = field(init=False)
    """What `from_pretrained` takes."""
    loaded: LoadedData = field(init=False)
    unrewarded: Mapping[str, str] = field(init=False)
    """Held-out sets without rewards, see `check_columns_for`."""
    tokenizer: PreTrainedTokenizerBase = field(init=False)
    args: GRPOConfig = field(init=False)

    def __iter__(self) -> Iterator[PreflightFinding]:
        settings = yield from self._settings()
        asked = yield from self._rewards()
        found = yield from self._attempt("model", lambda: check_files(self.config.model.name))
        yield from self._attempt("adapters", lambda: check_adapters(self.config.model.lora))
        if asked is not None:
            yield from self._data()
        self.progress("Loading PyTorch …")
        if settings:
            yield from self._objective()
        if found is not None:
            yield from self._model()
        if hasattr(self, "tokenizer"):
            yield from check_tokens(self.config, self.tokenizer)
        if settings:
            yield from self._hardware()
        if hasattr(self, "tokenizer") and hasattr(self, "unrewarded"):
            yield from self._prompts()
            yield from self._whole()

    def must_pass(self) -> tuple[list[PreflightFinding], list[PreflightFinding]]:
        """Make the checks, up to the first that stops the run.

        Returns:
            The findings that are not fine, and those among them that `ignore_checks` overrides.

        Raises:
            CoveyError: the run must not start; in the words of `covey doctor`.
        """
        found, overridden = list[PreflightFinding](), list[PreflightFinding]()
        for finding in self:
            if finding.mark is Mark.WRONG and not finding.is_ignored(self.config.ignore_checks):
                raise finding.refusal()
            found += [finding] if finding.mark is not Mark.FINE else []
            overridden += [finding] if finding.mark is Mark.WRONG else []
        return found, overridden

    def _settings(self) -> Findings[bool]:
        """Whether they are valid."""
        config = self.config
        yield from self._attempt("output", self.run.check_place)
        notes = yield from self._attempt("settings", lambda: [*check_supported(config), *tracker_notes(config)])
        if notes is None:
            return False
        yield from (PreflightFinding(Mark.NOTE, "settings", note) for note in notes)
        yield PreflightFinding(Mark.FINE, "settings", "every key is known, every value in range")
        return True

    def _rewards(self) -> Findings[tuple[str | None] | None]:
        """What needs gold answers; None if the rewards cannot be used."""
        config = self.config

        def load() -> tuple[str | None]:
            self.runner = RewardRunner.of(config.rewards, max_completion_length=config.training.max_completion_length)
            notes.extend(check_evaluation(config))
            return (answer_asked_by(config),)

        notes: list[str] = []
        asked = yield from self._attempt("rewards", load)
        yield from (PreflightFinding(Mark.WARNING, "evaluation", note) for note in notes)
        return asked

    def _data(self) -> Findings[None]:
        self.progress("Reading the data …")
        if (yield from self._attempt("data", self._load_data)) is None:
            return
        loaded = self.loaded
        held_out = ", ".join(f"{name} {len(rows)}" for name, rows in loaded.evaluation.items()) or "none"
        yield PreflightFinding(Mark.FINE, "data", f"{len(loaded.train)} training rows; held out: {held_out}")
        for note in (*loaded.notes, *self.unrewarded.values()):
            yield PreflightFinding(Mark.WARNING if note in loaded.warnings else Mark.NOTE, "data", note)
        yield from check_rows(self.config, loaded)

    def _load_data(self) -> bool:
        with self.main_first():
            loaded = data.load(self.config.dataset, self.config.seed, answer_for=answer_asked_by(self.config))
        unrewarded = check_rewards(self.config, loaded)
        self.loaded, self.unrewarded = loaded, unrewarded
        return True

    def _objective(self) -> Findings[None]:
        from covey.training.advantages import objectives

        found = yield from self._attempt("objective", lambda: objectives.build(self.config, self.objective))
        if found is not None:
            self.objective_arguments = found
            loss = f"training.loss_type={self.config.training.loss_type}"
            yield PreflightFinding(Mark.FINE, "objective", f"{self.config.objective.name} works with {loss}")

    def _model(self) -> Findings[None]:
        config = self.config

        def load() -> tuple[str, PreTrainedTokenizerBase]:
            with self.main_first():
                return check_model(config.model), load_tokenizer(config.model)

        found = yield from self._attempt("model", load)
        if found is None:
            return
        self.source, self.tokenizer = found
        yield PreflightFinding(Mark.FINE, "model", f"{config.model.name}: config and tokenizer load")
        notes = yield from self._attempt("reasoning", lambda: check_reasoning(config, self.source, self.tokenizer))
        yield from (PreflightFinding(Mark.NOTE, "reasoning", note) for note in notes or [])

    def _hardware(self) -> Findings[None]:
        """What TRL and transformers say to the settings on this machine."""
        from covey.training.callbacks.user_callbacks import load_callbacks

        config = self.config

        def load() -> list[str]:
            check_hardware(config)
            check_attention(config.model.attn_implementation)
            quantization_config(config.model)
            load_callbacks(config.callbacks, config.evaluation)
            with self.quietly():
                self.args, notes = grpo_config(config, self.run)
                check_optimizer(self.args)
            return notes

        notes = yield from self._attempt("training", load)
        yield from (PreflightFinding(Mark.NOTE, "training", note) for note in notes or [])

    def _prompts(self) -> Findings[None]:
        config, template = self.config, self.config.training.chat_template_kwargs

        def shorten() -> LoadedData:
            first = self.loaded.train[0]["prompt"]
            self.show_prompt(render(self.tokenizer, first, template))
            self.runner.prompt_prefix = thinking_prefix(self.tokenizer, first, config.rewards.think_tag, template)
            measure, cut = prompt_lengths(self.tokenizer, template), cut_left(self.tokenizer)
            return data.filter_by_length(self.loaded, measure, cut, config.dataset)

        before = self.loaded.notes
        loaded = yield from self._attempt("prompts", shorten)
        if loaded is None:
            return
        self.loaded = loaded
        yield from (PreflightFinding(Mark.NOTE, "prompts", note) for note in loaded.notes[len(before) :])
        yield from check_prompt_prefix(config, self.tokenizer, loaded)

    def _whole(self) -> Findings[None]:
        """The checks that need everything."""
        from transformers import AutoConfig

        from covey.evaluation.job import load_benchmark

        config = self.config
        model = AutoConfig.from_pretrained(self.source, **source_options(config.model))
        yield check_batch(config, self.loaded, self.processes)
        longest = yield from check_lengths(config, model, self.tokenizer, self.loaded.train)
        for name in config.evaluation.benchmarks:  # now, not after hours of training
            yield from self._attempt("benchmarks", partial(load_benchmark, name, config))
        yield from self._attempt("weights", lambda: check_architecture(config.model, self.source))
        yield from self._attempt("settings", lambda: check_router(config, model))
        yield from check_memory(config, model, longest)
        if self.is_main:
            yield from check_answers(config, self.loaded)

    def _attempt(self, check: str, call: Callable[[], T]) -> Findings[T | None]:
        """The result of what the run needs; if it raises, None and a finding that nothing overrides."""
        try:
            with self.naming_places():
                return call()
        except CoveyError as error:
            yield PreflightFinding(Mark.WRONG, check, str(error), error=error)
            return None
