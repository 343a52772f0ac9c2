"""Environments behind an OpenEnv server, `openenv:URL`: each live instance is a session of its own.

An OpenEnv action is an arbitrary dictionary, and a model needs tools with schemas. In this order they are: what the
setting `tools` maps to actions; the tools that the server lists, if it speaks MCP; else one tool `step`, whose
parameters are the fields of the server's action.
"""

from __future__ import annotations

import json
import random
import re
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from covey.advice import install
from covey.environments.adapters.tool_schemas import ToolSchema, tool_method
from covey.environments.contract import EnvironmentLostError
from covey.errors import EnvironmentSetupError, one_line

_OVER = "The episode is over."
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_STATE = "state."
_REWARDS = ("sum", "last", "max", "none")


@dataclass(frozen=True, kw_only=True)
class OpenEnvSettings:
    """The settings of `openenv:URL`."""

    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Tools by name: `description`; `parameters`, a JSON schema for each by name; and `action`, the dictionary that is
    sent, in which `"{x}"` is the argument `x`. Without `action`, the arguments are sent."""
    reset: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the server's reset, besides `seed`."""
    columns: tuple[str, ...] = ()
    """Columns of the row that are arguments of the server's reset as well."""
    observation: str | None = None
    """The field of the observation that the model reads, as `a.b`; null: its only field, or all as JSON."""
    reward: str = "sum"
    """The reward of an episode: the `sum` of its steps' rewards, the `last` or the `max` of them, or `state.FIELD`, a
    number in the server's state; `none`: reward functions judge the episode."""
    connect_timeout: float = 10.0
    """Seconds to wait for the connection."""


def make(argument: str, settings: Mapping[str, Any]) -> Callable[[], Any]:
    """The factory of `openenv:URL`; it asks the server for its tools. Raises an `EnvironmentSetupError` if the library
    is not installed, the server does not answer, or the settings are wrong."""
    where = f"environment.factory=openenv:{argument}"
    known = [item.name for item in fields(OpenEnvSettings)]
    unknown = [name for name in settings if name not in known]
    if unknown:
        raise EnvironmentSetupError(f"{where}: there is no setting {unknown[0]}; there are {', '.join(known)}.")
    options = OpenEnvSettings(**settings)
    if options.reward not in _REWARDS and not options.reward.startswith(_STATE):
        raise EnvironmentSetupError(
            f"{where}: the setting reward={options.reward} must be one of {', '.join(_REWARDS)} or state.FIELD."
        )
    address = argument if "://" in argument else f"http://{argument}"
    if not re.match(r"(?:http|ws)s?://[^/]", address):
        raise EnvironmentSetupError(f"{where}: this is no address of a server: write openenv:http://HOST:PORT.")
    methods = dict(_methods(address, options, where))
    base = OpenEnv if options.reward == "none" else RewardedOpenEnv
    made = type("OpenEnv", (base,), methods)
    return lambda: made(address, options)


class OpenEnv:
    """A session with a server. Tools are methods of a subclass, which `make` makes."""

    def __init__(self, address: str, options: OpenEnvSettings) -> None:
        self._address, self._options = address, options
        self._client: Any = None
        self._rewards: list[float] = []
        self._steps, self._over = 0, False

    def reset(self, **row: Any) -> str | None:
        """Begin an episode with the row's `seed`, or else with one drawn from `random`."""
        given = row.get("seed")
        seed = random.getrandbits(31) if given is None else int(given)
        columns = {name: row[name] for name in self._options.columns}
        self._rewards, self._steps, self._over = [], 0, False
        result = self._asked("reset", seed=seed, **self._options.reset, **columns)
        return _text(result.observation, self._options.observation) or None

    def _act(self, action: Mapping[str, Any]) -> str:
        if self._over:
            return _OVER
        result = self._asked("step", dict(action))
        self._steps += 1
        if isinstance(result.reward, int | float):
            self._rewards.append(float(result.reward))
        self._over = bool(result.done)
        text = _text(result.observation, self._options.observation)
        return f"{text}\n{_OVER}".strip() if self._over else text

    def _asked(self, method: str, *arguments: Any, **named: Any) -> Any:
        """What the server answers. Its refusal of an action is an error that the model reads; a lost session is not."""
        for again in (method == "reset" and self._client is not None, False):
            try:
                if self._client is None:
                    self._client = _client(self._address, self._options.connect_timeout)
                return getattr(self._client, method)(*arguments, **named)
            except Exception as error:
                if isinstance(error, RuntimeError) and not re.search(_SESSION_ENDED, str(error)):
                    raise
                client, self._client = self._client, None
                _close(client)
                if not again:  # else the server was started again between two episodes
                    raise EnvironmentLostError(
                        f"the OpenEnv server {self._address} does not answer any more, or takes no further session "
                        f"(its max_concurrent_envs): {type(error).__name__}: {one_line(error)}"
                    ) from error
        raise AssertionError("unreachable")


