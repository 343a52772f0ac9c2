"""Conversions of the keys by which other tools say where vLLM runs."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from covey.config.aliases.alias_result import AliasResult, AliasValueError
from covey.config.vllm import LOCAL_HOSTS

_DEVICE = re.compile(r"auto|(cuda|xpu|npu|hpu)(:\d+)?")


def vllm_url(value: Any) -> AliasResult:
    """A generation endpoint, of which the server's address is kept. On this machine it is where `covey launch` starts
    one, as the launcher of the project with this key does."""
    parts = urlsplit(value) if isinstance(value, str) else None
    try:
        port = None if parts is None else parts.port
    except ValueError:
        parts = port = None
    if parts is None or not parts.scheme or not parts.netloc:
        raise AliasValueError("must be an address such as http://localhost:8000/generate.")
    if parts.scheme == "http" and parts.hostname in LOCAL_HOSTS and port:
        return AliasResult({"training.vllm_server_host": parts.hostname, "training.vllm_server_port": port})
    return AliasResult({"training.vllm_server_base_url": f"{parts.scheme}://{parts.netloc}"})


def vllm_device(value: Any) -> AliasResult:
    """The GPU that older TRL kept for vLLM: any one, since the launcher chooses which."""
    if not isinstance(value, str) or not _DEVICE.fullmatch(value):
        raise AliasValueError("must be auto, or a GPU such as cuda:7.")
    return AliasResult({"launch.vllm_own_gpu": True})
