"""Models behind HTTP: a vLLM server that takes and gives token ids, and any OpenAI-compatible chat endpoint."""

import os
import random
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import httpx2

_RETRIED = frozenset({408, 409, 429, 500, 502, 503, 504})
_LONGEST_PAUSE = 60.0  # seconds


class EndpointError(Exception):
    """An endpoint gave no usable reply, after retries where they can help."""


class ContextOverflow(EndpointError):
    """The endpoint refused a request because the context is longer than it can hold."""


@dataclass(frozen=True)
class Sampling:
    """How a turn is sampled. The defaults are those of training: the model's own distribution.

    Attributes:
        temperature: 0 is greedy.
        top_p: smallest share of probability that is sampled from; 1 for all.
        max_turn_length: most tokens of a turn.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_turn_length: int = 1024

    def request(self) -> dict[str, Any]:
        """The fields of an OpenAI-compatible request."""
        return {"temperature": self.temperature, "top_p": self.top_p, "max_tokens": self.max_turn_length}


class Endpoint:
    """Pooled connections to one server; safe to share between threads.

    A request without an answer, or with one of the statuses 408, 409, 429, 500, 502, 503 and 504, is sent again after a
    pause that doubles each time, or as long as the server's `Retry-After` asks, up to a minute.

    Args:
        base_url: with or without `/v1` at its end.
        model: name of the model; default: the first that the server lists.
        api_key: default: the environment variable `OPENAI_API_KEY`, if set.
        timeout: seconds for each attempt.
        retries: how often a failed request is sent again.
        backoff: seconds before the first retry.
        extra: fields of each request, above the usual ones; None leaves one out. Newer OpenAI models want
            `{"max_tokens": None, "max_completion_tokens": 2048, "temperature": None}`.
    """

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        api_key: str | None = None,
        timeout: float = 120.0,
        retries: int = 4,
        backoff: float = 1.0,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise ValueError(f"base_url must start with http:// or https://, got {base_url!r}")
        self.base_url = base_url.rstrip("/").removesuffix("/v1") + "/v1"
        self.extra = dict(extra or {})
        self._model = model
        self._retries, self._backoff = retries, backoff
        self._lock = threading.Lock()
        self._card: dict[str, Any] | None = None
        api_key = api_key or os.environ.get("OPENAI_API_KEY")
        self._client = httpx2.Client(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx2.Timeout(timeout, pool=None),
            limits=httpx2.Limits(max_connections=256, max_keepalive_connections=256),
        )

    @property
    def model(self) -> str:
        """Name of the model that is asked."""
        return self._model or self.card["id"]

    @property
    def card(self) -> dict[str, Any]:
        """What the server's list of models says of this one; of the first if no name was given."""
        with self._lock:
            if self._card is None:
                models = self._request("GET", "/models").get("data") or []
                named = [card for card in models if self._model in (None, card["id"])]
                if not named:
                    wanted = self._model or "any model"
                    raise EndpointError(f"{self.base_url} serves {[card['id'] for card in models]}, not {wanted}")
                self._card = named[0]
            return self._card

    def close(self) -> None:
        """Closes the pooled connections."""
        self._client.close()

    def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        problem, pause = "", self._backoff
        body = body and {key: value for key, value in {**body, **self.extra}.items() if value is not None}
        for attempt in range(self._retries + 1):
            if attempt:
                time.sleep(pause)
            # Jitter, or episodes that failed together would come back together.
            pause = self._backoff * 2**attempt * random.uniform(0.5, 1.5)
            try:
                response = self._client.request(method, self.base_url + path, json=body)
                if response.status_code == 200:
                    return response.json()
            except (httpx2.TransportError, ValueError) as error:
                problem = f"{type(error).__name__}: {error}"
                continue
            problem = f"HTTP {response.status_code}: {response.text[:300]}"
            if response.status_code not in _RETRIED:
                overflow = re.search(r"context.?length|prompt is too long", response.text, re.IGNORECASE)
                raise (ContextOverflow if overflow else EndpointError)(f"{self.base_url}{path} refused: {problem}")
            pause = _retry_after(response) or pause
        raise EndpointError(f"{self.base_url}{path} gave no answer in {self._retries + 1} attempts ({problem})")


