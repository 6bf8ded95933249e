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
from contextlib import suppress
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

    A value that is not text is shown as JSON: `{"a": null}`, not `{'a': None}`. An async tool runs in `event_loop`,
    which another thread drives, or in a new one.
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

    One thread starts, and makes one call after the other. As long as calls wait, the threads double every `PATIENCE`
    seconds: calls of microseconds share a thread, whose start costs more than they do, and slow ones soon have theirs.

    Args:
        calls: functions without arguments. One that raises, `SystemExit` and its like included, has failed.
        timeout: seconds that each may take, from its own start. A call that takes longer is left behind: its thread
            keeps running unseen and ends with the process.
        concurrency: how many run at once.
        on_timeout: called with the number of a call as soon as it is left behind.
    """
    return _Calls(calls, timeout, concurrency, on_timeout).run()


PATIENCE = 0.001


class _Calls:
    """The calls of one `run_concurrently`: those that wait, those that run with their deadlines, and results."""

    def __init__(
        self,
        calls: Sequence[Callable[[], ToolResult]],
        timeout: float | None,
        concurrency: int,
        on_timeout: Callable[[int], None],
    ) -> None:
        self._timeout, self._concurrency, self._on_timeout = timeout, concurrency, on_timeout
        self._results: list[ToolResult | None] = [None] * len(calls)
        self._waiting = deque(enumerate(calls))
        self._deadlines: dict[int, float] = {}  # of the calls that run
        self._threads = 0
        self._left_behind: set[int] = set()
        self._ended: queue.SimpleQueue[tuple[int, ToolResult]] = queue.SimpleQueue()

    def run(self) -> list[ToolResult]:
        """All results, in order."""
        open_calls = len(self._results)
        self._start(1)
        while open_calls:
            try:
                index, result = self._ended.get(timeout=self._wait())
            except queue.Empty:
                open_calls -= self._give_up()
                self._start(max(self._threads, 1))
                continue
            if index not in self._left_behind:
                self._results[index] = result
                open_calls -= 1
        return [result for result in self._results if result is not None]

    def _start(self, threads: int) -> None:
        """Starts up to so many more threads, as far as calls wait."""
        for _ in range(min(threads, len(self._waiting), self._concurrency - self._threads)):
            self._threads += 1
            threading.Thread(target=self._work, daemon=True).start()

    def _wait(self) -> float | None:
        """Seconds until something is to be done: the next deadline, or more threads."""
        if self._waiting and self._threads < self._concurrency:
            return PATIENCE
        running = list(self._deadlines.values())
        if self._timeout is None:
            return None
        return max(min(running) - time.monotonic(), 0.0) if running else PATIENCE

    def _give_up(self) -> int:
        """Leaves behind the calls whose time is over, each with its thread; returns how many."""
        late = [index for index, deadline in list(self._deadlines.items()) if deadline <= time.monotonic()]
        given_up = 0
        for index in late:
            if self._deadlines.pop(index, None) is None:
                continue  # it ended just now
            self._left_behind.add(index)
            self._threads -= 1
            given_up += 1
            text = f"Error: the tool did not answer within {self._timeout:g} s."
            self._results[index] = ToolResult(text, failed=True)
            self._on_timeout(index)
        return given_up

    def _work(self) -> None:
        """One thread: calls until none waits, or until its own was left behind."""
        while True:
            try:
                index, call = self._waiting.popleft()
            except IndexError:
                return
            self._deadlines[index] = float("inf") if self._timeout is None else time.monotonic() + self._timeout
            result = ToolResult("Error: the tool ended without a result.", failed=True)
            with suppress(BaseException):  # SystemExit and its like too, which would end the thread
                result = call()
            if self._deadlines.pop(index, None) is None:
                return  # left behind
            self._ended.put((index, result))


def run_calls(
    calls: Sequence[tuple[Episode, Message]],
    limits: TurnLimits,
    event_loop: asyncio.AbstractEventLoop | None = None,
) -> list[ToolResult]:
    """Runs tool calls of episodes together, and returns their results in order.

    An episode one of whose calls timed out continues with another environment, see `leave_behind`.
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

    The call keeps the environment that it was made on, and the episode continues with a copy: what the call sets on
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
