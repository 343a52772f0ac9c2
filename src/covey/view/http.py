"""What the endpoints share: JSON of any text, what a request must say, and who may ask.

Pages of this machine that know the token may. The address that `covey view` prints holds it; the page's first load
turns it into a cookie, and programs send it as `Authorization: Bearer` or in the query. The host's name is checked too,
since a foreign page could give its own name the address of this machine (DNS rebinding). Answers are stored nowhere.
"""

from __future__ import annotations

import json
import math
import secrets
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from covey.errors import ConfigError
from covey.runlog.files import parse_json

MOST_BYTES = 100_000
"""Of what is sent to the server."""


class Json(JSONResponse):
    """JSON of any text: lone surrogates are escaped, and what is not finite is null."""

    def render(self, content: Any) -> bytes:
        try:
            return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
        except ValueError:
            return json.dumps(_finite(content), separators=(",", ":")).encode()


def wanted(request: Request, name: str) -> str:
    """A parameter of the query.

    Raises:
        ConfigError: it is missing.
    """
    value = request.query_params.get(name)
    if value is None:
        raise ConfigError(f"{request.url.path} needs ?{name}=….")
    return value


async def sent(request: Request) -> dict[str, Any]:
    """The JSON object that was sent.

    Raises:
        ConfigError: it is none, too long, or its sender has gone.
    """
    body = b""
    try:
        async for part in request.stream():
            body += part
            if len(body) > MOST_BYTES:
                raise ConfigError(f"At most {MOST_BYTES:,} bytes can be written here.")
    except ClientDisconnect as error:
        raise ConfigError("The connection ended before all was sent.") from error
    try:
        content = parse_json(body)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ConfigError("What is written here is a JSON object.")
    return content


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


HOSTS = ("127.0.0.1", "localhost", "::1")
"""Names of this machine."""
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Guard:
    """Middleware that lets requests pass that have the token, and adds the headers of every answer."""

    def __init__(self, app: ASGIApp, token: str, cookie: str) -> None:
        self._app = app
        self._token = token
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # there are no web sockets
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refused = self._refused(Request(scope))
        await (refused or self._app)(scope, receive, send_with_headers)

    def _refused(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        if _name(host) not in HOSTS:
            return _refuse(request, 403, f"This server answers only at {', '.join(HOSTS)}.")
        if not any(secrets.compare_digest(given.encode(), self._token.encode()) for given in self._given(request)):
            return _refuse(request, 401, "Open the address that `covey view` printed: it ends with ?token=… .")
        if request.method in ("GET", "HEAD"):
            return None
        if request.headers.get("origin", f"http://{host}") != f"http://{host}":
            return _refuse(request, 403, "Another page may not change anything here.")
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return _refuse(request, 415, "What is written here is sent as application/json.")
        return None

    def _given(self, request: Request) -> list[str]:
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        found = [request.query_params.get("token"), request.cookies.get(self._cookie)]
        return [one for one in (*found, bearer if scheme.lower() == "bearer" else None) if one]


def _name(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _refuse(request: Request, status: int, reason: str) -> Response:
    if "text/html" in request.headers.get("accept", ""):  # somebody has opened the address
        return Response(f"{reason}\n", status, media_type="text/plain")
    return Json({"error": reason}, status)
