"""Health checks of a server."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request

_SECONDS = 2.0


def answers(url: str, timeout: float = _SECONDS) -> bool:
    """Whether a GET of this URL returns 200. Proxies are ignored: the server is one of ours."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError):
        return False
