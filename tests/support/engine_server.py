"""A vLLM server as the trainer's client sees it, without a model: it writes functions of a prompt, and can die."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from completion_server import choice
from covey.rollout.vllm.engine import WORKER
from covey.rollout.vllm.serve import INSTANCE_HEADER
from covey.rollout.weight_folder import read_folder


class EngineServer(ThreadingHTTPServer):
    """A server on a free port, in a thread."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, instance: str, *, port: int = 0, model: str = "m", workers: int = 1) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.instance, self.model, self.workers = instance, model, workers
        self.seconds = 0.0
        """How long it takes to answer a request for completions."""
        self.answers_left: int | None = None
        """After so many requests for completions it drops connections; None: never."""
        self.fails = False
        """Whether it answers 500, as one whose engine has died."""
        self.calls: list[tuple[str, Any]] = []
        self.weights: dict[str, float] = {}
        self.adapters: list[str] = []
        self.takes_weights = True
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def asked(self, path: str) -> list[Any]:
        """What was sent to this path."""
        return [body for called, body in self.calls if called == path]

    def prompts(self) -> list[list[int]]:
        """The prompts of which completions were asked."""
        asked = [body["prompt"] for body in self.asked("/v1/completions") if "prompt_logprobs" not in body]
        return [prompt for one in asked for prompt in (one if isinstance(one[0], list) else [one])]

    def stop(self) -> None:
        """End it, as if it had been killed."""
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A dropped connection is part of the test."""


@contextmanager
def engine_servers(count: int, **options: Any) -> Iterator[list[EngineServer]]:
    """So many servers, called `a`, `b`, …"""
    servers = [EngineServer("abcdef"[number], **options) for number in range(count)]
    try:
        yield servers
    finally:
        for server in servers:
            server.stop()


def written(prompt: list[int], number: int) -> list[int]:
    """The `number`-th completion of a prompt."""
    return [*prompt, 50 + number]


class _Handler(BaseHTTPRequestHandler):
    server: EngineServer

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""

    def do_GET(self) -> None:
        server, path = self.server, self.path.partition("?")[0]
        self._answer(
            {
                "/health": {},
                "/v1/models": {"data": [{"id": server.model}]},
                "/get_world_size": {"world_size": server.workers},
                "/server_info": {
                    "vllm_config": {
                        "model_config": {"dtype": "torch.float32", "max_model_len": 64, "max_logprobs": -1},
                        "lora_config": {"max_lora_rank": 16, "target_modules": ["q_proj"]},
                        "parallel_config": {"data_parallel_size": 1, "worker_extension_cls": WORKER},
                        "weight_transfer_config": {"backend": "nccl"},
                    }
                },
            }[path]
        )

    def do_POST(self) -> None:
        server, path = self.server, self.path.partition("?")[0]
        body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or "{}")
        with server.lock:
            server.calls.append((path, body))
        if self.server.fails:
            self._answer({"error": "the engine is dead"}, 500)
        elif path == "/v1/completions" and "prompt_logprobs" in body:
            self._answer({"choices": [self._logps(row) for row in body["prompt"]]})
        elif path == "/v1/completions":
            with server.lock:
                dies = server.answers_left == 0
                server.answers_left = None if server.answers_left is None else max(0, server.answers_left - 1)
            if dies:
                self.connection.close()
                return
            time.sleep(server.seconds)
            single = not isinstance(body["prompt"][0], list)
            choices = [choice(body)] if single else [_choice(p, n) for p in body["prompt"] for n in range(body["n"])]
            self._answer({"choices": choices})
        elif path == "/collective_rpc":
            if server.takes_weights:
                server.weights = {name: float(w.sum()) for name, w in read_folder(Path(body["args"][0]))}
            self._answer({"results": [{"tensors": len([*read_folder(Path(body["args"][0]))])}] * server.workers})
        else:
            if path == "/v1/load_lora_adapter":
                server.adapters.append(body["lora_name"])
            self._answer({})

    def _logps(self, row: list[int]) -> dict[str, Any]:
        """Log-probabilities that tell its weights."""
        logp = -sum(self.server.weights.values()) / 100
        return {"prompt_logprobs": [None, *({str(token): {"logprob": logp}} for token in row[1:])]}

    def _answer(self, content: Any, status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header(INSTANCE_HEADER, self.server.instance)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _choice(prompt: list[int], number: int) -> dict[str, Any]:
    ids = written(prompt, number)
    names = [f"token_id:{token}" for token in ids]
    logps = {"tokens": names, "token_logprobs": [-0.5] * len(ids), "top_logprobs": [{name: -0.5} for name in names]}
    return {"prompt_token_ids": prompt, "token_ids": ids, "logprobs": logps, "finish_reason": "stop"}