class RewardedOpenEnv(OpenEnv):
    """A session whose server rewards its episodes."""

    def get_reward(self) -> float | None:
        """See `OpenEnvSettings.reward`; 0 for an episode without a step, None if the server rewarded no step of it."""
        kind = self._options.reward
        if kind.startswith(_STATE):
            return float(_field(self._asked("state"), kind.removeprefix(_STATE)))
        if not self._rewards:
            return None if self._steps else 0.0
        return {"sum": sum(self._rewards), "max": max(self._rewards), "last": self._rewards[-1]}[kind]


_SESSION_ENDED = r"\(code: (?:CAPACITY_REACHED|FACTORY_ERROR|SESSION_ERROR)\)"


_HOUR = 3600.0


def _client(address: str, connect_timeout: float, timeout: float = _HOUR) -> Any:
    """A connected client; the deadlines of its calls are the runner's (`environment.timeout`)."""
    from openenv.core import GenericEnvClient

    waits = {"connect_timeout_s": connect_timeout, "message_timeout_s": timeout}
    client = GenericEnvClient(address, mode="simulation", **waits).sync()
    try:
        return client.connect()
    except BaseException:
        _close(client)
        raise


def _close(client: Any) -> None:
    if client is not None:
        client.close()


def _methods(address: str, options: OpenEnvSettings, where: str) -> list[tuple[str, Callable[..., Any]]]:
    """The tools, as methods of the environment's class."""
    try:
        client = _client(address, options.connect_timeout, options.connect_timeout)
    except ImportError as error:
        raise EnvironmentSetupError(
            f"{where}: this needs the library openenv-core, which is not installed here ({error}). Install it: "
            f"{install('openenv')}."
        ) from error
    except Exception as error:
        raise EnvironmentSetupError(
            f"{where}: no OpenEnv server answers at this address: {one_line(error)}. Start the server, or correct the "
            "address."
        ) from error
    try:
        if options.tools:
            return [_mapped(name, spec, where) for name, spec in options.tools.items()]
        listed = _listed(client)
        return [_of_server(tool, where) for tool in listed] if listed else [_step(address, options, where)]
    except EnvironmentSetupError:
        raise
    except Exception as error:  # it closed the session, or said nothing for as long as the connection may take
        raise EnvironmentSetupError(
            f"{where}: the server was asked for its tools and gave no answer: {type(error).__name__}: "
            f"{one_line(error)}. It may allow no further session (its max_concurrent_envs)."
        ) from error
    finally:
        _close(client)


def _listed(client: Any) -> list[ToolSchema]:
    """The tools of a server that speaks MCP; none of another one, which refuses the question."""
    try:
        observation = client.step({"type": "list_tools"}).observation
    except RuntimeError as error:
        if re.search(_SESSION_ENDED, str(error)):
            raise
        return []
    tools = observation.get("tools") if isinstance(observation, Mapping) else None
    return [
        ToolSchema(tool["name"], tool.get("description") or "", tool.get("input_schema") or {}) for tool in tools or []
    ]


def _of_server(tool: ToolSchema, where: str) -> tuple[str, Callable[..., Any]]:
    def call(session: OpenEnv, arguments: dict[str, Any]) -> str:
        return session._act({"type": "call_tool", "tool_name": tool.name, "arguments": arguments})

    return tool.name, tool_method(tool, call, where)


