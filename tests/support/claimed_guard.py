"""Building the claimed device and loading it, which must happen before torch is imported."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "claimed_gpu" / "device_guard.cpp"


def _torch() -> Path:
    found = importlib.util.find_spec("torch")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def compiler() -> str | None:
    """The C++ compiler, if there is one."""
    return shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")


def build(folder: Path) -> Path:
    """Compile the guard into a folder."""
    library, torch = folder / "device_guard.so", _torch()
    includes = [f"-I{torch}/include", f"-I{torch}/include/torch/csrc/api/include"]
    command = [str(compiler()), "-shared", "-fPIC", "-std=c++20", *includes, str(SOURCE), "-o", str(library)]
    subprocess.run([*command, f"-L{torch}/lib", "-lc10", "-ltorch_cpu"], check=True, timeout=300)
    return library


def load(library: Path) -> None:
    """Register the claimed device in this process."""
    for path in (_torch() / "lib" / "libtorch_cpu.so", library):
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
