"""Two sessions over the same tests, without ``--torchprof`` and with it, and what they showed."""

from __future__ import annotations

import gc
import json
import re
import textwrap
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import unified_diff
from typing import Any

import pytest
from support.sessions import NO_OTHER_PLUGINS

_WORKER = re.compile(r"\[gw\d+\]")
#: Whether pytest itself has subtests; before it had, a failing one failed its test.
SUBTESTS = hasattr(pytest, "Subtests")
needs_subtests = pytest.mark.skipif(not SUBTESTS, reason="subtests came with pytest 9")
#: What is said of threads where torch is too old for `profile_all_threads`.
NO_THREADS = "the test starts threads, and this torch cannot profile them"

#: Notes what a session reports; loaded by name, so that it works in a process of its own too.
SESSION_LOG = """
import json

import pytest

reports, warned = [], []


def pytest_runtest_logreport(report):
    reports.append({
        "test": report.nodeid,
        "when": report.when,
        "outcome": report.outcome,
        "xfail": getattr(report, "wasxfail", None),
        "sub": repr(getattr(report, "context", None)),
        "sections": [list(section) for section in report.sections],
        "properties": [list(map(str, pair)) for pair in report.user_properties],
        "text": report.longreprtext,
        "keywords": sorted(report.keywords),
    })


def pytest_warning_recorded(warning_message, when, nodeid):
    warned.append([nodeid, when, warning_message.category.__name__, str(warning_message.message)])


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    if not hasattr(config, "workerinput"):
        with open(config.rootpath / "session.json", "w", encoding="utf-8") as file:
            json.dump({"reports": reports, "warnings": warned}, file)
"""

#: What is of this one session and no other.
_PASSING = re.compile(
    r"0x[0-9a-f]+|\b\d+\.\d+s\b( \(\d:\d\d:\d\d\))?|(?<=tid=)\d+|(?<=Thread-)\d+|(?<=pid[ =])\d+"
    r"|=+(?= \w|$)|(?<=\w )=+$|(?<=id=')\d+"
    # Who else has memory on the device.
    r"|(?<=CUDA out of memory\. )Tried to allocate .*"
)
#: Of Kineto, which is silent where we asked for it before torch was imported.
_KINETO = re.compile(r"^(USDT:|\[W.*profiler_kineto).*\n?", re.MULTILINE)


@dataclass(frozen=True)
class Session:
    """One session: its exit status, reports and warnings, terminal lines, and our records."""

    ret: int
    reports: list[dict[str, Any]]
    warnings: list[list[str]]
    terminal: list[str]
    errors: str
    records: Mapping[str, dict[str, Any]]

    @property
    def statuses(self) -> dict[str, str]:
        """By test name: the status, or the reason of a test that was not profiled."""
        return {name: r["reason"] or r["status"] for name, r in self.records.items()}

    def metric(self, test: str, name: str) -> Any:
        """A measured value; of one that was not measured, None."""
        return self.records[test]["metrics"][name]["value"]


def session(
    pytester: pytest.Pytester,
    *args: str,
    needs: Collection[str] = (),
    subprocess: bool = False,
    profiled: bool = True,
) -> Session:
    """Run pytest on what the test has made; ``needs`` are the other plugins that it is about."""
    pytester.makepyfile(session_log=SESSION_LOG)
    pytester.syspathinsert()
    file, report = pytester.path / "session.json", pytester.path / "report.json"
    for old in (file, report):
        old.unlink(missing_ok=True)
    off = [flag for flag in NO_OTHER_PLUGINS if flag.partition(":")[2] not in needs]
    given = [*off, "-psession_log", f"--basetemp={pytester.path / 'temp'}", *args]
    if profiled:
        given += ["--torchprof", "--torchprof-json=report.json"]
    with warnings.catch_warnings(record=True), _light_heap(given):
        warnings.simplefilter("default")  # what the outer session makes an error is not ours
        if subprocess:
            result = pytester.runpytest_subprocess(*given, timeout=600)
        else:
            result = pytester.runpytest_inprocess(*given, no_reraise_ctrlc=True)
    noted = json.loads(file.read_text("utf-8")) if file.exists() else {}
    tests = json.loads(report.read_text("utf-8"))["tests"] if report.exists() else []
    return Session(
        int(result.ret),
        noted.get("reports", []),
        noted.get("warnings", []),
        _lines(result.outlines),
        _general(result.stderr.str()),
        {test["nodeid"].partition("::")[2]: test for test in tests},
    )


@contextmanager
def _light_heap(args: Collection[str]) -> Iterator[None]:
    """Where each test has full collections, they shall not go through the outer session's heap."""
    if "--torchprof-warmup=0" not in args:
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def same(
    pytester: pytest.Pytester,
    source: str,
    *args: str,
    conftest: str = "",
    needs: Collection[str] = (),
    subprocess: bool = False,
    ordered: bool = True,
) -> Session:
    """The session with ``--torchprof``, having seen that all is as it is without it.

    Not ``ordered``: the terminal has the same letters, though not in the same order, and any worker
    may run any test.
    """
    pytester.makepyfile(test_it=textwrap.dedent(source))
    if conftest:
        pytester.makeconftest(textwrap.dedent(conftest))
    plain = session(pytester, *args, needs=needs, subprocess=subprocess, profiled=False)
    ours = session(pytester, *args, needs=needs, subprocess=subprocess)
    if ordered or sorted("".join(plain.terminal)) != sorted("".join(ours.terminal)):
        _equal(plain.terminal, ours.terminal)
    _equal(plain.errors.splitlines(), ours.errors.splitlines())
    reports = [[str(_known(report)) for report in ran.reports] for ran in (plain, ours)]
    if not ordered:
        reports = [sorted(_WORKER.sub("a worker", report) for report in ran) for ran in reports]
    _equal(*reports)
    _equal(*[[_general(str(warning)) for warning in ran.warnings] for ran in (plain, ours)])
    assert plain.ret == ours.ret
    return ours


def _equal(expected: list[str], found: list[str]) -> None:
    assert expected == found, "\n".join(unified_diff(expected, found, "without", "with", n=1))


def _known(report: dict[str, Any]) -> dict[str, Any]:
    sections = [[name, _general(text)] for name, text in report["sections"]]
    heard = [[name, text] for name, text in sections if text]
    return {**report, "text": _general(report["text"]), "sections": heard}


def _general(text: str) -> str:
    return _PASSING.sub("#", _KINETO.sub("", text))


def _lines(lines: list[str]) -> list[str]:
    """What the terminal said, without our line in the header and our section at the end."""
    kept, ours = [], False
    for line in lines:
        if line.startswith(("=", "!")):
            ours = " torchprof " in line
        if not ours and not line.startswith(("torchprof:", "torchprof-")):
            kept.append(_general(line))
    return kept
