"""Local data files: JSON Lines, JSON, CSV, TSV and Parquet, compressed or not, one file or a folder of them.

JSON is read with our own small reader, so that errors can name the line.
"""

from __future__ import annotations

import csv
import difflib
import io
import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from covey.config.groups.dataset import COMPRESSED, DATA_FILES
from covey.data.prompts import as_messages
from covey.data.table import Origin, Table, WrittenFloat, combine, dataset_of, encode, from_arrow
from covey.errors import DataError, one_line

if TYPE_CHECKING:
    import pyarrow as pa


DataRow = dict[str, Any]
FileRows = tuple["pa.Table", Origin]

_HUB_METADATA = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
_PROSE = ("readme.md", "license", "license.md", "license.txt")
_USUAL_SPLITS = ("train", "test")
_SHOWN = 60  # characters of a faulty line that an error repeats
_LISTED = 12  # names of a folder that an error repeats


@dataclass(frozen=True, slots=True)
class Folder:
    """The data files of a folder, by split."""

    train: list[Path]
    test: list[Path]
    left_out: list[Path]
    """Files of other splits (`validation-0001.parquet`, say)."""
    unread: list[str]
    """The other files beneath it, relative to it: of unknown types, and in subfolders that no split is named after."""


def read_files(paths: Iterable[Path], key: str) -> Table:
    """Read files as one table.

    Args:
        paths: at least one file; its suffix gives the format.
        key: the config key that named them, for errors.

    Raises:
        DataError: a file is missing, empty, of an unknown kind, not readable, or does not fit the others.
    """

    found = [_read_file(path, key) for path in paths]
    origins = tuple(origin for _, origin in found)
    try:
        arrow = combine([rows for rows, _ in found])
    except TypeError as error:
        names = ", ".join(str(origin.name) for origin in origins)
        fields = [field for rows, _ in found for field in rows.schema]
        kinds = {one.name: {str(field.type) for field in fields if field.name == one.name} for one in fields}
        differ = "; ".join(
            f"column '{name}': {', '.join(sorted(kind))}" for name, kind in kinds.items() if len(kind) > 1
        )
        raise DataError(
            f"{key}: the files {names} cannot be combined in one table ({one_line(error)}; {differ}). Their "
            "columns of one name must be of one type, or of values that JSON has."
        ) from error
    return Table(dataset_of(arrow), origins)


def find_path(text: str, key: str) -> Path:
    """The path that a config key names, which must exist. Raises a `DataError` if it does not; the message names
    similar files."""
    path = Path(text).expanduser()
    if path.exists():
        return path
    if not path.parent.is_dir():
        raise DataError(f"{key}={text}: there is no such file, and its folder {path.parent} does not exist either.")
    folder = path.parent if path.parent.name.strip(".") else path.parent.resolve()  # a name in place of . and ..
    names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    near = difflib.get_close_matches(path.name, names, n=3, cutoff=0.5)
    if near:
        raise DataError(f"{key}={text}: there is no such file in {folder}. Did you mean {' or '.join(near)}?")
    readable = [name for name in names if name.lower().endswith(DATA_FILES)] or names
    raise DataError(f"{key}={text}: there is no such file in {folder}, which holds {listing(readable)}.")


