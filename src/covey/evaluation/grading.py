"""How completions of held-out problems are graded and rewarded: the same while training and by `covey eval`."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from covey.answers import (
    Outcome,
    Tags,
    extract_prediction,
    grade_exact,
    has_reasoning_format,
    holds_gold_value,
    repeats_prompt,
)
from covey.answers.maths.notation import read_number
from covey.data.columns import number_of_modes
from covey.errors import ConfigError, RewardError
from covey.evaluation.estimators import powers_up_to
from covey.evaluation.played import Played, played_of, transcript
from covey.rewards.registry import (
    IMPLIED_GRADERS,
    MODE_GRADERS,
    canonical_grader,
    canonical_name,
    check_columns,
    find_custom,
    load,
    reads_answer,
)
from covey.rewards.reward import Graded, RewardFunction, RewardSettings, last_user_message, whole_answers
from covey.rewards.runner import RewardRunner, columns_of
from covey.runlog import names

if TYPE_CHECKING:
    from covey.config import Config
    from covey.rollout import Completion


_NEAR = 10  # partial accuracy accepts a tenth of the answer


@dataclass(frozen=True, slots=True)
class HeldOutGrade:
    """What the grader and the rewards of a run say of one completion."""

    outcome: Outcome | None = None
    """None without a grader."""
    reward: float | None = None
    """The weighted sum of its rewards, without those that do not apply; None if none does."""
    rewards: Mapping[str, float | None] = field(default_factory=dict)
    """By function, then by environment; None where one does not apply."""
    score: float | None = None
    """What it counts in the accuracy, where that is not 1 for right and 0 for wrong: its environment's reward."""
    mode: str | None = None
    """The answer as the grader names it, see `covey.rewards.Graded`."""


GradeBatch = Callable[[Sequence[str], Sequence[Mapping[str, Any]], "Sequence[Completion]"], Sequence[HeldOutGrade]]
"""From the texts of completions, the rows of their problems and what the engine returned, to grades."""


@dataclass(frozen=True, slots=True)
class GradedCompletion:
    """One completion of one held-out problem."""

    problem: int
    """Row of the problem in its set."""
    prompt: str
    """The last user message, or the prompt string."""
    answer: str | None
    """None where the data has no answers."""
    completion: str
    outcome: Outcome | None
    """None without a grader."""
    well_formed: bool
    length: int
    truncated: bool
    sample: int = 0
    """Index among the problem's completions."""
    extracted: str | None = None
    """The stated answer, so that equal answers are equal texts: as the grader names it, else numbers normalised."""
    partial: bool = False
    """Right, or a number within 10% of the answer."""
    repeats_prompt: bool | None = None
    """Whether its final text repeats the prompt (`covey.answers.watch`)."""
    holds_gold: bool | None = None
    """Of a right one whose gold answer is a number, whether it has an equal number."""
    reward: float | None = None
    """See `HeldOutGrade`."""
    rewards: Mapping[str, float | None] = field(default_factory=dict)
    score: float | None = None
    """See `HeldOutGrade`."""
    mode: str | None = None
    """Which of the problem's right answers it is; None of any other, and where the grader names none."""
    num_modes: int | None = None
    """How many different right answers the problem has, where the data says so (a column `num_modes`)."""
    messages: list[dict[str, Any]] | None = None
    """Of an episode with tools or an environment, the whole conversation; this and what follows is None of others."""
    turns: int | None = None
    tool_calls: int | None = None
    tool_failures: int | None = None
    malformed_calls: int | None = None
    environment_seconds: float | None = None
    episode: str | None = None
    """How it ended, see `covey.environments.episodes.Episode`."""
    row: dict[str, Any] | None = None
    """The columns of its data row besides `prompt` and `answer`."""

    @property
    def asked(self) -> str:
        """What the model was asked, with the environment's observation."""
        return self.prompt if self.messages is None else last_user_message(self.messages)

    def record(self) -> dict[str, Any]:
        """Its fields as they are stored, without those that only some completions have."""
        return {name: value for name, value in asdict(self).items() if value is not None or name not in _OPTIONAL}

    def episode_record(self) -> dict[str, Any]:
        """Its figures as an episode."""
        return {name: getattr(self, name) for name in _FIGURES}


