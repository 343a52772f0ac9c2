"""Namespaces by bubblewrap: a program sees an interpreter, system libraries and a folder of its own, and no network."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

FOLDER = "/box"
"""The program's own folder."""
_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libexec", "include")
_OF_PYTHON = ("bin", "lib", "lib64")
_SMALL = 1 << 20
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": FOLDER, "TMPDIR": FOLDER}
ENVIRONMENT |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def ways() -> list[tuple[tuple[str, ...], bool]]:
    """The options to try, the strictest first, and whether the program can have a user of its own, as root gives."""
    own: tuple[str, ...] = ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try")
    own += ("--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_KILL")
    own += ("--cap-add", "CAP_SETPCAP")  # to empty the bounding set
    found = [(own, True)] if os.geteuid() == 0 else []
    found += [(("--unshare-all", "--unshare-user", *more), False) for more in (("--disable-userns",), ())]
    return [((*options, *more), own_user) for more in (("--proc", "/proc"), ()) for options, own_user in found]


def command(
    options: Sequence[str], room: int, files: Sequence[tuple[int, str]], paths: Sequence[str] = ()
) -> list[str]:
    """The words before the program.

    Args:
        options: by which it works here.
        room: bytes for files.
        files: for each, a descriptor to copy from and its name.
        paths: further folders that the program may read.
    """
    words = [str(shutil.which("bwrap")), "--die-with-parent", "--as-pid-1", "--new-session", "--clearenv", *options]
    for name, value in ENVIRONMENT.items():
        words += ["--setenv", name, value]
    shown = readable(paths)
    for folder in dict.fromkeys(str(parent) for path in shown for parent in reversed(Path(path).parents[:-1])):
        words += ["--perms", "0755", "--dir", folder]  # otherwise only its owner could enter it
    for path in shown:
        resolved = os.path.realpath(path)
        if resolved != path and any(below(resolved, other) for other in shown):
            words += ["--symlink", os.path.relpath(resolved, Path(path).parent), path]
        else:
            words += ["--ro-bind", path, path]
    for path in hidden(shown):
        words += ["--size", str(_SMALL), "--tmpfs", path]
    words += ["--dev", "/dev", "--size", str(room), "--perms", "1777", "--tmpfs", "/dev/shm"]
    words += ["--size", str(room), "--perms", "0777", "--tmpfs", FOLDER]
    for folder in dict.fromkeys(str(parent) for _, name in files for parent in reversed(Path(name).parents[:-1])):
        words += ["--perms", "0777", "--dir", f"{FOLDER}/{folder}"]
    for descriptor, name in files:
        words += ["--perms", "0666", "--file", str(descriptor), f"{FOLDER}/{name}"]
    return [*words, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", FOLDER, "--"]


def interpreter() -> str:
    """The interpreter, without the virtual environment that this one may be in."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def readable(paths: Sequence[str] = ()) -> list[str]:
    """The folders and files that programs may read: system libraries, the interpreter, and these."""
    found = [f"{folder}/{name}" for folder in ("", "/usr") for name in _SYSTEM]
    found += [f"{prefix}/{name}" for prefix in (sys.base_prefix, sys.base_exec_prefix) for name in _OF_PYTHON]
    found += ["/etc/ld.so.cache", "/etc/alternatives", *paths]
    there = [path for path in dict.fromkeys(found) if Path(path).exists()]
    return [path for path in there if not any(path != other and below(path, other) for other in there)]


def hidden(shown: Sequence[str]) -> list[str]:
    """Folders of the user's that lie within readable ones: they are covered."""
    homes = [str(Path.home()), str(Path.cwd()), tempfile.gettempdir()]
    homes += [value for name in ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME") if (value := os.environ.get(name))]
    found = dict.fromkeys(os.path.realpath(path) for path in homes if Path(path).is_dir())
    needed = [interpreter(), sys.base_prefix]
    return [
        path
        for path in found
        if any(below(path, str(Path(other).resolve())) for other in shown)
        and not any(below(need, path) for need in needed)
    ]


def below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
