"""The agent over a chat endpoint: messages on the wire, errors and retries."""

import json
import re
import threading
import time

import pytest

from agent_script import FACTS, TURNS
from fake_server import serve
from mempo_trl.inference.agent import MemoryAgent
from mempo_trl.inference.endpoints import ChatEndpoint, Sampling
from mempo_trl.rollout.chat_loop import read_tool_calls, to_wire
from mempo_trl.rollout.loop import LAST_TURN_NOTE
from mempo_trl.tasks.search import SYSTEM_PROMPT, BM25Retriever, SearchEnvironment, extract_answer
from mempo_trl.types import TurnLimits

USAGE = {"prompt_tokens": 100, "completion_tokens": 10}


@pytest.fixture
def environment_factory():
    retriever = BM25Retriever.build(FACTS)
    return lambda: SearchEnvironment(retriever, top_k=1)


def native(text, *queries):
    """A reply of an endpoint that parses tool calls itself."""
    calls = [
        {"id": f"id-{q}", "type": "function", "function": {"name": "search", "arguments": json.dumps({"query": q})}}
        for q in queries
    ]
    return chat(text, tool_calls=calls)


def chat(text, finish_reason="stop", **message):
    choice = {"message": {"role": "assistant", "content": text, **message}, "finish_reason": finish_reason}
    return {"choices": [choice], "usage": USAGE}


def chat_agent(server, environment_factory, context="memory", limits=None, **options):
    endpoint = ChatEndpoint(server.url, "gpt", api_key="secret", **{"backoff": 0.01, "retries": 2, **options})
    return MemoryAgent(
        endpoint, context=context, environment_factory=environment_factory, limits=limits, system_prompt=SYSTEM_PROMPT
    )


def bodies(server):
    return [body for path, body, _ in server.requests if path == "/v1/chat/completions"]


@pytest.mark.parametrize("parsed", [True, False])
@pytest.mark.parametrize("context", ["memory", "full"])
def test_messages_follow_the_same_rule(environment_factory, parsed, context):
    if parsed:
        queries = ["France", "Peru", "Chile"]
        replies = [native(t.split("<tool_call>")[0], q) for t, q in zip(TURNS, queries, strict=False)]
        replies.append(chat(TURNS[-1]))
    else:
        replies = [chat(turn) for turn in TURNS]
    script = iter(replies)
    with serve(lambda path, body: next(script)) as server:
        trajectory = chat_agent(server, environment_factory, context).run("q")
    assert extract_answer(trajectory.messages) == "Paris; Lima"
    assert trajectory.stop_reason == "done"
    assert trajectory.memories == [None, "Paris", "Paris, Lima", "Paris, Lima"]
    texts = [turn.text for turn in trajectory.turns[:-1]]
    assert [json.loads(t.split("<tool_call>")[1].split("</tool_call>")[0]) for t in texts] == [
        json.loads(t.split("<tool_call>")[1].split("</tool_call>")[0]) for t in TURNS[:-1]
    ]
    assert [(t.context_tokens, t.turn_tokens) for t in trajectory.turns] == [(100, 10)] * 4
    asked = [body["messages"] for body in bodies(server)]
    wire = [to_wire(m) for m in trajectory.prompt + trajectory.messages]
    starts = {"full": [2, 2, 2, 2], "memory": [2, 2, 4, 6]}[context]  # the first visible message
    assert asked == [wire[:2] + wire[start : 2 + 2 * turn] for turn, start in enumerate(starts)]
    assert wire[3]["tool_call_id"] == wire[2]["tool_calls"][0]["id"]
    assert "<tool_call>" not in wire[2]["content"]
    assert bodies(server)[0]["tools"][0]["function"]["name"] == "search"
    assert server.requests[0][2]["Authorization"] == "Bearer secret"


