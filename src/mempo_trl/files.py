"""Files and JSON from outside. What cannot be read raises ValueError with its place, whatever it holds."""

import gzip
import itertools
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

MAX_DEPTH = 100
"""Lists and objects that may stand inside each other in JSON from outside."""

Record = dict[str, Any]


def parse_json(text: str | bytes, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """`json.loads`, except that JSON nested deeper than `MAX_DEPTH` is an error like any other.

    `json.loads` raises RecursionError for it, or returns what a later `json.dumps` or `repr` cannot walk.

    Raises:
        `ValueError`: `text` is not JSON, not Unicode, or nested too deeply.
    """
    try:
        value = json.loads(text, parse_constant=parse_constant)
    except RecursionError:
        value, depth = None, MAX_DEPTH + 1
    else:
        depth = _depth(value)
    if depth > MAX_DEPTH:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
    return value


def _depth(value: Any) -> int:
    """How many lists and objects stand inside each other in `value`; counting ends one above `MAX_DEPTH`."""
    depth, level = 0, [value]
    while level and depth <= MAX_DEPTH:
        level = [item for item in level if isinstance(item, list | dict)]
        depth += bool(level)
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return depth


@contextmanager
def open_bytes(path: str | Path) -> Iterator[IO[bytes]]:
    """Opens a file for reading, and unpacks it if its content is gzip's, whatever its name."""
    with open(path, "rb") as file:
        if file.peek(2)[:2] == b"\x1f\x8b":
            with gzip.open(file) as unpacked:
                yield cast(IO[bytes], unpacked)
        else:
            yield file


def read_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yields (line number from 1, line without its end). The file may be gzipped and may open with a byte-order mark.

    Raises:
        `ValueError`: a line is not UTF-8, or the gzip data is damaged.
    """
    number = 0
    with open_bytes(path) as file:
        try:
            for number, line in enumerate(file, start=1):
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}, line {number}: not UTF-8 ({error.reason}). Save the file as UTF-8") from error
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path}, after line {number}: the gzip data is damaged ({error})") from error


def read_jsonl(lines: Iterator[tuple[int, str]], path: str | Path) -> Iterator[tuple[int, Record]]:
    """Yields (line number, object) of numbered lines, and skips empty ones.

    Raises:
        `ValueError`: a line is not JSON, or no object.
    """
    for number, line in lines:
        if line.strip():
            yield number, _object(_parse(line, f"{path}, line {number}"), f"{path}, line {number}")


def read_records(path: str | Path) -> Iterator[tuple[str, Record]]:
    """Yields (place, object) of a file of objects, where the place names the file and the line or the row.

    The content tells the format, not the name: JSON lines, a JSON list (which may be the only list of an object, under
    "data" or "Data"), or Parquet. JSON may be gzipped.

    Raises:
        `ValueError`: the file is none of them, or an object cannot be read.
    """
    with open_bytes(path) as file:
        magic = file.read(4)
    if magic == b"PAR1":
        yield from _read_parquet(path)
        return
    lines = read_lines(path)
    skipped, first = next(((number, line) for number, line in lines if line.strip()), (0, ""))
    if first.lstrip().startswith("[") or first.strip() == "{":
        yield from _items(_parse("\n".join([first, *(line for _, line in lines)]), str(path)), path)
        return
    for count, (number, record) in enumerate(read_jsonl(itertools.chain([(skipped, first)], lines), path)):
        if not count and _listed(record) is not None:
            yield from _items(record, path)
        else:
            yield f"{path}, line {number}", record


def _read_parquet(path: str | Path) -> Iterator[tuple[str, Record]]:
    import pyarrow
    from pyarrow import parquet

    row = 0
    try:
        for batch in parquet.ParquetFile(path).iter_batches():
            for record in batch.to_pylist():
                yield f"{path}, row {row}", record
                row += 1
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}, row {row}: the Parquet data cannot be read ({error})") from error


def _parse(text: str, where: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise ValueError(f"{where}: not valid JSON ({error})") from error


def _items(value: Any, path: str | Path) -> Iterator[tuple[str, Record]]:
    items = value if isinstance(value, list) else _listed(_object(value, str(path)))
    if items is None:
        raise ValueError(f"{path}: expected a list of objects, alone or under 'data', got an object with {list(value)}")
    for number, item in enumerate(items):
        yield f"{path}, item {number}", _object(item, f"{path}, item {number}")


def _listed(record: Record) -> list[Any] | None:
    """The list in an object that holds nothing but one list of rows and what describes it."""
    found = record.get("data", record.get("Data"))
    return found if isinstance(found, list) and not {"question", "Question", "id"} & record.keys() else None


def _object(value: Any, where: str) -> Record:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected an object, got {type(value).__name__}")
    return value
