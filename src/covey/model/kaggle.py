"""Weights on Kaggle: `kaggle://owner/model/framework/variation`, optionally with a version."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path

from covey.errors import ModelError

PREFIX = "kaggle://"


def handle(address: str) -> str:
    """The handle that kagglehub takes, from an address. Raises a `ModelError` if it has another format, or a framework
    that transformers cannot read."""
    parts = [part for part in address.removeprefix(PREFIX).split("/") if part]
    if len(parts) not in (4, 5) or (len(parts) == 5 and not parts[4].isdigit()):
        raise ModelError(
            f"model.name={address} is not a model on Kaggle: write {PREFIX}owner/model/transformers/variation, "
            "optionally followed by /VERSION."
        )
    if parts[2].lower() not in ("transformers", "pytorch"):
        raise ModelError(
            f"model.name={address}: these are weights for {parts[2]}, which Covey cannot read. Use the model's "
            f"transformers weights: {PREFIX}{parts[0]}/{parts[1]}/transformers/VARIATION, or its name on the hub."
        )
    return "/".join(parts)


@cache
def download(address: str) -> Path:
    """Download a model into kagglehub's cache, once per process.

    Returns:
        The folder.

    Raises:
        ModelError: no such address, kagglehub is not installed, or the download fails.
    """
    name = handle(address)
    try:
        kagglehub = importlib.import_module("kagglehub")
    except ModuleNotFoundError as error:
        raise ModelError(
            f"model.name={address} needs the package kagglehub, which is not installed. Install it with "
            "pip install 'covey[kaggle]', or download the model and set model.name to its folder."
        ) from error
    try:
        return Path(kagglehub.model_download(name))
    except Exception as error:  # kagglehub, its HTTP client and the network each raise their own types
        cause = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(
            f"model.name={address} could not be downloaded from Kaggle: {cause} ({type(error).__name__}). Check the "
            "name, the connection, and that your Kaggle account has accepted the model's licence."
        ) from error
