"""Where modules have moved: names that runs, commands and users' programs hold keep resolving.

`former_paths.txt` has a line per former module: its path, and the path of today.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from importlib.abc import InspectLoader, Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import CodeType
from typing import Any


def current(name: str) -> str:
    """`module` or `module:attribute`, with a former path replaced by that of today."""
    module, colon, attribute = name.partition(":")
    return f"{_table().get(module, module)}{colon}{attribute}" if module.startswith("covey.") else name


@cache
def _table() -> dict[str, str]:
    lines = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split() for line in lines)


class FormerPaths(MetaPathFinder, Loader):
    """Imports a former path as the module of today, and runs it for `python -m`. Where a former package is a plain
    module today, Python itself refuses to look into it: `current` alone knows those paths."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The module of today under its former name; None for other names."""
        if not fullname.startswith("covey.") or current(fullname) == fullname:
            return None
        today = find_spec(current(fullname))
        return today and ModuleSpec(fullname, self, origin=today.origin)

    def exec_module(self, module: Any) -> None:
        """Put the module of today in its place."""
        sys.modules[module.__name__] = import_module(current(module.__name__))

    def get_code(self, fullname: str) -> CodeType | None:
        """For `python -m`."""
        today = find_spec(current(fullname))
        loader = today and today.loader
        return loader.get_code(current(fullname)) if isinstance(loader, InspectLoader) else None
