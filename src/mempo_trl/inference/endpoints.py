"""Models behind HTTP: a vLLM server that takes and gives token ids, and any OpenAI-compatible chat endpoint."""

import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..http import JSONClient, NoAnswer
from ..types import MAX_TURN_LENGTH, ChatReply

_VERSION = re.compile(r"/v\d\w*(/|$)")


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
    max_turn_length: int = MAX_TURN_LENGTH

    def request(self) -> dict[str, Any]:
        """The fields of an OpenAI-compatible request."""
        return {"temperature": self.temperature, "top_p": self.top_p, "max_tokens": self.max_turn_length}


class Endpoint:
    """Pooled connections to one server; safe to share between threads.

    A request that gets no answer is sent again, as `JSONClient` does.

    Args:
        base_url: used as given if its path names a version, such as `/v1`, `/api/v3` or `/v1beta/openai`; else `/v1` is
            appended. A query (`?api-version=...`) is sent with each request.
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
        base_url, _, self._query = base_url.partition("?")
        base_url = base_url.rstrip("/").removesuffix("/chat/completions")
        self.base_url = base_url if _VERSION.search(base_url) else base_url + "/v1"
        self.extra = dict(extra or {})
        self._model = model
        self._lock = threading.Lock()
        self._card: dict[str, Any] | None = None
        api_key = api_key or os.environ.get("OPENAI_API_KEY")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = JSONClient(timeout, retries, backoff, headers=headers)

    @property
    def model(self) -> str:
        """Name of the model that is asked."""
        return self._model or self.card["id"]

    @property
    def card(self) -> dict[str, Any]:
        """What the server's list of models says of this one; of the first if no name was given."""
        with self._lock:
            if self._card is None:
                listed = self._request("GET", "/models").get("data")
                models = [card for card in listed if _is_card(card)] if isinstance(listed, list) else []
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
        body = body and {key: value for key, value in {**body, **self.extra}.items() if value is not None}
        url = self.base_url + path
        try:
            reply = self._client.request(method, f"{url}?{self._query}" if self._query else url, body)
        except NoAnswer as error:
            raise EndpointError(f"{url} gave no answer {error}") from error
        if reply.status != 200:
            overflow = re.search(r"context.?length|prompt is too long", reply.text, re.IGNORECASE)
            problem = f"{url} refused: HTTP {reply.status}: {reply.text[:300]}"
            raise (ContextOverflow if overflow else EndpointError)(problem)
        if not isinstance(reply.value, dict):
            raise EndpointError(f"{url} sent no object, but {reply.text[:300]}")
        return reply.value


def _is_card(card: Any) -> bool:
    return isinstance(card, dict) and isinstance(card.get("id"), str)


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
        length = self.card.get("max_model_len")
        return length if _is_count(length) else None

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
        if not isinstance(ids, list) or not ids or not all(map(_is_count, ids)):
            raise EndpointError(
                f"{self.base_url} gave no token ids. Serve the model with vLLM 0.10.2 or later, or use ChatEndpoint"
            )
        return ids


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
        return parse_chat(reply)


def parse_chat(reply: Mapping[str, Any]) -> ChatReply:
    """Reads the JSON of a `/chat/completions` reply. A text in parts is joined; calls that are null are left out.

    Raises:
        `EndpointError`: it holds no message, no token counts, or calls that are not function calls. The
            error quotes it.
    """
    choice = _first_choice(reply)
    message, usage = choice.get("message"), reply.get("usage")
    if not isinstance(message, dict):
        raise EndpointError(f"the endpoint sent a choice without a message: {_clip(choice)}")
    counts: list[Any] = [
        usage.get(name) if isinstance(usage, dict) else None for name in ("prompt_tokens", "completion_tokens")
    ]
    if not all(map(_is_count, counts)):
        raise EndpointError(
            "the endpoint does not say how many tokens it used, which episodes are measured by: its usage is "
            f"{_clip(usage)}"
        )
    finish_reason = choice.get("finish_reason")
    return ChatReply(
        _read_content(message.get("content")),
        _read_calls(message.get("tool_calls")),
        finish_reason if isinstance(finish_reason, str) else "stop",
        *counts,
    )


def _read_content(content: Any) -> str:
    parts: list[Any] = content if isinstance(content, list) else [content]
    found = [part.get("text") if isinstance(part, dict) else part for part in parts]
    texts = [text for text in found if isinstance(text, str)]  # parts of other kinds are thoughts or images
    if content and not texts:
        raise EndpointError(f"the endpoint sent a content that is not text: {_clip(content)}")
    return "".join(texts)


def _read_calls(calls: Any) -> list[dict[str, Any]]:
    calls = [calls] if isinstance(calls, dict) else [] if calls is None else calls
    if not isinstance(calls, list):
        raise EndpointError(f"the endpoint sent tool calls that are not a list: {_clip(calls)}")
    return [_read_call(call) for call in calls if call is not None]


def _read_call(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise EndpointError(f"the endpoint sent a tool call that is not a function call: {_clip(call)}")
    return call if isinstance(call.get("id"), str) else {**call, "id": None}


def _first_choice(reply: Mapping[str, Any]) -> dict[str, Any]:
    choices = reply.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise EndpointError(f"the endpoint's reply has no choices: {_clip(reply)}")
    return choices[0]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _clip(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else text[:300] + "..."
