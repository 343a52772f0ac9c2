"""What a reward is, its parameters, and the usual ways to build one: from a text score, or from a completion's grade.

The parameters are frozen and picklable, so that they can be sent to worker processes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self

from covey.answers import Outcome, Tags, gold_answer
from covey.answers.extract import open_thinking
from covey.errors import RewardError
from covey.sandbox import Limits

if TYPE_CHECKING:
    from covey.config.groups.rewards import CodeConfig, RewardsConfig


@dataclass(frozen=True, slots=True)
class CodeSettings:
    """As `rewards.code.*`; hashable, and can be sent to worker processes."""

    timeout: float = 5.0
    memory_mb: int = 512
    processes: int = 16
    output_kb: int = 1024
    max_tests: int | None = None
    commands: tuple[tuple[str, str], ...] = ()
    paths: tuple[str, ...] = ()
    language: str = "python"

    @classmethod
    def of(cls, config: CodeConfig) -> Self:
        """The settings of a run."""
        return cls(
            timeout=config.timeout,
            memory_mb=config.memory_mb,
            processes=config.processes,
            output_kb=config.output_kb,
            max_tests=config.max_tests,
            commands=tuple(sorted(config.commands.items())),
            paths=config.paths,
            language=config.language.lower(),
        )

    @property
    def limits(self) -> Limits:
        """Of one test."""
        return Limits(
            seconds=self.timeout, memory_mb=self.memory_mb, processes=self.processes, output_kb=self.output_kb
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSettings:
    """The parameters of the rewards that come with Covey; the defaults are those of the keys `rewards.*`."""

    tags: Tags = field(default_factory=Tags)
    """Names of the thinking and answer tags (`rewards.think_tag`, `rewards.answer_tag`)."""
    max_completion_length: int | None = 512
    """`training.max_completion_length`, in tokens; the default is TRL's."""
    unevaluated: str = "reject"
    """As `rewards.unevaluated`: `reject` or `accept`."""
    cosine_min_value_wrong: float = 0.0
    cosine_max_value_wrong: float = -0.5
    cosine_min_value_correct: float = 0.5
    cosine_max_value_correct: float = 1.0
    cosine_max_len: int = 1000
    repetition_n_grams: int = 3
    repetition_max_penalty: float = -1.0
    soft_overlong_max_length: int | None = None
    soft_overlong_cache: int | None = None
    code: CodeSettings = field(default_factory=CodeSettings)
    """What programs may use that `code` and `binary_code` run."""

    def __post_init__(self) -> None:
        if self.cosine_max_len < 1:
            raise RewardError(f"rewards.cosine_max_len={self.cosine_max_len} must be at least 1.")
        if self.repetition_n_grams < 1:
            raise RewardError(f"rewards.repetition_n_grams={self.repetition_n_grams} must be at least 1.")
        if self.repetition_max_penalty > 0:
            raise RewardError(
                f"rewards.repetition_max_penalty={self.repetition_max_penalty} must be 0 or less, because it is a "
                "penalty."
            )

    @classmethod
    def of(cls, config: RewardsConfig, max_completion_length: int | None) -> Self:
        """The settings of a run.

        Args:
            config: the group `rewards`.
            max_completion_length: `training.max_completion_length`, in tokens; None where it is unlimited.
        """
        own = {"tags", "max_completion_length", "code"}
        parameters = {item.name: getattr(config, item.name) for item in fields(cls) if item.name not in own}
        tags = Tags(think=config.think_tag, answer=config.answer_tag)
        code = CodeSettings.of(config.code)
        return cls(tags=tags, max_completion_length=max_completion_length, code=code, **parameters)


RewardFunction = Callable[..., Any]
"""TRL's signature: `(prompts, completions, **columns) -> list[float | None]`, or a coroutine of that list."""


@dataclass(frozen=True, slots=True)
class Graded:
    """The grade of one completion."""

    value: float | None
    """Its reward; None where the reward does not apply, as with an unreadable gold answer."""
    outcome: Outcome | None = None
    detail: str = ""
    """More about it, for the completions' column `<grader>_detail`."""
    mode: str | None = None
    """A name of the answer that equal answers share, however they are written. Those of right answers are the modes of
    the problem; a wrong answer's is no more than its vote in maj@k. None where the grader names none."""


