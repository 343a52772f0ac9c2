"""Whether the environments and tools of a run can be used, before it starts; and one scripted episode."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from covey.config import Config
from covey.environments.chat import ToolChat
from covey.environments.contract import check_environment, check_tool, has_reward, missing_columns, tool_methods
from covey.environments.episodes import as_conversation, begin_calls, begin_episodes, finish_calls, run_coroutines
from covey.environments.runner import control_of
from covey.errors import EnvironmentSetupError
from covey.training.checks.findings import Mark, PreflightFinding

if TYPE_CHECKING:
    from datasets import Dataset

    from covey.data import LoadedData
    from covey.environments.runner import EnvironmentRunner


_SHOWN = 120


def check_environments(config: Config, runner: EnvironmentRunner) -> str:
    """Check that environments and tools have been made as TRL wants them, and that something rewards each episode.

    Returns:
        What there is, for the doctor.

    Raises:
        EnvironmentSetupError: naming everything that one of them lacks.
    """
    for given, tool in zip(config.environment.tools, runner.tools, strict=True):
        check_tool(tool, f"environment.tools: {given}")
    unrewarded, found = [], [f"tools {', '.join(config.environment.tools)}"] if config.environment.tools else []
    for name, (factory, _) in config.environment.factories.items():
        where = _where(name, factory)
        (instance,) = runner.instances([name])
        check_environment(instance, where)
        own = tool_methods(type(instance))
        found.append(f"{factory} with {', '.join(own) or 'no tools'}")
        unrewarded += [] if has_reward(type(instance)) else [where]
    for chosen in config.environment.factories or [None]:
        _check_names(config, runner, chosen)
    if unrewarded and not config.rewards.funcs:
        raise EnvironmentSetupError(
            f"{'; '.join(unrewarded)}: without get_reward, nothing rewards its episodes, as rewards.funcs is empty. "
            "Add get_reward(self), which returns a number, or name rewards: rewards=default has exact_match and "
            "format, 'rewards.funcs=[file.py:function]' your own."
        )
    return "; ".join(found)


def check_resets(config: Config, runner: EnvironmentRunner, loaded: LoadedData) -> None:
    """Raise an `EnvironmentSetupError` if the rows lack columns that an environment's `reset` needs."""
    for rows in (loaded.train, *loaded.evaluation.values()):
        for name, (factory, _) in config.environment.factories.items():
            missing = missing_columns(runner.instances([name])[0].reset, rows.column_names)
            if missing:
                there = ", ".join(column for column in rows.column_names) or "no columns"
                advice = (
                    f"the rows have {there}"
                    if config.dataset.has_source
                    else "there is no dataset (dataset=none): set dataset.path=ROWS.jsonl, or give them defaults"
                )
                raise EnvironmentSetupError(
                    f"{_where(name, factory)}: its reset needs the column{'s' if len(missing) > 1 else ''} "
                    f"{' and '.join(missing)}, but {advice}."
                )


def prompts_with_tools(
    config: Config, runner: EnvironmentRunner, tokenizer: Any, arguments: Mapping[str, Any] | None
) -> Callable[[list[Any]], list[list[int]]]:
    """A function from prompts to their tokens, with the tools in them: of several environments those that take most.

    What an environment adds to a prompt is not in it.

    Raises:
        EnvironmentSetupError: the chat template cannot do tools.
    """
    chat = ToolChat.of(tokenizer, arguments)
    shown = [runner.tools_of(name) for name in config.environment.factories or [None]]
    return lambda prompts: [
        max((chat.render(as_conversation(prompt), tools) for tools in shown), key=len) for prompt in prompts
    ]


