"""Datasets on Kaggle: `kaggle://owner/name`, or `kaggle://owner/name/file` for one of its files."""

from __future__ import annotations

import importlib
from pathlib import Path

from covey.errors import DataError, one_line

PREFIX = "kaggle://"


def download(address: str, key: str) -> Path:
    """Fetch a dataset, or one of its files, into kagglehub's cache.

    Args:
        address: `kaggle://owner/name[/versions/N][/file]`.
        key: the config key that named it.

    Returns:
        The folder, or the file.

    Raises:
        DataError: the address is invalid, kagglehub is not installed, or the download fails.
    """
    parts = [part for part in address.removeprefix(PREFIX).split("/") if part]
    if len(parts) < 2:
        raise DataError(
            f"{key}={address}: this is not a Kaggle dataset. Write {PREFIX}owner/name, or {PREFIX}owner/name/file for "
            "one of its files."
        )
    size = 4 if len(parts) > 3 and parts[2] == "versions" and parts[3].isdigit() else 2
    handle, file = "/".join(parts[:size]), "/".join(parts[size:])
    try:
        kagglehub = importlib.import_module("kagglehub")
    except ModuleNotFoundError as error:
        raise DataError(
            f"{key}={address} needs the package kagglehub, which is not installed. Install it with "
            "pip install 'covey[kaggle]', or download the data and let the key name the local file."
        ) from error
    try:
        return Path(kagglehub.dataset_download(handle, path=file or None))
    except Exception as error:  # kagglehub, its HTTP client and the network each raise their own errors
        raise DataError(
            f"{key}={address} could not be downloaded from Kaggle: {one_line(error)} ({type(error).__name__}). Check "
            "the name, the connection, and your Kaggle token if the dataset asks for one."
        ) from error
