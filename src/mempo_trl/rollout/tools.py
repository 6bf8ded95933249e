"""Running the tool calls of a turn: together, each with a time limit, a failure being a result."""

import asyncio
import inspect
import json
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from transformers.utils import get_json_schema


class ToolResult(NamedTuple):
    """What the model is told. `failed`: the tool was unknown, raised, was called wrongly or did not end in time."""

    text: str
    failed: bool = False


def tool_schemas(tools: Mapping[str, Callable[..., Any]]) -> list[dict[str, Any]]:
    """The JSON schemas of tools by name, as a prompt shows them."""
    return [get_json_schema(tool) for tool in tools.values()]


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
    calls: Sequence[Callable[[], ToolResult]], timeout: float | None = None, concurrency: int = 64
) -> list[ToolResult]:
    """Runs calls in threads and returns their results in order.

    Args:
        calls: functions without arguments. One that raises, `SystemExit` and its like included, has failed.
        timeout: seconds that each may take, from its own start. A call that takes longer is left behind: its thread
            goes on unseen and ends with the process.
        concurrency: how many run at once.
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
        if deadlines.pop(index, None) is not None:
            results[index] = result
    return [result for result in results if result is not None]
