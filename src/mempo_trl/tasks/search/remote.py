"""Passages from a search server, in the wire format that search agents share (Search-R1's `/retrieve`)."""

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx2

from .corpora import Passage
from .retrieval import RetrievalError

_RETRIED = frozenset({408, 429, 500, 502, 503, 504})


class HTTPRetriever:
    """Asks a server over pooled connections; safe to share between threads.

    One search is `POST {url}/retrieve` with `{"queries": [...], "topk": k, "return_scores": true}`, answered by
    `{"result": [[{"document": {"id", "contents"}, "score"}, ...], ...]}`, one list for each query. `id` may be missing.

    A request that gets no answer, or one of the statuses 408, 429, 500, 502, 503 and 504, is sent again after a pause
    that doubles each time. When searches keep failing, the server is left alone for a while and searches fail at once,
    so that a batch of agents does not wait for it one timeout after the other; then one search tries it again.

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
        self._retries = retries
        self._backoff = backoff
        self._breaker = CircuitBreaker(max_failures, cooldown)
        self._client = httpx2.Client(
            timeout=httpx2.Timeout(timeout, pool=None),
            limits=httpx2.Limits(max_connections=max_connections, max_keepalive_connections=max_connections),
        )

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        """Finds up to `k` passages for each query.

        Raises:
            `RetrievalError`: the server could not be reached, refused the request, or sent a reply that does not fit.
        """
        if not queries:
            return []
        self._breaker.check()
        response = self._post({"queries": queries, "topk": k, "return_scores": True})
        if response.status_code != 200:
            raise RetrievalError(f"the search server refused the request (HTTP {response.status_code})")
        return parse_reply(response, len(queries), k)

    def close(self) -> None:
        """Closes the pooled connections."""
        self._client.close()

    def _post(self, body: dict[str, Any]) -> httpx2.Response:
        problem = ""
        for attempt in range(self._retries + 1):
            if attempt:
                # Jitter, or agents that failed together would come back together.
                time.sleep(self._backoff * 2 ** (attempt - 1) * random.uniform(0.5, 1.5))
            try:
                response = self._client.post(self.url, json=body)
            except httpx2.TransportError as error:
                problem = type(error).__name__
                continue
            if response.status_code not in _RETRIED:
                self._breaker.record(answered=True)
                return response
            problem = f"HTTP {response.status_code}"
        self._breaker.record(answered=False)
        raise RetrievalError(f"the search server did not answer in {self._retries + 1} attempts ({problem})")


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


def parse_reply(response: httpx2.Response, queries: int, k: int) -> list[list[Passage]]:
    """Reads a `/retrieve` reply for `queries` queries.

    Raises:
        `RetrievalError`: it is not JSON, has another number of rows than queries, or a row is no list of documents.
    """
    try:
        rows = response.json()["result"]
        found = [[_passage(entry) for entry in row[:k]] for row in rows]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RetrievalError(f"the search server sent a reply that cannot be read ({type(error).__name__})") from error
    if len(found) != queries:
        raise RetrievalError(f"the search server sent {len(found)} rows, expected {queries}")
    return found


def _passage(entry: dict[str, Any]) -> Passage:
    document = entry["document"]
    return Passage.from_contents(str(document.get("id", "")), document["contents"], float(entry["score"]))
