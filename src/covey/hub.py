"""The Hugging Face hub's connection, and downloads from Kaggle.

A model on Kaggle is `kaggle://owner/model/framework/variation`, optionally with a version; a dataset is
`kaggle://owner/name`, or `kaggle://owner/name/file` for one of its files.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from covey.advice import install
from covey.errors import CoveyError, DataError, ModelError, one_line

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


KAGGLE = "kaggle://"
"""What addresses on Kaggle begin with."""


def model_handle(address: str) -> str:
    """The handle that kagglehub takes, from an address. Raises a `ModelError` if it has another format, or a framework
    that transformers cannot read."""
    parts = [part for part in address.removeprefix(KAGGLE).split("/") if part]
    if len(parts) not in (4, 5) or (len(parts) == 5 and not parts[4].isdigit()):
        raise ModelError(
            f"model.name={address} is not a model on Kaggle: write {KAGGLE}owner/model/transformers/variation, "
            "optionally followed by /VERSION."
        )
    if parts[2].lower() not in ("transformers", "pytorch"):
        raise ModelError(
            f"model.name={address}: these are weights for {parts[2]}, which Covey cannot read. Use the model's "
            f"transformers weights: {KAGGLE}{parts[0]}/{parts[1]}/transformers/VARIATION, or its name on the hub."
        )
    return "/".join(parts)


@cache
def download_model(address: str) -> Path:
    """Download a model into kagglehub's cache, once per process. Raises a `ModelError` if there is no such address,
    kagglehub is not installed, or the download fails."""
    name = model_handle(address)
    instead = "download the model and set model.name to its folder"
    advice = "the name, the connection, and that your Kaggle account has accepted the model's licence"
    return _downloaded(
        f"model.name={address}", ModelError, instead, advice, lambda kagglehub: kagglehub.model_download(name)
    )


def download_dataset(address: str, key: str) -> Path:
    """Fetch a dataset, or one of its files (`kaggle://owner/name[/versions/N][/file]`, as `key` names it), into
    kagglehub's cache. Raises a `DataError` if the address is invalid, kagglehub missing, or the download fails."""
    parts = [part for part in address.removeprefix(KAGGLE).split("/") if part]
    if len(parts) < 2:
        raise DataError(
            f"{key}={address}: this is not a Kaggle dataset. Write {KAGGLE}owner/name, or {KAGGLE}owner/name/file for "
            "one of its files."
        )
    size = 4 if len(parts) > 3 and parts[2] == "versions" and parts[3].isdigit() else 2
    handle, file = "/".join(parts[:size]), "/".join(parts[size:])
    instead = "download the data and let the key name the local file"
    advice = "the name, the connection, and your Kaggle token if the dataset asks for one"
    fetch = lambda kagglehub: kagglehub.dataset_download(handle, path=file or None)  # noqa: E731
    return _downloaded(f"{key}={address}", DataError, instead, advice, fetch)


def _downloaded(
    what: str, error_type: type[CoveyError], instead: str, advice: str, fetch: Callable[[Any], str]
) -> Path:
    """What kagglehub fetches into its cache; `what`, `instead` and `advice` are for the errors."""
    try:
        kagglehub = importlib.import_module("kagglehub")
    except ModuleNotFoundError as error:
        how = f"Install it with {install('kaggle')}, or {instead}."
        raise error_type(f"{what} needs the package kagglehub, which is not installed. {how}") from error
    try:
        return Path(fetch(kagglehub))
    except Exception as error:  # kagglehub, its HTTP client and the network each raise their own errors
        cause = f"{one_line(error)} ({type(error).__name__})"
        raise error_type(f"{what} could not be downloaded from Kaggle: {cause}. Check {advice}.") from error
