"""What the endpoints share: JSON of any text, and what a request must say."""

from __future__ import annotations

import json
import math
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

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