def _step(address: str, options: OpenEnvSettings, where: str) -> tuple[str, Callable[..., Any]]:
    """One tool with the fields of the server's action."""
    url = re.sub(r"^ws", "http", address).rstrip("/") + "/schema"
    local = re.match(r"https?://(?:localhost|127\.|\[::1\])", url)  # without a proxy, as the client does it
    opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if local else []))
    try:
        with opener.open(url, timeout=options.connect_timeout) as answer:
            schema = json.load(answer)["action"]
    except Exception as error:
        raise EnvironmentSetupError(
            f"{where}: the server lists no tools, and does not say what its actions are ({url}: {one_line(error)}). "
            "Describe them with the setting tools."
        ) from error
    properties = {name: value for name, value in (schema.get("properties") or {}).items() if name != "metadata"}
    tool = ToolSchema("step", schema.get("description") or "Take an action.", {**schema, "properties": properties})
    return "step", tool_method(tool, lambda session, arguments: session._act(arguments), where)


def _mapped(name: str, spec: Any, where: str) -> tuple[str, Callable[..., Any]]:
    """A tool of the setting `tools`."""
    place = f"{where}: environment.settings.tools.{name}"
    allowed = ("description", "parameters", "action")
    if not isinstance(spec, Mapping) or not spec.get("description") or not spec.keys() <= set(allowed):
        raise EnvironmentSetupError(f"{place} must be a mapping with description, and parameters and action if any.")
    parameters, action = spec.get("parameters") or {}, spec.get("action")
    if not isinstance(parameters, Mapping) or not all(isinstance(value, Mapping) for value in parameters.values()):
        raise EnvironmentSetupError(
            f"{place}.parameters must have a JSON schema for each parameter by name, as in "
            "{number: {type: integer, description: The guess.}}."
        )
    if action is not None and not isinstance(action, Mapping):
        raise EnvironmentSetupError(f"{place}.action must be a mapping: the action that the server is sent.")
    unknown = sorted(set(_PLACEHOLDER.findall(json.dumps(action))) - set(parameters)) if action else []
    if unknown:
        raise EnvironmentSetupError(f"{place}.action uses {{{unknown[0]}}}, which is none of its parameters.")
    required = [key for key, schema in parameters.items() if "default" not in schema]
    tool = ToolSchema(name, spec["description"], {"properties": parameters, "required": required})
    defaults = {key: schema["default"] for key, schema in parameters.items() if "default" in schema}

    def call(session: OpenEnv, arguments: dict[str, Any]) -> str:
        given = {**defaults, **arguments}
        return session._act(given if action is None else _filled(action, given))

    return name, tool_method(tool, call, place)


def _filled(value: Any, arguments: Mapping[str, Any]) -> Any:
    """A template with its placeholders replaced: by the argument itself where a text is nothing else."""
    if isinstance(value, Mapping):
        return {key: _filled(item, arguments) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_filled(item, arguments) for item in value]
    if not isinstance(value, str):
        return value
    whole = _PLACEHOLDER.fullmatch(value)
    return arguments[whole[1]] if whole else _PLACEHOLDER.sub(lambda found: str(arguments[found[1]]), value)


def _text(observation: Any, chosen: str | None) -> str:
    """What the model reads of an observation. Raises a `RuntimeError`, the failure of a tool called by MCP."""
    if chosen is not None:
        observation = _field(observation, chosen)
    elif isinstance(observation, Mapping) and "tool_name" in observation:
        observation = _result(observation)
    if isinstance(observation, Mapping):
        filled = {key: value for key, value in observation.items() if value not in (None, {}, [], "")}
        observation = next(iter(filled.values())) if len(filled) == 1 else filled or ""
    return observation if isinstance(observation, str) else json.dumps(observation, ensure_ascii=False, default=str)


def _result(observation: Mapping[str, Any]) -> Any:
    """The result of a tool that was called by MCP: its value, or else its texts."""
    error = observation.get("error")
    if error:
        raise RuntimeError(error.get("message") if isinstance(error, Mapping) else str(error))
    result = observation.get("result")
    if not isinstance(result, Mapping):
        return result
    if result.get("data") is not None:
        return result["data"]
    return "\n".join(str(part.get("text", "")) for part in result.get("content") or [])


def _field(value: Any, path: str) -> Any:
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            there = ", ".join(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
            raise KeyError(f"the server has no {path}: there is no {name} among {there}")
        value = value[name]
    return value