def try_resets(
    config: Config, runner: EnvironmentRunner, tokenizer: Any, rows: Dataset
) -> tuple[list[list[int]], list[PreflightFinding]]:
    """Begin episodes with the first row, one in the middle and the last, as training would.

    Returns:
        The prompts of those that began, as tokens; and what is wrong: some failed, the first has no reward, or a prompt
        is empty.
    """
    chat = ToolChat.of(tokenizer, config.training.chat_template_kwargs)
    tried = [rows[i] for i in dict.fromkeys((0, len(rows) // 2, len(rows) - 1))]
    episodes = begin_episodes(tried, runner, chat, seeds=[0] * len(tried))
    begun = [episode for episode in episodes if episode.ended is None]
    found = []
    if failed := [episode for episode in episodes if episode.ended is not None]:
        how = "takes longer than environment.timeout" if failed[0].ended == "timed_out" else "fails"
        reason = next((c.failure for c in (control_of(failed[0].environment),) if c is not None), "")
        result = f"reset {how} on {len(failed)} of {len(tried)} rows that were tried{f': {reason}' if reason else ''}"
        advice = "Such an episode has no reward." if begun else "No episode could begin."
        found.append(PreflightFinding(Mark.WARNING if begun else Mark.WRONG, "environment", result, advice))
    if begun and has_reward(type(first := begun[0].environment)):
        control = control_of(first)
        if first.get_reward() is None and control is not None and control.failure:
            result = f"an episode without a call has no reward: {control.failure}"
            found.append(PreflightFinding(Mark.WARNING, "environment", result, "It is left out of its group."))
    if any(not _told(episode.messages) for episode in begun):
        found.append(
            PreflightFinding(
                Mark.WRONG,
                "environment",
                "the model is told nothing: a row has no column `prompt`, and reset returns no text",
                "Name the column with the question (dataset.prompt_column=…), or return the question from reset.",
            )
        )
    return [episode.prompt_ids for episode in begun], found


def play_episode(runner: EnvironmentRunner, row: Mapping[str, Any]) -> PreflightFinding:
    """One scripted episode on a row, timed: `reset`, a call of every tool, and `get_reward`.

    A tool is called with arguments made from its schema, if they can be.
    """
    names = [row.get("environment")] if isinstance(runner.factory, Mapping) else [None]
    (instance,) = runner.instances(names) if runner.factory is not None else [None]
    told = []
    if instance is not None:
        control = control_of(instance)
        if control is not None:
            control.begin_reset(row, 0)
        observation, seconds = _timed(lambda: instance.reset(**row))
        told.append(f"reset took {seconds:.2f} s and returned {_shown(observation)}")
    ended: str | None = None
    for tool in runner.tools_of(names[0]):
        arguments = arguments_of(check_tool(tool, tool.__name__))
        if arguments is None:
            told.append(f"{tool.__name__} was not called, as no arguments could be made from its schema")
            continue
        call = {"type": "function", "function": {"name": tool.__name__, "arguments": arguments}}
        (result,) = begin_calls([call], {tool.__name__: tool}, run_coroutines)
        finish_calls([result])
        ended = ended or result.ended
        given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        how = "failed with" if result.failed else "returned"
        told.append(f"{tool.__name__}({given}) took {result.seconds:.2f} s and {how} {_shown(result.content)}")
    if instance is not None and has_reward(type(instance)):
        reward, seconds = _timed(instance.get_reward)
        told.append(f"get_reward took {seconds:.2f} s and returned {_shown(reward)}")
    control = control_of(instance)
    ended = control.outcome if control is not None else ended
    mark = Mark.FINE if ended is None else Mark.WARNING
    end = "" if ended is None else f"; the episode {'timed out' if ended == 'timed_out' else 'crashed'}"
    if control is not None and control.failure:
        end += f": {control.failure}"
    return PreflightFinding(mark, "an episode", "; ".join(told) + end)


def arguments_of(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments for one call of a tool, by its JSON schema; None where some type allows no plain example."""
    parameters = schema["function"].get("parameters", {})
    properties = parameters.get("properties", {})
    try:
        return {name: _example(properties[name]) for name in parameters.get("required", [])}
    except (KeyError, TypeError):
        return None


def _example(kind: Mapping[str, Any]) -> Any:
    """A value of a type; raises KeyError for a type without a plain example."""
    if choices := kind.get("enum"):
        return choices[0]
    named = kind["type"]
    named = next(name for name in named if name != "null") if isinstance(named, list) else named
    if named == "array":
        return [_example(kind["items"])] if kind.get("items") else []
    return {"integer": 1, "number": 1.0, "boolean": True, "string": "1", "object": {}}[named]


def _where(name: str | None, factory: str) -> str:
    return f"environment.factory{'' if name is None else f'.{name}'}: {factory}"


def _check_names(config: Config, runner: EnvironmentRunner, name: str | None) -> None:
    """Check that no two tools that the model sees together have one name."""
    counts = Counter(tool.__name__ for tool in runner.tools_of(name))
    twice = [tool for tool, count in counts.items() if count > 1]
    if twice:
        also = f" and the environment {config.environment.factories[name][0]}" if config.environment.factories else ""
        raise EnvironmentSetupError(
            f"environment.tools ({', '.join(config.environment.tools)}){also} have more than one tool called "
            f"{', '.join(twice)}, which the model could not tell apart: rename one, or leave it out."
        )


def _told(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether any message tells the model anything."""
    return any(str(message.get("content") or "").strip() for message in messages)


def _timed(call: Any) -> tuple[Any, float]:
    began = time.perf_counter()
    found = call()
    return found, time.perf_counter() - began


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