_FIGURES = ("score", "turns", "tool_calls", "tool_failures", "malformed_calls", "environment_seconds", "episode")
_OPTIONAL = (*_FIGURES, "messages", "row", "mode", "num_modes", "repeats_prompt", "holds_gold")


def grade_batch(
    batch: Sequence[tuple[int, int, Mapping[str, Any]]],
    completions: Sequence[Completion],
    *,
    grade: GradeBatch | None,
    tags: Tags,
    prompt_prefix: str,
) -> list[GradedCompletion]:
    """Grade a batch of completions.

    Args:
        batch: for each completion the index of its problem, its own among the problem's completions, and the row.
        completions: as the engine returned them.
        grade: None compares the last answer tag with the answer.
        tags: of a well-formed completion.
        prompt_prefix: the end of the prompts that belongs to the completion.
    """
    rows = [row for _, _, row in batch]
    asked = [row.get("prompt") for row in rows]
    texts = whole_answers([str(one.text) for one in completions], asked, prompt_prefix, tags)
    if grade is not None:
        grades = grade(texts, rows, completions)
    else:
        grades = [HeldOutGrade(grade_exact(text, row["answer"])) for text, row in zip(texts, rows, strict=True)]
    found = []
    for (index, sample, row), one, text, given in zip(batch, completions, texts, grades, strict=True):
        played = played_of(one)
        stated = stated_answer(text, tags)
        answer = None if row.get("answer") is None else str(row["answer"])
        prompt, right = last_user_message(row.get("prompt") or ""), given.outcome is Outcome.RIGHT
        found.append(
            GradedCompletion(
                problem=index,
                prompt=prompt,
                answer=answer,
                completion=str(one.text) if played is None else transcript(played.messages),
                outcome=given.outcome,
                well_formed=has_reasoning_format(text, tags),
                length=one.length,
                truncated=one.truncated,
                sample=sample,
                extracted=given.mode or stated,
                partial=given.outcome is not None and is_near(stated, answer, given.outcome),
                repeats_prompt=repeats_prompt(text, prompt, answer, tags),
                holds_gold=holds_gold_value(text, answer) if right and answer is not None else None,
                reward=given.reward,
                rewards=given.rewards,
                score=given.score,
                mode=given.mode if right else None,
                num_modes=number_of_modes(row.get(names.NUM_MODES)),
                **({} if played is None else played.fields()),
            )
        )
    return found


def weighted_reward(rewards: Sequence[float | None], weights: Sequence[float] | None = None) -> float | None:
    """The sum of rewards times weights, without those that are None; None if all are, as in TRL.

    Args:
        rewards: one per function.
        weights: as many; None: each is 1.
    """
    pairs = zip(rewards, weights or [1.0] * len(rewards), strict=False)
    known = [weight * reward for reward, weight in pairs if reward is not None]
    return math.fsum(known) if known else None


def stated_answer(completion: str, tags: Tags) -> str | None:
    """The answer that a completion states, numbers normalised, so that equal answers are equal texts."""
    text = extract_prediction(completion, tags)
    if text is None:
        return None
    number = read_number(text)
    return " ".join(text.split()) if number is None else str(number.value)


def is_near(stated: str | None, gold: str | None, outcome: Outcome) -> bool:
    """Whether an answer is right, or a number within 10% of the gold number."""
    if outcome is Outcome.RIGHT:
        return True
    found, expected = read_number(stated or ""), read_number(gold or "")
    if found is None or expected is None:
        return False
    return abs(found.value - expected.value) * _NEAR <= abs(expected.value)