@dataclass(frozen=True, slots=True)
class Reward:
    """A reward that was found by name. It is not sent between processes: its name and settings are."""

    name: str
    """The metric's name, also `batch.__name__`."""
    batch: RewardFunction
    """Scores a whole batch, in this process. A custom function may be async."""
    sample: Callable[[str, Mapping[str, Any]], Graded] | None = None
    """Graders only: grades one completion's text by its row (`answer` or `solution`, `prompt`), so that each completion
    can have a deadline of its own."""
    cache_key: Callable[[str, Mapping[str, Any]], Hashable | None] | None = None
    """What the result of `sample` depends on, including the reward's name; None for a result that is not cached. Takes
    linear time and never raises."""
    graded_by: str | None = None
    """The registered grader whose grades `from_grades` needs: an alternative to `batch` for a caller that grades each
    completion under a deadline."""
    from_grades: Callable[[Sequence[Any], Sequence[Any], Sequence[Graded]], list[float | None]] | None = None
    """`(prompts, completions, grades of graded_by) -> rewards`, cheap and pure."""
    reads: tuple[str, ...] = ()
    """Graders only: the columns of which a row needs one."""
    asks: tuple[tuple[str, ...], ...] = ()
    """What prompts must ask for, as without it the reward is 0 or less: of each entry, one text must stand in them."""
    seconds: Callable[[Mapping[str, Any]], float] | None = None
    """Graders that run other programs, under limits of their own: the most seconds that these leave to a row. Its
    worker counts as busy all the time."""


GOLD_COLUMNS = ("answer", "solution")

Builder = Callable[[RewardSettings], Reward]
Score = Callable[[str, RewardSettings], float]
GradeFunction = Callable[[str, Mapping[str, Any], RewardSettings], Graded]
Key = Callable[[str, Mapping[str, Any], RewardSettings], Hashable | None]


def asked(forms: Sequence[str], tags: Tags) -> tuple[tuple[str, ...], ...]:
    """What a reward of these forms asks for (`Reward.asks`): of `think`, `answer`, and `answer or box`."""
    answer = f"<{tags.answer}>"
    texts = {"think": (f"<{tags.think}>",), "answer": (answer,), "answer or box": (answer, r"\boxed")}
    return tuple(texts[form] for form in forms)


def scored(name: str, score: Score, *asks: str) -> Builder:
    """A reward that depends on a completion's text only, in the forms that it asks for."""

    def build(settings: RewardSettings) -> Reward:
        def batch(
            prompts: Sequence[Any] | None = None, completions: Sequence[Any] | None = None, **columns: Any
        ) -> list[float | None]:
            return [score(text, settings) for text in texts_of(name, completions)]

        return Reward(name, named(batch, name, score), asks=asked(asks, settings.tags))

    return build


def graded(name: str, grade: GradeFunction, *asks: str, key: Key | None = None) -> Builder:
    """A reward that compares each completion with its row's gold answer, in the forms that it asks for."""

    def build(settings: RewardSettings) -> Reward:
        def sample(text: str, row: Mapping[str, Any]) -> Graded:
            if row.keys().isdisjoint(GOLD_COLUMNS):
                raise RewardError(_no_gold(name))
            return grade(text, row, settings)

        def batch(
            prompts: Sequence[Any] | None = None,
            completions: Sequence[Any] | None = None,
            answer: Sequence[Any] | None = None,
            solution: Sequence[Any] | None = None,
            **columns: Any,
        ) -> list[float | None]:
            texts = texts_of(name, completions)
            rows = rows_of(name, len(texts), answer, solution, prompts)
            return [sample(text, row).value for text, row in zip(texts, rows, strict=True)]

        def cache_key(text: str, row: Mapping[str, Any]) -> Hashable | None:
            found = key(text, row, settings) if key else None
            return None if found is None else (name, found)

        cached, form = cache_key if key else None, asked(asks, settings.tags)
        return Reward(name, named(batch, name, grade), sample, cached, reads=GOLD_COLUMNS, asks=form)

    return build


def named(batch: RewardFunction, name: str, described_by: Callable[..., Any]) -> RewardFunction:
    """Set the name under which TRL logs a function, and its docstring."""
    batch.__name__ = batch.__qualname__ = name
    batch.__doc__ = described_by.__doc__
    return batch


def completion_text(completion: Any) -> str:
    """The text of a completion: itself, or the content of the model's last message in a conversational one.

    The result of a tool is no answer of the model's.
    """
    if isinstance(completion, str):
        return completion
    of_model = (message for message in reversed(completion) if message.get("role", "assistant") == "assistant")
    message: Mapping[str, Any] = next(of_model, {})
    return thinking_of(message) + content_text(message)