def test_errors_that_pass_are_retried(environment_factory):
    script = iter([(500, {}, {}), (429, {}, {"Retry-After": "0"}), chat("<answer>x</answer>")])
    with serve(lambda path, body: next(script)) as server:
        trajectory = chat_agent(server, environment_factory).run("q")
    assert extract_answer(trajectory.messages) == "x"
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("reply", "error", "requests"),
    [
        ((500, {"error": "broken"}, {}), "HTTP 500.*broken", 3),
        ((401, {"error": "no key"}, {}), "refused: HTTP 401.*no key", 1),
        (b"<html>", "JSONDecodeError", 3),
        (b"[" * 100_000, "nested more than 100 levels deep", 3),
        ([1], r"sent no object, but \[1\]", 1),
        ({"choices": []}, "no choices", 1),
        ({"error": {"message": "quota"}}, "no choices: .*quota", 1),
        ({"choices": [{"text": "x"}], "usage": USAGE}, "choice without a message: .*'text': 'x'", 1),
        ({"choices": [{"message": {"content": "x"}}]}, "how many tokens", 1),
        ({**chat("x"), "usage": {"prompt_tokens": None, "completion_tokens": 1}}, "its usage is .*None", 1),
        ({**chat("x"), "usage": {"prompt_tokens": "1", "completion_tokens": 1}}, "its usage is", 1),
        ({**chat("x"), "usage": 3}, "its usage is 3", 1),
        (chat(3), "a content that is not text: 3", 1),
        (chat([{"image": "x"}]), "a content that is not text", 1),
        (chat("x", tool_calls=[{"id": "1", "type": "custom"}]), "not a function call: .*custom", 1),
        (chat("x", tool_calls="search"), "tool calls that are not a list: 'search'", 1),
        (chat("x", tool_calls=[{"function": {"name": None}}]), "not a function call", 1),
    ],
)
def test_errors_that_stay_end_the_episode_as_data(environment_factory, reply, error, requests):
    reply = (200, reply, {}) if isinstance(reply, bytes) else reply
    with serve(lambda path, body: reply) as server:
        trajectory = chat_agent(server, environment_factory).run("q")
    assert trajectory.stop_reason == "error"
    assert re.search(error, trajectory.error)
    assert len(server.requests) == requests
    assert trajectory.messages == []


ANSWER = "<answer>x</answer>"


@pytest.mark.parametrize(
    ("reply", "messages"),
    [
        (chat([{"type": "text", "text": "<answer>"}, {"type": "text", "text": "x</answer>"}]), 1),
        (chat([{"type": "thinking", "thinking": []}, "<answer>x</answer>"]), 1),
        (chat(ANSWER, tool_calls=[None]), 1),
        (chat(ANSWER, tool_calls=None), 1),
        (chat(ANSWER, finish_reason=7), 1),
        ({**chat(ANSWER), "id": None, "model": [], "extra": {"x": 1}}, 1),
        (chat(ANSWER, tool_calls={"function": {"name": "search", "arguments": '{"query": "Peru"}'}}), 1),
    ],
)
def test_replies_that_can_be_read_are(environment_factory, reply, messages):
    with serve(lambda path, body: reply) as server:
        trajectory = chat_agent(server, environment_factory).run("q")
    assert trajectory.stop_reason in ("done", "finished")
    assert extract_answer(trajectory.messages) == "x"
    assert len(trajectory.messages) == messages


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("", "/v1/chat/completions"),
        ("/", "/v1/chat/completions"),
        ("/v1", "/v1/chat/completions"),
        ("/api/v1/", "/api/v1/chat/completions"),
        ("/v1beta/openai", "/v1beta/openai/chat/completions"),
        ("/api/paas/v4", "/api/paas/v4/chat/completions"),
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("/openai", "/openai/v1/chat/completions"),
        ("/openai/v1?api-version=2", "/openai/v1/chat/completions?api-version=2"),
    ],
)
def test_a_url_that_names_a_version_is_used_as_given(given, asked):
    with serve(lambda path, body: chat("x")) as server:
        ChatEndpoint(server.url + given, "m").complete([], [], Sampling())
    assert [path for path, _, _ in server.requests] == [asked]


def test_a_timeout_is_data(environment_factory):
    with serve(lambda path, body: time.sleep(0.5) or chat("late")) as server:
        trajectory = chat_agent(server, environment_factory, timeout=0.1, retries=1).run("q")
    assert trajectory.stop_reason == "error"
    assert "ReadTimeout" in trajectory.error


