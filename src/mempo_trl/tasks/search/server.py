"""A search server over BM25, in the wire format that search agents share (Search-R1's `/retrieve`).

Needs `pip install "mempo-trl[serve]"`.
"""

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .corpora import Passage
from .retrieval import BM25Retriever

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response


@dataclass(frozen=True)
class ServerLimits:
    """What one request, and all of them together, may ask for.

    Attributes:
        queries: in one request.
        top_k: passages for each query.
        query_characters: of one query.
        body_bytes: of one request.
        connections: that are open at a time; further ones are answered with 503.
        shutdown_seconds: that requests under way have when the server is told to stop.
    """

    queries: int = 256
    top_k: int = 100
    query_characters: int = 4_000
    body_bytes: int = 4_000_000
    connections: int = 1_024
    shutdown_seconds: int = 10


class RequestError(Exception):
    """A request that cannot be served: an HTTP status and a message for the client."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class SearchRequest:
    """A `/retrieve` request. `top_k` defaults to 3 and `return_scores` to False, as in Search-R1's server."""

    queries: list[str]
    top_k: int
    return_scores: bool

    @classmethod
    def parse(cls, body: bytes, limits: ServerLimits) -> "SearchRequest":
        """Reads and checks a body; what is wrong with it raises `RequestError` with status 400."""
        try:
            fields = json.loads(body)
            queries, top_k = fields["queries"], fields.get("topk")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RequestError(400, 'expected a JSON object {"queries": [...], "topk": k}') from error
        top_k = 3 if top_k is None else top_k
        if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
            raise RequestError(400, "queries must be a list of texts")
        if len(queries) > limits.queries:
            raise RequestError(400, f"got {len(queries)} queries; at most {limits.queries} can be asked at once")
        longest = max(map(len, queries), default=0)
        if longest > limits.query_characters:
            raise RequestError(400, f"a query has {longest} characters; at most {limits.query_characters} can be used")
        if not isinstance(top_k, int) or isinstance(top_k, bool):
            raise RequestError(400, f"topk must be a number from 1 to {limits.top_k}, got a {type(top_k).__name__}")
        if not 1 <= top_k <= limits.top_k:
            raise RequestError(400, f"topk must be a number from 1 to {limits.top_k}, got {top_k!r:.50}")
        return cls(queries, top_k, bool(fields.get("return_scores")))

    def reply(self, found: list[list[Passage]]) -> dict[str, Any]:
        """The reply in Search-R1's format: documents, each with its score if asked for."""
        entry = _scored if self.return_scores else _document
        return {"result": [[entry(passage) for passage in passages] for passages in found]}


def _document(passage: Passage) -> dict[str, Any]:
    return {"id": passage.id, "contents": passage.contents}


def _scored(passage: Passage) -> dict[str, Any]:
    return {"document": _document(passage), "score": passage.score}


def create_app(retriever: BM25Retriever, limits: ServerLimits | None = None) -> "Starlette":
    """An ASGI application with `POST /retrieve` and `GET /health`.

    Args:
        retriever: what is searched. As many searches run at once as there are CPUs: each needs memory in proportion to
            the corpus.
        limits: of a request. One above them gets status 400, or 413 if its body is too large.

    Raises:
        `ImportError`: Starlette is not installed.
    """
    try:
        from anyio import CapacityLimiter, to_thread
        from starlette.applications import Starlette
        from starlette.responses import JSONResponse, Response
        from starlette.routing import Route
    except ImportError as error:
        raise ImportError('the search server needs Starlette: pip install "mempo-trl[serve]"') from error
    limits = limits or ServerLimits()
    workers = CapacityLimiter(os.cpu_count() or 1)

    async def retrieve(request: "Request") -> "Response":
        asked = SearchRequest.parse(await _read_body(request, limits.body_bytes), limits)
        found = await to_thread.run_sync(retriever.search, asked.queries, asked.top_k, limiter=workers)
        # ASCII: a corpus may hold halves of surrogate pairs, which UTF-8 cannot encode.
        return Response(json.dumps(asked.reply(found)), media_type="application/json")

    async def health(request: "Request") -> "JSONResponse":
        return JSONResponse({"status": "ok", "passages": len(retriever)})

    async def refuse(request: "Request", error: Exception) -> "JSONResponse":
        assert isinstance(error, RequestError)
        return JSONResponse({"error": str(error)}, status_code=error.status)

    routes = [Route("/retrieve", retrieve, methods=["POST"]), Route("/health", health)]
    return Starlette(routes=routes, exception_handlers={RequestError: refuse})


async def _read_body(request: "Request", limit: int) -> bytes:
    """The body, of which no more than `limit` bytes are ever held."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise RequestError(413, f"the request is too large: at most {limit} bytes can be sent")
    return bytes(body)


def make_server(
    retriever: BM25Retriever, host: str = "127.0.0.1", port: int = 8000, limits: ServerLimits | None = None
) -> "uvicorn.Server":
    """A server that is not started yet: `make_server(...).run()` serves until SIGINT or SIGTERM.

    It then takes no new connection, and requests under way have `limits.shutdown_seconds` to end.

    Raises:
        `ImportError`: Starlette or uvicorn is not installed.
    """
    try:
        import uvicorn
    except ImportError as error:
        raise ImportError('the search server needs uvicorn: pip install "mempo-trl[serve]"') from error
    limits = limits or ServerLimits()
    config = uvicorn.Config(
        create_app(retriever, limits),
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        limit_concurrency=limits.connections,
        timeout_graceful_shutdown=limits.shutdown_seconds,
    )
    return uvicorn.Server(config)
