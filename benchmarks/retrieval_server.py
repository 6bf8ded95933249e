"""Load on `mempo serve-retriever`: 64 clients for 30 seconds, on a synthetic corpus whose words follow Zipf's law.

    python benchmarks/retrieval_server.py                        # 1,000,000 passages of 20 words, indexed first
    python benchmarks/retrieval_server.py --index wiki-index     # an index that is there

Prints the seconds that the index took and its size on disk. Then, on a line: requests, errors, requests a second, the
median and the 99th percentile of the seconds that a request took, and the server's memory in MiB after two seconds and
at the end: its own, and with the pages of the index that are mapped from disk (Linux only). A request is one query of 8
words, top 3. Clients and server share the machine's cores.
"""

import argparse
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import psutil

from bm25 import QUERY_WORDS, TOP_K, ZipfText
from mempo_trl.tasks.search import BM25Retriever, HTTPRetriever, Passage, RetrievalError


class Load:
    """Clients that search one after the other until a time.

    Args:
        url: of the server.
        clients: threads, each with a connection of its own from the pool.
        queries: searched in turn.
    """

    def __init__(self, url: str, clients: int, queries: list[str]) -> None:
        self.retriever = HTTPRetriever(url, timeout=30, retries=0, max_connections=clients, max_failures=10**9)
        self.clients, self.queries = clients, queries
        self.seconds: list[float] = []  # of each request that was answered
        self.errors: Counter[str] = Counter()

    def run(self, duration: float) -> None:
        """Returns when all clients have ended, `duration` seconds after the start."""
        end = time.perf_counter() + duration
        threads = [threading.Thread(target=self._client, args=(number, end)) for number in range(self.clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _client(self, number: int, end: float) -> None:
        turn = number
        while time.perf_counter() < end:
            start = time.perf_counter()
            try:
                self.retriever.search([self.queries[turn % len(self.queries)]], TOP_K)
                self.seconds.append(time.perf_counter() - start)
            except RetrievalError as error:
                self.errors[str(error)] += 1
            turn += self.clients


def wait_for(url: str, server: subprocess.Popen) -> None:
    """Returns when the server answers."""
    retriever = HTTPRetriever(url, retries=0)
    while True:
        try:
            retriever.search(["w0"], 1)
            return
        except RetrievalError:
            if server.poll() is not None:
                raise SystemExit("the server did not start") from None
            time.sleep(0.2)


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def memory(pid: int) -> tuple[float, float]:
    """Resident memory of a process in MiB, without mapped files and with them."""
    info = psutil.Process(pid).memory_info()
    return (info.rss - info.shared) / 2**20, info.rss / 2**20


def build(directory: str, zipf: ZipfText, passages: int, words: int) -> str:
    """Indexes a synthetic corpus, and says how it went."""
    corpus = [Passage(str(i), f"title {i}", text) for i, text in enumerate(zipf.texts(passages, words))]
    start = time.perf_counter()
    BM25Retriever.build(corpus).save(directory)
    seconds = time.perf_counter() - start
    size = sum(path.stat().st_size for path in Path(directory).iterdir())
    return f"passages={passages} words={words} build_s={seconds:.0f} index_mib={size / 2**20:.0f}"


def measure(index: str, clients: int, duration: float, queries: list[str]) -> str:
    """Serves `index`, loads the server, and says how it went."""
    port = free_port()
    command = [sys.executable, "-m", "mempo_trl.cli", "serve-retriever", index, "--port", str(port)]
    server = subprocess.Popen(command)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(url, server)
        Load(url, clients, queries).run(2)  # starts the server's threads
        own, resident = memory(server.pid)
        load = Load(url, clients, queries)
        load.run(duration)
        own_after, resident_after = memory(server.pid)
    finally:
        server.terminate()
        server.wait(20)
    cuts = statistics.quantiles(load.seconds, n=100)
    for error, count in load.errors.most_common(3):
        print(f"{count} x {error}", file=sys.stderr)
    return (
        f"clients={clients} seconds={duration:g} requests={len(load.seconds)} errors={load.errors.total()} "
        f"qps={len(load.seconds) / duration:.0f} p50_s={cuts[49]:.3f} p99_s={cuts[98]:.3f} "
        f"memory_mib={own:.0f}->{own_after:.0f} resident_mib={resident:.0f}->{resident_after:.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--index", help="folder of mempo index; default: a synthetic corpus")
    parser.add_argument("--passages", type=int, default=1_000_000, help="of the synthetic corpus")
    parser.add_argument("--words", type=int, default=20, help="of each of its passages")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=30)
    args = parser.parse_args()

    zipf = ZipfText(seed=0)
    with tempfile.TemporaryDirectory() as directory:
        if args.index is None:
            print(f"retrieval_server {build(directory, zipf, args.passages, args.words)}", flush=True)
        queries = list(zipf.texts(4096, QUERY_WORDS))
        print(f"retrieval_server {measure(args.index or directory, args.clients, args.seconds, queries)}")


if __name__ == "__main__":
    main()
