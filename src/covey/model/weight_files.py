"""Whether the weight files of a folder can be read, by headers, names and sizes; and loading them quietly.

Source of the format: https://huggingface.co/docs/safetensors (8 bytes with the header's length, the header in JSON, the
tensors one after the other).
"""

from __future__ import annotations

import json
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

from covey.errors import ModelError

WHOLE = ("model.safetensors", "pytorch_model.bin")
"""A model's weights in one file, in the order in which transformers looks for them; `NAME.index.json` names shards."""
_LFS = b"version https://git-lfs"
_LENGTH = 8
"""Bytes of the header's length."""
_LONGEST_HEADER = 100_000_000
"""Bytes; safetensors reads no longer one."""
_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "I16": 16, "U16": 16, "F16": 16, "BF16": 16}
_BITS |= {"I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64, "BOOL": 8}
"""Of the dtypes whose elements do not have 8."""
_LFS_ADVICE = "Fetch the file itself (git lfs pull), or download the model again."
_ADVICE = "Copy or download it again, or take an earlier checkpoint."


def check_weights(folder: Path, key: str) -> None:
    """Check that the weights that transformers would load from a folder are there and whole.

    Args:
        folder: of a saved model.
        key: and its value, for messages: `model.name=FOLDER`.

    Raises:
        ModelError: a file is missing, empty, truncated, or no weights at all.
    """
    for whole in WHOLE:
        index = folder / f"{whole}.index.json"
        if (folder / whole).is_file():
            check_file(folder / whole, key)
            return
        if index.is_file():
            _check_shards(index, key)
            return
    raise ModelError(
        f"{key} is a folder with a config.json but no weights (model.safetensors, or its shards with "
        "model.safetensors.index.json). If saving was cut short, take an earlier checkpoint."
    )


def check_file(file: Path, key: str) -> None:
    """Raise a `ModelError` unless this file of weights can be read."""
    try:
        if file.suffix == ".safetensors":
            read_header(file)
        else:
            # A zip archive, whose table stands at its end, or from before PyTorch 1.6 a pickle.
            with file.open("rb") as opened:
                start = opened.read(len(_LFS))
            _refuse_stub(file.stat().st_size, start)
            if start.startswith(b"PK") and not zipfile.is_zipfile(file):
                raise ValueError("is truncated: the table at its end is missing")
            if not start.startswith((b"PK", b"\x80")):
                raise ValueError("is not written by torch.save")
    except OSError as error:
        raise ModelError(f"{key}: {file} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        advice = _LFS_ADVICE if "Git LFS" in str(error) else _ADVICE
        raise ModelError(f"{key}: the weights cannot be read, because {file} {error}. {advice}") from None


def read_header(file: Path) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of a safetensors file.

    Raises:
        OSError: it cannot be opened.
        ValueError: it is damaged; the message follows the file's name.
    """
    size = file.stat().st_size
    with file.open("rb") as opened:
        start = opened.read(_LENGTH)
        _refuse_stub(size, start + opened.read(len(_LFS) - _LENGTH))
        length = int.from_bytes(start, "little")
        if size < _LENGTH or length > min(_LONGEST_HEADER, size - _LENGTH):
            raise ValueError("is truncated, or is no safetensors file")
        opened.seek(_LENGTH)
        text = opened.read(length)
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        shapes = {str(name): tuple(map(int, tensor["shape"])) for name, tensor in header.items()}
        ends = [_end(tensor) for tensor in header.values()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ValueError("has a damaged header, so it is no safetensors file") from None
    needed = _LENGTH + length + max(ends, default=0)
    if size != needed:
        what = "is truncated" if size < needed else "is longer than its header says"
        raise ValueError(f"{what}: it has {size:,} bytes in place of {needed:,}")
    return shapes


def shapes_of(folder: Path) -> Mapping[str, tuple[int, ...]]:
    """The shape of every tensor in the safetensors files of a folder that `check_weights` accepts; else empty."""
    whole = folder / WHOLE[0]
    files = [whole] if whole.is_file() else sorted(folder.glob("*.safetensors"))
    try:
        return {name: shape for file in files for name, shape in read_header(file).items()}
    except (OSError, ValueError):
        return {}


def _end(tensor: Mapping[str, Any]) -> int:
    begin, end = map(int, tensor["data_offsets"])
    shape = list(map(int, tensor["shape"]))
    if begin < 0 or min(shape, default=0) < 0 or (end - begin) * 8 != prod(shape) * _BITS.get(tensor["dtype"], 8):
        raise ValueError
    return end


def _refuse_stub(size: int, start: bytes) -> None:
    if size == 0:
        raise ValueError("is empty")
    if start.startswith(_LFS):
        raise ValueError("is a Git LFS pointer and not the file itself")


def _check_shards(index: Path, key: str) -> None:
    try:
        named = json.loads(index.read_bytes())["weight_map"]
        shards: dict[str, set[str]] = {}
        for tensor, shard in named.items():
            shards.setdefault(shard, set()).add(tensor)
        missing = sorted(shard for shard in shards if not (index.parent / shard).is_file())
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        raise ModelError(
            f"{key}: the weights cannot be read, because {index} is not an index of shards. {_ADVICE}"
        ) from None
    if missing or not shards:
        shown = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        what = f"{len(missing)} of its {len(shards)} files are missing ({shown})" if shards else "it names no files"
        raise ModelError(
            f"{key}: the weights cannot be read, because {index} lists the files of the weights, and {what}. {_ADVICE}"
        )
    for shard, tensors in sorted(shards.items()):
        file = index.parent / shard
        check_file(file, key)
        lost = sorted(tensors - read_header(file).keys()) if file.suffix == ".safetensors" else []
        if lost:
            raise ModelError(
                f"{key}: the weights cannot be read, because {file} lacks {len(lost)} of the tensors that {index.name} "
                f"says it holds ({lost[0]}). {_ADVICE}"
            )


@contextmanager
def quiet_weights() -> Iterator[None]:
    """Context manager: weights load and save without transformers' progress bar; downloads keep theirs.

    A deprecation warning that peft triggers in transformers is hidden too.
    """
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, enable_progress_bars
    from transformers.utils import logging

    loading, downloads = logging.is_progress_bar_enabled(), not are_progress_bars_disabled()
    logging.disable_progress_bar()
    if downloads:
        enable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
            yield
    finally:
        if loading:
            logging.enable_progress_bar()