def test_an_error_later_on_keeps_what_was_there(environment_factory):
    script = iter([chat(TURNS[0]), (400, {"message": "no"}, {})])
    with serve(lambda path, body: next(script)) as server:
        trajectory = chat_agent(server, environment_factory).run("q")
    assert trajectory.stop_reason == "error"
    assert [m["role"] for m in trajectory.messages] == ["assistant", "tool"]


def test_a_context_that_the_endpoint_cannot_hold_is_truncated(environment_factory):
    problem = {"error": {"message": "This model's maximum context length is 8192", "code": "context_length_exceeded"}}
    with serve(lambda path, body: (400, problem, {})) as server:
        assert chat_agent(server, environment_factory).run("q").stop_reason == "truncated"


def test_turn_limits_of_a_chat(environment_factory):
    with serve(lambda path, body: chat(TURNS[0])) as server:
        trajectory = chat_agent(server, environment_factory, limits=TurnLimits(max_turns=2)).run("q")
    assert trajectory.stop_reason == "max_turns"
    assert trajectory.messages[1]["content"].endswith(LAST_TURN_NOTE)
    with serve(lambda path, body: chat("<mem>cut", "length")) as server:
        assert chat_agent(server, environment_factory).run("q").stop_reason == "truncated"


def test_lone_surrogates_reach_no_endpoint():
    def look_up(word: str) -> str:
        """
        Looks up a word.

        Args:
            word: The word.
        """
        return f"{word} \ud800"

    calls = [
        {"id": "1", "type": "function", "function": {"name": name, "arguments": '{"word": "\\udfff"}'}}
        for name in ("look_up", "\ud800")
    ]
    script = iter([chat("<mem>\ud800</mem>", tool_calls=calls), chat("<answer>x</answer>")])
    with serve(lambda path, body: next(script)) as server:
        endpoint = ChatEndpoint(server.url, "gpt", retries=0)
        trajectory = MemoryAgent(endpoint, tools=[look_up]).run("q")
    assert trajectory.error is None
    turn, found, unknown = bodies(server)[1]["messages"][-3:]
    assert (turn["content"], found["content"]) == ("<mem>?</mem>", "? ?")
    assert "no tool '?'" in unknown["content"]


def test_arguments_that_are_no_json_reach_the_model_as_an_error(environment_factory):
    call = {"id": "1", "type": "function", "function": {"name": "search", "arguments": '{"query": '}}
    script = iter([chat("", tool_calls=[call]), chat("<answer>x</answer>")])
    with serve(lambda path, body: next(script)) as server:
        trajectory = chat_agent(server, environment_factory).run("q")
    assert "must be a JSON object" in trajectory.messages[1]["content"]
    assert (trajectory.tool_calls, trajectory.tool_failures) == (1, 1)


def test_fields_of_a_request_can_be_replaced_or_left_out(environment_factory):
    extra = {"max_tokens": None, "max_completion_tokens": 9}
    with serve(lambda path, body: chat("<answer>x</answer>")) as server:
        chat_agent(server, environment_factory, extra=extra, tool_choice="none").run("q")
    (body,) = bodies(server)
    assert "max_tokens" not in body
    assert body["max_completion_tokens"] == 9
    assert body["tool_choice"] == "none"
    assert "seed" not in body


def test_many_questions_are_asked_at_once(environment_factory):
    together = threading.Barrier(16, timeout=60)  # breaks unless 16 requests are under way at a time

    def reply(path, body):
        together.wait()
        return chat(f"<answer>{body['messages'][1]['content']}</answer>")

    questions = [str(i) for i in range(16)]
    with serve(reply) as server:
        agent = chat_agent(server, environment_factory)
        answers = [extract_answer(t.messages) for t in agent.run_many(questions, concurrency=16)]
    assert answers == questions


@pytest.mark.parametrize(
    "text",
    [
        "no call",
        "<tool_call>not json</tool_call>",
        "<tool_call>[1]</tool_call>",
        '<tool_call>{"name": "x", "arguments": {}}',
    ],
)
def test_text_without_a_readable_call(text):
    assert read_tool_calls(text) == []
