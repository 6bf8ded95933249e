"""What finds passages for a query: the protocol, and BM25 on one machine.

`HTTPRetriever` (remote.py) is the same protocol over a network.
"""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from .corpora import Passage, PassageFile
from .words import passage_words, query_words

if TYPE_CHECKING:
    import bm25s

_BLOCK = 1024


class RetrievalError(Exception):
    """A search that could not be done. The message is short and fit to be read by the agent."""


class Retriever(Protocol):
    """Anything that finds passages. `search` may be called from several threads at once."""

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        """Finds up to `k` passages for each query, best first: one list for each query, in their order.

        Raises:
            `RetrievalError`: the search could not be done.
        """
        ...


class BM25Retriever:
    """BM25 (Lucene's variant, as in bm25s) over passages in memory or memory-mapped from disk.

    Make one with `BM25Retriever.build` or `BM25Retriever.load`.

    Args:
        index: a bm25s index.
        passages: the passages it was built from, in the same order.
    """

    def __init__(self, index: "bm25s.BM25", passages: Sequence[Passage]):
        if len(passages) != index.scores["num_docs"]:
            raise ValueError(f"index and passages differ: got {len(passages)} passages for {index.scores['num_docs']}")
        self._index = index
        self._passages = passages

    @classmethod
    def build(cls, passages: Iterable[Passage], show_progress: bool = False) -> "BM25Retriever":
        """Indexes title and text of `passages`.

        Raises:
            `ValueError`: the passages are empty, or contain no words.
        """
        import bm25s

        passages = list(passages)
        if not passages:
            raise ValueError("the corpus is empty: BM25Retriever needs at least one passage. Check the corpus file")
        tokens = _tokenize(passages)
        if not tokens.vocab:
            raise ValueError("no passage of the corpus holds a word that can be searched for. Check the corpus file")
        index = bm25s.BM25()
        index.index(tokens, show_progress=show_progress)
        return cls(index, passages)

    def save(self, directory: str | Path) -> None:
        """Writes index and passages to `directory`, which is made if need be."""
        Path(directory).mkdir(parents=True, exist_ok=True)
        self._index.save(directory, show_progress=False)
        PassageFile.write(directory, self._passages)

    @classmethod
    def load(cls, directory: str | Path, mmap: bool = True) -> "BM25Retriever":
        """Opens what `save` wrote. With `mmap`, postings and passages stay on disk until they are needed.

        Raises:
            `FileNotFoundError`: `directory` holds no index.
        """
        import bm25s

        if not (Path(directory) / "offsets.npy").is_file():
            raise FileNotFoundError(
                f"{directory} holds no BM25 index. Make one with BM25Retriever.build(...).save(...)"
            )
        passages = PassageFile(directory)
        return cls(bm25s.BM25.load(directory, mmap=mmap), passages if mmap else passages[:])

    def __len__(self) -> int:
        return len(self._passages)

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        """Finds up to `k` passages for each query; `k` may exceed the corpus. A passage without a word of the query is
        never among them, so a list may be short or empty.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        if not queries:
            return []
        with ThreadPoolExecutor(min(len(queries), os.cpu_count() or 1)) as pool:
            return list(pool.map(lambda query: self._find(query_words(query), k), queries))

    def _find(self, words: list[str], k: int) -> list[Passage]:
        if not words:
            return []
        scores = self._index.get_scores(words)  # (passages,)
        return [self._passages[i]._replace(score=float(scores[i])) for i in best(scores, k).tolist()]


def _tokenize(passages: Iterable[Passage]) -> "bm25s.tokenization.Tokenized":
    """The words of each passage as numbers. A title of stop words, such as "It", keeps them."""
    from bm25s.tokenization import Tokenized

    vocabulary: dict[str, int] = {}
    ids = [
        [
            vocabulary.setdefault(word, len(vocabulary))
            for word in [*passage_words(passage.title), *passage_words(passage.text)]
        ]
        for passage in passages
    ]
    return Tokenized(ids=ids, vocab=vocabulary)


def best(scores: np.ndarray, k: int) -> np.ndarray:
    """Where the `k` highest positive scores stand, highest first, the first of equal ones first.

    Args:
        scores: one for each passage, none negative. Shape: (N,).
        k: how many; fewer come back if fewer are positive.
    """
    # The k-th highest of the blocks' maxima is never above the k-th highest score: what is below it can be skipped.
    # A partition of all scores would take as long as computing them.
    maxima = np.maximum.reduceat(scores, np.arange(0, len(scores), _BLOCK))
    floor = np.partition(maxima, -k)[-k] if k <= len(maxima) else 0.0
    candidates = np.flatnonzero((scores >= floor) & (scores > 0))
    return candidates[np.lexsort((candidates, -scores[candidates]))[:k]]
