"""The launcher's supervision, with real processes: what happens when one dies, hangs or is told to stop, and that
nothing is ever left behind.

The launcher runs in a process of its own (`launch_processes.py`) on a plan whose server and trainer are stand-ins;
each has a child that ignores SIGTERM. Every process of a test carries its mark in the environment, so that an orphan is
found wherever it went.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import random
import signal
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from covey.launch.ports import free_port
from covey.launch.progress import how_it_ended

MARK = "COVEY_TEST_MARK"
PATIENCE = 20.0


class Launched:
    """A launcher on stand-ins, and everything below it."""

    def __init__(self, root: Path, folder: Path, *, in_terminal: bool = False, **options: Any) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex
        self.run, self.logs = folder / "run", folder / "logs"
        self.run.mkdir(parents=True, exist_ok=True)
        self.port = options.pop("port", 0) or free_port(random.randrange(20_000, 40_000))
        (self.run / "port").write_text(str(self.port))
        self.output = folder / f"output-{self.mark}.txt"
        command = [sys.executable, str(root / "tests" / "launch_processes.py"), "launcher", str(folder)]
        environment = {**os.environ, MARK: self.mark, "PYTHONPATH": str(root / "src")}
        self.terminal, output = pty.openpty() if in_terminal else (-1, os.open(self.output, os.O_CREAT | os.O_WRONLY))
        self.process = subprocess.Popen(
            [*command, json.dumps({"port": self.port, **options})],
            env=environment,
            stdin=output if in_terminal else subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=(lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) if in_terminal else None,
        )
        os.close(output)

    def members(self) -> dict[int, str]:
        """All processes with this test's mark, the launcher among them: number and command line."""
        found = {}
        for one in psutil.process_iter():
            try:
                if one.environ().get(MARK) == self.mark and one.status() != psutil.STATUS_ZOMBIE:
                    found[one.pid] = " ".join(one.cmdline())
            except psutil.Error:
                continue
        return found

    def find(self, role: str, *, guard: bool = False) -> int:
        """The number of the server's or the trainer's process, or of its guard."""
        members = self.members()
        for pid, line in members.items():
            if f"launch_processes.py {role} " in line and ("guard.py" in line) == guard:
                return pid
        raise LookupError(f"no {role} in {members}: {self.said}")

    def wait(self) -> int:
        return self.process.wait(PATIENCE)

    def steps(self) -> list[int]:
        path = self.run / "metrics.jsonl"
        return [json.loads(line)["step"] for line in path.read_text().splitlines()] if path.exists() else []

    def starts(self) -> list[list[str]]:
        """The overrides of every start of training."""
        path = self.run / "starts.jsonl"
        return [json.loads(line)["words"] for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def said(self) -> str:
        return self.output.read_text()


def until(holds: Callable[[], Any], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


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
        deadline = time.monotonic() + PATIENCE
        while (left := one.members()) and time.monotonic() < deadline:
            time.sleep(0.05)
        orphans |= left
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert not orphans


def test_training_ends_and_takes_everything_with_it(launch: Callable[..., Launched]) -> None:
    run = launch(server="good", steps=3)
    assert run.wait() == 0
    assert run.members() == {}
    assert run.steps() == [1, 2, 3]
    assert f"vLLM server at http://127.0.0.1:{run.port} answers" in run.said


@pytest.mark.parametrize(
    ("trainer", "code", "said"),
    [
        ("fails", 3, "covey: the data are gone."),
        ("crashes", 1, "RuntimeError: shapes do not match"),
        ("killed", 137, "was killed by SIGKILL"),
    ],
)
def test_a_trainer_that_dies_ends_the_server_and_keeps_its_code(
    launch: Callable[..., Launched], trainer: str, code: int, said: str
) -> None:
    run = launch(server="good", trainer=trainer)
    assert run.wait() == code
    assert run.members() == {}
    assert said in run.said
    assert len(run.starts()) == 1


@pytest.mark.parametrize(
    ("told", "seen", "ended"),
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
    tmp_path: Path, told: dict[str, tuple[int, bool]], seen: int, ended: tuple[int, bool]
) -> None:
    for rank, (code, orderly) in told.items():
        (tmp_path / f"finish-{rank}.json").write_text(json.dumps({"code": code, "orderly": orderly}))
    (tmp_path / "finish-9.json").write_text("{")  # being written
    assert how_it_ended(tmp_path, seen) == ended


@pytest.mark.slow
def test_a_server_that_dies_is_started_again_and_training_goes_on(launch: Callable[..., Launched]) -> None:
    run = launch(server="good", steps=30)
    until(lambda: len(run.steps()) > 2)
    first = run.find("server")
    os.kill(first, signal.SIGKILL)
    until(lambda: run.said.count("answers") == 2)
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
    serving = launch(server="good", steps=15, node=1, port=training.port, folder=training.folder)
    until(lambda: len(training.steps()) > 2)
    os.kill(serving.find("server"), signal.SIGKILL)
    assert training.wait() == 0
    assert serving.wait() == 0
    assert training.members() == serving.members() == {}
    assert training.starts() == [[], ["resume=auto", "overwrite=false"]]
    assert serving.said.count("answers") == 2


@pytest.mark.slow
def test_a_server_that_keeps_dying_ends_the_run_with_the_reason(launch: Callable[..., Launched]) -> None:
    run = launch(server="good", steps=1000, patience={"server_restarts": 1})
    for answers in (1, 2):
        until(lambda count=answers: run.said.count("answers") == count and run.steps())
        os.kill(run.find("server"), signal.SIGKILL)
    assert run.wait() == 1
    assert "had been started again 1 times before (launch.server_restarts)" in run.said
    assert (run.run / "checkpoint").read_text() == str(run.steps()[-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "said"),
    [("broken", "ended with exit code 7 before it answered"), ("deaf", "did not answer within 1.5 s")],
)
def test_a_server_that_never_answers_is_shown_with_its_log(
    launch: Callable[..., Launched], server: str, said: str
) -> None:
    run = launch(server=server, patience={"server_timeout": 1.5})
    assert run.wait() == 1
    assert said in run.said
    assert "loading the model" in run.said
    assert ("RuntimeError: CUDA out of memory" in run.said) == (server == "broken")
    assert run.starts() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGUSR1, 143)]
)
def test_asked_to_stop_it_lets_training_write_its_checkpoint(
    launch: Callable[..., Launched], number: signal.Signals, code: int
) -> None:
    run = launch(server="good", steps=1000)
    until(run.steps)
    run.process.send_signal(number)
    run.process.send_signal(signal.SIGTERM)  # as a cluster sends one after the other: no second request
    assert run.wait() == code
    assert run.members() == {}
    assert (run.run / "checkpoint").read_text() == str(run.steps()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_job_that_is_pre_empted_finishes_its_step(launch: Callable[..., Launched], nodes: int) -> None:
    """Slurm's SIGTERM comes to all processes of a job at once: also to the server, which the step needs at its end."""
    options = {"server": "good", "trainer": "needs server late", "steps": 1000}
    runs = [launch(**options, **({"node": 0} if nodes == 2 else {}))]
    if nodes == 2:
        runs.append(launch(**options, node=1, port=runs[0].port, folder=runs[0].folder))
    until(runs[0].steps)
    for pid in [pid for run in runs for pid in run.members()]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    assert [run.wait() for run in runs] == [143] * nodes
    assert all(run.members() == {} for run in runs)
    assert "the server is gone" not in runs[0].said
    assert (runs[0].run / "checkpoint").read_text() == str(runs[0].steps()[-1])


@pytest.mark.slow
def test_a_terminal_that_is_closed_lets_training_write_its_checkpoint(launch: Callable[..., Launched]) -> None:
    run = launch(server="good", steps=1000, in_terminal=True)
    until(run.steps)
    assert b"step 1" in os.read(run.terminal, 65536)  # training draws on the terminal itself
    os.close(run.terminal)
    assert run.wait() == 129
    assert run.members() == {}
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
    assert run.members() == {}


@pytest.mark.slow
def test_training_that_does_not_stop_in_its_time_is_killed(launch: Callable[..., Launched]) -> None:
    run = launch(trainer="hangs", patience={"stop_timeout": 0.5})
    until(lambda: len(run.steps()) == 2)
    run.process.terminate()
    assert run.wait() == 143
    assert run.members() == {}


@pytest.mark.slow
def test_training_that_hangs_leaves_its_stacks_and_is_resumed(launch: Callable[..., Launched]) -> None:
    run = launch(server="good", trainer="hangs", patience={"step_timeout": 2.0, "stop_timeout": 0.5})
    assert run.wait() == 0
    assert run.starts() == [[], ["resume=auto", "overwrite=false"]]
    assert run.steps() == [1, 2, 3, 4, 5]
    assert "_wait_for_ever" in (run.logs / "stacks-0.txt").read_text()
    assert "Training made no progress for 2 s" in run.said


@pytest.mark.slow
def test_training_that_hangs_again_ends_the_run(launch: Callable[..., Launched]) -> None:
    run = launch(trainer="hangs twice", patience={"step_timeout": 2.0, "stop_timeout": 0.5})
    assert run.wait() == 1
    assert len(run.starts()) == 2
    assert "launch.hang_restarts=1" in run.said


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["launcher", "trainer's guard", "server's guard"])
def test_whoever_is_killed_nothing_is_left(launch: Callable[..., Launched], victim: str) -> None:
    run = launch(server="good", steps=1000)
    until(run.steps)
    if victim == "launcher":
        run.process.kill()
        until(lambda: not run.members())
    else:
        role = victim.partition("'")[0]
        os.kill(run.find(role, guard=True), signal.SIGKILL)
        if role == "server":  # which is started again, on the same port, once what is left of the first one is gone
            until(lambda: run.said.count("answers") == 2)
            run.process.terminate()
        assert run.wait() == (143 if role == "server" else 137)
        assert run.members() == {}
    assert (run.run / "checkpoint").read_text() == str(run.steps()[-1])  # training was asked, not killed


