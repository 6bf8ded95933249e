"""A stand-in for the Hub on loopback: the endpoints through which repositories are made and files committed."""

import base64
import json
import re
import threading
from collections import defaultdict
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LARGE = (".safetensors", ".bin", ".pt", ".parquet")  # uploaded as LFS files


class FakeHub:
    """`files[repository][path]` is what was committed; a dataset's repository is called "datasets/me/name"."""

    def __init__(self):
        self.files = defaultdict(dict)
        self.broken = set()  # repositories whose commits of large files are answered with 500
        self.unknown = []  # requests for which there is no endpoint here
        self._large = {}

    def answer(self, method, path, body):
        """Status and JSON of the answer to a request."""
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if path == "/api/repos/create":
            asked = json.loads(body)
            kind = asked.get("type", "model")
            folder = "" if kind == "model" else f"{kind}s/"
            return 200, {"url": f"{self.url}/{folder}{asked['organization']}/{asked['name']}"}
        if method == "PUT":
            self._large[path.removeprefix("/large/")] = body
            return 200, {}
        if path.endswith(".git/info/lfs/objects/batch"):
            objects = json.loads(body)["objects"]
            return 200, {
                "objects": [{**o, "actions": {"upload": {"href": f"{self.url}/large/{o['oid']}"}}} for o in objects]
            }
        if path.endswith("/preupload/main"):
            names = [file["path"] for file in json.loads(body)["files"]]
            modes = {name: "lfs" if name.endswith(LARGE) else "regular" for name in names}
            return 200, {"files": [{"path": n, "uploadMode": m, "shouldIgnore": False} for n, m in modes.items()]}
        commit = re.fullmatch(r"/api/(?:models/)?(.+)/commit/main", path)
        if commit:
            return self._commit(commit[1], [json.loads(line) for line in body.splitlines()])
        self.unknown.append((method, path))
        return 404, {"error": "there is no such endpoint"}

    def _commit(self, repository, operations):
        if repository in self.broken and any(operation["key"] == "lfsFile" for operation in operations):
            return 500, {"error": "the Hub is out of order"}
        for operation in operations:
            value = operation["value"]
            if operation["key"] == "file":
                self.files[repository][value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "lfsFile":
                self.files[repository][value["path"]] = self._large[value["oid"]]
        return 200, {"commitUrl": f"{self.url}/{repository}/commit/{'0' * 40}", "commitOid": "0" * 40}


@contextmanager
def serve():
    """Runs a `FakeHub`; yields it with its `url`."""
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            status, result = hub.answer(self.command, self.path.partition("?")[0], self._body())
            data = json.dumps(result).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_POST

        def _body(self):
            if self.headers.get("transfer-encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("content-length", 0)))
            chunks = []
            while size := int(self.rfile.readline(), 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(chunks)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
