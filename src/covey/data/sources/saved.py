"""Folders that the datasets library wrote with `save_to_disk`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from covey.errors import DataError, one_line


def is_saved(path: Path) -> bool:
    """Whether a folder was written by `save_to_disk`: one set of rows, or several splits."""
    return (path / "dataset_dict.json").is_file() or all(
        (path / name).is_file() for name in ("state.json", "dataset_info.json")
    )


def load_saved(path: Path, key: str, split: str) -> tuple[dict[str, Any], bool]:
    """The splits of a saved folder by name, and whether it had splits at all.

    Args:
        path: the folder.
        key: the config key that named it.
        split: the name for the rows of a folder without splits.

    Raises:
        DataError: the folder cannot be read.
    """
    import datasets

    try:
        data = datasets.load_from_disk(str(path))
    except Exception as error:  # Arrow, JSON and the file system each raise their own errors
        raise DataError(
            f"{key}={path}: this folder was saved by the datasets library, but cannot be read: {one_line(error)} "
            f"({type(error).__name__}). Save it again with save_to_disk."
        ) from error
    if isinstance(data, datasets.DatasetDict):
        return dict(data), True
    return {split: data}, False
