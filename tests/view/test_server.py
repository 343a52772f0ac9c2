"""`covey view` as a process: its address, its events, and its end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from completed import completed
from covey.cli.main import main
from covey.view import events as event_stream
from covey.view.app import serve
from covey.view.events import Changes, events_between
from made_run import make_run, write_evaluation

ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)/\?token=([\w-]{40,})\n")


@contextmanager
def served(
    root: Path, *words: object, program: Sequence[str] = ("-m", "covey")
) -> Iterator[tuple[subprocess.Popen[str], str, int]]:
    """A process that serves, with its token and port; killed at the end if it still runs."""
    command = [sys.executable, *program, "view", *map(str, words), "--no-open"]
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = ADDRESS.fullmatch(line)
            assert found, (line, process.stderr and process.stderr.read())
            yield process, found[2], int(found[1])
        finally:
            process.kill()


@contextmanager
def get(port: int, path: str, token: str) -> Iterator[HTTPResponse]:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        with connection.getresponse() as response:
            yield response
    finally:
        connection.close()


def events(stream: HTTPResponse) -> Iterator[tuple[str, object]]:
    """The events of a stream, with their data."""
    name = ""
    while line := stream.readline():
        text = line.decode().rstrip("\n")
        if text.startswith("event: "):
            name = text.removeprefix("event: ")
        elif text.startswith("data: "):
            yield name, json.loads(text.removeprefix("data: "))


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_a_signal(end: signal.Signals, root: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "out" / "first", steps=2)
    with served(root, tmp_path / "out", "--port", 0) as (process, token, port):
        with get(port, "/api/runs", token) as answer:
            assert [one["id"] for one in json.load(answer)] == ["first"]
        with get(port, "/api/events", token) as stream:
            assert stream.readline() == b"retry: 2000\n"
            with (run / "metrics.jsonl").open("a") as file:
                file.write('{"step": 3, "train/reward": 0.5}\n')
            found = events(stream)
            assert next(found) == ("changed", {"runs": ["first"]})
            make_run(tmp_path / "out" / "second", steps=1)
            assert "runs" in (event for event, _ in found)
            process.send_signal(end)  # with a stream that is open
            assert process.wait(60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == "Ctrl-C ends it.\n"


@pytest.fixture
def _own_signals() -> Iterator[None]:
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.usefixtures("_own_signals")
def test_it_opens_its_page_where_there_is_a_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process: what a browser asks for is answered, until it sends the signal."""
    run, announced, found, closed = make_run(tmp_path / "first", steps=2), list[str](), list[Any](), threading.Event()
    guard = threading.Timer(60, os.kill, (os.getpid(), signal.SIGTERM))  # if no browser is opened

    def browse(address: str) -> None:
        with ExitStack() as ending:
            ending.callback(closed.set)
            ending.callback(os.kill, os.getpid(), signal.SIGTERM)
            match = ADDRESS.fullmatch(f"{address}\n")
            assert match
            found.append(address)
            with get(int(match[1]), "/api/events", match[2]) as stream:
                found.append(stream.readline())
                with (run / "metrics.jsonl").open("a") as file:
                    file.write('{"step": 3, "train/reward": 0.5}\n')
                found.append(next(events(stream)))

    monkeypatch.setattr(event_stream, "EVERY", 0.02)
    monkeypatch.setattr(logging.getLogger("uvicorn.error"), "filters", [])
    monkeypatch.setattr(webbrowser, "open", browse)
    monkeypatch.setenv("DISPLAY", ":0")
    guard.start()
    serve(tmp_path, 0, announce=announced.append, open_page=True)
    guard.cancel()
    assert closed.wait(60)
    assert found == [*announced, b"retry: 2000\n", ("changed", {"runs": ["first"]})]


