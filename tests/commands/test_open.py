"""`torchprof open`: what its server gives, and to whom."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.command_line import Say, say
from support.hostile import EVERY
from support.trace_builder import TraceBuilder

from pytest_torchprof.commands.pages import HOST, PERFETTO, TraceServer, perfetto_page

__all__ = ["say"]  # a fixture

TRACE = b'{"traceEvents": []}'


@contextmanager
def served(path: Path) -> Iterator[tuple[TraceServer, threading.Thread]]:
    """A server that runs in a thread, until it ends by itself or the test does."""
    with TraceServer(path) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server, thread
        server.shutdown()


def ask(
    server: TraceServer, path: str, method: str = "GET", host: str | None = None
) -> tuple[int, bytes, http.client.HTTPMessage]:
    """Status, body and headers of an answer."""
    connection = http.client.HTTPConnection(HOST, server.server_port, timeout=60)
    connection.request(method, path, headers={"Host": host or server.host})
    answer = connection.getresponse()
    return answer.status, answer.read(), answer.headers


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "step.pt.trace.json"
    path.write_bytes(TRACE)
    return path


def test_the_page_gets_the_trace_and_ends_the_server(trace: Path) -> None:
    with served(trace) as (server, thread):
        below = f"/{server.token}/"
        assert server.url == f"http://127.0.0.1:{server.server_port}{below}"
        status, page, headers = ask(server, below)
        assert (200, True) == (status, b"step.pt.trace.json" in page)
        assert f"script-src 'nonce-{server.nonce}'" in headers["Content-Security-Policy"]
        assert f'<script nonce="{server.nonce}">' in page.decode()
        assert (200, TRACE) == ask(server, f"{below}trace")[:2]
        assert thread.is_alive()
        assert 200 == ask(server, f"{below}done", "POST")[0]
        thread.join(60)
        assert not thread.is_alive()


def test_a_compressed_trace_is_sent_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "step.json.gz"
    path.write_bytes(gzip.compress(TRACE))
    with served(path) as (server, _):
        assert path.read_bytes() == ask(server, f"/{server.token}/trace")[1]


@pytest.mark.parametrize("path", ["/", "/trace", "/x/trace", "/{token}/../trace", "/{token}/other"])
def test_nothing_is_given_without_the_secret_path(trace: Path, path: str) -> None:
    with served(trace) as (server, _):
        for method in ("GET", "POST"):
            status, body, _ = ask(server, path.format(token=server.token), method)
            assert (404, False) == (status, TRACE in body)


def test_nothing_is_given_to_a_site_that_has_its_name_resolved_to_this_host(trace: Path) -> None:
    with served(trace) as (server, _):
        assert 404 == ask(server, f"/{server.token}/trace", host="evil.example")[0]


def test_no_other_site_may_read_an_answer(trace: Path) -> None:
    with served(trace) as (server, _):
        for what in ("", "trace"):
            headers = ask(server, f"/{server.token}/{what}")[2]
            assert "Access-Control-Allow-Origin" not in headers
            assert "same-origin" == headers["Cross-Origin-Resource-Policy"]


def test_a_trace_that_vanished_is_gone(trace: Path) -> None:
    with served(trace) as (server, _):
        trace.unlink()
        assert 410 == ask(server, f"/{server.token}/trace")[0]


@pytest.mark.parametrize("name", EVERY)
def test_a_name_stays_text(name: str) -> None:
    page = perfetto_page(name, "n")
    (script,) = re.findall(r"<script[^>]*>(.*?)</script>", page, re.DOTALL)
    assert (1, 1, 1) == tuple(page.count(tag) for tag in ("<script", "<noscript", "</script"))
    assert f'const origin = "{PERFETTO}", name = ' in script
    written = script.partition("name = ")[2].partition(";\n")[0]
    assert name == json.loads(written)


def test_of_a_folder_of_ranks_one_is_wanted(say: Say, tmp_path: Path) -> None:
    for rank in range(2):
        b = TraceBuilder()
        b.op("aten::mm")
        b.metadata("distributedInfo", {"rank": rank, "world_size": 2})
        b.save(tmp_path / f"rank{rank}.json")
    status, out, err = say("open", tmp_path)
    assert (2, "", 1) == (status, out, err.count("\n"))
    assert err.endswith("give --rank N\n")


@pytest.mark.thorough
@pytest.mark.skipif(os.name == "nt", reason="Windows cannot send Ctrl-C to one process")
def test_it_prints_the_link_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    b = TraceBuilder()
    b.op("aten::mm")
    trace = b.save(tmp_path / "step.json")
    command = [sys.executable, "-m", "pytest_torchprof", "open", str(trace)]
    without = {**os.environ, "BROWSER": "", "PATH": "", "DISPLAY": ""}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=without, text=True) as process:
        assert process.stdout is not None
        assert re.match(r"http://127\.0\.0\.1:\d+/[\w-]{32}/$", process.stdout.readline())
        assert "Ctrl-C" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert 130 == process.wait(120)
