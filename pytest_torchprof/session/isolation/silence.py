"""Reruns leave no trace: no output, no warnings, no reports."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from pytest_torchprof.capture.unpatched import muted
from pytest_torchprof.session.isolation.logs import no_logs

if TYPE_CHECKING:
    import pytest

    from pytest_torchprof.capture.undo import Undo


def unnoticed(
    item: pytest.Item, on_report: Callable[[pytest.TestReport], None], undo: Undo
) -> None:
    """Suppress second copies of output, warnings, properties and subtest reports until ``undo``."""
    undo.enter_context(warnings.catch_warnings(record=True))
    undo.callback(_restore_notes, item, *_notes(item))
    _no_output(item, undo)
    no_logs(item, undo)
    _no_reports(item, on_report, undo)
    for queue in _complaints(item):
        if queue:
            undo.callback(_refill, queue, list(queue))
            queue.clear()
        else:
            undo.callback(queue.clear)


def _notes(item: pytest.Item) -> tuple[Any, ...]:
    """The current notes of plugins on the item and the session."""
    suite = _suite_properties(item)
    words: dict[Any, Any] = getattr(item.keywords, "_markers", {})
    return (
        list(item._report_sections),
        list(item.user_properties),
        list(item.own_markers),
        _as_it_is(words),
        _as_it_is(_failed_subtests(item)),
        _as_it_is(getattr(getattr(item.config, "_tmp_path_factory", None), "_next_number", {})),
        (suite, len(suite)),
    )


def _as_it_is(values: dict[Any, Any]) -> tuple[dict[Any, Any], dict[Any, Any]]:
    return values, dict(values)


def _restore_notes(
    item: pytest.Item,
    sections: list[Any],
    properties: list[Any],
    markers: list[Any],
    *rest: tuple[Any, Any],
) -> None:
    item._report_sections[:] = sections
    item.user_properties[:] = properties
    item.own_markers[:] = markers
    *dicts, (suite, known) = rest
    for values, earlier in dicts:
        values.clear()
        values.update(earlier)
    del suite[known:]
    if getattr(item, "_excinfo", None):
        vars(item)["_excinfo"] = None


def _refill(queue: Any, earlier: list[Any]) -> None:
    queue.clear()
    queue.extend(earlier)


def terminal_of(item: pytest.Item) -> Any:
    """The terminal's writer, or None where there is no terminal."""
    reporter = item.config.pluginmanager.getplugin("terminalreporter")
    return getattr(reporter, "_tw", None)


def write_to(terminal: Any, sink: io.StringIO, undo: Undo) -> None:
    """Redirect what is written to the terminal: ``--setup-show``, live logs."""
    if terminal is not None:
        undo.callback(_write_back, terminal, terminal._file, getattr(terminal, "_current_line", ""))
        terminal._file = sink


def _write_back(terminal: Any, file: Any, line: str) -> None:
    terminal._file, terminal._current_line = file, line


def _no_output(item: pytest.Item, undo: Undo) -> None:
    """Keep all output from the terminal, captured or not."""
    manager = item.config.pluginmanager.getplugin("capturemanager")
    capture = getattr(manager, "_global_capturing", None)
    fds = [1, 2]
    # Where pytest captures file descriptors, it writes to copies of the real ones.
    for name in ("out", "err"):
        copy = getattr(getattr(capture, name, None), "targetfd_save", None)
        if isinstance(copy, int):
            fds.append(copy)
    write_to(terminal_of(item), io.StringIO(), undo)
    undo.enter_context(muted(*fds))
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not _on_terminal(stream):
            undo.callback(setattr, sys, name, stream)
            setattr(sys, name, io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))


class _Recorder:
    """A stream that records what is written to it."""

    def __init__(self, stream: Any, written: list[str]) -> None:
        self._stream = stream
        self._written = written

    def write(self, text: str) -> Any:
        self._written.append(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def recording(item: pytest.Item, written: list[str]) -> Iterator[None]:
    """Record what a run prints in its call phase, captured or not."""
    known = len(item._report_sections)
    stream = sys.stdout
    if item.config.getoption("capture", "no") == "no":
        sys.stdout = _Recorder(stream, written)
    try:
        yield
    finally:
        sys.stdout = stream
        new = item._report_sections[known:]
        written += [text for when, key, text in new if (when, key) == ("call", "stdout")]


def print_for(item: pytest.Item, text: str) -> None:
    """Add to what the test has printed, captured or not, after its call."""
    if not text:
        return
    capture = item.config.getoption("capture", "no")
    if capture in ("no", "tee-sys"):
        sys.stdout.write(text)
    if capture == "no":
        return
    sections = item._report_sections
    for i, (when, key, before) in enumerate(sections):
        if (when, key) == ("call", "stdout"):
            sections[i] = when, key, before + text
            return
    item.add_report_section("call", "stdout", text)


def _on_terminal(stream: Any) -> bool:
    try:
        return stream.fileno() in {1, 2}
    except (AttributeError, OSError, ValueError):
        return False


def _no_reports(
    item: pytest.Item, on_report: Callable[[pytest.TestReport], None], undo: Undo
) -> None:
    """Keep the reports of subtests, sent while the test runs, from other plugins."""

    # Hooks restricted to a folder's conftest files get a caller of their own.
    def only_here(name: str, _: object, arguments: Mapping[str, Any], *__: object) -> list[Any]:
        if name == "pytest_runtest_logreport":
            on_report(arguments["report"])
        return []

    hooks = item.config.hook
    for hook in (hooks.pytest_runtest_logreport, hooks.pytest_exception_interact):
        theirs: Any = hook
        undo.callback(setattr, theirs, "_hookexec", theirs._hookexec)
        theirs._hookexec = only_here


@cache
def _keys() -> tuple[Any, Any, tuple[Any, ...]]:
    """Stash keys of pytest's session notes: failed subtests, JUnit report, unraisable errors.

    None for keys that this version lacks.
    """
    from _pytest import threadexception, unraisableexception
    from _pytest.junitxml import xml_key

    try:
        from _pytest.subtests import failed_subtests_key as subtests
    except ImportError:
        subtests = None  # type: ignore[assignment]
    complaints = (
        getattr(threadexception, "thread_exceptions", None),
        getattr(unraisableexception, "unraisable_exceptions", None),
    )
    return subtests, xml_key, tuple(key for key in complaints if key)


def _failed_subtests(item: pytest.Item) -> dict[Any, int]:
    """Failed subtests by test, of the whole session."""
    key = _keys()[0]
    found: dict[Any, int] = item.config.stash.get(key, {}) if key is not None else {}
    return found


def _complaints(item: pytest.Item) -> list[Any]:
    """Errors in finalizers and threads that pytest has not reported yet."""
    queues = [item.config.stash.get(key, None) for key in _keys()[2]]
    return [queue for queue in queues if queue is not None]


def _suite_properties(item: pytest.Item) -> list[Any]:
    """The properties of the whole JUnit report, if one is written."""
    report = item.config.stash.get(_keys()[1], None)
    found: list[Any] = getattr(report, "global_properties", [])
    return found
