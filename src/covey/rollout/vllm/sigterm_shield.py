"""Runs a module as `python -m` would; if SIGTERM is blocked in this process, it stays blocked in its children.

Run as a file of its own (`python sigterm_shield.py MODULE ARGUMENT …`), so that nothing is imported before vLLM: it
sets variables that count only if PyTorch comes later.

A launcher blocks SIGTERM in a server that must survive the trainer's shutdown (see `covey.launch.guard`), and children
inherit the signal mask. But Python unblocks SIGTERM permanently in a process that starts multiprocessing's resource
tracker (seen in Python 3.11 to 3.13), as vLLM does before its engine's processes. So the tracker is started here, and
the mask restored, before there are threads or processes. One tracker serves a process and all that it spawns.
"""

import runpy
import signal
import sys
from multiprocessing import resource_tracker
from pathlib import Path


def start_tracker() -> None:
    """Start the resource tracker of this process, and keep the signal mask."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


if __name__ == "__main__":
    start_tracker()
    if not sys.flags.safe_path:
        sys.path[0] = str(Path.cwd())  # in place of this file's folder, as for `python -m`
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
