"""What is written down of every completion beside its rewards: length, outcome, the prompt as the model saw it."""

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


class Recorder:
    """Notes facts about completions while their rewards are computed.

    The trainer hands reward functions all that is known of a completion, and a way to log columns beside the rewards;
    so the first reward function is wrapped. Nothing about its rewards changes.
    """

    def __init__(self) -> None:
        self.ends: Collection[int] = ()
        """Tokens that end a completion; one that ends with none of them is truncated. Empty: not known."""
        self.keeps_ids = False
        """Whether token ids are written down too: text does not tell a reasoning token from its base."""
        self._weights: list[float] = []

    def around(self, functions: Sequence[Reward]) -> list[Reward]:
        """The same functions, of which the first notes facts as it is called."""
        first, *others = functions
        if not hasattr(first, "__name__") or getattr(first, "__self__", None) is not None:
            return [first, *others]  # a model, or a bound method

        @functools.wraps(first)
        def noting(*args: Any, **kwargs: Any) -> Any:
            self._note(kwargs)
            return first(*args, **kwargs)

        return [noting, *others]

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
        """The logged columns, and what can be said only now: groups, rendered prompts, weights (told once a batch)."""
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

    def _note(self, given: Mapping[str, Any]) -> None:
        log, ids = given.get("log_extra"), given.get("completion_ids")
        if log is None or ids is None:
            return
        log(names.COLUMN_LENGTH, [len(one) for one in ids])
        if self.keeps_ids:
            log(names.COLUMN_IDS, [[int(token) for token in one] for one in ids])
        if self.ends:
            log(names.COLUMN_TRUNCATED, [not len(one) or int(one[-1]) not in self.ends for one in ids])
        answers = given.get("answer")
        if answers is not None:
            log(names.COLUMN_ANSWER, [None if answer is None else str(answer) for answer in answers])
