"""What is kept from a rerun's sight: other plugins, logs, output, and time limits."""

from __future__ import annotations

import faulthandler
import io
import logging
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_torchprof.capture.patches import muted

if TYPE_CHECKING:
    import pytest


# ---- Reruns write no logs, and pytest's log handlers do not slow them.


def no_logs(item: pytest.Item, undo: ExitStack) -> None:
    """Keep log records out of pytest's live log and log file; ``caplog`` still gets them."""
    plugin = item.config.pluginmanager.getplugin("logging-plugin")
    for name in ("log_cli_handler", "log_file_handler"):
        if (handler := getattr(plugin, name, None)) is not None:
            handler.addFilter(_nothing)
            undo.callback(handler.removeFilter, _nothing)
    _one_handler(item, plugin, undo)


def _nothing(_: object) -> bool:
    return False


def _one_handler(item: pytest.Item, plugin: Any, undo: ExitStack) -> None:
    """Attach pytest's handler of log records once for all phases of all reruns.

    Pytest attaches two handlers to each logger that does not propagate. Torch alone has 43, so
    each phase of each run takes a quarter of a millisecond.
    """
    from _pytest import logging as theirs

    handler = getattr(plugin, "caplog_handler", None)
    dear = hasattr(theirs.catching_logs, "attached_loggers")
    if handler is None or not dear or "caplog" in getattr(item, "fixturenames", ["caplog"]):
        return
    root = logging.getLogger()
    if (level := plugin.log_level) is not None:
        handler.setLevel(level)
        undo.callback(root.setLevel, root.level)
        root.setLevel(min(root.level, level))
    # Like `addHandler`, without its locks, which are not needed here and take most of the time.
    attached = [logger.handlers for logger in (root, *_apart_loggers(len(root.manager.loggerDict)))]
    for handlers in attached:
        if handler not in handlers:
            handlers.append(handler)
    undo.callback(_detach, attached, handler)
    plugin._runtest_for = _Attached(root.handlers, handler, theirs).phase
    undo.callback(delattr, plugin, "_runtest_for")


@lru_cache(maxsize=1)
def _apart_loggers(_: int) -> list[logging.Logger]:
    """Loggers that do not propagate; searched again when the number of loggers changes."""
    known = logging.getLogger().manager.loggerDict
    return [one for one in list(known.values()) if not getattr(one, "propagate", True)]  # type: ignore[misc]


def _detach(attached: list[list[Any]], handler: Any) -> None:
    for handlers in attached:
        if handler in handlers:
            handlers.remove(handler)


class _Attached:
    """What pytest's logging does around a phase, with a handler that is already attached."""

    def __init__(self, handlers: list[Any], handler: Any, theirs: Any) -> None:
        self._handlers = handlers
        self._handler = handler
        self._theirs = theirs

    def phase(self, item: pytest.Item, when: str) -> _Attached:
        """Within it, fixtures find the records where they expect them."""
        handler = self._handler
        if handler not in self._handlers:  # a test may have removed all of them
            self._handlers.append(handler)
        handler.reset()
        item.stash[self._theirs.caplog_records_key][when] = handler.records
        item.stash[self._theirs.caplog_handler_key] = handler
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


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


def snapshots_uncounted(item: pytest.Item, undo: ExitStack) -> None:
    """Make syrupy count each snapshot comparison once."""
    session = getattr(item.config, "_syrupy", None)
    if session is not None:
        made: list[Any] = getattr(session, "_assertions", [])
        undo.callback(_shorten, made, len(made))


def _shorten(made: list[Any], known: int) -> None:
    del made[known:]


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


def write_to(terminal: Any, sink: io.StringIO, undo: ExitStack) -> None:
    """Redirect what is written to the terminal: ``--setup-show``, live logs."""
    if terminal is not None:
        undo.callback(_write_back, terminal, terminal._file, getattr(terminal, "_current_line", ""))
        terminal._file = sink


def _write_back(terminal: Any, file: Any, line: str) -> None:
    terminal._file, terminal._current_line = file, line


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


# ---- Pause other time limits during reruns: alarms, pytest-timeout, faulthandler.


def timeout_of(item: pytest.Item) -> float | None:
    """The test's pytest-timeout limit in seconds; None if it has no limit."""
    settings = timeout_settings(item)
    return float(settings.timeout) if settings is not None else None


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
    here = threading.current_thread() is threading.main_thread()
    if not (here and hasattr(signal, "setitimer")):
        return False
    left, interval = signal.setitimer(signal.ITIMER_REAL, 0)
    undo.callback(_alarm_again, signal.getsignal(signal.SIGALRM), left, interval)
    return left > 0


def _alarm_again(handler: Any, left: float, interval: float) -> None:
    if handler is not None:
        signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, left, interval)


def clocks_stopped(item: pytest.Item, used: float, undo: ExitStack, *, alarm: bool) -> None:
    """Stop the timers that run in threads: pytest-timeout's ``thread`` method, and faulthandler.

    The test has ``used`` this many seconds of its limits; ``alarm``: see `alarm_stopped`.
    """
    if not alarm:
        _timeout_stopped(item, used, undo)
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


def _timeout_stopped(item: pytest.Item, used: float, undo: ExitStack) -> None:
    settings = timeout_settings(item)
    if settings is None or settings.func_only:
        return
    item.ihook.pytest_timeout_cancel_timer(item=item)
    left = settings._replace(timeout=max(settings.timeout - used, 0.001))
    undo.callback(lambda: item.ihook.pytest_timeout_set_timer(item=item, settings=left))