@pytest.mark.usefixtures("_own_signals")
def test_without_a_screen_no_page_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text browser would take the terminal."""
    opened: list[str] = []
    monkeypatch.setattr(logging.getLogger("uvicorn.error"), "filters", [])
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    serve(tmp_path, 0, announce=lambda _: os.kill(os.getpid(), signal.SIGINT), open_page=True)
    assert opened == []


def test_a_quiet_stream_is_kept_open_and_ends_with_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "EVERY", 0.01)
    monkeypatch.setattr(event_stream, "KEEP_ALIVE", 0.03)
    ended: list[bool] = []

    async def listen() -> list[str]:
        stream = Changes(SimpleNamespace(signatures=lambda: {"a": (1,)}), lambda: bool(ended)).stream()  # type: ignore[arg-type]
        found = [await anext(stream) for _ in range(3)]
        ended.append(True)
        return found + [text async for text in stream]

    assert asyncio.run(listen()) == ["retry: 2000\n\n", ": still here\n\n", ": still here\n\n"]


ENDLESS = """
import sys, threading
import covey.view.app
from covey.cli.main import main
covey.view.app.run_page = lambda record: threading.Event().wait()
sys.exit(main())
"""


def test_a_signal_ends_it_while_an_answer_is_computed_and_another_request_is_incomplete(
    root: Path, tmp_path: Path
) -> None:
    make_run(tmp_path / "a", steps=1)
    with served(root, tmp_path, "--port", 0, program=("-c", ENDLESS)) as (process, token, port):
        connections = [HTTPConnection("127.0.0.1", port) for _ in range(3)]
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", "Content-Length": "100"}
        for _ in range(2):  # one sender goes, one stays
            connections[0].request("POST", "/api/tags", headers=headers)
            connections[0].close()
        connections[1].request("POST", "/api/tags", headers=headers)
        connections[2].request("GET", "/api/run?id=a", headers={"Authorization": f"Bearer {token}"})
        with get(port, "/api/runs", token) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        for one in connections:
            one.close()
        assert process.stderr is not None
        assert process.stderr.read() == "Ctrl-C ends it.\n"


def test_no_answer_needs_pytorch(root: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_evaluation(make_run(tmp_path / name, steps=2), 2, [0, 1])
    script = """
import sys
from pathlib import Path
from starlette.testclient import TestClient
from covey.view.app import make_app
view = TestClient(make_app(Path(), "token", "cookie"), "http://localhost", headers={"authorization": "Bearer token"})
asked = ("runs?baseline=a", "run?id=a", "curves?id=a", "sources?id=a", "search?q=1&id=a", "compare?a=a&b=b")
answers = {one: view.get(f"/api/{one}") for one in asked}
assert {one.status_code for one in answers.values()} == {200}, answers
assert not {"torch", "transformers", "trl", "datasets"} & set(sys.modules)
"""
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    command = [sys.executable, "-c", script]
    done = completed(command, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr


def test_what_two_looks_at_the_folder_tell() -> None:
    before = {"a": (1,), "b": (1,), "c": (1,)}
    assert events_between(before, before) == []
    changed = 'event: changed\ndata: {"runs": ["a", "b"]}\n\n'
    assert events_between(before, {"a": (2,), "b": (2,), "c": (1,)}) == [changed]
    assert events_between(before, {"a": (1,), "d": (1,)}) == ["event: runs\ndata: {}\n\n"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["missing"], "missing does not exist: name a run, or the folder that runs were written to"),
        ([".", "--port", "70000"], "--port 70000 is no port: those are 1 to 65535, and 0 takes any free one."),
        ([".", "--port", "-1"], "--port -1 is no port"),
    ],
)
def test_what_cannot_be_served(
    words: Sequence[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["view", "--no-open", *words]) == (1 if words == ["missing"] else 2)  # not there; wrong usage
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"covey: {message}")
    assert captured.err.count("\n") == 1


def test_a_port_that_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["view", str(tmp_path), "--port", str(port), "--no-open"]) == 2
    captured = capsys.readouterr()
    assert captured.err == (
        f"covey: Port {port} is taken by another program. Choose another with --port, or --port 0 for any free one.\n"
    )