def content_text(message: Mapping[str, Any]) -> str:
    """The text of one message; a message that only calls a tool has none."""
    content = message.get("content")
    if isinstance(content, list):  # parts, as multimodal templates have them
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return content or ""


def last_user_message(prompt: Any) -> str:
    """The text of the last user message; a plain prompt is returned as it is."""
    if prompt is None or isinstance(prompt, str):
        return prompt or ""
    return next((content_text(message) for message in reversed(prompt) if message.get("role") == "user"), "")


def thinking_of(message: Mapping[str, Any]) -> str:
    """The thinking that a response template has taken out of a message's content, in its tags; empty without any."""
    thinking = message.get("reasoning_content") or message.get("thinking")
    return f"<think>\n{thinking}\n</think>\n" if thinking else ""


def is_prefill(prompt: Any) -> bool:
    """Whether a prompt ends with a message of the assistant, which the model is to continue."""
    return bool(prompt) and not isinstance(prompt, str) and prompt[-1].get("role") == "assistant"


def whole_answers(completions: Sequence[Any], prompts: Sequence[Any], prefix: str, tags: Tags) -> list[Any]:
    """Completions with the thinking that their prompts have begun: a prefill's own, else the chat template's prefix."""
    begun = [open_thinking(content_text(one[-1]), tags) if is_prefill(one) else prefix for one in prompts]
    return [with_prefix(one, text) if text else one for one, text in zip(completions, begun, strict=True)]


def with_prefix(completion: Any, prefix: str) -> Any:
    """A completion with the prompt's prefix (`<think>`) prepended, unless it begins with that itself.

    In a conversation every assistant message gets the prefix, since each was generated after it.
    """
    if isinstance(completion, str):
        return completion if completion.lstrip().startswith(prefix.strip()) else prefix + completion
    return [
        {**message, "content": with_prefix(message["content"], prefix)}
        if message.get("role") == "assistant" and isinstance(message.get("content"), str) and not thinking_of(message)
        else message
        for message in completion
    ]


def texts_of(name: str, completions: Sequence[Any] | None) -> list[str]:
    """The texts of a batch of completions. Raises a `RewardError` if there is no batch, or it is a single text, whose
    characters would be taken for completions."""
    if completions is None or isinstance(completions, str):
        raise RewardError(
            f"The reward {name} takes a list in completions (texts, or conversations as lists of messages), not "
            f"{'one text' if completions is not None else 'nothing'}."
        )
    return [completion_text(completion) for completion in completions]


def rows_of(
    name: str,
    count: int,
    answer: Sequence[Any] | None,
    solution: Sequence[Any] | None,
    prompts: Sequence[Any] | None = None,
) -> list[dict[str, Any]]:
    """The gold answers and the prompts of a batch, as the rows that graders read.

    Raises:
        RewardError: neither column of gold answers is there, or one is not as long as the batch.
    """
    given = {key: column for key, column in (("answer", answer), ("solution", solution)) if column is not None}
    if not given:
        raise RewardError(_no_gold(name))
    for key, column in given.items():
        if isinstance(column, str) or len(column) != count:
            what = "one text" if isinstance(column, str) else f"{len(column)} values"
            raise RewardError(f"The reward {name} takes one {key} per completion: {count} values, not {what}.")
    if prompts is not None and not isinstance(prompts, str) and len(prompts) == count:
        given["prompt"] = prompts
    return [{key: column[i] for key, column in given.items()} for i in range(count)]


def gold_value(row: Mapping[str, Any]) -> Any:
    """A row's raw gold answer: `answer`, or else `solution`; None without both."""
    answer = row.get("answer")
    return row.get("solution") if answer is None else answer


def gold_text(row: Mapping[str, Any]) -> str | None:
    r"""A row's gold answer as text, None where there is none. Of a `solution`, which is often worked out, the
    answer that it marks, if any."""
    gold = gold_value(row)
    if isinstance(gold, float) and gold.is_integer():
        gold = int(gold)  # 27.0 is how some tools store 27
    if gold is None or not str(gold).strip():
        return None
    return gold_answer(str(gold)) if row.get("answer") is None else str(gold)


def _no_gold(name: str) -> str:
    return (
        f"The reward {name} needs the gold answers: the data must have a column answer (or solution), with one value "
        "per completion."
    )
