"""Speed of BM25Retriever on a synthetic corpus whose words follow Zipf's law.

    python benchmarks/bm25.py                      # 1,000,000 passages of 100 words
    python benchmarks/bm25.py --passages 50000

Prints one line: build time, index size on disk, peak memory, and queries a second from the memory-mapped index, one at
a time and in batches of 64. The commonest words are English stop words, as in real text. Queries have 8 words of the
same law, stop words among them.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from bm25s.stopwords import STOPWORDS_EN

from mempo_trl.tasks.search import BM25Retriever, Passage

VOCABULARY = 200_000
WORDS = 100
QUERY_WORDS = 8
TOP_K = 3


class ZipfText:
    """Texts of words drawn with a probability of 1 / rank."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        rare = [f"w{rank}" for rank in range(len(STOPWORDS_EN), VOCABULARY)]
        self.words = np.array([*STOPWORDS_EN, *rare], dtype=object)
        weights = 1 / np.arange(1, VOCABULARY + 1)
        self.cumulative = np.cumsum(weights / weights.sum())

    def texts(self, count: int, length: int) -> Iterator[str]:
        """Yields `count` texts of `length` words."""
        for _ in range(count):
            ranks = np.searchsorted(self.cumulative, self.rng.random(length))
            yield " ".join(self.words[np.minimum(ranks, VOCABULARY - 1)])


def queries_per_second(retriever: BM25Retriever, queries: list[str], batch: int) -> float:
    """Searches all `queries`, `batch` at a time."""
    start = time.perf_counter()
    for i in range(0, len(queries), batch):
        retriever.search(queries[i : i + batch], TOP_K)
    return len(queries) / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--passages", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    zipf = ZipfText(args.seed)
    passages = [Passage(str(i), f"title {i}", text) for i, text in enumerate(zipf.texts(args.passages, WORDS))]
    queries = list(zipf.texts(args.queries, QUERY_WORDS))
    with tempfile.TemporaryDirectory() as directory:
        start = time.perf_counter()
        BM25Retriever.build(passages).save(directory)
        seconds = time.perf_counter() - start
        size = sum(path.stat().st_size for path in Path(directory).iterdir())
        del passages
        retriever = BM25Retriever.load(directory)
        queries_per_second(retriever, queries[:64], 64)  # fills the page cache
        single, batched = (queries_per_second(retriever, queries, batch) for batch in (1, 64))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        f"bm25 passages={args.passages} words={WORDS} build_s={seconds:.0f} index_gib={size / 2**30:.2f} "
        f"peak_gib={peak / 2**30:.1f} single_qps={single:.0f} batch64_qps={batched:.0f}"
    )


if __name__ == "__main__":
    main()
