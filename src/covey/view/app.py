"""The web application of `covey view`: its routes, what they answer, and its server on this machine."""

from __future__ import annotations

import errno
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePath

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from covey.errors import ConfigError, CoveyError
from covey.report.compare import overlaid
from covey.report.panels import chart_data, make_sections
from covey.runlog.notes import Tags, write_tags
from covey.view import compare, completions
from covey.view.compare import Baseline
from covey.view.events import Changes
from covey.view.http import Guard, Json, sent, wanted
from covey.view.runs import DAMAGED, RunStore, UnknownRunError, damage_text, run_page, signature

PAGE = "index.html"
_ASSETS = ("covey.view", "covey.report")
"""The packages whose folders `assets` are served; the first one that has a file wins."""
_LONGEST = 100  # letters of a file's name
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def make_app(root: Path, token: str, cookie: str, ending: Callable[[], bool] = lambda: False) -> Starlette:
    """The application for the runs of a folder.

    Args:
        root: the folder, or one run.
        token: what every request must show.
        cookie: the name of the cookie that holds it.
        ending: whether the server is about to end.

    Raises:
        ConfigError: the folder does not exist.
    """
    store = RunStore(root)
    view = _View(store, token, cookie, Changes(store, ending))
    return Starlette(
        routes=[
            Route("/", view.page),
            Route("/assets/{name}", view.asset),
            Route("/api/runs", view.runs),
            Route("/api/run", view.run),
            Route("/api/curves", view.curves),
            Route("/api/events", view.events),
            Route("/api/tags", view.tags, methods=["POST"]),
            *completions.routes(store),
            *compare.routes(store),
        ],
        middleware=[Middleware(Guard, token=token, cookie=cookie)],
        exception_handlers=dict.fromkeys(DAMAGED, _damaged) | {CoveyError: _explain, FileNotFoundError: _gone},
    )


class _View:
    """The endpoints; those that are not `async` run in threads."""

    def __init__(self, store: RunStore, token: str, cookie: str, changes: Changes) -> None:
        self._store = store
        self._token = token
        self._cookie = cookie
        self._changes = changes
        self._baseline = Baseline(store)

    def page(self, request: Request) -> Response:
        response = Response(_asset(PAGE).read_bytes(), media_type="text/html; charset=utf-8")
        response.set_cookie(self._cookie, self._token, httponly=True, samesite="strict")
        return response

    def asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        if (kind := _TYPES.get(PurePath(name).suffix)) is None or len(name) > _LONGEST:
            raise FileNotFoundError(name)
        return Response(_asset(name).read_bytes(), media_type=kind)

    def runs(self, request: Request) -> Response:
        entries = self._store.entries()
        listed = [entry.as_json() for entry in entries]
        if baseline := request.query_params.get("baseline"):
            found = self._baseline.differences(baseline, entries)
            listed = [one | ({"difference": found[one["id"]]} if one["id"] in found else {}) for one in listed]
        return Json(listed)

    def run(self, request: Request) -> Response:
        identity = wanted(request, "id")
        entry = self._store.entry(identity)
        page = run_page(self._store.record(identity)) if entry.kind == "run" else {}
        return Json({"entry": entry.as_json(), **page})

    def curves(self, request: Request) -> Response:
        identities = request.query_params.getlist("id") or [wanted(request, "id")]
        # Before the files are read: they may grow meanwhile.
        version = str(hash(tuple(signature(self._store.path(one)) for one in identities)))
        if version == request.query_params.get("after"):
            return Response(status_code=304)
        records = [self._store.record(identity) for identity in identities]
        names = [record.name for record in records]
        labels = names if len(set(names)) == len(names) else identities
        (one, *more) = records
        sections = overlaid(records, labels) if more else make_sections(one.rows, one.config)
        return Json({"version": version, **chart_data(sections, [record.rows for record in records])})

    async def events(self, request: Request) -> Response:
        return StreamingResponse(self._changes.stream(), media_type="text/event-stream")

    async def tags(self, request: Request) -> Response:
        given = await sent(request)
        identity = str(given.get("id"))
        folder = self._store.path(identity)
        write_tags(folder, Tags.of(given.get("tags", []), given.get("note", "")))
        return Json(self._store.entry(identity).as_json())


def _asset(name: str) -> Traversable:
    found = [file for package in _ASSETS if (file := files(package) / "assets" / name).is_file()]
    if not found or "/" in name or "\\" in name:
        raise FileNotFoundError(name)
    return found[0]


def _explain(request: Request, error: Exception) -> Response:
    status = 404 if isinstance(error, UnknownRunError) else 400 if isinstance(error, ConfigError) else 409
    return Json({"error": str(error)}, status)


def _damaged(request: Request, error: Exception) -> Response:
    named = [one for key in ("id", "a", "b") for one in request.query_params.getlist(key)]
    return Json({"error": damage_text(" or ".join(named), error)}, 409)


def _gone(request: Request, error: Exception) -> Response:
    return Json({"error": f"{getattr(error, 'filename', None) or error} is not there."}, 404)


HOST = "127.0.0.1"
USUAL_PORT = 8420


def serve(root: Path, port: int | None = None, *, announce: Callable[[str], None], open_page: bool = False) -> None:
    """Serve the view of a folder until SIGTERM or SIGINT.

    Args:
        root: the folder of runs, or one run.
        port: 0 takes any free one; None the usual one, or another if that is taken.
        announce: gets the address with the token, once requests are accepted.
        open_page: whether to open the address in a browser, where there is a screen.

    Raises:
        ConfigError: the folder does not exist, or the port is taken or reserved.
    """
    with _listen(port) as listening:
        chosen = listening.getsockname()[1]
        token = secrets.token_urlsafe(32)
        server: uvicorn.Server
        app = make_app(root, token, f"covey_view_{chosen}", ending=lambda: server.should_exit)
        # Warnings would tell of every request that is not HTTP.
        config = uvicorn.Config(
            app,
            ws="none",
            lifespan="off",
            log_level="error",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=2,
        )
        server = uvicorn.Server(config)
        # A request that is cut off at the end is no error.
        logging.getLogger("uvicorn.error").addFilter(lambda _: not server.should_exit)

        def stop(*_: object) -> None:
            server.should_exit = True

        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, stop)  # the server raises the signal again when it has ended
        address = f"http://{HOST}:{chosen}/?token={token}"
        announce(address)
        # Without a window, a text browser would take the terminal.
        screen = sys.platform != "linux" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
        if open_page and screen:
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        server.run(sockets=[listening])


def _listen(port: int | None) -> socket.socket:
    """A listening socket: requests wait from now on until they are served."""
    if port is not None and not 0 <= port < 2**16:
        raise ConfigError(f"--port {port} is no port: those are 1 to 65535, and 0 takes any free one.")
    try:
        return socket.create_server((HOST, USUAL_PORT if port is None else port))
    except OSError as error:
        if port is None and error.errno == errno.EADDRINUSE:
            return socket.create_server((HOST, 0))
        problem = {errno.EADDRINUSE: "is taken by another program", errno.EACCES: "is reserved for the system"}
        if error.errno not in problem:
            raise
        raise ConfigError(
            f"Port {port} {problem[error.errno]}. Choose another with --port, or --port 0 for any free one."
        ) from error
