"""Free TCP ports."""

from __future__ import annotations

import socket
from collections.abc import Container

_TRIES = 100


def is_free(port: int) -> bool:
    """Whether a server could listen on this port on all addresses of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # A port in TIME_WAIT counts as free, as it does for servers.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def free_port(wanted: int, taken: Container[int] = ()) -> int:
    """The wanted port if it is free, else the next free one above it, else any free one.

    Args:
        wanted: the preferred port.
        taken: ports that are reserved for something else.
    """
    for port in range(wanted, min(wanted + _TRIES, 65536)):
        if port not in taken and is_free(port):
            return port
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
