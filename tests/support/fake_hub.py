"""A fake of the Hugging Face hub's HTTP API for pushing models: it keeps what was committed.

Written from the requests that huggingface_hub makes; `refusing` lets it answer like a hub that is down.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import yaml

TOKEN = "hf_standin"


@dataclass
class Hub:
    """The requests to the fake hub, and its contents."""

    address: str = ""
    refusing: int = 0
    """An HTTP status that every request is answered with; 0 answers properly."""
    requests: list[str] = field(default_factory=list)
    private: dict[str, bool | None] = field(default_factory=dict)
    branches: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    """By repository and branch: the files."""
    messages: list[str] = field(default_factory=list)

    def answer(self, method: str, path: str, token: str | None, body: bytes) -> tuple[int, Any]:
        self.requests.append(f"{method} {path}")
        if self.refusing:
            return self.refusing, {"error": "the fake hub is down"}
        if token != f"Bearer {TOKEN}":
            return 401, {"error": "Invalid username or password."}
        if path == "/api/whoami-v2":
            return 200, {"name": "somebody", "type": "user", "orgs": []}
        if path == "/api/repos/create":
            request = json.loads(body)
            name = f"{request.get('organization') or 'somebody'}/{request['name']}"
            if name in self.branches:
                return 409, {"error": "You already created this model repo", "url": f"{self.address}/{name}"}
            # newer and older clients
            self.private[name] = request.get("visibility") == "private" or request.get("private")
            self.branches[name] = {"main": {}}
            return 200, {"url": f"{self.address}/{name}"}
        if path == "/api/validate-yaml":  # of the card, before it is committed
            yaml.safe_load(json.loads(body)["content"].split("---\n")[1])
            return 200, {"errors": [], "warnings": []}
        parts = path.removeprefix("/api/models/").split("/")
        name, what, revision = "/".join(parts[:2]), parts[2] if len(parts) > 2 else "", "/".join(parts[3:])
        if name not in self.branches:
            return 404, {"error": "Repository not found"}
        branches = self.branches[name]
        if what == "branch":
            if revision in branches:
                return 409, {"error": "Reference already exists"}
            branches[revision] = dict(branches["main"])
            return 200, {}
        if revision and revision not in branches:
            return 404, {"error": f"Invalid rev id: {revision}"}
        if what == "preupload":
            files = json.loads(body)["files"]
            return 200, {"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]}
        if what == "commit":
            for line in body.decode().splitlines():
                entry = json.loads(line)
                if entry["key"] == "header":
                    self.messages.append(entry["value"]["summary"])
                if entry["key"] == "file":
                    branches[revision][entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            return 200, {"commitUrl": f"{self.address}/{name}/commit/abc", "commitOid": "a" * 40, "hookOutput": ""}
        return 200, {"id": name, "sha": "a" * 40, "siblings": [{"rfilename": f} for f in branches[revision or "main"]]}


@contextmanager
def hub() -> Iterator[Hub]:
    """The fake hub, on its own port."""
    served = Hub()

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            if "chunked" in self.headers.get("Transfer-Encoding", ""):
                body = b""
                while size := int(self.rfile.readline().strip() or b"0", 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
            else:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, content = served.answer(self.command, self.path, self.headers.get("Authorization"), body)
            text = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text)

        do_GET = do_POST = do_PUT = do_HEAD = _serve  # noqa: N815  the names that http.server looks for

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
