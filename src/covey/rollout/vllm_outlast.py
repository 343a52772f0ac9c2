"""Runs a module as `python -m` would, in processes that stay deaf to SIGTERM if this one is.

Run as a file of its own (`python vllm_outlast.py MODULE ARGUMENT …`), so that nothing is imported before vLLM: it sets
variables that count only if PyTorch comes later.

A launcher blocks SIGTERM in a server that has to outlast it (see `covey.launch.guard`), and what a process blocks its
children block too. But Python unblocks it, for good, in a process that starts multiprocessing's resource tracker (seen
in Python 3.11 to 3.13), as vLLM does before its engine's processes. So the tracker is started here, and the mask put
back, before there are threads or processes. One tracker serves a process and all that it spawns.
"""

import runpy
import signal
import sys
from multiprocessing import resource_tracker
from pathlib import Path


def start_tracker() -> None:
    """Start the resource tracker of this process; the signals that were blocked stay so."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


if __name__ == "__main__":
    start_tracker()
    if not sys.flags.safe_path:
        sys.path[0] = str(Path.cwd())  # in place of this file's folder, as for `python -m`
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