def scan_folder(folder: Path, key: str, *, train: str, test: str | None, config: str | None = None) -> Folder:
    """Find the data files of a folder: directly in it, else in its subfolder `config`, else in `data`.

    A file belongs to a split when its name contains the split's name as a word (`train-00000-of-00002.parquet`), or the
    name of a subfolder that it is in does. Where no name does, all files are training data; but a split other than
    `train` and `test` must be there.

    Raises:
        DataError: there are none.
    """
    for place in (folder, *(folder / name for name in (config, "data") if name)):
        beneath, inside = _beneath(place), [place / split for split in (train, test) if split is not None]
        found = [file for file in beneath if file.parent == place or any(map(file.is_relative_to, inside))]
        files = [file for file in found if file.name.lower().endswith(DATA_FILES)]
        if files:
            break
    else:
        names = sorted(entry.name + ("/" if entry.is_dir() else "") for entry in folder.iterdir())
        raise DataError(
            f"{key}={folder}: this folder has no data files; it holds {listing(names)}. Covey reads {READABLE}; of "
            f"subfolders those called like a split, data, and the one that the key config beside {key} names."
        )
    for_test = [file for file in files if test is not None and _is_of(file.relative_to(place), test)]
    rest = [file for file in files if file not in for_test]
    for_train = [file for file in rest if _is_of(file.relative_to(place), train)]
    if not for_train and not for_test and train in _USUAL_SPLITS:
        for_train = rest
    missing = train if not for_train else test if test not in (*_USUAL_SPLITS, None) and not for_test else None
    if missing is not None:
        names_found = listing([file.name for file in files])
        raise DataError(
            f"{key}={folder}: none of its files is of the split '{missing}' by its name ({names_found}). Put "
            f"'{missing}' into the name of one, name another split, or let {key} name the file itself."
        )
    others = set(beneath if place.name == config else _beneath(folder)).difference(files)
    unread = [str(file.relative_to(folder)) for file in sorted(others) if file.name.lower() not in _PROSE]
    return Folder(for_train, for_test, [file for file in rest if file not in for_train], unread)


def _read_file(path: Path, key: str) -> FileRows:
    plain = path.stem if path.suffix.lower() in COMPRESSED else path.name
    reader = _READERS.get(Path(plain).suffix.lower())
    if reader is None:
        raise DataError(
            f"{key}={path}: unknown file type. Covey reads {READABLE}: give the file the suffix that fits its content, "
            "unpack it, or save it as one of these."
        )
    try:
        if not path.is_file():
            raise DataError(f"{key}={path}: this is not a file.")
        if path.stat().st_size == 0:
            raise DataError(f"{key}={path}: the file is empty. It must hold at least one problem and its answer.")
        found = reader(path)
    except OSError as error:
        raise DataError(f"{key}={path}: the file cannot be read: {one_line(error)}.") from error
    if found[0].num_rows == 0:
        raise DataError(f"{key}={path}: the file holds no rows. It must hold at least one problem and its answer.")
    return found


def _read_jsonl(path: Path) -> FileRows:
    rows, numbers = [], []
    with _open(path) as file:
        for number, line in enumerate(file, start=1):
            text = _decode(line, path, f"line {number}").strip()
            if text:
                rows.append(_as_row(_parse(text, path, number), path, f"line {number}"))
                numbers.append(number)
    return _from_rows(rows, Origin(str(path), "line", numbers))


def _read_json(path: Path) -> FileRows:
    """A list of objects; or one object per line, as many tools write it despite the suffix."""
    text = _decode(_content(path), path, "the file")
    if not text.lstrip().startswith("["):
        if _is_one_object(text):
            raise DataError(
                f"{path} holds one JSON object, not rows. Write a list of objects ([{{…}}, {{…}}]), or one object per "
                "line."
            )
        return _read_jsonl(path)
    rows = _parse(text, path, 1)
    checked = [_as_row(row, path, f"item {number}") for number, row in enumerate(rows, start=1)]
    return _from_rows(checked, Origin(str(path), "item", range(1, len(checked) + 1)))


def _read_csv(path: Path) -> FileRows:
    """CSV and TSV have no types, so every value stays text: an answer `007` is not 7."""
    import pyarrow as pa

    text = _decode(_content(path), path, "the file")
    kind, separator, word = ("TSV", "\t", "tabs") if ".tsv" in path.suffixes[-2:] else ("CSV", ",", "commas")
    first = text.partition("\n")[0]
    if kind == "CSV" and ";" in first and "," not in first:  # as spreadsheets write it where a comma is decimal
        separator, word = ";", "semicolons"
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=separator)
    rows, numbers = [], []
    try:
        header = next(reader, [])
        for row in reader:
            if row:
                rows.append(row)
                numbers.append(reader.line_num)
                if len(row) != len(header):
                    raise DataError(
                        f"{path}, line {reader.line_num}: this row has {len(row)} fields, but the header has "
                        f"{len(header)} ({', '.join(header)}). Put text that holds {word} or line breaks in quotes."
                    )
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num} is not {kind}: {one_line(error)}.") from error
    if len(header) == 1 and re.search(r"[,;\t]".replace(separator, ""), header[0]):
        raise DataError(f"{path}: {word} separate the columns of {kind}, and its first line has none: {header[0][:80]}")
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise DataError(f"{path}: the header names the column {', '.join(map(repr, twice))} more than once.")
    columns = {name: pa.array([row[i] for row in rows], pa.string()) for i, name in enumerate(header)}
    return pa.table(columns), Origin(str(path), "line", numbers)


