"""Conversations with tools as tokens: what the model sampled and what its environment returned, never tokenised again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from covey.environments.templates import parse, prepare, template_refusal

__all__ = ["ToolChat", "template_refusal"]

Message = dict[str, Any]


class ToolChat:
    """Renders, parses and continues conversations with tools, by one tokenizer and chat template.

    Args:
        tokenizer: with the response template that `of` adds, or that TRL's trainer has added.
        chat_template: the template to render with; None for the tokenizer's own.
        chat_template_kwargs: further arguments of the template, such as `enable_thinking`.
        stop_token_ids: tokens that end a turn of the model; None for the tokenizer's end of sequence.
    """

    def __init__(
        self,
        tokenizer: Any,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        *,
        stop_token_ids: Collection[int] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.chat_template_kwargs = dict(chat_template_kwargs or {})
        self.stop_token_ids = frozenset([tokenizer.eos_token_id] if stop_token_ids is None else stop_token_ids)

    @classmethod
    def of(
        cls,
        tokenizer: Any,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        *,
        stop_token_ids: Collection[int] | None = None,
    ) -> ToolChat:
        """For a tokenizer as it was loaded: with the templates that TRL's trainer would use.

        The tokenizer gets a `response_template` where it has none and TRL knows its chat template, as in training.

        Raises:
            EnvironmentSetupError: its chat template cannot do tools; see `template_refusal`.
        """
        raise NotImplementedError

    def render(self, messages: Sequence[Message], tools: Sequence[Callable[..., Any]] | None) -> list[int]:
        """The tokens of a conversation up to where the model's turn begins.

        Args:
            messages: the conversation.
            tools: functions that the model may call.
        """
        raise NotImplementedError

    def parse(
        self, ids: Sequence[int], *, prefix: Sequence[int], tools: Sequence[Callable[..., Any]] | None
    ) -> Message:
        """The assistant's message that these tokens are, with `tool_calls` if there are any.

        Args:
            ids: the tokens of one turn of the model.
            prefix: all tokens before them.
            tools: functions that the model may call, which give the types of the arguments.
        """
        raise NotImplementedError

    def suffix_ids(
        self,
        turn_ids: Sequence[int],
        tool_messages: Sequence[Message],
        tools: Sequence[Callable[..., Any]] | None = None,
    ) -> list[int]:
        """The tokens that follow a turn of the model that called tools: the end of the turn if it lacks one, the
        results, and the beginning of the next turn.

        Args:
            turn_ids: the tokens of the turn, as sampled.
            tool_messages: the results, `{"role": "tool", "name": …, "content": …}`, in the order of the calls.
            tools: as the prompt was rendered with.

        Raises:
            EnvironmentSetupError: the template renders a turn differently once results follow it.
        """
        raise NotImplementedError
