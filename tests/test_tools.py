import asyncio
import threading
import time
from collections import defaultdict
from types import SimpleNamespace

import pytest

from mempo_trl.rollout.tools import ToolResult, call_tool, leave_behind, run_concurrently


def call(name, arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def broken(query):
    raise RuntimeError("no such index")


async def slow_echo(query):
    await asyncio.sleep(0)
    return query


TOOLS = {"echo": lambda query: query, "broken": broken, "slow_echo": slow_echo}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a 'b'", "a 'b'"),
        (3, "3"),
        (None, "null"),
        (True, "true"),
        ({"name": "Zoë", "found": None, "tags": ["x"]}, '{"name": "Zoë", "found": null, "tags": ["x"]}'),
        (["a", 1], '["a", 1]'),
        (1 + 2j, "(1+2j)"),  # has no JSON
        ({(1, 2): 3}, "{(1, 2): 3}"),
    ],
    ids=repr,
)
def test_a_tool_s_value_is_text_or_json(value, text):
    assert call_tool({"give": lambda: value}, call("give", {})) == ToolResult(text)


@pytest.mark.parametrize(
    ("tool_call", "text"),
    [
        (call("find", {}), "there is no tool 'find'. Tools: broken, echo, slow_echo"),
        (call("broken", {"query": "x"}), "broken failed: no such index"),
        (call("echo", {"wrong": 1}), "unexpected keyword argument 'wrong'"),
        (call("echo", {}), "missing 1 required"),
        (call("echo", ["x"]), "must be a JSON object, got ['x']"),
    ],
)
def test_a_failure_is_a_short_text(tool_call, text):
    result = call_tool(TOOLS, tool_call)
    assert result.failed
    assert text in result.text
    assert len(result.text) < 600


def test_async_tools_run_in_the_given_loop_or_their_own():
    assert call_tool(TOOLS, call("slow_echo", {"query": "x"})) == ToolResult("x")
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def which():
        return asyncio.get_running_loop() is loop

    assert call_tool({"which": which}, call("which", {}), loop) == ToolResult("true")
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_calls_run_together_and_results_keep_their_order():
    barrier = threading.Barrier(8, timeout=10)  # passes only if eight calls wait at once

    def work(index):
        barrier.wait()
        return ToolResult(str(index))

    results = run_concurrently([lambda i=i: work(i) for i in range(8)], timeout=20)
    assert [r.text for r in results] == [str(i) for i in range(8)]


def test_no_more_than_the_limit_run_at_once():
    running, most, lock = 0, 0, threading.Lock()

    def work():
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.01)
        with lock:
            running -= 1
        return ToolResult("")

    assert len(run_concurrently([work] * 12, concurrency=3)) == 12
    assert most <= 3


def test_a_call_that_hangs_is_left_behind():
    forever = threading.Event()

    def hang():
        forever.wait()
        return ToolResult("late")

    results = run_concurrently([hang, lambda: ToolResult("fine"), hang], timeout=0.1, concurrency=1)
    assert [r.failed for r in results] == [True, False, True]
    assert "within 0.1 s" in results[0].text
    forever.set()


class Notes:
    """An environment whose tool writes in every way: an attribute, containers, nested ones."""

    def __init__(self, retriever):
        self.retriever = retriever
        self.done, self.found, self.by_query, self.pair = False, [], defaultdict(list), ([], "x")
        self.itself = [self.found]
        self.itself.append(self.itself)
        self.release, self.wrote = threading.Event(), threading.Event()

    def search(self, query):
        found = self.found  # a late call may hold what it reads here
        if query == "slow":
            self.release.wait(10)
        self.done = True
        found.append(query)
        self.by_query["a"].append(query)
        self.pair[0].append(query)
        self.wrote.set()
        return query


def test_what_a_call_does_after_its_time_never_reaches_the_episode_or_a_later_one():
    notes = Notes(object())
    notes.by_query["a"].append("early")
    other = notes.retriever
    episode = SimpleNamespace(environment=notes, tools={"search": notes.search, "free": len})
    calls = [lambda: call_tool(episode.tools, call("search", {"query": "slow"}))]
    (result,) = run_concurrently(calls, timeout=0.05, on_timeout=lambda index: leave_behind(episode))
    assert result.failed
    notes.release.set()
    assert notes.wrote.wait(10)  # the call that was left behind has written all that it writes
    assert (notes.done, notes.found) == (True, ["slow"])
    kept = episode.environment
    assert type(kept) is Notes
    assert kept.retriever is other
    assert episode.tools["free"] is len
    assert (kept.done, kept.found, kept.by_query, kept.pair) == (False, [], {"a": ["early"]}, ([], "x"))
    assert kept.itself[0] is kept.found
    assert kept.itself[1] is kept.itself
    call_tool(episode.tools, call("search", {"query": "quick"}))
    assert (kept.done, kept.found, notes.found) == (True, ["quick"], ["slow"])


def test_a_call_is_left_behind_when_its_time_is_over_not_when_the_others_end():
    started, left = time.monotonic(), []
    slow = [lambda: call_tool(TOOLS, call("echo", {"query": time.sleep(0.4)}))]
    run_concurrently(slow, timeout=0.1, on_timeout=lambda index: left.append((index, time.monotonic() - started)))
    ((index, seconds),) = left
    assert index == 0
    assert 0.1 <= seconds < 0.35


def test_no_calls():
    assert run_concurrently([]) == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_is_no_exception_is_a_failure_at_once():
    def leave(query):
        raise SystemExit(1)

    class Unprintable:
        def __str__(self):
            raise ValueError("no text")

    tools = {"leave": leave, "print": lambda query: Unprintable()}
    results = run_concurrently([lambda name=name: call_tool(tools, call(name, {"query": "x"})) for name in tools])
    assert [result.failed for result in results] == [True, True]
    assert "ended without a result" in results[0].text
    assert "print failed: no text" in results[1].text


def test_a_name_that_is_no_text_is_no_tool():
    assert "there is no tool ['echo']" in call_tool(TOOLS, call(["echo"], {})).text


def test_quick_calls_share_a_thread_and_slow_ones_do_not():
    quick = run_concurrently([lambda: ToolResult(threading.current_thread().name)] * 64)
    assert len({result.text for result in quick}) < 16

    def slow():
        time.sleep(0.05)
        return ToolResult(threading.current_thread().name)

    start = time.perf_counter()
    assert len({result.text for result in run_concurrently([slow] * 64)}) > 16
    assert time.perf_counter() - start < 1.6  # one after the other: 3.2