def _read_parquet(path: Path) -> FileRows:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        packed = path.suffix.lower() in COMPRESSED
        arrow = from_arrow(parquet.read_table(pa.BufferReader(_content(path)) if packed else path))
    except pa.ArrowException as error:
        raise DataError(f"{path} is not a Parquet file that can be read: {one_line(error)}.") from error
    return arrow, Origin(str(path), "row", range(1, arrow.num_rows + 1))


_READERS: dict[str, Callable[[Path], FileRows]] = {
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".parquet": _read_parquet,
}
READABLE = f"{', '.join(_READERS)}, also compressed ({', '.join(COMPRESSED)})"
"""The suffixes of data files, for messages."""


def _open(path: Path) -> IO[bytes]:
    """The content of a file, unpacked if its last suffix says that it is compressed."""
    codec = COMPRESSED.get(path.suffix.lower())
    if codec is None:
        return path.open("rb")
    import pyarrow as pa

    return io.BufferedReader(pa.input_stream(path, compression=codec))


def _content(path: Path) -> bytes:
    with _open(path) as file:
        return file.read()


def _decode(data: bytes, path: Path, where: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}, {where} is not UTF-8 text ({one_line(error)}). Save the file as UTF-8 and try again."
        ) from error


def _parse(text: str, path: Path, first_line: int) -> Any:
    """The value of a JSON text that begins on `first_line` of the file."""
    try:
        value = json.loads(text, parse_float=WrittenFloat)
    except (ValueError, RecursionError) as error:
        number, cause = first_line, one_line(error)
        if isinstance(error, json.JSONDecodeError):
            number, cause = first_line + error.lineno - 1, f"{error.msg} at character {error.colno}"
        lines = text.split("\n")
        shown = _start(lines[number - first_line]) if number - first_line < len(lines) else "nothing"
        raise DataError(f"{path}, line {number} is not JSON: {cause}. The line starts with: {shown}") from error
    return value


def _as_row(value: Any, path: Path, where: str) -> DataRow:
    text = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict):
        raise DataError(
            f"{path}, {where} is not an object of columns but {_kind(value)}: {_start(text)} A row looks like "
            '{"question": "…", "answer": "…"}.'
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{path}, {where} holds half of a character (an escape such as \\ud83d without its other half), which is "
            "not valid text. Fix or remove it."
        ) from error
    return value


def _from_rows(rows: list[DataRow], origin: Origin) -> FileRows:
    """Columns of the rows, in the order of their first appearance; a row without a column has null there."""
    names = dict.fromkeys(name for row in rows for name in row)
    return encode({name: [row.get(name) for row in rows] for name in names}), origin


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _is_one_object(text: str) -> bool:
    """Whether the whole text is one JSON object that is not a row: it is written over several lines, or holds only a
    list of objects that are no messages."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return False
    only = next(iter(found.values())) if isinstance(found, dict) and len(found) == 1 else None
    rows = isinstance(only, list) and [*map(type, only[:1])] == [dict] and as_messages(only) is None
    return isinstance(found, dict) and ("\n" in text.strip() or rows)


def _beneath(folder: Path) -> list[Path]:
    """All files of a folder and its subfolders, sorted, but hidden ones and the metadata of the datasets library."""
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(place, name) for name in names if not name.startswith(".") and name not in _HUB_METADATA]
    return sorted(found)


def _is_of(path: Path, split: str) -> bool:
    """Whether the name of a file, or of its subfolder, has the words of a split's name (`train_prefs`) in sequence."""
    return f" {_words(split)} " in f" {_words(path.parts[0])} "


def _words(name: str) -> str:
    return " ".join(re.findall(r"[a-z0-9]+", name.lower()))


def _start(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def listing(names: list[str]) -> str:
    """The names, or the first of them and how many more there are, for messages."""
    if not names:
        return "nothing"
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")
