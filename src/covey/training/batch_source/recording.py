"""What is recorded of every completion besides its rewards: length, outcome, the rendered prompt."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from covey.model.prompts import TemplateArguments, render
from covey.runlog import names

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

Reward = Callable[..., Any]


class CompletionRecorder:
    """Logs columns about completions while their rewards are computed.

    The trainer passes reward functions all that is known of a completion, and `log_extra` for further columns; so the
    first reward function is wrapped. Its rewards do not change.
    """

    def __init__(self) -> None:
        self.eos_token_ids: Collection[int] = ()
        """Tokens that end a completion; one without any of them at its end is truncated. Empty: not known."""
        self.keeps_ids = False
        """Whether token ids are recorded too: in text, a reasoning token looks like its base token."""
        self._weights: list[float] = []

    def wrap(self, functions: Sequence[Reward]) -> list[Reward]:
        """The same functions; the first also logs the columns."""
        first, *others = functions
        if not hasattr(first, "__name__") or getattr(first, "__self__", None) is not None:
            return [first, *others]  # a model, or a bound method

        @functools.wraps(first)
        def logging_first(*args: Any, **kwargs: Any) -> Any:
            self._log_columns(kwargs)
            return first(*args, **kwargs)

        return [logging_first, *others]

    def weights(self, weights_PG: Tensor) -> None:
        """Keep the weights of a generation batch, in the order of its completions."""
        self._weights = weights_PG.flatten().tolist()

    def columns(
        self,
        logged: Mapping[str, list[Any]],
        tokenizer: PreTrainedTokenizerBase,
        template: TemplateArguments,
        group_size: int,
    ) -> dict[str, list[Any]]:
        """The logged columns, plus groups, rendered prompts and the weights, which come once per batch."""
        count = len(logged[names.COLUMN_COMPLETION])
        columns = dict(logged)
        columns[names.COLUMN_GROUP] = [at // group_size for at in range(count)]
        rendered: list[str] = []
        for start in range(0, count, group_size):
            size = min(group_size, count - start)
            rendered += [render(tokenizer, logged[names.COLUMN_PROMPT][start], template)] * size
        columns[names.COLUMN_RENDERED] = rendered
        if len(self._weights) == count:
            columns[names.COLUMN_WEIGHT] = self._weights
        self._weights = []
        return columns

    def _log_columns(self, given: Mapping[str, Any]) -> None:
        log, ids = given.get("log_extra"), given.get("completion_ids")
        if log is None or ids is None:
            return
        log(names.COLUMN_LENGTH, [len(one) for one in ids])
        if self.keeps_ids:
            log(names.COLUMN_IDS, [[int(token) for token in one] for one in ids])
        if self.eos_token_ids:
            log(names.COLUMN_TRUNCATED, [not len(one) or int(one[-1]) not in self.eos_token_ids for one in ids])
        answers = given.get("answer")
        if answers is not None:
            log(names.COLUMN_ANSWER, [None if answer is None else str(answer) for answer in answers])
