"""Every check of a run before it starts: what `covey doctor` shows, and what stops training.

The checks follow the order of their cost: settings, files and data before PyTorch is imported, then the tokenizer, the
prompts and TRL's arguments, last the gold answers and the memory. What they load is what the run goes on with. They
write nothing.

Left to the run itself: the checksums of a checkpoint that it resumes from; an engine of the user's own, which loads the
weights; files of a hub model that are not downloaded yet; `model_init_kwargs` that only the model's class knows; a vLLM
server, which may not be up yet.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from covey import data
from covey.config import Config
from covey.data.examples import Example, as_asked, read_examples
from covey.environments.runner import EnvironmentRunner, environment_rewards
from covey.errors import ConfigError, CoveyError, DataError, ModelError, RunDirectoryError
from covey.evaluation.grading import answer_asked_by, check_evaluation
from covey.evaluation.stored import prompts_of
from covey.importing import import_object
from covey.model.adapters import check_adapters, quantization_config
from covey.model.load import check_files, check_model, load_tokenizer, source_options
from covey.model.prompts import (
    NOT_LEARNT,
    cut_left,
    labelled,
    prompt_ids,
    prompt_lengths,
    render,
    thinking_prefix,
    turn_end,
)
from covey.model.reward_model import RewardModel, load_all, reward_models
from covey.rewards.runner import RewardRunner
from covey.runlog import names
from covey.runlog.directory import RunDirectory
from covey.runlog.metrics import read_metrics
from covey.training.build import check_optimizer, trl_config
from covey.training.checkpoint.vocab_expansion import check_reasoning
from covey.training.checks.data import columns_wanted
from covey.training.checks.findings import CHECKS, SAMPLE, Mark, PreflightFinding, Stage
from covey.training.checks.needs import check_attention, check_hardware, check_rewards

if TYPE_CHECKING:
    import datasets
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from covey.data import LoadedData
    from covey.training.advantages import Given


T = TypeVar("T")
Findings = Generator[PreflightFinding, None, T]


_OF_GRPO = ("thinking", "rows", "starter", "batch", "prompt form", "own reward", "gold answers")
"""Checks that supervised training does without."""


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
    plays: bool = False
    """Whether a scripted episode with the environment and tools is played and timed."""
    output: Path | None = None
    """The file to append what environments print to; None: standard error."""
    left_out: Collection[str] = ()
    """Keys whose code the config lacks, as it may not run: what needs it is not checked."""

    objective_arguments: dict[str, Any] = field(init=False, default_factory=dict)
    runner: RewardRunner = field(init=False)
    models: Mapping[str, RewardModel] = field(init=False, default_factory=dict)
    """The reward models, by their names among the rewards."""
    environments: EnvironmentRunner | None = field(init=False, default=None)
    """Runs the environments and tools, if there are any; `close` ends their processes."""
    rewarding: tuple[str, ...] = field(init=False, default=())
    """The names of the classes of environments that reward their episodes."""
    rollout_func: Callable[..., Any] | None = field(init=False, default=None)
    source: str = field(init=False)
    """What `from_pretrained` takes."""
    loaded: LoadedData = field(init=False)
    unrewarded: Mapping[str, str] = field(init=False)
    """Held-out sets without rewards, see `check_columns_for`."""
    tokenizer: PreTrainedTokenizerBase = field(init=False)
    model: PretrainedConfig = field(init=False)
    prompts: list[list[int]] = field(init=False)
    """The tokens of some prompts."""
    args: Any = field(init=False)
    """TRL's: a `GRPOConfig`, or an `SFTConfig`."""
    examples: datasets.Dataset | None = field(init=False, default=None)
    """`input_ids` and `labels` of supervised training."""

    def __iter__(self) -> Iterator[PreflightFinding]:
        settings = "settings" not in (yield from self._made(Stage.SETTINGS))
        made = yield from self._environments()
        asked = (yield from self._rewards()) if made else None
        found = yield from self._attempt("model", lambda: check_files(self.config.model.name))
        yield from self._attempt("adapters", lambda: check_adapters(self.config.model.lora))
        supervised = self.config.sft.rows is not None
        if supervised and not self.config.dataset.has_source:
            self.loaded, self.unrewarded = data.LoadedData([], {}, []), {}
        elif asked is not None and not any(key.startswith("environment.") for key in self.left_out):
            yield from self._data()
        examples = (yield from self._examples()) if supervised and hasattr(self, "unrewarded") else []
        self.progress("Loading PyTorch …")
        if settings and not supervised and "objective.name" not in self.left_out:
            yield from self._objective()
        if found is not None and "model.trust_remote_code" not in self.left_out:
            yield from self._model()
        if hasattr(self, "tokenizer"):
            yield from self._made(Stage.MODEL_CONFIG)
        if settings:
            yield from self._hardware()
        if hasattr(self, "tokenizer") and hasattr(self, "unrewarded"):
            fine = (yield from self._prompts()) if len(self.loaded.train) else True
            if fine and (not supervised or (examples and (yield from self._label(examples)))):
                yield from self._made(Stage.MODEL)

    def close(self) -> None:
        """End the processes of environments and tools."""
        if self.environments is not None:
            self.environments.close()

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

    def _made(self, stage: Stage) -> Findings[set[str]]:
        """The listed checks of a stage. Returns the names of those without which the run cannot go on."""
        failed = set[str]()
        for check in CHECKS:
            left_out = check.name in _OF_GRPO and self.config.sft.rows is not None
            if check.stage is stage and (self.is_main or not check.main_only) and not left_out:
                if stage is Stage.MODEL:
                    self.progress(f"Checking: {check.name} …")
                try:
                    with self.naming_places():
                        yield from check.look(self)
                except CoveyError as error:
                    failed.add(check.name)
                    yield PreflightFinding(Mark.WRONG, check.name, str(error), error=error)
        return failed

    def _environments(self) -> Findings[bool]:
        """Whether those that the config names can be used."""
        config = self.config
        if (name := config.environment.rollout_func) is not None:
            self.rollout_func = yield from self._attempt("environment", lambda: _rollout_func(name))
            return self.rollout_func is not None
        if not config.environment.used:
            return True
        from covey.training.checks.environments import check_environments

        def make() -> str:
            self.environments = runner = EnvironmentRunner.of(config)
            assert runner is not None
            runner.start(self.output)
            runner.check()
            self.rewarding = environment_rewards(config, runner)
            return check_environments(config, runner)

        self.progress("Making the environment …")
        made = yield from self._attempt("environment", make)
        if made is not None:
            yield PreflightFinding(Mark.FINE, "environment", made)
        return made is not None

    def _rewards(self) -> Findings[tuple[str | None] | None]:
        """What needs gold answers; None if the rewards cannot be used."""
        config = self.config

        def load() -> tuple[str | None]:
            longest = config.training.max_completion_length
            self.models = reward_models(config.rewards)
            self.runner = RewardRunner.of(config.rewards, max_completion_length=longest, models=self.models)
            check_evaluation(config, self.rewarding)
            return (answer_asked_by(config),)

        return (yield from self._attempt("rewards", load))

    def _data(self) -> Findings[None]:
        self.progress("Reading the data …")
        if (yield from self._attempt("data", self._load_data)) is None:
            return
        loaded = self.loaded
        sets = {"training": loaded.train, **{names.set_label(name): rows for name, rows in loaded.evaluation.items()}}
        shown = ", ".join(f"{name} {len(rows)}" for name, rows in sets.items())
        yield PreflightFinding(Mark.FINE, "data", f"rows: {shown}{'' if loaded.evaluation else '; none are held out'}")
        for note in (*loaded.notes, *self.unrewarded.values()):
            yield PreflightFinding(Mark.WARNING if note in loaded.warnings else Mark.NOTE, "data", note)
        if not any(key.startswith(("rewards.", "environment.")) for key in self.left_out):
            yield columns_wanted(self.config, self.environments, loaded.train.column_names)
        yield from self._made(Stage.DATA)

    def _examples(self) -> Findings[list[Example]]:
        """The examples of supervised training, as they are written; none if they cannot be read."""
        held_out = [prompt for rows in self.loaded.evaluation.values() for prompt in prompts_of(rows)]
        found = yield from self._attempt("examples", lambda: read_examples(self.config, held_out))
        yield from (PreflightFinding(Mark.NOTE, "examples", note) for note in (found[1] if found else ()))
        return found[0] if found else []

    def _label(self, examples: Sequence[Example]) -> Findings[bool]:
        """Make tokens of the examples. Whether there are any."""
        import datasets

        config, tokenizer, most = self.config, self.tokenizer, self.config.sft.max_length
        self.progress("Making tokens of the examples …")
        end = turn_end(tokenizer) or tokenizer.eos_token_id
        whole = not config.sft.packing or config.sft.packing_strategy == "bfd"

        def label() -> list[tuple[list[int], list[int]]]:
            rows = list[tuple[list[int], list[int]]]()
            if end is None:
                raise ModelError(
                    f"model.name={config.model.name} has no token that ends a turn: its tokenizer needs one."
                )
            for prompt, completion in examples:
                written = not tokenizer.chat_template or str(tokenizer.decode([end])) in prompt  # with its turns
                asked = prompt if written and isinstance(completion, str) else as_asked(prompt, config.dataset)
                more: dict[str, Any] = {"every_turn": config.sft.every_turn, "tag": config.rewards.think_tag}
                more["arguments"] = config.training.chat_template_kwargs
                rows += labelled(tokenizer, asked, completion, end, **more)
            if most is not None and whole and all(len(ids) > most for ids, _ in rows):
                raise DataError(
                    f"sft.rows={config.sft.rows}: all {len(rows)} examples are longer than sft.max_length={most} "
                    f"tokens; the shortest has {min(len(ids) for ids, _ in rows)}. Raise the limit, or set it to null."
                )
            return rows

        made = yield from self._attempt("examples", label)
        if made is None:
            return False
        rows = [row for row in made if most is None or not whole or len(row[0]) <= most]
        if len(rows) < len(made):
            text = f"{len(made) - len(rows)} of {len(made)} examples are left out, longer than sft.max_length={most}"
            yield PreflightFinding(Mark.NOTE, "examples", text)
        self.prompts = [ids for ids, _ in rows]
        labels = [labels for _, labels in rows] if config.sft.completion_only_loss else self.prompts
        self.examples = datasets.Dataset.from_dict({"input_ids": self.prompts, "labels": labels})
        learnt, total = sum(one != NOT_LEARNT for row in labels for one in row), sum(map(len, self.prompts))
        result = f"{len(rows)} examples of {total:,} tokens, {learnt:,} of them learnt"
        yield PreflightFinding(Mark.FINE, "examples", result)
        return True

    def _load_data(self) -> bool:
        config, runner = self.config, self.environments
        asked = answer_asked_by(config)
        with self.main_first():
            loaded = data.load(config.dataset, config.seed, answer_for=asked, environment=config.environment)
        if runner is not None:
            from covey.training.checks.environments import check_resets

            check_resets(config, runner, loaded)
        unrewarded = check_rewards(config, loaded, self.rewarding)
        self.loaded, self.unrewarded = loaded, unrewarded
        return True

    def _objective(self) -> Findings[None]:
        from covey.training.advantages import objective_arguments

        found = yield from self._attempt("objective", lambda: objective_arguments(self.config, self.objective))
        if found is not None:
            self.objective_arguments = found
            loss = f"training.loss_type={self.config.training.loss_type}"
            yield PreflightFinding(Mark.FINE, "objective", f"{self.config.objective.name} works with {loss}")
            training = self.config.training
            limits = (training.loss_type, training.max_completion_length)
            if warning := near_argmax(found["objective"], *limits, _mean_length(self.run)):
                yield PreflightFinding(Mark.WARNING, "objective", warning)

    def _model(self) -> Findings[None]:
        config = self.config

        def load() -> tuple[str, PreTrainedTokenizerBase]:
            with self.main_first():
                return check_model(config.model), load_tokenizer(config.model)

        found = yield from self._attempt("model", load)
        if found is None:
            return
        from transformers import AutoConfig

        self.source, self.tokenizer = found
        self.model = AutoConfig.from_pretrained(self.source, **source_options(config.model))
        yield PreflightFinding(Mark.FINE, "model", f"{config.model.name}: config and tokenizer load")
        yield from self._attempt("rewards", lambda: load_all(self.models.values()))
        notes = yield from self._attempt("reasoning", lambda: check_reasoning(config, self.source, self.tokenizer))
        yield from (PreflightFinding(Mark.NOTE, "reasoning", note) for note in notes or [])

    def _hardware(self) -> Findings[None]:
        """What TRL and transformers say to the settings on this machine."""
        from covey.training.callbacks import load_callbacks

        config = self.config

        def load() -> list[str]:
            check_hardware(config)
            check_attention(config.model.attn_implementation)
            quantization_config(config.model)
            load_callbacks(config.callbacks, config.evaluation)
            with self.quietly():
                self.args, notes = trl_config(config, self.run)
                check_optimizer(self.args)
            return notes

        notes = yield from self._attempt("training", load)
        yield from (PreflightFinding(Mark.NOTE, "training", note) for note in notes or [])

    def _prompts(self) -> Findings[bool]:
        """Whether they can be rendered; those that are too long are dropped or cut."""
        config, template, runner = self.config, self.config.training.chat_template_kwargs, self.environments
        encode = prompt_ids(self.tokenizer, template)
        if runner is not None:
            from covey.training.checks.environments import prompts_with_tools

            found = yield from self._attempt(
                "chat template", lambda: prompts_with_tools(config, runner, self.tokenizer, template)
            )
            if found is None:
                return False
            encode = found

        def shorten() -> LoadedData:
            asked = prompts_of(self.loaded.train)
            first, calls = asked[0], [one for one in asked if any("tool_calls" in message for message in one)]
            if runner is None:
                self.show_prompt(render(self.tokenizer, first, template))
            self.runner.prompt_prefix = thinking_prefix(self.tokenizer, first, config.rewards.think_tag, template)
            measure, cut = prompt_lengths(self.tokenizer, template), cut_left(self.tokenizer)
            measure(calls[:1])  # now, not when training comes to it
            return data.filter_by_length(self.loaded, measure, cut, config.dataset)

        before = self.loaded.notes
        loaded = yield from self._attempt("prompts", shorten)
        if loaded is None:
            return False
        self.loaded = loaded
        yield from (PreflightFinding(Mark.NOTE, "prompts", note) for note in loaded.notes[len(before) :])
        sample = loaded.train.select(range(min(SAMPLE, len(loaded.train))))
        self.prompts = encode(prompts_of(sample))
        if runner is not None and self.is_main:
            yield from self._begin_episodes(runner)
        return True

    def _begin_episodes(self, runner: EnvironmentRunner) -> Findings[None]:
        """Whether episodes can begin; what the model is told then."""
        from covey.training.checks.environments import play_episode, try_resets

        config = self.config
        self.progress("Trying the environment …")
        with self.quietly():
            ids, findings = try_resets(config, runner, self.tokenizer, self.loaded.train)
            findings += [play_episode(runner, self.loaded.train[0])] if self.plays else []
        yield from findings
        self.prompts += ids
        if ids:
            self.show_prompt(self.tokenizer.decode(ids[0]))

    def _attempt(self, check: str, call: Callable[[], T]) -> Findings[T | None]:
        """The result of what the run needs; if it raises, None and a finding that nothing overrides."""
        try:
            with self.naming_places():
                return call()
        except CoveyError as error:
            yield PreflightFinding(Mark.WRONG, check, str(error), error=error)
            return None


