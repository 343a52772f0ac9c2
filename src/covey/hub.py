"""The Hugging Face hub: whether it can be reached at all turns out at once, not after minutes of silent retries."""

from __future__ import annotations

import time
from typing import Any

_UNREACHABLE = {"ConnectError", "ConnectTimeout"}  # of httpx or httpx2, whichever huggingface_hub uses
_REMEMBERED_SECONDS = 30.0


def check_connection_once() -> None:
    """From now on the hub, until it has answered once, is asked once: if no connection can be made, it counts as in
    offline mode, so files in the cache load and others fail.

    By itself huggingface_hub repeats each request for half a minute, for each of a dozen files. What fails after an
    answer is repeated as before.
    """
    from huggingface_hub import constants, get_session
    from huggingface_hub.errors import OfflineModeIsEnabled

    client: Any = get_session()  # it goes through the user's proxy and certificates
    if hasattr(client, "covey_send"):
        return
    client.covey_send = send = client.send
    failed, failed_at, answered = "", 0.0, False

    def send_once(request: Any, **options: Any) -> Any:
        nonlocal failed, failed_at, answered
        if answered:
            return send(request, **options)
        if not failed or time.monotonic() - failed_at > _REMEMBERED_SECONDS:
            limits = request.extensions.setdefault("timeout", {})
            limits["connect"] = min(filter(None, (limits.get("connect"), constants.HF_HUB_ETAG_TIMEOUT)))
            try:
                response = send(request, **options)
            except Exception as error:
                if type(error).__name__ not in _UNREACHABLE:
                    raise
                failed, failed_at = f"{request.url.host} cannot be reached: {error}", time.monotonic()
            else:
                answered = True
                return response
        raise OfflineModeIsEnabled(failed)

    client.send = send_once
