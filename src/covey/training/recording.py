"""What is recorded of every completion besides its rewards, and rewards that begin early.

They begin in worker processes as soon as there are completions, while the models still score them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from covey.answers import Tags, repeats_prompt, without_tags
from covey.model.prompts import TemplateArguments, render
from covey.rewards.reward import completion_text, gold_text, last_user_message, whole_answers
from covey.rewards.runner import RewardRunner, columns_of
from covey.runlog import names

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class CompletionRecorder:
    """Logs columns about the completions of a batch, while their token ids are at hand.

    Args:
        eos_token_ids: tokens that end a completion; one without any of them at its end is truncated. Empty: not known.
        keeps_ids: whether token ids are recorded too: in text, a reasoning token looks like its base token.
        tags: of thinking and answer.
        prompt_prefix: the end of the prompts that belongs to the completions, such as `<think>`.
    """

    def __init__(
        self,
        eos_token_ids: Collection[int] = (),
        *,
        keeps_ids: bool = False,
        tags: Tags | None = None,
        prompt_prefix: str = "",
    ) -> None:
        self._eos_token_ids = eos_token_ids
        self._keeps_ids = keeps_ids
        self._tags, self._prefix = tags or Tags(), prompt_prefix

    def watch(
        self, log_metric: Callable[[str, float], object], rows: Sequence[Mapping[str, Any]], completions: Sequence[Any]
    ) -> None:
        """Log the shares of completions that repeat their prompt (`covey.answers.watch`), and of those without any text
        after the thinking, tags aside, and call no tool.

        Args:
            log_metric: takes a name and a value, as the one that TRL passes to rewards does.
            rows: the data row of each completion.
            completions: texts, or conversations.
        """
        repeated = empty = 0
        whole = whole_answers(completions, [row.get("prompt") for row in rows], self._prefix, self._tags)
        for row, completion, answer in zip(rows, completions, whole, strict=True):
            text = completion_text(answer)
            repeated += repeats_prompt(text, last_user_message(row.get("prompt")), gold_text(row), self._tags)
            calls = not isinstance(completion, str) and any(message.get("tool_calls") for message in completion)
            empty += not calls and not without_tags(text.rpartition(f"</{self._tags.think}>")[2], self._tags)
        if completions:
            log_metric(names.REPEATS_PROMPT, repeated / len(completions))
            log_metric(names.EMPTY.removeprefix("train/"), empty / len(completions))

    def log(
        self,
        log_extra: Callable[[str, list[Any]], object],
        rows: Sequence[Mapping[str, Any]],
        completion_ids: Sequence[Sequence[int]],
        episodes: Mapping[str, list[Any]] = MappingProxyType({}),
    ) -> None:
        """Log the columns of a batch of completions.

        Args:
            log_extra: takes a column's name and values, as the one that TRL passes to rewards does.
            rows: the data row of each completion.
            completion_ids: its tokens.
            episodes: columns about episodes with tools, whose length is that of the model's turns.
        """
        for name, values in {names.COLUMN_LENGTH: [len(one) for one in completion_ids], **episodes}.items():
            log_extra(name, values)
        if self._keeps_ids:
            log_extra(names.COLUMN_IDS, [[int(token) for token in one] for one in completion_ids])
        if self._eos_token_ids:
            ended = [bool(len(one)) and int(one[-1]) in self._eos_token_ids for one in completion_ids]
            ends = episodes.get(names.COLUMN_EPISODE)  # one that the environment ended has no end either
            truncated = [not one for one in ended] if ends is None else [end == "truncated" for end in ends]
            log_extra(names.COLUMN_TRUNCATED, truncated)
        if rows and "answer" in rows[0]:
            answers = [row["answer"] for row in rows]
            log_extra(names.COLUMN_ANSWER, [None if answer is None else str(answer) for answer in answers])


def batch_columns(
    logged: Mapping[str, list[Any]], tokenizer: PreTrainedTokenizerBase, template: TemplateArguments, group_size: int
) -> dict[str, list[Any]]:
    """The columns that follow from the logged ones: groups, and rendered prompts where none were logged."""
    count = len(logged[names.COLUMN_COMPLETION])
    groups = {names.COLUMN_GROUP: [at // group_size for at in range(count)]}
    if names.COLUMN_RENDERED in logged:
        return groups
    rendered: list[str] = []
    for start in range(0, count, group_size):
        size = min(group_size, count - start)
        rendered += [render(tokenizer, logged[names.COLUMN_PROMPT][start], template)] * size
    return {**groups, names.COLUMN_RENDERED: rendered}


ENVIRONMENTS = "environments"
"""TRL's name of the argument with the environment of each completion."""


class EarlyRewards:
    """Submits completions early to the runners behind a trainer's reward functions.

    Args:
        functions: the trainer's reward functions. Those of a `RewardRunner` can start early; others are not touched.
    """

    def __init__(self, functions: Sequence[Any]) -> None:
        found = [getattr(function, "runner", None) for function in functions]
        self._runners = list(dict.fromkeys(runner for runner in found if isinstance(runner, RewardRunner)))
        self._rows: Sequence[Mapping[str, Any]] | None = None
        self._started: list[Sequence[Any]] = []

    @contextmanager
    def batch_of(self, rows: Sequence[Mapping[str, Any]]) -> Iterator[None]:
        """Context manager: completions of these data rows are generated, scored and rewarded. On exit, rewards that
        were started but not collected are dropped."""
        self._rows = rows
        try:
            yield
        finally:
            self._rows = None
            for runner in self._runners:
                for completions in self._started:
                    runner.drop(completions)
            self._started.clear()

    def begin(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        environments: Sequence[Any] | None = None,
        **more: Any,
    ) -> None:
        """Start the rewards of these completions, the same objects that the functions will be called with.

        Args:
            prompts: one per completion.
            completions: texts or conversations.
            environments: of the completions, for functions that take them by name: copies of their attributes are sent.
            more: further arguments of the functions, besides the columns of the data rows.
        """
        if not self._rows or not self._runners:
            return
        columns = columns_of(self._rows)
        self._started.append(completions)
        for runner in self._runners:
            own = {} if environments is None or not runner.takes(ENVIRONMENTS) else {ENVIRONMENTS: environments}
            runner.begin(prompts, completions, {**columns, **more, **own})