def _retry_after(response: httpx2.Response) -> float | None:
    value = response.headers.get("retry-after", "")
    return min(float(value), _LONGEST_PAUSE) if value.isdecimal() else None


class VLLMServer(Endpoint):
    """A vLLM server asked with token ids, answering with token ids: nothing sampled is decoded and encoded again.

    Needs a server with `return_token_ids` on `/v1/completions` (vLLM 0.10.2 and later).

    Args:
        *args: as in `Endpoint`.
        eos_token_ids: ids that end a turn, if the model has others than its tokenizer's.
        **kwargs: as in `Endpoint`.
    """

    def __init__(self, *args: Any, eos_token_ids: Sequence[int] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.eos_token_ids = list(eos_token_ids)

    @property
    def max_context_length(self) -> int | None:
        """Tokens that the server can hold, prompt included, as it says itself."""
        return self.card.get("max_model_len")

    def generate(self, contexts: list[list[int]], sampling: Sampling, seed: int | None = None) -> list[list[int]]:
        """Samples one turn for each context, with one request each.

        Args:
            contexts: what the turns are generated from; each shorter than `max_context_length`.
            sampling: how.
            seed: of the server's random numbers; None for any.

        Raises:
            `EndpointError`: the server failed, or gave no token ids.
        """
        return [self._generate(context, sampling, seed) for context in contexts]

    def _generate(self, context: list[int], sampling: Sampling, seed: int | None) -> list[int]:
        body = {"model": self.model, "prompt": context, "return_token_ids": True, "seed": seed, **sampling.request()}
        if self.max_context_length is not None:
            body["max_tokens"] = min(sampling.max_turn_length, self.max_context_length - len(context))
        ids = _first_choice(self._request("POST", "/completions", body)).get("token_ids")
        if not ids:
            raise EndpointError(
                f"{self.base_url} gave no token ids. Serve the model with vLLM 0.10.2 or later, or use ChatEndpoint"
            )
        return list(ids)


class ChatReply(NamedTuple):
    """One message of an endpoint: its text, the tool calls that the endpoint parsed, and its tokens."""

    text: str
    tool_calls: list[dict[str, Any]]
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int


class ChatEndpoint(Endpoint):
    """Any endpoint with OpenAI's `/v1/chat/completions`. Arguments as in `Endpoint`, and:

    Args:
        tool_choice: `"auto"` for endpoints that parse tool calls themselves. `"none"` for those that do not, such as a
            vLLM server without a tool parser: calls are then read from the text, between `<tool_call>` tags.
    """

    def __init__(self, *args: Any, tool_choice: Literal["auto", "none"] = "auto", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tool_choice = tool_choice

    def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        sampling: Sampling,
        seed: int | None = None,
    ) -> ChatReply:
        """Asks for one message.

        Args:
            messages: in OpenAI's format.
            tools: JSON schemas of functions.
            sampling: how.
            seed: of the endpoint's random numbers; None for any.

        Raises:
            `ContextOverflow`: the messages are longer than the endpoint can hold.
            `EndpointError`: the endpoint failed, or its reply does not fit.
        """
        body = {"model": self.model, "messages": messages, "seed": seed, **sampling.request()}
        if tools:
            body |= {"tools": tools, "tool_choice": self.tool_choice}
        reply = self._request("POST", "/chat/completions", body)
        choice = _first_choice(reply)
        message, usage = choice.get("message") or {}, reply.get("usage") or {}
        if not {"prompt_tokens", "completion_tokens"} <= usage.keys():
            raise EndpointError(f"{self.base_url} does not say how many tokens it used, which episodes are measured by")
        calls = message.get("tool_calls") or []
        if not all(isinstance(call.get("function"), dict) and "name" in call["function"] for call in calls):
            raise EndpointError(f"{self.base_url} sent tool calls that are no function calls: {calls!r:.200}")
        return ChatReply(
            message.get("content") or "",
            calls,
            choice.get("finish_reason") or "stop",
            usage["prompt_tokens"],
            usage["completion_tokens"],
        )


def _first_choice(reply: Mapping[str, Any]) -> dict[str, Any]:
    choices = reply.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise EndpointError(f"the endpoint's reply has no choices, only {sorted(reply)}")
    return choices[0]
