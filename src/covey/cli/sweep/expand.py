"""From Hydra's sweep syntax (`a=1,2`, `choice()`, `range()`, `glob()`) to the overrides of each job."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from covey.config.compose.flags import Flag
from covey.config.compose.group_files import Roots
from covey.errors import ConfigError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

MAX_JOBS = 1000
"""All are composed and checked before the first starts."""

_ESCAPED = re.compile(r"\\([\\:,=()\[\]{} \t])")


@dataclass(frozen=True, slots=True)
class Variant:
    """One combination of the swept values."""

    overrides: tuple[str | Flag, ...]
    """All overrides in the order of the command line."""
    swept: dict[str, str]
    """The swept keys with their values in this combination."""

    @property
    def text(self) -> str:
        """The swept keys as text: `training.learning_rate=1e-6 seed=1`."""
        return " ".join(f"{key}={value}" for key, value in self.swept.items())


def expand(overrides: Sequence[str | Flag], roots: Roots) -> list[Variant]:
    """Every combination of the swept values, the last key running fastest; one when nothing is swept. Raises a
    `ConfigError` for a sweep over an interval, over nothing, over one key twice, or of too many jobs."""
    choices: list[list[tuple[str | Flag, str | None, str]]] = []
    keys: set[str] = set()
    for word in overrides:
        parsed = _sweep(word) if isinstance(word, str) else None
        if parsed is None:
            choices.append([(word, None, "")])
            continue
        key = parsed.key_or_group
        if key in keys:
            raise ConfigError(f"{key} is swept twice, the second time in `{word}`: give all its values at once.")
        keys.add(key)
        values = _values(parsed, roots)
        choices.append([(f"{parsed.get_key_element()}={value}", key, _unquoted(value)) for value in values])
    if math.prod(map(len, choices)) > MAX_JOBS:
        raise ConfigError(f"The sweep has more than {MAX_JOBS:,} jobs, the most that are allowed: give fewer values.")
    return [
        Variant(
            overrides=tuple(word for word, _, _ in combination),
            swept={key: value for _, key, value in combination if key is not None},
        )
        for combination in itertools.product(*choices)
    ]


def _sweep(word: str) -> Override | None:
    """The parsed override if it is a sweep; None for an unreadable one too, which composing reports."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_override(word)
    except (HydraException, ValueError, RecursionError):
        return None
    return parsed if parsed.is_sweep_override() else None


def _values(parsed: Override, roots: Roots) -> list[str]:
    from hydra.core.override_parser.types import Glob

    text = parsed.input_line
    if not parsed.is_discrete_sweep():
        raise ConfigError(
            f"The sweep `{text}` names an interval, and Covey sweeps over given values only: list them "
            f"({parsed.key_or_group}=1,2,3) or as range(…)."
        )
    value: Any = parsed.value()
    if isinstance(value, Glob):
        found = value.filter(roots.options(parsed.key_or_group))
        if not found:
            raise ConfigError(
                f"The sweep `{text}` matches none of the options of {parsed.key_or_group}: "
                f"{', '.join(roots.options(parsed.key_or_group)) or 'there is no such group'}."
            )
        return found
    found = [str(one) for one in itertools.islice(parsed.sweep_string_iterator(), MAX_JOBS + 1)]
    if not found:
        raise ConfigError(f"The sweep `{text}` has no values.")
    return found


def _unquoted(value: str) -> str:
    """A value for display: without quotes, or without Hydra's backslashes."""
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return _ESCAPED.sub(r"\1", value)
