"""What is kept from a rerun's sight: other plugins, logs, output, and time limits."""

from __future__ import annotations

import faulthandler
import logging
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_torchprof.capture.patches import REAL, muted

if TYPE_CHECKING:
    import pytest


# ---- Reruns write no logs, and pytest's log handlers do not slow them.


def _nothing(_: object) -> bool:
    return False


def _no_logs(item: pytest.Item, undo: ExitStack) -> None:
    """Keep log records out of pytest's live log and log file; ``caplog`` still gets them.

    Pytest's handler of records is attached once for all phases of all reruns. Pytest attaches two
    to each logger that does not propagate, and torch alone has 43 of those, so each phase of each
    run takes a quarter of a millisecond.
    """
    from _pytest import logging as theirs

    plugin = item.config.pluginmanager.getplugin("logging-plugin")
    for name in ("log_cli_handler", "log_file_handler"):
        if (live := getattr(plugin, name, None)) is not None:
            live.addFilter(_nothing)
            undo.callback(live.removeFilter, _nothing)
    handler = getattr(plugin, "caplog_handler", None)
    dear = hasattr(theirs.catching_logs, "attached_loggers")
    if handler is None or not dear or "caplog" in getattr(item, "fixturenames", ["caplog"]):
        return
    root = logging.getLogger()
    if (level := plugin.log_level) is not None:
        handler.setLevel(level)
        undo.callback(root.setLevel, root.level)
        root.setLevel(min(root.level, level))

    @contextmanager
    def phase(item: pytest.Item, when: str) -> Iterator[None]:
        """What pytest does around a phase: fixtures find the records where they expect them."""
        root.addHandler(handler)  # once; a test may have removed all of them
        handler.reset()
        item.stash[theirs.caplog_records_key][when] = handler.records
        item.stash[theirs.caplog_handler_key] = handler
        yield

    plugin._runtest_for = phase
    undo.callback(root.removeHandler, handler)
    undo.callback(delattr, plugin, "_runtest_for")


# ---- Hide extra runs from other plugins that watch tests or give them resources.


def coverage_paused(undo: ExitStack) -> None:
    """Pause coverage, so that lines reached only by extra runs do not count as covered.

    This uses coverage.py's own way of pausing, so it still looks active.
    """
    module = sys.modules.get("coverage")
    if module is None:
        return
    current = getattr(getattr(module, "Coverage", None), "current", lambda: None)()
    collector: Any = getattr(current, "_collector", None)
    if getattr(current, "_started", False) and hasattr(collector, "pause"):
        collector.pause()
        undo.callback(collector.resume)


def folders_noted(item: pytest.Item, made: list[Path], undo: ExitStack) -> None:
    """Record temporary folders as they are created, because later names count up from them."""
    factory: Any = getattr(item.config, "_tmp_path_factory", None)
    if not hasattr(factory, "mktemp"):
        return
    make = factory.mktemp

    def noted(*args: Any, **kwargs: Any) -> Path:
        folder: Path = make(*args, **kwargs)
        made.append(folder)
        return folder

    def back() -> None:
        if vars(factory).get("mktemp") is noted:
            del factory.mktemp

    factory.mktemp = noted
    undo.callback(back)


# ---- Reruns leave no trace: no output, no warnings, no reports.


def unnoticed(
    item: pytest.Item, on_report: Callable[[pytest.TestReport], None], undo: ExitStack
) -> None:
    """Suppress second copies of output, warnings, properties and subtest reports until ``undo``."""
    undo.enter_context(warnings.catch_warnings(record=True))
    if hasattr(item, "_excinfo"):  # where unittest puts its failures
        undo.callback(setattr, item, "_excinfo", None)
    for noted in _notes(item):
        undo.callback(_put_back, noted, noted.copy())
    _no_output(item, undo)
    _no_logs(item, undo)
    _no_reports(item, on_report, undo)
    for key in _keys()[2]:  # errors that pytest has not reported yet
        if (queue := item.config.stash.get(key, None)) is not None:
            undo.callback(_put_back, queue, queue.copy())
            queue.clear()


def _notes(item: pytest.Item) -> list[Any]:
    """What plugins note on the item and the session: lists, and dicts."""
    config, (subtests, junit, _) = item.config, _keys()
    report = config.stash.get(junit, None)
    return [
        item._report_sections,
        item.user_properties,
        item.own_markers,
        getattr(report, "global_properties", []),
        getattr(getattr(config, "_syrupy", None), "_assertions", []),
        getattr(item.keywords, "_markers", {}),
        config.stash.get(subtests, {}) if subtests is not None else {},
        getattr(getattr(config, "_tmp_path_factory", None), "_next_number", {}),
    ]


