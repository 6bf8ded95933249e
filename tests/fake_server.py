"""An HTTP server on loopback whose replies a test writes."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FakeServer:
    """`reply(path, body)` gives the JSON of a 200, or (status, JSON, headers). `requests` holds what was asked."""

    def __init__(self, reply):
        self.reply, self.requests = reply, []
        self._lock = threading.Lock()

    def answer(self, path, body, headers):
        with self._lock:
            self.requests.append((path, body, headers))
        result = self.reply(path, body)
        return result if isinstance(result, tuple) else (200, result, {})


@contextmanager
def serve(reply):
    """Runs a `FakeServer`; yields it with its `url`."""
    fake = FakeServer(reply)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            length = int(self.headers.get("content-length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            status, result, headers = fake.answer(self.path, body, dict(self.headers))
            data = result if isinstance(result, bytes) else json.dumps(result).encode()
            self.send_response(status)
            for name, value in {"content-type": "application/json", "content-length": len(data), **headers}.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
