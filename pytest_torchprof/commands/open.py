"""`torchprof open`: hand a trace to the Perfetto UI in a browser."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import threading
import webbrowser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_torchprof.commands.inputs import load_traces, only, warn
from pytest_torchprof.commands.printing import OK, write
from pytest_torchprof.render.perfetto_page import POLICY, perfetto_page

if TYPE_CHECKING:
    from argparse import Namespace

HOST: Final = "127.0.0.1"


def run_open(options: Namespace) -> int:
    """Serve the trace until the browser has it, or Ctrl-C."""
    # What is no trace is said here, not in the browser.
    path = only(load_traces([options.trace], options.rank)).path
    with TraceServer(path) as server:
        write(f"{server.url}\n")
        write("Ends when the Perfetto UI has the trace, or with Ctrl-C.\n")
        sys.stdout.flush()  # a pipe would keep the link until the end
        if os.environ.get("SSH_CONNECTION"):
            port = f"{server.server_port}:{HOST}:{server.server_port}"
            warn(f"over SSH, forward the port first: ssh -L {port} …")
        elif _has_browser():
            webbrowser.open(server.url)
        server.serve_forever()
    return OK


def _has_browser() -> bool:
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    # A browser in the terminal would take it over, and cannot show the trace.
    return isinstance(browser, webbrowser.BackgroundBrowser) or not isinstance(
        browser, webbrowser.GenericBrowser
    )


class TraceServer(ThreadingHTTPServer):
    """Serves one trace below a secret path on the loopback interface, to its own page only."""

    daemon_threads = True

    def __init__(self, path: Path) -> None:
        super().__init__((HOST, 0), _Handler)
        self.path = path
        self.token, self.nonce = secrets.token_urlsafe(24), secrets.token_urlsafe(16)
        self.host = f"{HOST}:{self.server_port}"
        self.url = f"http://{self.host}/{self.token}/"


class _Handler(BaseHTTPRequestHandler):
    server: TraceServer

    def do_GET(self) -> None:
        """The page, or the trace."""
        what = self._asked()
        if what == "":
            page = perfetto_page(self.server.path.name, self.server.nonce).encode(
                "utf-8", "replace"
            )
            self._begin("text/html; charset=utf-8", len(page))
            self.wfile.write(page)
        elif what == "trace":
            try:
                file = self.server.path.open("rb")
            except OSError:
                self.send_error(410)
                return
            with file:
                self._begin("application/octet-stream", os.fstat(file.fileno()).st_size)
                shutil.copyfileobj(file, self.wfile)
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        """The page has handed the trace over."""
        if self._asked() != "done":
            self.send_error(404)
            return
        self._begin("text/plain", 0)
        # It waits for the loop that runs this.
        threading.Thread(target=self.server.shutdown, daemon=True).start()

    def _asked(self) -> str | None:
        """The name below the secret path; None for anything else.

        Another site can make a browser ask, but under its own host name or without the token.
        """
        begin = f"/{self.server.token}/"
        asked = self.path[: len(begin)].encode("latin-1", "replace")
        known = secrets.compare_digest(asked, begin.encode())
        known &= self.headers.get("Host") == self.server.host
        return self.path[len(begin) :] if known else None

    def _begin(self, kind: str, length: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        self.send_header("Content-Security-Policy", POLICY.format(nonce=self.server.nonce))
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Say nothing: requests are no news."""
