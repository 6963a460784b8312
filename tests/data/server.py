"""A small HTTP server with what downloads need: ranges, and answers that break off."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Files:
    """What is served, and how.

    After `break_after` bytes an answer breaks off, and `then` is the status of the next; `requests` are (path, range).
    """

    def __init__(self, files: dict[str, bytes]):
        self.files, self.requests = files, []
        self.break_after: int | None = None
        self.then: int | None = None
        self.ranges = True
        self.status: int | None = None
        self.url = ""


@contextmanager
def serve(files: dict[str, bytes]) -> Iterator[Files]:
    state = Files(files)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked = self.headers.get("Range")
            state.requests.append((self.path, asked))
            content = state.files.get(self.path.lstrip("/"))
            if content is None or state.status:
                self.send_error(state.status or 404)
                return
            start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and state.ranges else 0
            if start and start >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            self.wfile.write(content[start:][: state.break_after])
            if state.break_after:
                state.status = state.then

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}/"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