def _put_back(noted: Any, earlier: Any) -> None:
    noted.clear()
    (noted.update if isinstance(noted, dict) else noted.extend)(earlier)


def terminal_of(item: pytest.Item) -> Any:
    """The terminal's writer, or None where there is no terminal."""
    reporter = item.config.pluginmanager.getplugin("terminalreporter")
    return getattr(reporter, "_tw", None)


def write_to(terminal: Any, sink: StringIO, undo: ExitStack) -> None:
    """Redirect what is written to the terminal: ``--setup-show``, live logs."""
    if terminal is not None:
        undo.callback(setattr, terminal, "_current_line", getattr(terminal, "_current_line", ""))
        undo.callback(setattr, terminal, "_file", terminal._file)
        terminal._file = sink


def _no_output(item: pytest.Item, undo: ExitStack) -> None:
    """Keep all output from the terminal, captured or not."""
    manager = item.config.pluginmanager.getplugin("capturemanager")
    capture = getattr(manager, "_global_capturing", None)
    fds = [1, 2]
    # Where pytest captures file descriptors, it writes to copies of the real ones.
    for name in ("out", "err"):
        copy = getattr(getattr(capture, name, None), "targetfd_save", None)
        if isinstance(copy, int):
            fds.append(copy)
    write_to(terminal_of(item), StringIO(), undo)
    undo.enter_context(muted(*fds))
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not _on_terminal(stream):
            undo.callback(setattr, sys, name, stream)
            setattr(sys, name, TextIOWrapper(BytesIO(), encoding="utf-8"))


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
    item: pytest.Item, on_report: Callable[[pytest.TestReport], None], undo: ExitStack
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


# ---- Pause other time limits during reruns: alarms, pytest-timeout, faulthandler.


def timeout_settings(item: pytest.Item) -> Any:
    """Pytest-timeout's settings for the test; None if it has no limit."""
    module = sys.modules.get("pytest_timeout")
    settings_of: Callable[..., Any] | None = getattr(module, "_get_item_settings", None)
    if settings_of is None or not item.config.pluginmanager.is_registered(module):
        return None
    if not getattr(item.config, "_env_timeout", True) and not item.get_closest_marker("timeout"):
        return None  # no limit is set; the call below would take longer to find out
    settings = settings_of(item)
    return settings if settings.timeout and settings.timeout > 0 else None


def alarm_stopped(undo: ExitStack) -> bool:
    """Pause a running alarm, pytest-timeout's or the test's own; return whether there was one."""
    here = REAL.current_thread() == threading.main_thread().ident
    if not (here and hasattr(signal, "setitimer")):
        return False
    left, interval = signal.setitimer(signal.ITIMER_REAL, 0)
    undo.callback(signal.setitimer, signal.ITIMER_REAL, left, interval)
    if (handler := signal.getsignal(signal.SIGALRM)) is not None:
        undo.callback(signal.signal, signal.SIGALRM, handler)  # before the alarm runs again
    return left > 0


def clocks_stopped(item: pytest.Item, used: float, undo: ExitStack, *, alarm: bool) -> None:
    """Stop the timers that run in threads: pytest-timeout's ``thread`` method, and faulthandler.

    The test has ``used`` this many seconds of its limits; ``alarm``: see `alarm_stopped`.
    """
    settings = None if alarm else timeout_settings(item)
    if settings is not None and not settings.func_only:
        item.ihook.pytest_timeout_cancel_timer(item=item)
        left = settings._replace(timeout=max(settings.timeout - used, 0.001))
        undo.callback(lambda: item.ihook.pytest_timeout_set_timer(item=item, settings=left))
    there = item.config.pluginmanager.hasplugin("faulthandler")
    limit = float((there and item.config.getini("faulthandler_timeout")) or 0)
    if limit > 0:
        from _pytest import faulthandler as plugin

        ends = getattr(plugin, "get_exit_on_timeout_config_value", lambda _: False)
        faulthandler.cancel_dump_traceback_later()
        undo.callback(
            lambda: faulthandler.dump_traceback_later(
                max(limit - used, 0.001),
                file=item.config.stash[plugin.fault_handler_stderr_fd_key],
                exit=ends(item.config),
            )
        )
