"""Running the tool calls of a turn: together, each with a time limit, a failure being a result."""

import asyncio
import copy
import inspect
import json
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MethodType
from typing import Any, NamedTuple

from transformers.utils import get_json_schema

from ..types import Episode, Message, TurnLimits


class ToolResult(NamedTuple):
    """What the model is told. `failed`: the tool was unknown, raised, was called wrongly or did not end in time."""

    text: str
    failed: bool = False


def tool_schemas(tools: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The JSON schemas of tools by name, as a prompt shows them; a schema stays as it is."""
    return [get_json_schema(tool) if callable(tool) else tool for tool in tools.values()]


def call_tool(
    tools: Mapping[str, Callable[..., Any]],
    call: Mapping[str, Any],
    event_loop: asyncio.AbstractEventLoop | None = None,
) -> ToolResult:
    """Runs one parsed tool call, `{"function": {"name", "arguments"}}`; any error becomes a short text.

    A value that is no text is told as JSON: `{"a": null}`, not `{'a': None}`. An async tool runs in `event_loop`, which
    another thread drives, or in one of its own.
    """
    function = call.get("function", call)
    name, arguments = function["name"], function["arguments"]
    if not isinstance(name, str) or name not in tools:
        return ToolResult(f"Error: there is no tool {name!r}. Tools: {', '.join(sorted(tools))}.", failed=True)
    if not isinstance(arguments, Mapping):
        return ToolResult(f"Error: the arguments of {name} must be a JSON object, got {arguments!r:.200}.", failed=True)
    try:
        result = tools[name](**arguments)
        if inspect.isawaitable(result):
            waited = _await(result)
            future = asyncio.run_coroutine_threadsafe(waited, event_loop) if event_loop else None
            result = future.result() if future else asyncio.run(waited)
        return ToolResult(_text(result))
    except Exception as error:  # the tool is the user's or the model's argument is wrong: data, not a crash
        return ToolResult(f"Error: {name} failed: {error!s:.500}", failed=True)


def _text(result: Any) -> str:
    """What a tool returned, as JSON unless it is a text already or has no JSON."""
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(result)


async def _await(result: Any) -> Any:
    return await result


def run_concurrently(
    calls: Sequence[Callable[[], ToolResult]],
    timeout: float | None = None,
    concurrency: int = 64,
    on_timeout: Callable[[int], None] = lambda index: None,
) -> list[ToolResult]:
    """Runs calls in threads and returns their results in order.

    Args:
        calls: functions without arguments. One that raises, `SystemExit` and its like included, has failed.
        timeout: seconds that each may take, from its own start. A call that takes longer is left behind: its thread
            goes on unseen and ends with the process.
        concurrency: how many run at once.
        on_timeout: called with the number of a call as soon as it is left behind.
    """
    results: list[ToolResult | None] = [None] * len(calls)
    waiting = deque(enumerate(calls))
    deadlines: dict[int, float] = {}
    ended: queue.SimpleQueue[tuple[int, ToolResult]] = queue.SimpleQueue()

    def work(index: int, call: Callable[[], ToolResult]) -> None:
        result = ToolResult("Error: the tool ended without a result.", failed=True)
        try:
            result = call()
        finally:
            ended.put((index, result))

    while waiting or deadlines:
        while waiting and len(deadlines) < concurrency:
            index, call = waiting.popleft()
            deadlines[index] = float("inf") if timeout is None else time.monotonic() + timeout
            threading.Thread(target=work, args=(index, call), daemon=True).start()
        left = min(deadlines.values()) - time.monotonic()
        try:
            index, result = ended.get(timeout=None if timeout is None else max(left, 0.0))
        except queue.Empty:
            index = min(deadlines, key=deadlines.__getitem__)
            result = ToolResult(f"Error: the tool did not answer within {timeout:g} s.", failed=True)
            on_timeout(index)
        if deadlines.pop(index, None) is not None:
            results[index] = result
    return [result for result in results if result is not None]


def run_calls(
    calls: Sequence[tuple[Episode, Message]],
    limits: TurnLimits,
    event_loop: asyncio.AbstractEventLoop | None = None,
) -> list[ToolResult]:
    """Runs tool calls of episodes together, and returns their results in order.

    An episode one of whose calls timed out goes on with another environment, see `leave_behind`.
    """

    def run(episode: Episode, call: Message) -> ToolResult:
        return call_tool(episode.tools, call, event_loop)  # the tools as they are when the call starts

    return run_concurrently(
        [partial(run, episode, call) for episode, call in calls],
        limits.tool_timeout,
        limits.tool_concurrency,
        on_timeout=lambda index: leave_behind(calls[index][0]),
    )


def leave_behind(episode: Episode) -> None:
    """Gives an episode an environment that a call which timed out, and still runs, cannot write to.

    The call keeps the environment that it was made on, and the episode goes on with a copy: what the call sets on
    `self`, or does to lists, dicts and sets in its attributes, never reaches the episode, its reward, or an episode
    that the environment is reset for. All else that the attributes hold, such as a retriever, is shared.

    Args:
        episode: with `environment` and `tools`, whose bound methods are bound to the copy.
    """
    left = episode.environment
    if left is None:
        return
    episode.environment = kept = copy.copy(left)
    copies: dict[int, Any] = {}
    for name, value in list(getattr(kept, "__dict__", {}).items()):
        setattr(kept, name, _own_containers(value, copies))
    episode.tools = {
        name: MethodType(tool.__func__, kept) if getattr(tool, "__self__", None) is left else tool
        for name, tool in episode.tools.items()
    }


def _own_containers(value: Any, copies: dict[int, Any]) -> Any:
    """`value` with copies of its built-in containers, at any depth; `copies` holds those made so far, by id."""
    if type(value) is tuple:
        return tuple(_own_containers(item, copies) for item in value)
    if not isinstance(value, dict | list | set | deque | bytearray):
        return value
    if id(value) not in copies:
        own: Any = copy.copy(value)  # at once: the call that was left behind may be writing
        copies[id(value)] = own
        places = list(own) if isinstance(own, dict) else range(len(own)) if isinstance(own, list | deque) else ()
        for place in places:
            own[place] = _own_containers(own[place], copies)
    return copies[id(value)]
