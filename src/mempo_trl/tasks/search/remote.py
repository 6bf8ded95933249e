"""Passages from a search server, in the wire format that search agents share (Search-R1's `/retrieve`)."""

import logging
import threading
import time
from collections.abc import Callable
from math import isfinite
from typing import Any

from ...http import JSONClient, NoAnswer
from .corpora import Passage
from .retrieval import RetrievalError

logger = logging.getLogger(__name__)


class HTTPRetriever:
    """Asks a server over pooled connections; safe to share between threads.

    One search is `POST {url}/retrieve` with `{"queries": [...], "topk": k, "return_scores": true}`, answered by
    `{"result": [[{"document": {"id", "contents"}, "score"}, ...], ...]}`, one list for each query. What other servers
    send is read as far as it can be: without `id` or `score`, with `content` or `text` (and `title`) for `contents`,
    documents that stand alone or are texts. A warning says once what was missing, or left out.

    A request that gets no answer is sent again, as `JSONClient` does. When searches keep failing, the server is
    left alone for a while and searches fail at once, so that a batch of agents does not wait for it one timeout after
    the other; then one search tries it again.

    Args:
        url: of the server, with or without `/retrieve`.
        timeout: seconds for each attempt to connect, and to be answered.
        retries: how often a failed request is sent again.
        backoff: seconds before the first retry.
        max_connections: that are open at a time; further searches wait for a free one.
        max_failures: failed searches in a row after which the server is left alone.
        cooldown: seconds for which it is.
    """

    def __init__(
        self,
        url: str,
        timeout: float = 10.0,
        retries: int = 2,
        backoff: float = 0.5,
        max_connections: int = 64,
        max_failures: int = 5,
        cooldown: float = 10.0,
    ):
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"url must start with http:// or https://, got {url!r}")
        self.url = url.rstrip("/").removesuffix("/retrieve") + "/retrieve"
        self._breaker = CircuitBreaker(max_failures, cooldown)
        self._client = JSONClient(timeout, retries, backoff, max_connections)
        self._said: set[str] = set()

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        """Finds up to `k` passages for each query.

        Raises:
            `RetrievalError`: the server could not be reached, refused the request, or sent a reply that does not fit.
        """
        if not queries:
            return []
        self._breaker.check()
        try:
            reply = self._client.request("POST", self.url, {"queries": queries, "topk": k, "return_scores": True})
        except NoAnswer as error:
            self._breaker.record(answered=False)
            raise RetrievalError(f"the search server did not answer {error.summary}") from error
        self._breaker.record(answered=True)
        if reply.status != 200:
            raise RetrievalError(f"the search server refused the request (HTTP {reply.status})")
        found, notes = parse_reply(reply.value, len(queries), k)
        for note in notes - self._said:
            logger.warning("%s: %s", self.url, note)
        self._said |= notes
        return found

    def close(self) -> None:
        """Closes the pooled connections."""
        self._client.close()


class CircuitBreaker:
    """Refuses calls for `cooldown` seconds after `max_failures` failures in a row, then lets one call try.

    Args:
        max_failures: failures in a row that open it.
        cooldown: seconds before the next try.
        clock: gives seconds; replaced in tests.
    """

    def __init__(self, max_failures: int, cooldown: float, clock: Callable[[], float] = time.monotonic):
        self._max_failures = max_failures
        self._cooldown = cooldown
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._next_try = 0.0

    def check(self) -> None:
        """Returns if a call may be made, else raises `RetrievalError`."""
        with self._lock:
            if self._failures < self._max_failures:
                return
            now = self._clock()
            if now < self._next_try:
                raise RetrievalError(f"the search server is down; the next try is in {self._next_try - now:.0f} s")
            self._next_try = now + self._cooldown

    def record(self, answered: bool) -> None:
        """Notes how a call ended."""
        with self._lock:
            if answered:
                self._failures = 0
                return
            self._failures += 1
            self._next_try = self._clock() + self._cooldown


def parse_reply(reply: Any, queries: int, k: int) -> tuple[list[list[Passage]], set[str]]:
    """Reads the JSON of a `/retrieve` reply for `queries` queries, as far as it can be read.

    Returns:
        Up to `k` passages for each query, and notes on what was missing or left out.

    Raises:
        `RetrievalError`: it has another number of rows than queries, a row is not a list of documents, or none of a
            row's documents can be read.
    """
    rows = reply.get("result", reply.get("results")) if isinstance(reply, dict) else reply
    if not isinstance(rows, list):
        raise RetrievalError(f"the search server sent a reply without a list 'result': {_clip(reply)}")
    if queries == 1 and rows and all(_is_entry(row) for row in rows):
        rows = [rows]  # the documents of the only query, without a list around them
    if len(rows) != queries:
        raise RetrievalError(f"the search server sent {len(rows)} rows, expected {queries}")
    notes: set[str] = set()
    return [_read_row(row, k, notes) for row in rows], notes


def _is_entry(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, dict) and not isinstance(value.get("documents"), list))


def _read_row(row: Any, k: int, notes: set[str]) -> list[Passage]:
    entries = row.get("documents") if isinstance(row, dict) else row
    if entries is None:
        notes.add("null in place of a list of documents was read as an empty list")
        return []
    if not isinstance(entries, list):
        raise RetrievalError(f"the search server sent no list of documents, but {_clip(row)}")
    passages = [passage for entry in entries if (passage := _read_entry(entry, notes)) is not None]
    if entries and not passages:
        raise RetrievalError(f"the search server sent documents that cannot be read: {_clip(entries[0])}")
    return passages[:k]


def _read_entry(entry: Any, notes: set[str]) -> Passage | None:
    """One document, bare or beside its score; None if it has no text."""
    document, score = entry, None
    if isinstance(entry, dict):
        document = entry.get("document", entry)
        score = entry.get("score", document.get("score") if isinstance(document, dict) else None)
    elif isinstance(entry, list) and len(entry) == 2:
        document, score = entry
    if not isinstance(score, int | float) or isinstance(score, bool) or not isfinite(score):
        notes.add("documents have no 'score'; it was read as 0")
        score = 0.0
    if isinstance(document, str):
        return Passage.from_contents("", document, float(score))
    if isinstance(document, dict):
        id, title = document.get("id", ""), document.get("title")
        id = str(id) if isinstance(id, str | int) else ""
        for key in ("contents", "content", "text"):
            text = document.get(key)
            if not isinstance(text, str):
                continue
            if key != "contents":
                notes.add(f"documents have no 'contents'; {key!r} was read")
            if key != "contents" and isinstance(title, str):
                return Passage(id, title, text, float(score))
            return Passage.from_contents(id, text, float(score))
    notes.add(f"documents without a text in 'contents' were left out, the first: {_clip(entry)}")
    return None


def _clip(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:100] + "..."