def _rollout_func(name: str) -> Callable[..., Any]:
    """The user's function that drives the episodes itself. Raises a `ConfigError` if it cannot be imported, or does not
    take TRL's arguments."""
    key = "environment.rollout_func"
    found = import_object(name, key, ConfigError)
    try:
        inspect.signature(found).bind([], None)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{key}: {name} cannot be called as TRL calls it, with the prompts and the trainer ({error}): def "
            "rollout(prompts, trainer), which returns {'prompt_ids': …, 'completion_ids': …, 'logprobs': …}."
        ) from None
    call: Callable[..., Any] = found
    return call


_ARGMAX_FROM = 4


def near_argmax(objective: Any, loss_type: str, limit: int, mean_length: float | None = None) -> str | None:
    """A warning where the weights of xDr.GRPO are nearly those of τ = 0: the mean share of a completion in the loss
    over τ is above 4. None for any other objective, and for τ = 0 itself.

    Args:
        objective: of the run.
        loss_type: of TRL's loss.
        limit: `max_completion_length`, in tokens.
        mean_length: of completions, where it is known; else half of the limit is assumed.
    """
    from covey.objective import XDR

    if not isinstance(objective, XDR) or (objective.tau == 0 and objective.reference == 0):
        return None
    length = limit / 2 if mean_length is None else mean_length
    share = 1.0 if loss_type == "grpo" else length / limit
    tau = objective.tau / (math.log(2) if objective.adaptive else 1) + objective.reference
    if share / tau <= _ARGMAX_FROM:
        return None
    which = "" if loss_type == "grpo" else f" of {length:.0f} of {limit} tokens"
    guess = " (a guess: half of the limit)" if which and mean_length is None else ""
    return (
        f"objective.xdr_tau={objective.tau:g} is nearly 0 here: with completions{which}{guess}, a right one weighs "
        f"e^{share / tau:.3g} times a wrong one (an exponent above {_ARGMAX_FROM}), so only the best of a group count. "
        "τ is not portable between tasks and limits; this exponent, mean length / (limit · τ), is, and the metric "
        f"objective/log_odds shows it. xdr_tau={share / 2:.2g} would make it 2."
    )


def _mean_length(run: RunDirectory) -> float | None:
    """The mean length of the newest completions of a run that is there, in tokens."""
    try:
        rows = read_metrics(run.metrics)
    except (RunDirectoryError, OSError):  # none, or damaged: a resume restores it
        return None
    return next(
        (float(row[names.COMPLETION_LENGTH]) for row in reversed(rows) if row.get(names.COMPLETION_LENGTH)), None
    )