SEED_OFFSET = 7919  # any constant: evaluation draws must not be the training's first draws
"""All evaluations of a run have the same seed, so that they differ by the model only."""

_GRADER = "evaluation.grader"

ENVIRONMENT = "environment"
"""The grader's name where an environment's reward decides."""


def grader_name(config: Config) -> str | None:
    """The grader of held-out problems: the one that is named, or that the rewards imply, or the task; else None. Raises
    a `RewardError` if there is no grader of that name."""
    given = config.evaluation.grader
    if given is None:
        of_task = config.dataset.task if config.dataset.task in MODE_GRADERS else None
        return grader_of_rewards(config.rewards.funcs) or of_task
    return given if ":" in given else canonical_grader(given)


def grader_of_rewards(funcs: Iterable[str]) -> str | None:
    """The grader that the built-in rewards among these imply; None if none of them checks answers."""
    implied = {IMPLIED_GRADERS.get(canonical_name(name)) for name in funcs if ":" not in name}
    order = ("reasoning_gym", *MODE_GRADERS, "exact_match", "accuracy")
    return next((name for name in order if name in implied), None)


def grader_settings(config: Config, grader: str | None, *, rewarding: bool = False) -> dict[str, Any]:
    """What decides about a completion, as in `settings.json`: `grader`, and `right_at` and `unevaluated` where they
    matter.

    Args:
        grader: see `grader_name`.
        rewarding: whether an environment rewards its episodes, which then decides in place of the grader.
    """
    own, right_at = grader is not None and ":" in grader, config.evaluation.right_at
    if rewarding:
        return {"grader": ENVIRONMENT} | ({} if right_at is None else {"right_at": right_at})
    lenient = grader == "accuracy" and config.rewards.unevaluated == "accept"
    found = {"grader": grader} | ({"right_at": right_from(config)} if own else {})
    return found | ({"unevaluated": "accept"} if lenient else {})


def right_from(config: Config) -> float:
    """The value from which an answer is right."""
    right_at = config.evaluation.right_at
    return 1.0 if right_at is None else right_at


def answer_asked_by(config: Config) -> str | None:
    """Which reward or grader needs gold answers, for a message; None if the rows may lack them. Raises a `RewardError`
    if there is no such reward or grader."""
    for name in config.rewards.funcs:
        if reads_answer(name):
            return f"the reward {name}"
    grader = grader_name(config)
    return f"the grader {grader} ({_GRADER})" if grader is not None and reads_answer(grader, _GRADER) else None


def check_evaluation(config: Config, rewarding: Sequence[str] = ()) -> None:
    """Check the grader and the metric that decides the best evaluation.

    Args:
        rewarding: names of the classes of its environments that reward their episodes.

    Raises:
        ConfigError: `evaluation.best_by` names no metric of this run.
        RewardError: there is no such reward or grader, or it does not accept the arguments of a reward.
    """
    settings, grader = config.evaluation, grader_name(config)
    if grader is not None and ":" in grader:
        find_custom(grader, _GRADER)
    accuracy = (names.ACCURACY, names.ACCURACY_LOW, names.ACCURACY_HIGH)
    decided = grader is not None or bool(rewarding)
    functions = [*(function.__name__ for function in _rewards(config)), *rewarding]
    known = [names.MEAN_REWARD, *(f"{names.MEAN_REWARD}/{name}" for name in functions)]
    known += [names.FORMAT, names.LENGTH, names.TRUNCATED, *(accuracy if decided else ())]
    if grader in MODE_GRADERS and settings.num_samples > 1:
        ks = settings.k or powers_up_to(settings.num_samples)
        known += [f"{kind}@{k}" for kind in (names.DISTINCT, names.DISTINCT_IF_SOLVED, names.COVERAGE) for k in ks]
    if config.environment.used:
        known += [*names.PER_EPISODE, *(f"{names.EPISODE}{end}" for end in names.ENDS)]
    best_by = settings.best_by
    if best_by in accuracy and not decided:
        raise ConfigError(
            f"evaluation.best_by={best_by} needs a grader, and no reward of this run checks answers: set "
            f"{_GRADER}, or evaluation.best_by={names.MEAN_REWARD}."
        )
    if best_by is not None and best_by not in known:
        near = difflib.get_close_matches(best_by, known, n=1)
        guess = f" Did you mean {near[0]}?" if near else ""
        raise ConfigError(
            f"evaluation.best_by={best_by} is no metric of this run's evaluations, which have "
            f"{', '.join(known)}.{guess}"
        )
    decides = best_by or (names.ACCURACY if decided else names.MEAN_REWARD)
    if settings.early_stopping_threshold > 1 and decides == names.ACCURACY and not rewarding:
        raise ConfigError(
            f"evaluation.early_stopping_threshold={settings.early_stopping_threshold:g} is out of range: the accuracy "
            "decides, which is a share, so a gain is at most 1."
        )


