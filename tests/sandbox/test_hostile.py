"""Hostile programs in the sandbox: nothing gets out, nothing hangs, and honest programs beside them are not lost."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from covey.sandbox import Ended, Finished, Limits, Program, run, strictest
from hostile_programs import EXHAUSTING, FORGING, REACHING, READING, WRITING

LIMITS = Limits(seconds=1.0, memory_mb=256)


@dataclass
class Outside:
    """What hostile programs are to leave alone."""

    folder: Path
    secret: str
    words: dict[str, object]
    received: list[bytes] = field(default_factory=list)

    def attack(self, source: str, limits: Limits = LIMITS) -> Finished:
        filled = source.format(**self.words)
        (found,) = run(Program.of(filled), [b"7\n"], limits)
        return found

    def is_untouched(self) -> bool:
        file = self.folder / "secret.txt"
        assert file.read_text() == self.secret
        assert file.stat().st_mode & 0o777 == 0o644
        assert [path.name for path in self.folder.iterdir()] == ["secret.txt"]
        mark = str(self.words["mark"])
        for place in ("/tmp", "/var/tmp", "/dev/shm", Path.home()):
            assert not [path for path in Path(place).iterdir() if mark in path.name]
        assert not self.received
        return True


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    if strictest().kind != "bubblewrap":
        pytest.skip(f"programs run {strictest()}: bubblewrap is missing, or not allowed here")
    folder = tmp_path_factory.mktemp("outside")
    secret = secrets.token_hex(16)
    (folder / "secret.txt").write_text(secret)
    os.environ["COVEY_TEST_SECRET"] = secret
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        name = f"covey-{secrets.token_hex(8)}"
        local.bind(f"\0{name}")
        local.listen()
        found = Outside(folder, secret, {})
        found.words = {
            "file": folder / "secret.txt",
            "folder": folder,
            "secret": secret,
            "pid": os.getpid(),
            "port": server.getsockname()[1],
            "socket": name,
            "mark": f"mark{secrets.token_hex(8)}",
        }
        for listening in (server, local):
            threading.Thread(target=_accept, args=(listening, found.received), daemon=True).start()
        yield found
        del os.environ["COVEY_TEST_SECRET"]


def _accept(listening: socket.socket, received: list[bytes]) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:  # closed
            return
        received.append(connection.recv(1000))


@pytest.mark.parametrize("name", READING)
def test_nothing_outside_can_be_read(outside: Outside, name: str) -> None:
    found = outside.attack(READING[name])
    assert outside.secret.encode() not in found.stdout + found.stderr


@pytest.mark.parametrize("name", WRITING)
def test_nothing_outside_can_be_changed(outside: Outside, name: str) -> None:
    found = outside.attack(WRITING[name])
    assert found.ended is not Ended.OK or name in ("tmp", "shared_memory", "remove_tree")
    assert outside.is_untouched()


@pytest.mark.parametrize("name", REACHING)
def test_no_network_and_no_other_process(outside: Outside, name: str) -> None:
    outside.attack(REACHING[name])
    assert outside.is_untouched()
    assert psutil.Process().status() != psutil.STATUS_STOPPED
    assert psutil.Process().nice() == 0 or name != "renice"


@pytest.mark.slow
@pytest.mark.parametrize("name", EXHAUSTING)
def test_what_uses_too_much_is_ended(outside: Outside, name: str) -> None:
    """An honest program that runs at the same time gives its answer."""
    with ThreadPoolExecutor(1) as pool:
        honest = pool.submit(run, Program.of("print(sum(range(int(input()))))"), [b"10\n"] * 3, Limits(seconds=5.0))
        found = outside.attack(EXHAUSTING[name])
        assert [one.stdout for one in honest.result()] == [b"45\n"] * 3
    assert found.ended is not Ended.OK or name in ("exits", "daemon")
    assert len(found.stdout) <= LIMITS.output_kb << 10
    mark = str(outside.words["mark"])
    assert not [p for p in psutil.process_iter(["cmdline"]) if mark in " ".join(p.info["cmdline"] or ())]


@pytest.mark.parametrize("name", FORGING)
def test_no_other_run_takes_a_forged_result(outside: Outside, name: str) -> None:
    """What a program claims is its own output at most: a run after it is judged by what that prints."""
    forging = FORGING[name].format(**outside.words)
    source = f"import sys\nif input() == '7':\n    exec({forging!r})\nelse:\n    print(5)\n"
    found = run(Program.of(source), [b"7\n", b"8\n"], LIMITS)
    assert len(found) == 2
    assert found[1].stdout in (b"5\n", b"")
