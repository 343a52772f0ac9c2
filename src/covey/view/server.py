"""Serving the view on this machine until it is stopped."""

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
from pathlib import Path

import uvicorn

from covey.errors import ConfigError
from covey.view.app import make_app

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