def check_columns_for(
    config: Config, sets: Mapping[str, Sequence[str]], rewarding: Sequence[str] = ()
) -> dict[str, str]:
    """Check that the run's grader and rewards can be called with the columns of each held-out set.

    Args:
        sets: the columns of each set, by its name.
        rewarding: see `check_evaluation`.

    Returns:
        Notes on the sets on which the rewards are left out, by name: where the accuracy decides, a reward may need a
        column that only the training data has.

    Raises:
        RewardError: the grader, or a reward without which nothing decides, needs a column that is not there, or does
            not accept one that is.
    """
    grader, left_out = grader_name(config), dict[str, str]()
    undecided = grader is None and not rewarding
    needed = undecided or str(config.evaluation.best_by).startswith(names.MEAN_REWARD)
    also = ["environments"] if config.environment.factory is not None else []
    for name, of_rows in sets.items():
        columns, rows = [*of_rows, *also], f"the set of {names.set_label(name)} rows"
        if grader is not None and ":" in grader:
            check_columns(find_custom(grader, _GRADER).batch, grader, columns, key=_GRADER, rows=rows)
        try:
            for given, function in zip(config.rewards.funcs, _rewards(config), strict=True):
                check_columns(function, given, columns, rows=rows)
        except RewardError as error:
            if needed:
                raise
            left_out[name] = f"{error} So there is no eval/reward on it."
    return left_out


