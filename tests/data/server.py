"""A small HTTP server whose answers may break off."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Files:
    """What is served, and how: the first answers break off after so many bytes; `requests` are paths."""

    def __init__(self, files: dict[str, bytes]):
        self.files, self.requests = files, []
        self.breaks_after: list[int] = []
        self.status: int | None = None
        self.url = ""


@contextmanager
def serve(files: dict[str, bytes]) -> Iterator[Files]:
    state = Files(files)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            state.requests.append(self.path)
            content = state.files.get(self.path.lstrip("/"))
            if content is None or state.status:
                self.send_error(state.status or 404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: state.breaks_after.pop(0) if state.breaks_after else None])

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
