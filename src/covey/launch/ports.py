"""Ports: whether one is free, and one that is."""

from __future__ import annotations

import socket
from collections.abc import Container

_TRIES = 100


def is_free(port: int) -> bool:
    """Whether a server could listen there on all addresses of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # A port whose last server ended a minute ago counts as free, as it does for servers.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def free_port(wanted: int, taken: Container[int] = ()) -> int:
    """The wanted port if it is free, else the next free one above it, else any.

    Args:
        wanted: the port that would be best.
        taken: ports that are promised to somebody else.
    """
    for port in range(wanted, min(wanted + _TRIES, 65536)):
        if port not in taken and is_free(port):
            return port
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
