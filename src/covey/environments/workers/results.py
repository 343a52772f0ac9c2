"""What environments and tools return, as plain data for the trainer: in their process."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from typing import Any

from covey.environments.workers.messages import MAX_ANSWER, MAX_TEXT, cut
from covey.rewards.workers.run_reward import check
from covey.workers.failures import text_of
from covey.workers.plain_data import NotPlainError, plain, writable

_SPARE = 4096  # bytes of a message besides its value


class BadResultError(Exception):
    """A method did not return what it should; the message says what it returned."""


def tool_result(value: Any) -> Any:
    """What the model is told: content blocks, a number, a dictionary or None as they are, all else as text.

    TRL gives blocks to the chat template and makes text of all else, so text is what it would have made here.
    """
    if inspect.isgenerator(value):
        value = _collected(value)
    if isinstance(value, str):
        return cut(writable(value))
    try:
        data = plain(value)
    except NotPlainError as error:
        if _is_blocks(value):
            raise BadResultError(
                f"it returned content blocks with {error}, which cannot leave its process; give an environment that "
                "returns images to the trainer in Python"
            ) from error
        return cut(writable(str(value)))
    if data is None or isinstance(data, bool | float | int):
        return data
    if (isinstance(value, dict) or _is_blocks(value)) and len(json.dumps(data)) <= MAX_TEXT:
        return data
    return cut(writable(str(value) if isinstance(value, list | tuple | set | frozenset) else str(data)))


def observation(value: Any) -> Any:
    """What `reset` tells the model: text, content blocks or None."""
    found = tool_result(value)
    return found if found is None or isinstance(found, list) else str(found)


def reward(value: Any) -> float | None:
    """What `get_reward` returned, as a finite number or None. Raises a `BadResultError` if it is anything else."""
    checked = check([value], 1)
    if checked.bad:
        raise BadResultError(checked.bad[0][1])
    return checked.values[0]


def attribute(instance: object, name: str) -> Any:
    """An attribute of an instance.

    Raises:
        BadResultError: it is not plain data.
        AttributeError: there is none.
    """
    try:
        data = plain(getattr(instance, name))
    except NotPlainError as error:
        raise BadResultError(f"{name} is {error}, and only plain data can be read from its process") from error
    if len(json.dumps(data)) > MAX_ANSWER - _SPARE:
        raise BadResultError(f"{name} takes more than the {MAX_ANSWER >> 20} MB that can be read from its process")
    return data


def attributes(instance: object) -> dict[str, Any]:
    """The public attributes and properties of an instance that are plain data, as far as they fit a message."""
    kinds = [
        name
        for kind in type(instance).__mro__[:-1]
        for name, value in vars(kind).items()
        if not callable(value) and not isinstance(value, classmethod | staticmethod)
    ]
    found: dict[str, Any] = {}
    room = MAX_ANSWER - _SPARE
    for name in dict.fromkeys([*getattr(instance, "__dict__", {}), *kinds]):
        if name.startswith("_"):
            continue
        try:
            value = attribute(instance, name)
        except Exception:  # not plain, or a property that raises: whoever reads it gets the error
            continue
        room -= len(json.dumps({name: value}))
        if room > 0:
            found[name] = value
    return found


def failure_text(error: BaseException) -> str:
    """What the model is told of an exception, as in TRL: its text, or its type where it has none."""
    text = text_of(error)
    if isinstance(error, SystemExit | KeyboardInterrupt) or not text.strip():
        text = f"{type(error).__name__}{': ' + text if text.strip() else ''}"
    return cut(text)


def _collected(items: Iterator[Any]) -> Any:
    """What a generator yields: joined if it is text, up to what the model is told."""
    found: list[Any] = []
    length = 0
    for item in items:
        found.append(item)
        length += len(str(item)) or 1
        if length > MAX_TEXT:
            break
    return "".join(found) if found and all(isinstance(item, str) for item in found) else found


def _is_blocks(value: Any) -> bool:
    """Whether a value is a list of content blocks, as chat templates take them."""
    return isinstance(value, list) and bool(value) and all(isinstance(one, Mapping) and "type" in one for one in value)
