"""Importing a user's object by name, `file.py:name` or `package.module:name`."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from covey.errors import CoveyError


def import_object(name: str, key: str, error: type[CoveyError]) -> Any:
    """Import the object called `name`.

    The file's folder, or the working directory, is appended to the search path, so that the user's modules can import
    their neighbours as a script could, without shadowing anything.

    Args:
        name: `file.py:name` or `package.module:name`.
        key: the config key that named it, for the message.
        error: the kind of error to raise.

    Raises:
        CoveyError: the file or module does not exist, fails to import, or has no such name.
    """
    source, _, attribute = name.rpartition(":")
    try:
        module = _import_file(Path(source)) if source.endswith(".py") else _import_module(source)
    except _ImportFailed as problem:
        raise error(f"{key}: {name} {problem}") from problem.__cause__
    if hasattr(module, attribute):
        return getattr(module, attribute)
    names = [k for k, v in vars(module).items() if getattr(v, "__module__", None) == module.__name__]
    shown = _shown(attribute, names)
    raise error(f"{key}: {name}: {source} has no {attribute or 'name after the colon'}; it has {shown}.")


def code_files(names: Iterable[str]) -> dict[str, Path]:
    """The file of each of these objects, by name; names of Covey's own parts, or that lead to no file, are left out."""
    found = {}
    for name in names:
        source, colon, _ = name.rpartition(":")
        file: str | None = source
        if colon and not source.endswith(".py"):
            _make_importable(Path.cwd())
            spec = None
            with contextlib.suppress(ImportError, ValueError):
                spec = importlib.util.find_spec(source)
            file = spec.origin if spec is not None else None
        if colon and file is not None and (path := Path(file).expanduser()).is_file():
            found[name] = path
    return found


def code_hashes(names: Iterable[str]) -> dict[str, str]:
    """The SHA-256 of these files, by name; one that cannot be read is left out."""
    found = {}
    for name, file in code_files(names).items():
        with contextlib.suppress(OSError):
            found[name] = hashlib.sha256(file.read_bytes()).hexdigest()
    return found


def _shown(attribute: str, names: list[str]) -> str:
    """All names, the nearest first, or some of them where they are many."""
    most = len(names) if len(names) <= _MOST_NAMES else 5
    near = ", ".join(difflib.get_close_matches(attribute, names, n=max(most, 1), cutoff=0.0))
    return near + (f" among others ({len(names)} in all)" if most < len(names) else "") or "nothing of its own"


_MOST_NAMES = 12
"""Names of a module that a message lists in full."""


class _ImportFailed(Exception):  # noqa: N818  it never leaves this module
    """The end of a message, after the name."""


def _import_file(file: Path) -> ModuleType:
    path = file.expanduser().resolve()
    if not path.is_file():
        near = difflib.get_close_matches(path.name, (p.name for p in path.parent.glob("*.py")), n=1)
        guess = f" Did you mean {near[0]}?" if near else ""
        raise _ImportFailed(f"names the file {path}, which does not exist.{guess}")
    key = f"covey_user_{path.stem}_{hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()}"
    if key in sys.modules:  # two objects of one file
        return sys.modules[key]
    _make_importable(path.parent)
    spec = importlib.util.spec_from_file_location(key, path)
    if spec is None or spec.loader is None:
        raise _ImportFailed(f"names {path}, which Python cannot load as a module.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[key] = module
    try:
        spec.loader.exec_module(module)
    except Exception as cause:  # the user's own code, which may raise anything
        del sys.modules[key]
        raise _ImportFailed(f"cannot be imported: {failure(cause)}") from cause
    return module


def _import_module(module: str) -> ModuleType:
    if not module:
        raise _ImportFailed("does not name a module: write file.py:name or package.module:name.")
    _make_importable(Path.cwd())
    try:
        return importlib.import_module(module)
    except Exception as cause:  # the user's own code, which may raise anything
        raise _ImportFailed(f"cannot be imported: {failure(cause)}") from cause


def _make_importable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


@contextmanager
def user_errors(what: str, error: type[CoveyError]) -> Iterator[None]:
    """Context manager: an exception of the user's own code becomes a `CoveyError` that begins with `what`.

    Raises:
        CoveyError: the user's own, or one of the kind `error`.
    """
    try:
        yield
    except CoveyError:
        raise
    except Exception as cause:  # the user's own code, which may raise anything
        raise error(f"{what}: {failure(cause)}") from cause


def failure(cause: BaseException) -> str:
    """An exception of the user's own code: its type, its text, and the line that raised it."""
    trace = cause.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" ({inspect.getfile(trace.tb_frame)}, line {trace.tb_lineno})" if trace else ""
    if isinstance(cause, ImportError | SyntaxError):  # their text suffices; the last frame is Python's own
        where = ""
    text = " ".join(str(cause).split())
    return f"{type(cause).__name__}: {text}{where}."
