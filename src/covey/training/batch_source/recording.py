"""What is recorded of every completion besides its rewards: length, outcome, the rendered prompt."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from covey.answers import Tags
from covey.model.prompts import TemplateArguments, render
from covey.rewards.reward import content_text
from covey.runlog import names

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_TAGS = Tags()


class CompletionRecorder:
    """Logs columns about the completions of a batch, while their token ids are at hand.

    Args:
        eos_token_ids: tokens that end a completion; one without any of them at its end is truncated. Empty: not known.
        keeps_ids: whether token ids are recorded too: in text, a reasoning token looks like its base token.
        tags: for thinking and answer.
    """

    def __init__(self, eos_token_ids: Collection[int] = (), *, keeps_ids: bool = False, tags: Tags = _TAGS) -> None:
        self._eos_token_ids = eos_token_ids
        self._keeps_ids = keeps_ids
        self._think_end = f"</{tags.think}>"
        self._tags = re.compile(rf"</?(?:{re.escape(tags.think)}|{re.escape(tags.answer)})>")

    def empty_share(self, completions: Sequence[Any]) -> float:
        """The share of completions that have no text after the thinking, tags aside, and call no tool."""
        last = [{"content": one} if isinstance(one, str) else one[-1] for one in completions]
        said = [content_text(one).rpartition(self._think_end)[2] + str(one.get("tool_calls") or "") for one in last]
        return sum(not self._tags.sub("", text).strip() for text in said) / len(said)

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
