"""JSON over HTTP with a server that may be busy or down: connections are pooled, failed requests are sent again."""

import json
import random
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import httpx2

from .files import parse_json

RETRIED = frozenset({408, 409, 429, 500, 502, 503, 504})
_LONGEST_PAUSE = 60.0  # seconds


class NoAnswer(Exception):
    """No attempt of a request was answered.

    Attributes:
        summary: how many attempts there were, and how the last one ended, in a few words.
    """

    def __init__(self, attempts: int, reason: str, details: str) -> None:
        self.summary = f"in {attempts} attempts ({reason})"
        super().__init__(f"in {attempts} attempts ({reason}: {details})")


class Reply(NamedTuple):
    """An answer: its status, its text, and for status 200 the JSON in it."""

    status: int
    text: str
    value: Any = None


class JSONClient:
    """Sends JSON and reads JSON, over pooled connections; safe to share between threads.

    A request without an answer, with an answer that is not JSON, or with a status in `RETRIED` is sent again after a
    pause that doubles each time, or as long as the server's `Retry-After` asks, up to a minute.

    Args:
        timeout: seconds for each attempt to connect, and to be answered.
        retries: how often a failed request is sent again.
        backoff: seconds before the first retry.
        max_connections: that are open at a time; further requests wait for a free one.
        headers: of each request.
    """

    def __init__(
        self,
        timeout: float,
        retries: int,
        backoff: float,
        max_connections: int = 256,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._retries, self._backoff = retries, backoff
        self._client = httpx2.Client(
            headers={"Content-Type": "application/json", **(headers or {})},
            timeout=httpx2.Timeout(timeout, pool=None),
            limits=httpx2.Limits(max_connections=max_connections, max_keepalive_connections=max_connections),
        )

    def request(self, method: str, url: str, body: Any = None) -> Reply:
        """Sends one request, `body` as JSON unless it is None.

        Raises:
            `NoAnswer`: all attempts failed.
        """
        # ASCII: a text may hold halves of surrogate pairs, which UTF-8 cannot encode.
        content = None if body is None else json.dumps(body).encode()
        pause, problem = self._backoff, ("", "")
        for attempt in range(self._retries + 1):
            if attempt:
                time.sleep(pause)
            # Jitter, or requests that failed together would come back together.
            pause = self._backoff * 2**attempt * random.uniform(0.5, 1.5)
            try:
                response = self._client.request(method, url, content=content)
                if response.status_code == 200:
                    return Reply(200, response.text, parse_json(response.content))
            except (httpx2.RequestError, ValueError) as error:
                problem = (type(error).__name__, str(error))
                continue
            if response.status_code not in RETRIED:
                return Reply(response.status_code, response.text)
            problem = (f"HTTP {response.status_code}", response.text[:300])
            pause = _retry_after(response) or pause
        raise NoAnswer(self._retries + 1, *problem)

    def close(self) -> None:
        """Closes the pooled connections."""
        self._client.close()


def _retry_after(response: httpx2.Response) -> float | None:
    value = response.headers.get("retry-after", "")
    return min(float(value), _LONGEST_PAUSE) if value.isdecimal() else None
