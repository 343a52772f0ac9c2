"""A user's object by name: `file.py:name` or `package.module:name`, imported, or given as it is by a Python program."""

from __future__ import annotations

import contextlib
import difflib
import functools
import hashlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import pickle
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from covey.errors import CoveyError
from covey.former_paths import current


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
    if name in _given:
        return _given[name]
    source, _, attribute = name.rpartition(":")
    if name in _received:
        sent = _received[name]
        if isinstance(sent, str):
            raise error(f"{key}: {name} cannot be copied to another process: {sent}")
        with user_errors(f"{key}: {name} cannot be copied to another process", error):
            return _given.setdefault(name, pickle.loads(sent))
    try:
        module = _import_file(Path(source)) if source.endswith(".py") else _import_module(source)
    except _ImportFailed as problem:
        raise error(f"{key}: {name} {problem}") from problem.__cause__
    if hasattr(module, attribute):
        return getattr(module, attribute)
    if source == "__main__" or "<" in attribute:
        raise error(
            f"{key}: {name} was given to covey.train as a Python object, which only that program has: put it into a "
            "file and name it, as file.py:name."
        )
    names = [k for k, v in vars(module).items() if getattr(v, "__module__", None) == module.__name__]
    shown = _shown(attribute, names)
    raise error(f"{key}: {name}: {source} has no {attribute or 'name after the colon'}; it has {shown}.")


def name_of(thing: Any) -> str:
    """`module:qualified name` of a function or class, of another object that of its class; `file.py:name` if Covey
    loaded it from a file."""
    thing = thing.func if isinstance(thing, functools.partial) else thing
    kind = thing if hasattr(thing, "__qualname__") else type(thing)
    module = str(kind.__module__)
    return f"{inspect.getfile(kind) if module.startswith(_LOADED) else module}:{kind.__qualname__}"


def give(name: str, thing: Any) -> None:
    """Let a Python object take the place of a name in a config: `import_object` finds it while this process runs."""
    _given[name] = thing


def is_given(name: str) -> bool:
    """Whether this name stands for an object that this program gave."""
    return name in _given


def given_by_value(names: Iterable[str]) -> dict[str, bytes | str]:
    """Those of these objects that were given, for `receive` in another process; text says why one cannot go there.

    Functions and classes of modules that can be imported there go by name, others as code.
    """
    return {name: _by_value(_given[name]) for name in names if name in _given}


def receive(objects: Mapping[str, bytes | str]) -> None:
    """Let these objects of another process be found by `import_object`, which raises what is wrong with them."""
    _received.update(objects)


_given: dict[str, Any] = {}
_received: dict[str, bytes | str] = {}


def _by_value(thing: Any) -> bytes | str:
    import cloudpickle

    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    by_value = module is not None and module.__name__ != "__main__" and not _is_found(module.__name__)
    try:
        if by_value:
            cloudpickle.register_pickle_by_value(module)
        return bytes(cloudpickle.dumps(thing))
    except Exception as error:  # whatever an object of the user raises when it is pickled
        return failure(error)
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)


def _is_found(module: str) -> bool:
    """Whether another process with this search path finds a module."""
    try:
        return importlib.machinery.PathFinder.find_spec(module.partition(".")[0], sys.path) is not None
    except (ImportError, ValueError):
        return False


def code_of(names: Iterable[str]) -> dict[str, tuple[str, bytes]]:
    """The code of each of these objects, as the name and content of a file: its own file, or the source of an object
    that was given. Names of Covey's own parts, and those that lead to no code, are left out."""
    found = {}
    for name in names:
        with contextlib.suppress(OSError, TypeError):  # typed at a prompt that keeps no code; a file that is gone
            if name in _given:
                found[name] = f"{re.split('[.:]', name)[-1].strip('<>')}.py", inspect.getsource(_given[name]).encode()
            elif (file := _file_of(name)) is not None:
                found[name] = file.name, file.read_bytes()
    return found


def code_hashes(names: Iterable[str]) -> dict[str, str]:
    """The SHA-256 of this code, by name."""
    return {name: hashlib.sha256(content).hexdigest() for name, (_, content) in code_of(names).items()}


def _file_of(name: str) -> Path | None:
    source, colon, _ = name.rpartition(":")
    file: str | None = source
    if colon and not source.endswith(".py"):
        spec = None
        _make_importable(Path.cwd())
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(source)
        file = spec.origin if spec is not None else None
    path = Path(file).expanduser() if colon and file is not None else None
    return path if path is not None and path.is_file() else None


def _shown(attribute: str, names: list[str]) -> str:
    """All names, the nearest first, or some of them where they are many."""
    most = len(names) if len(names) <= _MOST_NAMES else 5
    near = ", ".join(difflib.get_close_matches(attribute, names, n=max(most, 1), cutoff=0.0))
    return near + (f" among others ({len(names)} in all)" if most < len(names) else "") or "nothing of its own"


_LOADED = "covey_user_"
"""The names of modules that Covey loads from files begin with this."""
_MOST_NAMES = 12
"""Names of a module that a message lists in full."""


class _ImportFailed(Exception):  # noqa: N818  it never leaves this module
    """The end of a message, after the name."""


class _FromSource(importlib.machinery.SourceFileLoader):
    """Reads the source alone: a compiled copy in `__pycache__`, which came with the file, may be of another one."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _import_file(file: Path) -> ModuleType:
    path = file.expanduser().resolve()
    if not path.is_file():
        near = difflib.get_close_matches(path.name, (p.name for p in path.parent.glob("*.py")), n=1)
        guess = f" Did you mean {near[0]}?" if near else ""
        raise _ImportFailed(f"names the file {path}, which does not exist.{guess}")
    key = f"{_LOADED}{path.stem}_{hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()}"
    if key in sys.modules:  # two objects of one file
        return sys.modules[key]
    _make_importable(path.parent)
    spec = importlib.util.spec_from_file_location(key, path, loader=_FromSource(key, str(path)))
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
        return importlib.import_module(current(module))
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