@pytest.mark.slow
@pytest.mark.parametrize("roles", ["server", "trainer", "server trainer"])
def test_launcher_and_guards_killed_in_one_moment_leave_nothing(launch: Callable[..., Launched], roles: str) -> None:
    """So that none of them can tidy up after the other: what one guard had is ended by the other, or by the warden."""
    run = launch(server="good", trainer="needs server", steps=1000, patience={"stop_timeout": 1.0})
    until(run.steps)
    os.kill(run.process.pid, signal.SIGSTOP)
    for role in roles.split():
        os.kill(run.find(role, guard=True), signal.SIGKILL)
    os.kill(run.process.pid, signal.SIGKILL)
    run.wait()
    until(lambda: not run.members())


def test_the_warden_is_replaced(launch: Callable[..., Launched]) -> None:
    def warden() -> list[int]:
        return [pid for pid, line in run.members().items() if line.endswith(f"{os.devnull} 0 0")]

    run = launch(server="good", steps=1000)
    until(warden)
    (first,) = warden()
    os.kill(first, signal.SIGKILL)
    until(lambda: warden() not in ([], [first]))
    run.process.terminate()
    assert run.wait() == 143
    assert run.members() == {}


@pytest.mark.slow
def test_fifty_random_kills_leave_no_orphan(launch: Callable[..., Launched], tmp_path: Path) -> None:
    """Several launches at a time: they mostly wait."""

    def kill(seed: int, kills: int) -> None:
        chance = random.Random(seed)
        signals = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
        while kills > 0:
            folder = tmp_path / f"{seed}-{kills}"
            run = launch(server="good", trainer="needs server", steps=40, patience={"stop_timeout": 1.0}, folder=folder)
            time.sleep(chance.uniform(0.0, 1.5))
            while run.process.poll() is None and kills > 0:
                if members := run.members():
                    with suppress(ProcessLookupError):
                        os.kill(chance.choice(sorted(members)), chance.choice(signals))
                        kills -= 1
                time.sleep(chance.uniform(0.0, 0.4))
            if run.process.poll() is None:
                run.process.terminate()
            run.process.wait(60)
            until(lambda ended=run: not ended.members())

    with ThreadPoolExecutor(5) as pool:
        for done in [pool.submit(kill, seed, 10) for seed in range(5)]:
            done.result()
