"""An HTTP server that answers as vLLM's does, without a model: what it writes is a function of each request's seed."""

from __future__ import annotations

import json
import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import requests

from covey.rollout.vllm.serve import INSTANCE_HEADER

SLOW = 3
"""A request whose prompt begins with this token is not answered before it is aborted or `released`."""


class CompletionServer(ThreadingHTTPServer):
    """A server on a free port, in a thread."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, instance: str = "first") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.instance = instance
        self.released = threading.Event()
        self.aborted = threading.Event()
        self.paused = False
        self.dies_after: int | None = None
        """After so many completions it drops connections."""
        self.received: list[dict[str, Any]] = []
        self.commands: list[str] = []
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A dropped connection is part of the test."""


class _Handler(BaseHTTPRequestHandler):
    server: CompletionServer

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""

    def do_POST(self) -> None:
        server = self.server
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        path = self.path.partition("?")[0]
        if path != "/v1/completions":
            with server.lock:
                server.commands.append(path)
                server.paused = path == "/pause"
            (server.aborted.set if path == "/pause" else server.aborted.clear)()
            self._answer(200, {})
            return
        asked = json.loads(body)
        with server.lock:
            server.received.append(asked)
            dies = server.dies_after is not None and len(server.received) > server.dies_after
        if dies:
            self.connection.close()
            return
        aborted = asked["prompt"][0] == SLOW and not self._waited()
        if asked["prompt"][0] == 0:
            self._answer(400, {"error": "too long"})
            return
        self._answer(200, {"choices": [choice(asked, aborted=aborted)]})

    def _waited(self) -> bool:
        """Wait until it is released; false if it is aborted first."""
        while not self.server.released.wait(0.01):
            if self.server.aborted.is_set():
                return False
        return True

    def _answer(self, status: int, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header(INSTANCE_HEADER, self.server.instance)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def choice(asked: dict[str, Any], *, aborted: bool = False) -> dict[str, Any]:
    """What is written for a request: tokens from 10 to 99, the probability of each 1/2; with a support, of two."""
    draw = random.Random(asked["seed"])
    length = min(draw.randint(1, 6), asked["max_tokens"]) if not aborted else 1
    ids = [draw.randrange(10, 99) for _ in range(length)]
    tops = [{f"token_id:{token}": -0.7, f"token_id:{token + 1}": -0.7, "token_id:5": -9999.0} for token in ids]
    logps = {
        "tokens": [f"token_id:{token}" for token in ids],
        "token_logprobs": [-0.7] * length,
        "top_logprobs": [dict(list(top.items())[: asked["logprobs"]]) or None for top in tops],
    }
    why = "abort" if aborted else "length" if length == asked["max_tokens"] else "stop"
    return {"token_ids": ids, "finish_reason": why, "logprobs": None if asked["logprobs"] is None else logps}


class FakeClient:
    """The trainer's client of such a server; `next_server` takes over once the first one is lost."""

    model = "model"

    def __init__(self, server: CompletionServer) -> None:
        self.session = requests.Session()
        self.session.headers["Authorization"] = "Bearer key"
        self.instance: str | None = server.instance
        self.base_url = server.address
        self.next_server: CompletionServer | None = None
        self.loaded: list[list[str]] = []
        self.lost: list[str] = []
        self.noted: list[int] = []

    @property
    def live(self) -> list[FakeClient]:
        return [self]

    def note(self, one: FakeClient, seconds: float, tokens: int) -> None:
        self.noted.append(tokens)

    def reconnect(self) -> None:
        if self.next_server is not None:
            self.base_url, self.instance = self.next_server.address, self.next_server.instance

    def send_folder(self, folder: Path) -> None:
        self.loaded.append(sorted(file.name for file in folder.iterdir()))

    def reset_prefix_cache(self) -> None:
        pass

    def take_lost(self) -> str | None:
        return self.lost.pop() if self.lost else None
