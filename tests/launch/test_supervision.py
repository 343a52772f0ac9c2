"""The launcher's supervision with real processes: one dies, hangs or is asked to stop, and no process is ever left.

The launcher runs in a process of its own (`launch_processes.py`) on a plan with a fake server and trainer; each
has a child that ignores SIGTERM. Every process of a test has a mark in its environment, by which orphans are found.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import permutations
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest

from covey.launch.guard import _end
from covey.launch.machine import how_it_ended
from covey.launch.plan import LaunchPlan
from covey.launch.supervise import Ending, Limits, Supervisor
from covey.workers.signals import signal_handler
from launched import TIMEOUT, Launched, until


@pytest.fixture
def launch(root: Path, tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    made: list[Launched] = []

    def start(**options: Any) -> Launched:
        folder = options.pop("folder", tmp_path / str(len(made)))
        made.append(Launched(root, folder, **options))
        return made[-1]

    yield start
    orphans = {}
    for one in made:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()
        deadline = time.monotonic() + TIMEOUT
        while (left := one.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        orphans |= left
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert not orphans


def test_one_of_two_servers_dies(launch: Callable[..., Launched]) -> None:
    """It alone is restarted; training and the other go on."""
    run = launch(server="good", servers=2, trainer="needs server", steps=60)
    until(lambda: len(run.steps()) >= 3)
    second = next(pid for pid, line in run.processes().items() if line.endswith(f"server {run.port + 1} good"))
    os.kill(second, signal.SIGKILL)
    assert run.wait(60) == 0, run.text
    assert run.steps() == list(range(1, 61))
    assert len(run.starts()) == 1
    assert run.text.count("vLLM server started at") == 3
    assert run.text.count(f"vLLM server started at http://127.0.0.1:{run.port + 1}") == 2


def test_training_ends_and_takes_everything_with_it(launch: Callable[..., Launched]) -> None:
    run = launch(server="good", steps=3)
    assert run.wait() == 0
    assert run.processes() == {}
    assert run.steps() == [1, 2, 3]
    assert f"vLLM server at http://127.0.0.1:{run.port} answers" in run.text


@pytest.mark.parametrize(
    ("trainer", "code", "message"),
    [
        ("fails", 3, "covey: the data are gone."),
        ("crashes", 1, "RuntimeError: shapes do not match"),
        ("killed", 137, "was killed by SIGKILL"),
    ],
)
def test_a_trainer_that_dies_ends_the_server_and_keeps_its_code(
    launch: Callable[..., Launched], trainer: str, code: int, message: str
) -> None:
    run = launch(server="good", trainer=trainer)
    assert run.wait() == code
    assert run.processes() == {}
    assert message in run.text
    assert len(run.starts()) == 1


@pytest.mark.parametrize(
    ("finishes", "seen", "ended"),
    [
        ({}, 1, (1, False)),
        ({"0": (0, True)}, 0, (0, True)),
        ({"0": (3, True), "1": (3, True)}, 1, (3, True)),  # accelerate made 1 of it
        ({"0": (1, False), "1": (1, True)}, 1, (1, False)),
        ({"0": (1, False)}, 137, (137, False)),  # the other was killed, and this one noticed
        ({"0": (143, True)}, 143, (143, True)),
        ({"0": (0, True)}, 137, (137, False)),
    ],
)
def test_the_exit_code_is_that_of_the_process_which_failed(
    tmp_path: Path, finishes: dict[str, tuple[int, bool]], seen: int, ended: tuple[int, bool]
) -> None:
    for rank, (code, orderly) in finishes.items():
        (tmp_path / f"finish-{rank}.json").write_text(json.dumps({"code": code, "orderly": orderly}))
    (tmp_path / "finish-9.json").write_text("{")  # being written
    assert how_it_ended(tmp_path, seen) == ended


@pytest.mark.slow
def test_a_server_that_dies_is_restarted_and_training_continues(launch: Callable[..., Launched]) -> None:
    run = launch(server="good", steps=30)
    until(lambda: len(run.steps()) > 2)
    first = run.find("server")
    os.kill(first, signal.SIGKILL)
    until(lambda: run.text.count("answers") == 2)
    assert run.find("server") != first
    assert run.wait() == 0
    assert run.steps() == list(range(1, 31))
    assert len(run.starts()) == 1


@pytest.mark.slow
def test_training_that_fails_with_its_server_is_resumed(launch: Callable[..., Launched]) -> None:
    run = launch(server="good", trainer="needs server", steps=12)
    until(lambda: len(run.steps()) > 2)
    os.kill(run.find("server"), signal.SIGKILL)
    assert run.wait() == 0
    assert run.starts() == [[], ["resume=auto", "overwrite=false"]]
    assert run.steps() == list(range(1, 13))


@pytest.mark.slow
def test_a_node_that_only_serves_ends_when_training_has(root: Path, launch: Callable[..., Launched]) -> None:
    training = launch(server="good", trainer="needs server", steps=15, node=0)
    serving = launch(server="slow", steps=15, node=1, port=training.port, folder=training.folder)
    until(lambda: len(training.steps()) > 2)
    os.kill(serving.find("server"), signal.SIGKILL)
    assert training.wait() == 0
    assert serving.wait() == 0
    assert training.processes() == serving.processes() == {}
    assert training.starts() == [[], ["resume=auto", "overwrite=false"]]
    assert serving.text.count("answers") == 2


@pytest.mark.slow
def test_a_server_that_keeps_dying_ends_the_run_with_the_reason(launch: Callable[..., Launched]) -> None:
    run = launch(server="good", steps=1000, limits={"server_restarts": 1})
    for answers in (1, 2):
        until(lambda count=answers: run.text.count("answers") == count and run.steps())
        os.kill(run.find("server"), signal.SIGKILL)
    assert run.wait() == 1
    assert "after 1 restarts (launch.server_restarts)" in run.text
    assert (run.run / "checkpoint").read_text() == str(run.steps()[-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "message"),
    [("broken", "ended with exit code 7 before it answered"), ("never ready", "did not answer within 1.5 s")],
)
def test_a_server_that_never_answers_is_shown_with_its_log(
    launch: Callable[..., Launched], server: str, message: str
) -> None:
    run = launch(server=server, limits={"server_timeout": 1.5})
    assert run.wait() == 1
    assert message in run.text
    assert "loading the model" in run.text
    assert ("RuntimeError: CUDA out of memory" in run.text) == (server == "broken")
    assert run.starts() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        (signal.SIGINT, signal.SIGTERM, 130),
        (signal.SIGTERM, signal.SIGINT, 130),
        (signal.SIGHUP, signal.SIGTERM, 129),
        (signal.SIGTERM, signal.SIGHUP, 129),
        (signal.SIGUSR1, signal.SIGTERM, 143),
        (signal.SIGTERM, signal.SIGUSR1, 143),
        (signal.SIGTERM, signal.SIGTERM, 143),
    ],
)
def test_asked_to_stop_it_lets_training_write_its_checkpoint(
    launch: Callable[..., Launched], first: signal.Signals, second: signal.Signals, code: int
) -> None:
    run = launch(server="good", steps=1000)
    until(run.steps)
    # As a cluster sends one right after the other: no second request. They arrive in any order, so both are tried, and
    # the one that is more specific than SIGTERM counts.
    for one in (first, second):
        run.process.send_signal(one)
    assert run.wait() == code
    assert run.processes() == {}
    assert (run.run / "checkpoint").read_text() == str(run.steps()[-1])


@pytest.mark.parametrize(
    "several", list(permutations([signal.SIGUSR1, signal.SIGINT, signal.SIGHUP, signal.SIGTERM], 2))
)
def test_of_signals_sent_together_the_most_specific_counts(tmp_path: Path, several: tuple[signal.Signals, ...]) -> None:
    """In any order of arrival; a signal that comes later changes nothing."""
    supervisor = Supervisor(LaunchPlan(tmp_path, tmp_path, 1, 0, 1, (), (), None, ()), 0, Limits(), Mock(), Mock())
    by_rank = (signal.SIGUSR1, signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
    with signal_handler(by_rank, supervisor._on_signal):
        for number in several:
            signal.raise_signal(number)
        counts = min(several, key=by_rank.index)
        code = 143 if counts == signal.SIGUSR1 else 128 + counts
        assert supervisor._stopped(clean=True) == Ending(code, counts, clean=True)
        supervisor._signal_at -= 60
        signal.raise_signal(signal.SIGUSR1)
        assert supervisor._stopped(clean=True).signal == counts


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_job_that_is_pre_empted_finishes_its_step(launch: Callable[..., Launched], nodes: int) -> None:
    """Slurm sends SIGTERM to all processes of a job at once: also to the server, which the current step needs."""
    options = {"server": "good", "trainer": "needs server late", "steps": 1000}
    runs = [launch(**options, **({"node": 0} if nodes == 2 else {}))]
    if nodes == 2:
        runs.append(launch(**options, node=1, port=runs[0].port, folder=runs[0].folder))
    until(runs[0].steps)
    for pid in [pid for run in runs for pid in run.processes()]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    assert [run.wait() for run in runs] == [143] * nodes
    assert all(run.processes() == {} for run in runs)
    assert "the server is gone" not in runs[0].text
    assert (runs[0].run / "checkpoint").read_text() == str(runs[0].steps()[-1])


@pytest.mark.slow
def test_a_terminal_that_is_closed_lets_training_write_its_checkpoint(launch: Callable[..., Launched]) -> None:
    run = launch(server="good", steps=1000, in_terminal=True)
    until(run.steps)
    assert b"step 1" in os.read(run.terminal, 65536)  # training draws on the terminal itself
    os.close(run.terminal)
    assert run.wait() == 129
    assert run.processes() == {}
    assert (run.run / "checkpoint").read_text() == str(run.steps()[-1])


@pytest.mark.slow
def test_a_second_interrupt_ends_it_at_once(launch: Callable[..., Launched]) -> None:
    run = launch(trainer="hangs", steps=1000)
    until(lambda: len(run.steps()) == 2)
    run.process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert run.process.poll() is None
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130
    assert run.processes() == {}


@pytest.mark.slow
def test_training_that_does_not_stop_in_time_is_killed(launch: Callable[..., Launched]) -> None:
    run = launch(trainer="hangs", limits={"stop_timeout": 0.5})
    until(lambda: len(run.steps()) == 2)
    run.process.terminate()
    assert run.wait() == 143
    assert run.processes() == {}


@pytest.mark.slow
def test_training_that_hangs_leaves_its_stacks_and_is_resumed(launch: Callable[..., Launched]) -> None:
    run = launch(server="good", trainer="hangs", limits={"step_timeout": 2.0, "stop_timeout": 0.5})
    assert run.wait() == 0
    assert run.starts() == [[], ["resume=auto", "overwrite=false"]]
    assert run.steps() == [1, 2, 3, 4, 5]
    assert "_wait_for_ever" in (run.logs / "stacks-0.txt").read_text()
    assert "Training made no progress for 2 s" in run.text


@pytest.mark.slow
def test_training_that_hangs_again_ends_the_run(launch: Callable[..., Launched]) -> None:
    run = launch(trainer="hangs twice", limits={"step_timeout": 2.0, "stop_timeout": 0.5})
    assert run.wait() == 1
    assert len(run.starts()) == 2
    assert "launch.hang_restarts=1" in run.text


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["launcher", "trainer's guard", "server's guard"])
def test_whichever_is_killed_no_process_is_left(launch: Callable[..., Launched], victim: str) -> None:
    run = launch(server="good", steps=1000)
    until(run.steps)
    if victim == "launcher":
        run.process.kill()
        until(lambda: not run.processes())
    else:
        role = victim.partition("'")[0]
        os.kill(run.find(role, guard=True), signal.SIGKILL)
        if role == "server":  # it is restarted on the same port once the first one's processes are gone
            until(lambda: run.text.count("answers") == 2)
            run.process.terminate()
        assert run.wait() == (143 if role == "server" else 137)
        assert run.processes() == {}
    assert (run.run / "checkpoint").read_text() == str(run.steps()[-1])  # training was stopped, not killed


@pytest.mark.slow
@pytest.mark.parametrize("roles", ["server", "trainer", "server trainer"])
def test_launcher_and_guards_killed_together_leave_no_process(launch: Callable[..., Launched], roles: str) -> None:
    """So that the launcher cannot clean up: the other guard or the reaper ends what a killed guard has left."""
    run = launch(server="good", trainer="needs server", steps=1000, limits={"stop_timeout": 1.0})
    until(run.steps)
    os.kill(run.process.pid, signal.SIGSTOP)
    for role in roles.split():
        os.kill(run.find(role, guard=True), signal.SIGKILL)
    os.kill(run.process.pid, signal.SIGKILL)
    run.wait()
    until(lambda: not run.processes())


def test_a_killed_reaper_is_replaced(launch: Callable[..., Launched]) -> None:
    def reaper() -> list[int]:
        return [pid for pid, line in run.processes().items() if line.endswith(f"{os.devnull} 0 0")]

    run = launch(server="good", steps=1000)
    until(reaper)
    (first,) = reaper()
    os.kill(first, signal.SIGKILL)
    until(lambda: reaper() not in ([], [first]))
    run.process.terminate()
    assert run.wait() == 143
    assert run.processes() == {}


def test_one_scan_that_finds_nothing_is_not_enough() -> None:
    """A process that ends while processes are listed hides its child, which by then has another parent."""
    child = subprocess.Popen(["sleep", "600"])
    scans = iter([[], [psutil.Process(child.pid)]])
    assert _end(lambda: next(scans, []), grace=1.0) == 1
    child.wait(TIMEOUT)


@pytest.fixture
def two(launch: Callable[..., Launched]) -> Callable[..., list[Launched]]:
    """The launchers of two nodes that both train."""

    def start(**options: Any) -> list[Launched]:
        first = launch(node=0, both=True, steps=1000, **options)
        runs = [first, launch(node=1, both=True, steps=1000, folder=first.folder, **options)]
        until(lambda: all((first.folder / name / "metrics.jsonl").exists() for name in ("run", "run1")))
        until(lambda: all(file.read_text() for file in (first.logs / "nodes").glob("*-[01]")))  # alive
        return runs

    return start


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_a_node_that_is_lost_ends_the_other(two: Callable[..., list[Launched]], lost: int) -> None:
    """Its processes are frozen: as with a machine without power, nobody is told."""
    runs = two()
    pids = runs[lost].processes()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    began, other = time.monotonic(), runs[1 - lost]
    assert other.wait(60) == 1
    assert time.monotonic() - began < 30
    assert other.processes() == {}
    assert f"node {lost} is lost" in other.text
    assert "To resume, on each node" in other.text
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    runs[lost].process.terminate()
    runs[lost].wait()


@pytest.mark.slow
def test_a_node_that_fails_ends_the_other(two: Callable[..., list[Launched]]) -> None:
    runs = two()
    os.kill(runs[1].find("trainer"), signal.SIGKILL)
    assert [run.wait() for run in runs] == [1, 137]
    assert "node 1 has failed with exit code 137" in runs[0].text


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "asked"])
def test_a_node_that_stops_lets_the_other_write_its_checkpoint(two: Callable[..., list[Launched]], how: str) -> None:
    runs = two()
    if how == "killed":
        runs[1].process.kill()
    else:
        runs[1].process.terminate()
    assert [run.wait() for run in runs] == [143, -signal.SIGKILL if how == "killed" else 143]
    for name in ("run", "run1"):
        assert (runs[0].folder / name / "checkpoint").exists()
    assert ("node 1 is stopping" if how == "killed" else "node 1 was asked to stop") in runs[0].text
    assert all(run.processes() == {} for run in runs)


@pytest.mark.slow
def test_fifty_random_kills_leave_no_orphan(launch: Callable[..., Launched], tmp_path: Path) -> None:
    """Several launches at a time: they mostly wait."""

    def kill(seed: int, kills: int) -> None:
        chance = random.Random(seed)
        signals = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
        while kills > 0:
            folder = tmp_path / f"{seed}-{kills}"
            run = launch(server="good", trainer="needs server", steps=40, limits={"stop_timeout": 1.0}, folder=folder)
            time.sleep(chance.uniform(0.0, 1.5))
            while run.process.poll() is None and kills > 0:
                if processes := run.processes():
                    with suppress(ProcessLookupError):
                        os.kill(chance.choice(sorted(processes)), chance.choice(signals))
                        kills -= 1
                time.sleep(chance.uniform(0.0, 0.4))
            if run.process.poll() is None:
                run.process.terminate()
            run.process.wait(60)
            until(lambda ended=run: not ended.processes())

    with ThreadPoolExecutor(5) as pool:
        for done in [pool.submit(kill, seed, 10) for seed in range(5)]:
            done.result()
