"""Passages: the type, the public file formats of corpora, and a memory-mapped store for large ones."""

import csv
import json
import mmap
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np

from ...files import open_bytes, read_lines, read_records


class Passage(NamedTuple):
    """A piece of text that a retriever can find.

    Attributes:
        id: name of the passage in its corpus.
        title: of the page it comes from; may be empty.
        text: what the agent reads.
        score: how well it matches the query; 0.0 outside a result. Comparable within one result only.
    """

    id: str
    title: str
    text: str
    score: float = 0.0

    @property
    def contents(self) -> str:
        """Title and text in one string, as search agents' corpora and servers write it: `'"Title"\\nText'`."""
        return f'"{self.title}"\n{self.text}'

    @classmethod
    def from_contents(cls, id: str, contents: str, score: float = 0.0) -> "Passage":
        """Reads `contents` back. A first line without quotes is a title too; a single line is all text."""
        title, newline, text = contents.partition("\n")
        return cls(id, title.strip().strip('"'), text, score) if newline else cls(id, "", contents, score)


def load_corpus(path: str | Path) -> Iterator[Passage]:
    """Reads a corpus, one passage at a time. The content tells the format; any of them may be gzipped.

    Formats:
        JSON lines, a JSON list or Parquet: `{"id", "contents"}` (Search-R1, Pyserini) or `{"id", "title", "text"}`;
            `id` defaults to the row.
        Tab-separated: `id`, `text`, `title` with that header (DPR's `psgs_w100.tsv`), one passage a line.

    Raises:
        `ValueError`: the format is unknown, or a row lacks what it needs; the message names file and line.
    """
    path = Path(path)
    if _is_table(path):
        yield from _read_table(path)
        return
    for number, (where, row) in enumerate(read_records(path)):
        try:
            yield _passage(row, number)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error


def _passage(row: dict[str, Any], number: int) -> Passage:
    row = {key: value for key, value in row.items() if value is not None}
    id, title = row.get("id", row.get("_id", number)), row.get("title", "")
    if not isinstance(id, str | int) or isinstance(id, bool) or not isinstance(title, str):
        raise ValueError(f"'id' must be a text or a number and 'title' a text, got {id!r:.100} and {title!r:.100}")
    if isinstance(row.get("contents"), str):
        return Passage.from_contents(str(id), row["contents"])
    if isinstance(row.get("text"), str):
        return Passage(str(id), title, row["text"])
    raise ValueError(f"a passage needs 'contents' or 'text', got {sorted(row)}")


def _is_table(path: Path) -> bool:
    """Whether the first line has tabs, and is not JSON's."""
    with open_bytes(path) as file:
        line = file.readline(65_536).removeprefix(b"\xef\xbb\xbf").strip()
    return b"\t" in line and not line.startswith((b"{", b"[", b"PAR1"))


def _read_table(path: Path) -> Iterator[Passage]:
    # Each line is read by itself: csv would look for the end of a stray quote in the passages behind it.
    csv.field_size_limit(sys.maxsize)
    columns: list[str] = []
    for number, line in read_lines(path):
        if not line.strip():
            continue
        if not columns:
            columns = _fields(line, 0)
            if not {"id", "text"} <= set(columns):
                raise ValueError(f"{path}, line {number}: expected a header with id, text, title, got {columns!r:.200}")
            continue
        fields = _fields(line, len(columns))
        if len(fields) != len(columns):
            raise ValueError(
                f"{path}, line {number}: expected {len(columns)} columns, got {len(fields)}. A passage takes one line, "
                "without tabs in it"
            )
        row = dict(zip(columns, fields, strict=True))
        yield Passage(row["id"], row.get("title", ""), row["text"])


def _fields(line: str, count: int) -> list[str]:
    """The columns of a line: as csv quotes them, or, where that does not give `count` of them, as they stand."""
    with suppress(csv.Error, StopIteration):
        fields = next(csv.reader([line], delimiter="\t", strict=True))
        if len(fields) == count:
            return fields
    return line.split("\t")


class PassageFile(Sequence[Passage]):
    """Passages on disk, read one at a time through a memory map. Safe to read from many threads.

    Args:
        directory: where `PassageFile.write` left `passages.jsonl` and `offsets.npy`.
    """

    def __init__(self, directory: str | Path):
        directory = Path(directory)
        self._offsets = np.load(directory / "offsets.npy", mmap_mode="r")
        with open(directory / "passages.jsonl", "rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    @staticmethod
    def write(directory: str | Path, passages: Iterable[Passage]) -> None:
        """Writes `passages` and the byte offset of each, which makes any of them one slice away."""
        offsets = [0]
        with open(Path(directory) / "passages.jsonl", "wb") as file:
            for passage in passages:
                row = {"id": passage.id, "title": passage.title, "text": passage.text}
                offsets.append(offsets[-1] + file.write(json.dumps(row).encode() + b"\n"))
        np.save(Path(directory) / "offsets.npy", np.asarray(offsets, dtype=np.int64))

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, index: int) -> Passage: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Passage]: ...
    def __getitem__(self, index: int | slice) -> Passage | Sequence[Passage]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(f"passage {index} of {len(self)}")
        row = json.loads(self._bytes[self._offsets[index] : self._offsets[index + 1]])
        return Passage(row["id"], row["title"], row["text"])
