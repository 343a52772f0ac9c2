"""Weight files are checked by headers and sizes: whole ones pass, damaged ones are named, and no tensor is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from covey.errors import ModelError
from covey.model.weight_files import check_weights, read_header, shapes_of

TENSORS = {
    "table": torch.zeros(3, 2, dtype=torch.bfloat16),
    "small": torch.zeros(5, dtype=torch.float8_e4m3fn),
    "wide": torch.zeros(2, 2, dtype=torch.float64),
    "flag": torch.zeros(4, dtype=torch.bool),
    "empty": torch.zeros(0),
    "one": torch.tensor(1.0),
}
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"


def whole(folder: Path, name: str = "model.safetensors") -> bytes:
    save_file(TENSORS, folder / name, metadata={"format": "pt"})
    return (folder / name).read_bytes()


def test_whole_files_pass_and_their_shapes_are_read(tmp_path: Path) -> None:
    whole(tmp_path)
    check_weights(tmp_path, "model.name=x")
    assert read_header(tmp_path / "model.safetensors") == {name: tuple(t.shape) for name, t in TENSORS.items()}
    assert shapes_of(tmp_path)["table"] == (3, 2)


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda file: file[:-1], r"is truncated: it has \d+ bytes in place of \d+"),
        (lambda file: file[: len(file) // 4], "is truncated, or is no safetensors file"),
        (lambda file: file[:5], "is truncated, or is no safetensors file"),
        (lambda file: b"", "is empty"),
        (lambda file: LFS, r"Git LFS pointer .* \(git lfs pull\)"),
        (lambda file: file + b"\0", "is longer than its header says"),
        (lambda file: file[:8] + b"!" + file[9:], "damaged header"),
        (lambda file: file.replace(b"[3,2]", b"[3,9]"), "damaged header"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, damage: object, what: str) -> None:
    content = whole(tmp_path)
    assert callable(damage)
    (tmp_path / "model.safetensors").write_bytes(damage(content))
    with pytest.raises(ModelError, match=what) as error:
        check_weights(tmp_path, "model.name=x")
    assert str(tmp_path / "model.safetensors") in str(error.value)
    assert shapes_of(tmp_path) == {}


def test_shards(tmp_path: Path) -> None:
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    index = tmp_path / "model.safetensors.index.json"
    weights = dict.fromkeys(TENSORS, first)
    index.write_text(json.dumps({"weight_map": weights}))
    content = whole(tmp_path, first)
    check_weights(tmp_path, "model.name=x")

    index.write_text(json.dumps({"weight_map": {**weights, "head": second}}))
    with pytest.raises(ModelError, match=f"1 of its 2 files are missing \\({second}\\)"):
        check_weights(tmp_path, "model.name=x")
    index.write_text(json.dumps({"weight_map": {**weights, "head": first}}))
    with pytest.raises(ModelError, match=r"lacks 1 of the tensors .* \(head\)"):
        check_weights(tmp_path, "model.name=x")
    index.write_text(json.dumps({"weight_map": weights}))
    (tmp_path / first).write_bytes(content[:-3])
    with pytest.raises(ModelError, match="is truncated"):
        check_weights(tmp_path, "model.name=x")
    for text in ("{", "[]", '{"weight_map": 3}', "{}"):
        index.write_text(text)
        with pytest.raises(ModelError, match="not an index of shards"):
            check_weights(tmp_path, "model.name=x")
    index.write_text('{"weight_map": {}}')
    with pytest.raises(ModelError, match="it names no files"):
        check_weights(tmp_path, "model.name=x")
    index.unlink()
    with pytest.raises(ModelError, match="no weights"):
        check_weights(tmp_path, "model.name=x")


@pytest.mark.parametrize("zipped", [True, False])
def test_files_of_torch_save(tmp_path: Path, zipped: bool) -> None:
    file = tmp_path / "pytorch_model.bin"
    torch.save(TENSORS, file, _use_new_zipfile_serialization=zipped)
    check_weights(tmp_path, "model.name=x")
    if zipped:  # the older form has no table at its end
        file.write_bytes(file.read_bytes()[:-100])
        with pytest.raises(ModelError, match="is truncated"):
            check_weights(tmp_path, "model.name=x")
    file.write_bytes(LFS)
    with pytest.raises(ModelError, match="Git LFS pointer"):
        check_weights(tmp_path, "model.name=x")
    file.write_text("hello")
    with pytest.raises(ModelError, match="not written by torch"):
        check_weights(tmp_path, "model.name=x")


def test_what_passes_loads_and_what_fails_does_not(tmp_path: Path) -> None:
    """The library itself is the reference, at every length of the file around its ends."""
    from safetensors import safe_open

    content = whole(tmp_path)
    file = tmp_path / "model.safetensors"
    for length in [*range(12), len(content) // 2, *range(len(content) - 3, len(content) + 1)]:
        file.write_bytes(content[:length])
        try:
            with safe_open(file, "pt") as opened:
                readable = len(list(opened.keys())) == len(TENSORS)
        except Exception:
            readable = False
        if readable:
            check_weights(tmp_path, "model.name=x")
        else:
            with pytest.raises(ModelError):
                check_weights(tmp_path, "model.name=x")
