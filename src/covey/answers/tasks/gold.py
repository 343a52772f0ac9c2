"""Gold answers that are data: JSON text, or what it stands for."""

from __future__ import annotations

import json
from typing import Any


def read_json(gold: Any) -> Any:
    """What JSON text stands for, None for other text; anything that is no text stays as it is."""
    if not isinstance(gold, str):
        return gold
    try:
        return json.loads(gold)
    except (ValueError, RecursionError):  # the latter: nested thousands deep
        return None
