"""Conversations with tools as tokens: those that were sampled and those of the results, never tokenised again."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

from jinja2 import TemplateError
from transformers.utils import get_json_schema

from covey.environments.templates import parse, prepare
from covey.errors import EnvironmentSetupError, one_line
from covey.model.prompts import apply_template

Message = dict[str, Any]
Tools = Sequence[Callable[..., Any]]

_MARKUP = re.compile(r"<[^<>\s]+>|\[[A-Z_]+\]")
_CALL_ID = "call{:05d}"
"""Nine letters and digits, which every template takes as the id of a call."""


class ToolChat:
    """Renders, parses and continues conversations with tools, by one tokenizer and chat template.

    Args:
        tokenizer: with the response template that `of` adds, or that TRL's trainer has added; one of texts.
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
        self._differs: dict[tuple[str, ...], bool] = {}
        self._known: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
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
            EnvironmentSetupError: its chat template cannot do tools, see `check`.
        """
        chat_template, tokenizer.response_template = prepare(tokenizer)
        chat = cls(tokenizer, chat_template, chat_template_kwargs, stop_token_ids=stop_token_ids)
        chat.check()
        return chat

    def render(self, messages: Sequence[Message], tools: Tools | None, *, answering: bool = True) -> list[int]:
        """The tokens of a conversation; `answering`: up to where the model's turn begins."""
        return list(self._apply(messages, tools, tokenize=True, answering=answering))

    def parse(self, ids: Sequence[int], *, prefix: Sequence[int], tools: Tools | None) -> Message:
        """The assistant's message that these tokens are, with `tool_calls` if there are any.

        Args:
            ids: the tokens of one turn of the model.
            prefix: all tokens before them.
            tools: functions that the model may call, which give the types of the arguments.
        """
        return parse(self.tokenizer, list(ids), list(prefix), self._schemas(tools))

    def is_malformed(self, ids: Sequence[int], message: Message) -> bool:
        """Whether a turn has the markup of a tool call, and none could be parsed from it.

        Args:
            ids: the tokens of the turn.
            message: what `parse` made of them.
        """
        text = str(self.tokenizer.decode(list(ids))).strip()
        if message.get("tool_calls"):
            return False
        if self._call_markup:
            return any(mark in text for mark in self._call_markup)
        return text.startswith("{") and '"name"' in text  # Llama writes a call as JSON alone

    @cached_property
    def _call_markup(self) -> set[str]:
        """What the template writes around a call, and not around an answer."""
        turn, _ = self._shape([_result("first")], self._style)
        answer = [turn[0], {"role": "assistant", "content": "answer"}]
        called, plain = (_MARKUP.findall(self._apply(one, None, tokenize=False)) for one in (turn, answer))
        return {*called} - {*plain}

    def suffix_ids(
        self, turn_ids: Sequence[int], tool_messages: Sequence[Message], tools: Tools | None = None
    ) -> list[int]:
        """The tokens that follow a turn of the model that called tools: the end of the turn if it lacks one, the
        results, and the beginning of the next turn.

        They are read off a conversation of the same shape, whose turn holds calls without arguments.

        Args:
            turn_ids: the tokens of the turn, as sampled.
            tool_messages: the results, `{"role": "tool", "name": …, "content": …}`, in the order of the calls.
            tools: as the prompt was rendered with.

        Raises:
            EnvironmentSetupError: the template renders a turn differently once results follow it.
        """
        end, rest = self._after_turn(tool_messages, tools if self._shows_tools(tools) else None)
        last = turn_ids[-1] if turn_ids else None
        if last != end and last not in self.stop_token_ids:  # cut by a limit
            return [end, *rest] if end in self._terminators and end not in turn_ids else rest
        # The token that ended the turn may be one that the template writes with the results (GLM's <|observation|>).
        first = next((index for index, token in enumerate(rest) if not self._is_space(token)), 0)
        return rest[first + 1 :] if last != end and rest[first : first + 1] == [last] else rest

    def _after_turn(self, tool_messages: Sequence[Message], tools: Tools | None) -> tuple[int, list[int]]:
        """The last token of a turn, and what follows it."""
        turn, results = self._shape(tool_messages, self._style)
        before = self.render(turn, tools, answering=False)
        # A template may write a line break after the end of a turn, which the model does not sample.
        while before and self._is_space(before[-1]):
            before.pop()
        after = self.render([*turn, *results], tools)
        if after[: len(before)] != before:
            raise EnvironmentSetupError(
                "This model's chat template renders a turn of the model differently once a result follows it, so that "
                "the tokens of the results cannot be told from those of the turn."
            )
        return before[-1], after[len(before) :]

    def _shows_tools(self, tools: Tools | None) -> bool:
        """Whether results are written differently when the model has tools; if not, rendering them is a waste."""
        names = tuple(tool.__name__ for tool in tools or ())
        if names not in self._differs:
            probe = [_result("first"), _result("second")]
            self._differs[names] = bool(names) and self._after_turn(probe, tools) != self._after_turn(probe, None)
        return self._differs[names]

    def _is_space(self, token: int) -> bool:
        return not self.tokenizer.decode([token]).strip()

    def check(self) -> None:
        """Raise an `EnvironmentSetupError` if results cannot follow a turn, see `suffix_ids`."""
        self.suffix_ids([], [_result("first"), _result("second")])

    @cached_property
    def _style(self) -> str:
        """How several calls are rendered: by ids that the template matches but does not show, without ids, or one call
        for all results."""
        ids = [_CALL_ID.format(index) for index in range(2)]
        for style in ("ids", "calls"):
            turn, results = self._shape([_result("first"), _result("second")], style)
            try:
                text = self._apply([*turn, *results], None, tokenize=False)
            except EnvironmentSetupError:  # Llama 3.1 takes one call in a turn
                continue
            if not any(one in text for one in ids):
                return style
        return "one call"

    @cached_property
    def _terminators(self) -> frozenset[int]:
        """Tokens that a turn may end with and that are no part of a call."""
        return self.stop_token_ids | frozenset(self.tokenizer.all_special_ids)

    def _shape(self, tool_messages: Sequence[Message], style: str) -> tuple[list[Message], list[Message]]:
        """A question and a turn with calls that these results belong to, and the results."""
        results = [dict(message) for message in tool_messages]
        calls = [{"type": "function", "function": {"name": one["name"], "arguments": {}}} for one in results]
        if style == "one call":
            calls = calls[:1]
        for index, (call, result) in enumerate(zip(calls, results, strict=False)):
            if style == "ids":
                result.setdefault("tool_call_id", _CALL_ID.format(index))
            if "tool_call_id" in result:
                call["id"] = result["tool_call_id"]
        return [
            {"role": "user", "content": "question"},
            {"role": "assistant", "content": "", "tool_calls": calls},
        ], results

    def _schemas(self, tools: Tools | None) -> list[Any] | None:
        """None without tools: some templates write the frame of a list even around an empty one."""
        return [self._schema(tool) for tool in tools or ()] or None

    def _schema(self, tool: Any) -> Any:
        if isinstance(tool, dict):
            return tool
        function = getattr(tool, "__func__", tool)
        if function not in self._known:
            self._known[function] = get_json_schema(tool)
        return self._known[function]

    def _apply(self, messages: Sequence[Message], tools: Tools | None, *, tokenize: bool, **more: Any) -> Any:
        more = {"answering": False, **more, **self.chat_template_kwargs, "chat_template": self.chat_template}
        schemas = self._schemas(tools)
        try:
            return apply_template(self.tokenizer, messages, tools=schemas, tokenize=tokenize, return_dict=False, **more)
        except (TemplateError, TypeError) as error:
            roles = ", ".join(message["role"] for message in messages)
            raise EnvironmentSetupError(
                f"This model's chat template refuses a conversation of the roles {roles}. It says: {one_line(error)}."
            ) from error


def _result(name: str) -> Message:
    return {"role": "tool", "name": name, "content": "result"}
