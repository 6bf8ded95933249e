"""The search server, run for real on the loopback."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx2
import psutil
import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from mempo_trl.tasks.search import BM25Retriever, HTTPRetriever, Passage, SearchEnvironment
from mempo_trl.tasks.search.server import ServerLimits, make_server

PASSAGES = [Passage(str(i), f"Town {i}", f"The mayor of place{i} is person{i}.") for i in range(200)]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def retriever():
    return BM25Retriever.build(PASSAGES)


@contextmanager
def running(retriever, limits=None):
    """Yields the url of a server in a thread, and the server."""
    server = make_server(retriever, port=0, limits=limits)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}", server
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def url(retriever):
    with running(retriever) as (url, _):
        yield url


def ask(url, **fields):
    return httpx2.post(f"{url}/retrieve", json=fields)


def test_the_wire_format(url, retriever):
    queries = ["mayor of place7", "place11"]
    reply = ask(url, queries=queries, topk=2, return_scores=True).json()
    assert reply.keys() == {"result"}
    first = reply["result"][0][0]
    assert first["document"] == {"id": "7", "contents": '"Town 7"\nThe mayor of place7 is person7.'}
    expected = retriever.search(queries, 2)
    assert [[entry["score"] for entry in row] for row in reply["result"]] == [
        [p.score for p in row] for row in expected
    ]


def test_without_scores_documents_stand_alone(url):
    (row,) = ask(url, queries=["place7"], topk=1).json()["result"]
    assert row == [{"id": "7", "contents": '"Town 7"\nThe mayor of place7 is person7.'}]


def test_defaults_and_empty_results(url):
    common, missing = ask(url, queries=["mayor", "zzz"]).json()["result"]
    assert len(common) == 3
    assert missing == []
    assert ask(url, queries=[]).json() == {"result": []}


def test_http_retriever_gives_what_the_index_gives(url, retriever):
    queries = ["mayor of place3", "person5 place9"]
    assert HTTPRetriever(url).search(queries, 4) == retriever.search(queries, 4)


def test_health(url):
    assert httpx2.get(f"{url}/health").json() == {"status": "ok", "passages": 200}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "expected a JSON object"),
        ({"queries": "text"}, "must be a list of texts"),
        ({"queries": [1]}, "must be a list of texts"),
        ({"queries": ["x"] * 300}, "at most 256"),
        ({"queries": ["x" * 10_000]}, "has 10000 characters; at most 4000"),
        ({"queries": ["x"], "topk": 0}, "from 1 to 100, got 0"),
        ({"queries": ["x"], "topk": 101}, "got 101"),
        ({"queries": ["x"], "topk": True}, "got a bool"),
        ({"queries": ["x"], "topk": "3"}, "got a str"),
    ],
)
def test_requests_that_cannot_be_served(url, fields, message):
    response = ask(url, **fields)
    assert response.status_code == 400
    assert message in response.json()["error"]


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    "body",
    [
        b"", b"not json", b"[1]", b"null", b"\xff\xfe", DEEP, b"[" * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"queries": ' + DEEP + b"}", b'{"queries": ["x"], "topk": ' + DEEP + b"}",
        b'{"queries": ["x"], "topk": ' + b"9" * 10_000 + b"}",
    ],
    ids=lambda body: f"{body[:30]!r}",
)  # fmt: skip
def test_bodies_that_are_no_request(url, body):
    response = httpx2.post(f"{url}/retrieve", content=body)
    assert response.status_code == 400
    assert "expected a JSON object" in response.json()["error"]


@pytest.mark.parametrize("topk", [b"Infinity", b"[" * 900 + b"]" * 900, b"9" * 4_000])
def test_numbers_of_passages_that_json_can_write_and_nobody_can_mean(url, topk):
    response = httpx2.post(f"{url}/retrieve", content=b'{"queries": ["x"], "topk": ' + topk + b"}")
    assert response.status_code == 400
    assert len(response.json()["error"]) < 120


def test_bodies_that_are_too_large(retriever):
    with running(retriever, ServerLimits(body_bytes=1000)) as (url, _):
        whole = httpx2.post(f"{url}/retrieve", content=b"x" * 2000)
        chunked = httpx2.post(f"{url}/retrieve", content=(b"x" * 500 for _ in range(4)))
        assert [whole.status_code, chunked.status_code] == [413, 413]
        assert ask(url, queries=["place1"]).status_code == 200


def test_half_a_surrogate_pair_in_a_query_and_in_a_passage():
    retriever = BM25Retriever.build([Passage("0", "odd", "broken \ud800 text")])
    with running(retriever) as (url, _):
        response = httpx2.post(f"{url}/retrieve", content=b'{"queries": ["broken \\ud800"]}')
    assert response.json()["result"][0][0]["contents"] == '"odd"\nbroken \ud800 text'


def test_64_clients_at_once(url, retriever):
    expected = [[retriever.search([f"place{i}"], 1)[0][0].id] for i in range(64)]

    limits = httpx2.Limits(max_connections=64)
    with httpx2.Client(limits=limits, timeout=60) as connections, ThreadPoolExecutor(64) as pool:

        def client(number):
            body = {"queries": [f"place{number}"], "topk": 1}
            replies = [connections.post(f"{url}/retrieve", json=body).json() for _ in range(10)]
            return [[row[0]["id"] for row in reply["result"]] for reply in replies]

        found = list(pool.map(client, range(64)))
    assert found == [[ids] * 10 for ids in expected]


def test_requests_under_way_end_before_the_server_does(retriever):
    under_way, go_on = threading.Event(), threading.Event()

    class Slow(BM25Retriever):
        def search(self, queries, k):
            under_way.set()
            go_on.wait(60)
            return super().search(queries, k)

    slow = Slow(retriever._index, retriever._passages)
    with running(slow) as (url, server), ThreadPoolExecutor(1) as pool:
        request = pool.submit(ask, url, queries=["place1"])
        assert under_way.wait(60)
        server.should_exit = True
        while socket_accepts(url):  # no new connection
            time.sleep(0.01)
        go_on.set()
        assert request.result().json()["result"][0][0]["id"] == "1"


def socket_accepts(url):
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, int(port))) == 0


def test_clients_recover_from_a_killed_server(retriever, tmp_path):
    retriever.save(tmp_path / "index")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mempo_trl.cli", "serve-retriever", str(tmp_path / "index"), "--port", str(port)]
    client = HTTPRetriever(f"http://127.0.0.1:{port}", retries=0, timeout=60, max_failures=2, cooldown=0.2)
    environment = SearchEnvironment(client, top_k=1)

    def connected():
        return len([c for c in psutil.Process().net_connections() if c.raddr and c.raddr.port == port])

    def search_until(text):
        for _ in range(2400):
            result = environment.search("place4")
            if text in result:
                return result
            time.sleep(0.05)
        raise AssertionError(f"never got {text!r}, last {result!r}")

    for sign in (signal.SIGKILL, signal.SIGTERM):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            search_until("person4")
            if sign == signal.SIGKILL:  # in the middle of 8 requests, which a server that stands still cannot answer
                os.kill(process.pid, signal.SIGSTOP)
                with ThreadPoolExecutor(8) as pool:
                    searches = [pool.submit(SearchEnvironment(client).search, "place4") for _ in range(8)]
                    for _ in range(2000):
                        if connected() == 8:
                            break
                        time.sleep(0.01)
                    else:
                        os.kill(process.pid, sign)  # so that the searches end
                        pytest.fail(f"8 searches, but {connected()} connections")
                    os.kill(process.pid, sign)
                assert all(search.result().startswith("Error") for search in searches)
        finally:
            os.kill(process.pid, sign)
            process.wait(60)
        assert "Error" in search_until("Error")
    assert environment.failures > 0
