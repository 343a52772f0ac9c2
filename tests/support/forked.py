"""Processes for tests, forked from one that has imported PyTorch, TRL and Covey.

The real launcher (`torch.distributed.run`) starts those of `test_several_processes.py`.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import runpy
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

import covey.cli.main
import covey.training.run
import covey.training.trl.trainer
from covey.launch.machine import free_port

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload([m.__name__ for m in (covey.cli.main, covey.training.run, covey.training.trl.trainer)])


def start(words: Sequence[object], log: Path, *, threads: int = 1, **environment: str) -> BaseProcess:
    """Start a process.

    Args:
        words: the name of a script in this folder and its arguments; or `covey` and its arguments.
        log: the file for its output.
        threads: of PyTorch.
        environment: variables besides those of the tests.
    """
    process = _SERVER.Process(target=_main, args=([str(word) for word in words], log, threads, environment))
    process.start()
    return process


def run(
    words: Sequence[object], log: Path, kill_when: Callable[[float], bool] = lambda seconds: False, *, threads: int = 1
) -> int | None:
    """Start a process and wait for its end.

    Args:
        words: see `start`.
        log: see `start`.
        kill_when: polled with the seconds since its start; the process is killed once it is true.
        threads: see `start`.

    Returns:
        The exit code: -9 if it was killed.
    """
    process = start(words, log, threads=threads)
    began = time.monotonic()
    while process.is_alive():
        if kill_when(time.monotonic() - began):
            process.kill()
            break
        time.sleep(0.0005)
    process.join(300)
    return process.exitcode


def run_two(*words: object, folder: Path, seconds: float = 240.0, processes: int = 2) -> str:
    """Run a script in two processes, or more, that train together; fails if one of them fails.

    Args:
        words: see `start`.
        folder: for their output, in `process-<rank>.log`.
        seconds: timeout.
        processes: how many.

    Returns:
        The output of all.
    """
    folder.mkdir(parents=True, exist_ok=True)
    logs = [folder / f"process-{rank}.log" for rank in range(processes)]
    size, port = str(processes), str(free_port(random.randrange(20_000, 40_000)))
    same = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    every = [start(words, log, RANK=str(rank), LOCAL_RANK=str(rank), **same) for rank, log in enumerate(logs)]
    deadline = time.monotonic() + seconds
    while any(process.is_alive() for process in every) and time.monotonic() < deadline:
        if any(process.exitcode for process in every):
            deadline = min(deadline, time.monotonic() + 5.0)  # time for the others' output
        time.sleep(0.02)
    for process in every:
        process.kill()
        process.join()
    printed = [log.read_text(encoding="utf-8") if log.exists() else "" for log in logs]
    codes = [process.exitcode for process in every]
    assert codes == [0] * processes, f"exit codes {codes}\n" + "\n".join(text[-3000:] for text in printed)
    return "".join(printed)


def _main(words: list[str], log: Path, threads: int, environment: dict[str, str]) -> None:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(environment, OMP_NUM_THREADS=str(threads))
    gc.freeze()  # as in conftest.py
    torch.set_num_threads(threads)
    if words[0] == "covey":
        raise SystemExit(covey.cli.main.main(words[1:]))
    sys.argv = [str(Path(__file__).with_name(words[0])), *words[1:]]
    runpy.run_path(sys.argv[0], run_name="__main__")
