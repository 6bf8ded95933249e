"""HTTPRetriever against a server on the loopback that can be down, slow, wrong or broken."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from mempo_trl.tasks.search import HTTPRetriever, Passage, RetrievalError, SearchEnvironment
from mempo_trl.tasks.search.remote import CircuitBreaker


def reply(body):
    """What a healthy server says: for each query, passages that name it."""
    return {
        "result": [
            [
                {"document": {"id": str(i), "contents": f'"Title {i}"\n{query}'}, "score": 9.5 - i}
                for i in range(body["topk"])
            ]
            for query in body["queries"]
        ]
    }


class Server(ThreadingHTTPServer):
    """Answers with `behave(body)`: an object to send as JSON, bytes to send as they are, or a status."""

    daemon_threads = True

    def __init__(self, port=0):
        super().__init__(("127.0.0.1", port), Handler)
        self.behave, self.bodies, self.peers = reply, [], set()
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def stop(self):
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append((self.path, body))
        self.server.peers.add(self.client_address)
        answer = self.server.behave(body)
        status = answer if isinstance(answer, int) else 200
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server():
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def connect(server):
    retrievers = []

    def connect(url=None, **options):
        retrievers.append(HTTPRetriever(url or server.url, **{"timeout": 5.0, "backoff": 0.0, **options}))
        return retrievers[-1]

    yield connect
    for retriever in retrievers:
        retriever.close()


@pytest.mark.parametrize("suffix", ["", "/", "/retrieve"])
def test_the_wire_format(server, connect, suffix):
    found = connect(server.url + suffix).search(["Paris", "Rome"], 2)
    assert server.bodies == [("/retrieve", {"queries": ["Paris", "Rome"], "topk": 2, "return_scores": True})]
    assert found[0] == [Passage("0", "Title 0", "Paris", 9.5), Passage("1", "Title 1", "Paris", 8.5)]
    assert [passage.text for passage in found[1]] == ["Rome", "Rome"]


def test_replies_of_search_r1s_bm25_server(server, connect):
    """Its documents have no id; title and text stand beside the contents."""
    document = {"title": "Paris", "text": "Capital.", "contents": '"Paris"\nCapital.'}
    server.behave = lambda body: {"result": [[{"document": document, "score": 1}] * 5, []]}
    assert connect().search(["Paris", "Rome"], 2) == [[Passage("", "Paris", "Capital.", 1.0)] * 2, []]


def test_nothing_is_asked_for_no_queries(server, connect):
    assert connect().search([], 3) == []
    assert server.bodies == []


def test_connections_are_kept(server, connect):
    retriever = connect()
    for _ in range(5):
        retriever.search(["Paris"], 1)
    assert len(server.bodies) == 5
    assert len(server.peers) == 1


def test_many_threads_get_their_own_answers(server, connect):
    retriever = connect(max_connections=4)
    queries = [f"query {i}" for i in range(100)]
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda query: retriever.search([query], 1), queries))
    assert [row[0][0].text for row in found] == queries
    assert len(server.peers) <= 4


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_passing_failure_is_tried_again(server, connect, status):
    server.behave = lambda body: reply(body) if len(server.bodies) == 3 else status
    assert connect(retries=2).search(["Paris"], 1)[0][0].text == "Paris"


def test_a_lasting_500_is_an_error(server, connect):
    server.behave = lambda body: 500
    with pytest.raises(RetrievalError, match=r"did not answer in 3 attempts \(HTTP 500\)"):
        connect(retries=2).search(["Paris"], 1)
    assert len(server.bodies) == 3


@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_a_refused_request_is_not_repeated(server, connect, status):
    server.behave = lambda body: status
    with pytest.raises(RetrievalError, match=f"refused the request .HTTP {status}"):
        connect(retries=2).search(["Paris"], 1)
    assert len(server.bodies) == 1


def test_a_server_that_is_down_is_an_error(server, connect):
    url = server.url
    server.stop()
    with pytest.raises(RetrievalError, match=r"did not answer in 2 attempts \(ConnectError\)"):
        connect(url, retries=1).search(["Paris"], 1)


def test_a_slow_server_is_an_error(server, connect):
    release = threading.Event()
    server.behave = lambda body: release.wait(30) and reply(body)
    with pytest.raises(RetrievalError, match="ReadTimeout"):
        connect(timeout=0.1, retries=0).search(["Paris"], 1)
    release.set()


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_a_wrong_row_count_is_an_error(server, connect, rows):
    server.behave = lambda body: {"result": [[]] * rows}
    with pytest.raises(RetrievalError, match=f"sent {rows} rows, expected 2"):
        connect().search(["Paris", "Rome"], 1)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"<html>busy</html>",
        b"\xff\xfe",
        {},
        {"result": None},
        {"result": [3]},
        {"result": [[None]]},
        {"result": [[3]]},
        {"result": [[{"score": 1.0}]]},
        {"result": [[{"document": {"id": 1}, "score": 1.0}]]},
        {"result": [[{"document": {"contents": None}, "score": 1.0}]]},
    ],
)
def test_a_reply_that_makes_no_sense_is_an_error(server, connect, answer):
    server.behave = lambda body: answer
    with pytest.raises(RetrievalError, match=r"cannot be read|without a list|no list of|did not answer in 3 attempts"):
        connect().search(["Paris"], 1)


PARIS = '"Paris"\nCapital.'
FULL = {"document": {"id": "7", "contents": PARIS}, "score": 2.5}


@pytest.mark.parametrize(
    ("row", "expected", "note"),
    [
        ([FULL], ("7", 2.5), None),
        ([{"document": {"id": 7, "contents": PARIS}, "score": 2}], ("7", 2.0), None),
        ([{"document": {"contents": PARIS}}], ("", 0.0), "have no 'score'"),  # Search-R1's web search servers
        ([{"document": {"contents": PARIS}, "score": None}], ("", 0.0), "have no 'score'"),
        ([{"document": {"contents": PARIS}, "score": "high"}], ("", 0.0), "have no 'score'"),
        ([{"document": {"contents": PARIS}, "score": True}], ("", 0.0), "have no 'score'"),
        ([{"document": {"contents": PARIS}, "score": float("nan")}], ("", 0.0), "have no 'score'"),
        ([{"document": {"id": None, "contents": PARIS}, "score": 1}], ("", 1.0), None),
        ([{"document": {"id": [], "contents": PARIS}, "score": 1}], ("", 1.0), None),
        ([{"id": "7", "contents": PARIS}], ("7", 0.0), "have no 'score'"),  # Search-R1 without return_scores
        ([{"id": "7", "contents": PARIS, "score": 1}], ("7", 1.0), None),
        ([{"document": {"id": "7", "content": PARIS}, "score": 1}], ("7", 1.0), "no 'contents'; 'content' was read"),
        ([{"document": {"id": "7", "text": PARIS}, "score": 1}], ("7", 1.0), "no 'contents'; 'text' was read"),
        ([{"id": "7", "title": "Paris", "text": "Capital.", "score": 1}], ("7", 1.0), "'text' was read"),
        ([{"id": "7", "title": "Paris", "content": "Capital.", "score": 1}], ("7", 1.0), "'content' was read"),
        ([{"document": {"title": "x", "contents": PARIS}, "score": 1}], ("", 1.0), None),
        ([{"document": {"contents": None, "text": PARIS}, "score": 1}], ("", 1.0), "'text' was read"),
        ([{"document": PARIS, "score": 1}], ("", 1.0), None),
        ([PARIS], ("", 0.0), "have no 'score'"),
        ([[PARIS, 1]], ("", 1.0), None),
        ([[{"id": "7", "contents": PARIS}, 1]], ("7", 1.0), None),
        ([None, FULL], ("7", 2.5), "were left out, the first: None"),
        ([{"document": None, "score": 3}, FULL], ("7", 2.5), "were left out, the first: {'document': None"),
        ([{"document": {"contents": 3}}, FULL], ("7", 2.5), "were left out"),
        ([7, [], FULL], ("7", 2.5), "were left out, the first: 7"),
        ({"documents": [FULL]}, ("7", 2.5), None),
    ],
)
def test_what_can_be_read_is_and_what_is_missing_is_said_once(server, connect, caplog, row, expected, note):
    server.behave = lambda body: {"result": [row] * len(body["queries"])}
    retriever = connect()
    for queries in (["x"], ["x", "y"], ["x"]):
        found = retriever.search(queries, 1)
        assert found == [[Passage(expected[0], "Paris", "Capital.", expected[1])]] * len(queries)
    messages = [record.getMessage() for record in caplog.records if "documents" in record.getMessage()]
    assert len(messages) == len(set(messages))
    assert any(note in message for message in messages) if note else not messages


@pytest.mark.parametrize(
    "reply",
    [[[FULL]], {"results": [[FULL]]}, {"result": [FULL]}, [FULL], {"result": [[FULL, FULL]], "took": 3}],
)
def test_envelopes(server, connect, reply):
    server.behave = lambda body: reply
    assert connect().search(["x"], 1) == [[Passage("7", "Paris", "Capital.", 2.5)]]


@pytest.mark.parametrize("reply", [{"result": [[]]}, {"result": [None]}, {"result": []}])
def test_nothing_found(server, connect, reply):
    server.behave = lambda body: reply
    if reply["result"]:
        assert connect().search(["x"], 1) == [[]]
    else:
        with pytest.raises(RetrievalError, match="sent 0 rows, expected 1"):
            connect().search(["x"], 1)


def test_a_broken_connection_is_tried_again(server, connect):
    """The server dies in the middle of a session and comes back on the same port."""
    retriever = connect()
    retriever.search(["Paris"], 1)
    port = server.server_port
    server.stop()
    revived = Server(port)
    try:
        assert retriever.search(["Rome"], 1)[0][0].text == "Rome"
    finally:
        revived.stop()


def test_a_server_that_stays_down_is_left_alone_then_tried(server, connect):
    server.behave = lambda body: 500
    retriever, now = connect(retries=0), [0.0]
    retriever._breaker = CircuitBreaker(max_failures=2, cooldown=10.0, clock=lambda: now[0])
    for _ in range(2):
        with pytest.raises(RetrievalError, match="HTTP 500"):
            retriever.search(["Paris"], 1)
    server.behave = reply
    with pytest.raises(RetrievalError, match="is down; the next try is in"):
        retriever.search(["Paris"], 1)
    assert len(server.bodies) == 2
    now[0] = 10.0
    assert retriever.search(["Paris"], 1)[0][0].text == "Paris"
    assert retriever.search(["Rome"], 1)[0][0].text == "Rome"


def test_the_breaker_lets_one_call_try():
    now = [0.0]
    breaker = CircuitBreaker(max_failures=2, cooldown=10.0, clock=lambda: now[0])
    breaker.record(answered=False)
    breaker.record(answered=True)
    breaker.record(answered=False)
    breaker.check()  # never two in a row
    breaker.record(answered=False)
    with pytest.raises(RetrievalError, match="10 s"):
        breaker.check()
    now[0] = 10.0
    breaker.check()
    with pytest.raises(RetrievalError):
        breaker.check()  # the first is still out
    breaker.record(answered=False)
    now[0] = 19.0
    with pytest.raises(RetrievalError, match="1 s"):
        breaker.check()
    now[0] = 20.0
    breaker.check()
    breaker.record(answered=True)
    breaker.check()
    breaker.check()


def test_a_url_without_scheme_is_refused():
    with pytest.raises(ValueError, match="http://"):
        HTTPRetriever("localhost:8000")


@pytest.mark.parametrize("behave", [lambda body: 500, lambda body: {"result": []}, lambda body: b"?"])
def test_the_agent_reads_a_short_error(server, connect, behave):
    server.behave = behave
    environment = SearchEnvironment(connect(retries=0))
    text = environment.search(query="Paris")
    assert text.startswith("Error: the search server")
    assert len(text) < 300
    assert environment.failures == 1
    server.behave = reply
    assert environment.search(query="Paris").startswith("(1) Title 0\nParis")


def test_a_query_of_ten_thousand_characters(server, connect):
    """The retriever passes it on; the environment answers for it without a request."""
    query = "x" * 10_000
    assert connect().search([query], 1)[0][0].text == query
    assert SearchEnvironment(connect()).search(query=query).startswith("Error: the query has 10000 characters")
    assert len(server.bodies) == 1
