"""Names that newcomers bring from other trainers, by `peers.txt`: those that mean exactly one key, and the keys that
others may mean.
"""

from __future__ import annotations

import re
from pathlib import Path

GROUP = re.compile(r"^(training|trainer|data|algorithm|actor_rollout_ref\.(actor(\.optim)?|rollout|model))\.")
"""Groups whose keys are found by their last name: verl's, and `training`."""

_LINES = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines()
_ENTRIES = {name: line.split(" | ")[1:] for line in _LINES if line[0] != "#" for name in line.split(" | ")[0].split()}
SAME = {name: entry[0] for name, entry in _ENTRIES.items() if len(entry) == 1}
"""The one key that a name means, with a value that `aliases.py` may convert."""


def meant(name: str) -> tuple[list[str], str]:
    """The keys that an unknown name may mean, and what these hold; empty where nothing is known."""
    entry = _ENTRIES.get(name) or _ENTRIES.get(GROUP.sub("", name)) or []
    keys, meaning = entry if len(entry) == 2 else ("", "")
    return keys.split(), meaning


def is_peers(name: str) -> bool:
    """Whether the name of a key is in no project whose recipes are read here, so that the user is told its meaning."""
    last = GROUP.sub("", name)
    return last in SAME or (last != name and not name.startswith("training."))
