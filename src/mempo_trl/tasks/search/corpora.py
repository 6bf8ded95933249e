"""Passages: the type, the public file formats of corpora, and a memory-mapped store for large ones."""

import csv
import gzip
import json
import mmap
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, overload

import numpy as np


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
    """Reads a corpus, one passage at a time.

    Formats, by the file's name (`.gz` may follow):
        `.jsonl`: `{"id", "contents"}` (Search-R1, Pyserini) or `{"id", "title", "text"}`; `id` defaults to the row.
        `.tsv`: `id`, `text`, `title` with that header (DPR's `psgs_w100.tsv`).

    Raises:
        `ValueError`: the format is unknown, or a row lacks what it needs; the message names file and line.
    """
    path = Path(path)
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    readers = {".jsonl": _read_jsonl_passages, ".tsv": _read_dpr_passages}
    if suffix not in readers:
        raise ValueError(f"{path}: cannot tell the format of this corpus. Name it .jsonl or .tsv (.gz may follow)")
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8") as file:
        yield from readers[suffix](file, path)


def _read_jsonl_passages(file: IO[str], path: Path) -> Iterator[Passage]:
    for number, row in read_jsonl(file, path):
        id = str(row.get("id", number - 1))
        if isinstance(row.get("contents"), str):
            yield Passage.from_contents(id, row["contents"])
        elif isinstance(row.get("text"), str):
            yield Passage(id, row.get("title") or "", row["text"])
        else:
            raise ValueError(f"{path}, line {number}: a passage needs 'contents' or 'text', got {sorted(row)}")


def _read_dpr_passages(file: IO[str], path: Path) -> Iterator[Passage]:
    csv.field_size_limit(sys.maxsize)
    rows = csv.DictReader(file, delimiter="\t")
    for number, row in enumerate(rows, start=2):
        if row.get("id") is None or row.get("text") is None:
            raise ValueError(f"{path}, line {number}: expected columns id, text, title, got {rows.fieldnames}")
        yield Passage(row["id"], row.get("title") or "", row["text"])


def read_jsonl(file: Iterable[str], path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line number from 1, object) and skips empty lines; an error names file and line."""
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: not valid JSON ({error})") from error
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {number}: expected an object, got {type(row).__name__}")
        yield number, row


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