@dataclass(frozen=True, slots=True)
class HeldOutGrader:
    """Grades batches of held-out completions by a grader, and rewards them as in training."""

    config: Config
    runner: RewardRunner
    grader: str | None
    """A name, see `grader_name`; None gives no outcomes."""
    rewarded: bool = True
    """Whether the run's rewards are computed too."""
    trainer_state: Any = None
    """Passed to functions that ask for it."""

    def __call__(
        self, texts: Sequence[str], rows: Sequence[Mapping[str, Any]], completions: Sequence[Completion]
    ) -> list[HeldOutGrade]:
        episodes = [played_of(completion) for completion in completions]
        asked = [row["prompt"] if one is None else [*one.prompt] for row, one in zip(rows, episodes, strict=True)]
        replies = [_as_in_training(*each) for each in zip(asked, texts, episodes, strict=True)]
        columns = {
            **columns_of(rows),
            "completion_ids": [completion.ids for completion in completions],
            "trainer_state": self.trainer_state,
        }
        if self.config.environment.factory is not None:
            columns["environments"] = [None if one is None else one.environment for one in episodes]
        scored = self.runner.score(asked, replies, columns) if self.rewarded else {}
        rewards = {name: [graded.value for graded in values] for name, values in scored.items()}
        batch = _Batch(texts, rows, asked, replies, columns, scored)
        others = [at for at, one in enumerate(episodes) if one is None or not one.owned]
        grades = [Graded(None)] * len(texts)
        for at, graded in zip(others, self._grades(batch.only(others)) if others else (), strict=True):
            grades[at] = graded
        each = [{name: values[at] for name, values in rewards.items()} for at in range(len(texts))]
        return [self._grade(*given) for given in zip(grades, each, episodes, strict=True)]

    def _grade(self, graded: Graded, rewards: dict[str, float | None], episode: Played | None) -> HeldOutGrade:
        outcome, weights = graded.outcome, self.config.training.reward_weights
        if episode is None:
            return HeldOutGrade(outcome, weighted_reward([*rewards.values()], weights), rewards, mode=graded.mode)
        given = [*(weights or [1.0] * len(rewards))][: len(rewards)]
        total = weighted_reward([*rewards.values(), *episode.rewards.values()], given + [1.0] * len(episode.rewards))
        score = None
        if episode.owned:
            own = episode.reward
            outcome = _lost(episode) if own is None else self._outcome(own)
            share = self.config.evaluation.right_at is not None
            score = float(outcome is Outcome.RIGHT) if share else own or 0.0
        return HeldOutGrade(outcome, total, {**rewards, **episode.rewards}, score, graded.mode)

    def _grades(self, batch: _Batch) -> Sequence[Graded]:
        grader, settings = self.grader, self.config.rewards
        texts, rows = batch.texts, batch.rows
        if grader is None:
            return [Graded(None)] * len(texts)
        if grader == "exact_match":
            # It reads the last answer tag alone, to be independent of the share of well-formed completions.
            tags = Tags(settings.think_tag, settings.answer_tag)
            return [Graded(None, grade_exact(text, row["answer"], tags)) for text, row in zip(texts, rows, strict=True)]
        if ":" not in grader:
            grades = self.runner.grade(grader, texts, rows)
            return [replace(graded, outcome=graded.outcome or Outcome.CRASHED) for graded in grades]
        if self.rewarded and grader in settings.funcs:  # not called twice
            grades = [*[*batch.scored.values()][settings.funcs.index(grader)]]
        else:
            grades = self.runner.grade_batch(grader, batch.prompts, batch.replies, batch.columns)
        return [replace(graded, outcome=graded.outcome or self._outcome(graded.value)) for graded in grades]

    def _outcome(self, value: float | None) -> Outcome:
        if value is None:
            return Outcome.UNPARSABLE_GOLD
        return Outcome.RIGHT if value >= right_from(self.config) else Outcome.WRONG


@dataclass(frozen=True, slots=True)
class _Batch:
    """Completions with what graders and rewards are called with."""

    texts: Sequence[str]
    rows: Sequence[Mapping[str, Any]]
    prompts: Sequence[Any]
    replies: Sequence[Any]
    columns: Mapping[str, Any]
    scored: Mapping[str, Sequence[Graded]]

    def only(self, places: Sequence[int]) -> _Batch:
        """The completions at these places."""
        if len(places) == len(self.texts):
            return self

        def at(values: Any) -> Any:
            return [values[place] for place in places] if isinstance(values, list) else values

        columns = {name: at(values) for name, values in self.columns.items()}
        scored = {name: at(values) for name, values in self.scored.items()}
        return _Batch(at(self.texts), at(self.rows), at(self.prompts), at(self.replies), columns, scored)


def _rewards(config: Config) -> list[RewardFunction]:
    return load(config.rewards.funcs, RewardSettings.of(config.rewards, config.training.max_completion_length))


def _as_in_training(prompt: Any, text: str, episode: Played | None) -> Any:
    """A completion in the form that TRL gives it: that of its prompt, and of an episode all its messages."""
    if episode is not None:
        return [*episode.messages]
    return text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]


def _lost(episode: Played) -> Outcome:
    """The outcome of an episode that its environment failed to reward."""
    return Outcome.TIMED_OUT if episode.ended == names.TIMED_OUT else Outcome.CRASHED
