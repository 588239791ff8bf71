"""Reruns leave no trace: no output, no reports, no running clocks."""

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
from typing import TYPE_CHECKING, Any

from pytest_torchprof.capture import REAL, muted

if TYPE_CHECKING:
    import pytest

    from pytest_torchprof.recorder import Recorder

# -------------------------------------------------------------------- silence


@contextmanager
def unnoticed(item: pytest.Item, on_report: Callable[[pytest.TestReport], None]) -> Iterator[None]:
    """Reruns leave no second copy of output, warnings, properties and subtest reports."""
    sections, properties = list(item._report_sections), list(item.user_properties)
    markers, words = list(item.own_markers), getattr(item.keywords, "_markers", {})
    keywords = dict(words)
    failed_subtests = _failed_subtests(item)
    counts = dict(failed_subtests)
    complaints = [(queue, list(queue)) for queue in _complaints(item)]
    suite = _suite_properties(item)
    known = len(suite)
    factory = getattr(item.config, "_tmp_path_factory", None)
    folders: dict[Any, int] = getattr(factory, "_next_number", {})
    numbers = dict(folders)
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings(record=True))
        for quiet in (_no_output(item), _no_logs(item), _no_reports(item, on_report)):
            stack.enter_context(quiet)
        for queue, _ in complaints:
            queue.clear()
        try:
            yield
        finally:
            item._report_sections[:] = sections
            item.user_properties[:] = properties
            item.own_markers[:] = markers
            words.clear()
            words.update(keywords)
            failed_subtests.clear()
            failed_subtests.update(counts)
            for queue, earlier in complaints:
                queue.clear()
                queue.extend(earlier)
            del suite[known:]
            folders.clear()
            folders.update(numbers)
            if getattr(item, "_excinfo", None):
                vars(item)["_excinfo"] = None


def terminal_of(item: pytest.Item) -> Any:
    """The terminal's writer, or None where there is no terminal."""
    reporter = item.config.pluginmanager.getplugin("terminalreporter")
    return getattr(reporter, "_tw", None)


@contextmanager
def written_to(terminal: Any, sink: io.StringIO) -> Iterator[None]:
    """What is written to the terminal goes elsewhere: ``--setup-show``, live logs."""
    if terminal is None:
        yield
        return
    file, line = terminal._file, getattr(terminal, "_current_line", "")
    terminal._file = sink
    try:
        yield
    finally:
        terminal._file, terminal._current_line = file, line


@contextmanager
def _no_output(item: pytest.Item) -> Iterator[None]:
    """Nothing reaches the terminal, by whatever way, captured or not."""
    manager = item.config.pluginmanager.getplugin("capturemanager")
    capture = getattr(manager, "_global_capturing", None)
    # Where pytest captures file descriptors, it writes to copies of the real ones.
    streams = [getattr(capture, name, None) for name in ("out", "err")]
    copies = [getattr(stream, "targetfd_save", None) for stream in streams]
    with ExitStack() as stack:
        stack.enter_context(written_to(terminal_of(item), io.StringIO()))
        stack.enter_context(muted(1, 2, *[fd for fd in copies if isinstance(fd, int)]))
        for name in ("stdout", "stderr"):
            if not _on_terminal(getattr(sys, name)):
                stack.callback(setattr, sys, name, getattr(sys, name))
                setattr(sys, name, io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
        yield


class _Heard:
    """A stream that notes what is written to it."""

    def __init__(self, stream: Any, written: list[str]) -> None:
        self._stream = stream
        self._written = written

    def write(self, text: str) -> Any:
        self._written.append(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def heard(item: pytest.Item, written: list[str]) -> Iterator[None]:
    """Note what a run within prints in its call phase, captured or not."""
    known = len(item._report_sections)
    stream = sys.stdout
    if item.config.getoption("capture", "no") == "no":
        sys.stdout = _Heard(stream, written)
    try:
        yield
    finally:
        sys.stdout = stream
        new = item._report_sections[known:]
        written += [text for when, key, text in new if (when, key) == ("call", "stdout")]


def say(item: pytest.Item, text: str) -> None:
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


@contextmanager
def _no_logs(item: pytest.Item) -> Iterator[None]:
    """Nothing reaches pytest's live log and log file; records are for a test that asks for them."""

    def nothing(_: object) -> bool:
        return False

    plugin = item.config.pluginmanager.getplugin("logging-plugin")
    handlers = [getattr(plugin, name, None) for name in ("log_cli_handler", "log_file_handler")]
    present = [handler for handler in handlers if handler is not None]
    for handler in present:
        handler.addFilter(nothing)
    try:
        with _one_handler(item, plugin):
            yield
    finally:
        for handler in present:
            handler.removeFilter(nothing)


@contextmanager
def _one_handler(item: pytest.Item, plugin: Any) -> Iterator[None]:
    """Attach pytest's handler of log records once for all phases of all reruns.

    Since it attaches its two handlers to each logger that does not propagate, of which torch alone
    has 43, each phase of each run takes a quarter of a millisecond. Of a rerun nobody hears logs,
    and a test that asks for them by ``caplog`` has them as ever.
    """
    from _pytest import logging as theirs

    handler = getattr(plugin, "caplog_handler", None)
    dear = hasattr(theirs.catching_logs, "attached_loggers")
    if handler is None or not dear or "caplog" in getattr(item, "fixturenames", ["caplog"]):
        yield
        return
    root = logging.getLogger()

    @contextmanager
    def runtest_for(item: pytest.Item, when: str) -> Iterator[None]:
        root.addHandler(handler)  # a test may have removed all of them
        handler.reset()
        item.stash[theirs.caplog_records_key][when] = handler.records
        item.stash[theirs.caplog_handler_key] = handler
        yield

    with theirs.catching_logs(handler, level=plugin.log_level):
        plugin._runtest_for = runtest_for
        try:
            yield
        finally:
            del plugin._runtest_for


@contextmanager
def _no_reports(
    item: pytest.Item, on_report: Callable[[pytest.TestReport], None]
) -> Iterator[None]:
    """Subtests report while the test runs: nobody but us is told."""
    hooks: list[Any] = [
        item.config.hook.pytest_runtest_logreport,
        item.config.hook.pytest_exception_interact,
    ]
    # A hook that is seen from one folder makes its own caller with the same function.
    calls = [hook._hookexec for hook in hooks]

    def tell_us(name: str, _: object, arguments: Mapping[str, Any], *__: object) -> list[Any]:
        if name == "pytest_runtest_logreport":
            on_report(arguments["report"])
        return []

    for hook in hooks:
        hook._hookexec = tell_us
    try:
        yield
    finally:
        for hook, call in zip(hooks, calls, strict=True):
            hook._hookexec = call


def _failed_subtests(item: pytest.Item) -> dict[Any, int]:
    """Failed subtests by test, of the whole session."""
    try:
        from _pytest.subtests import failed_subtests_key
    except ImportError:
        return {}
    found: dict[Any, int] = item.config.stash.get(failed_subtests_key, {})  # type: ignore[arg-type]
    return found


def _complaints(item: pytest.Item) -> list[Any]:
    """What finalizers and threads have raised, and pytest has not yet warned of."""
    from _pytest import threadexception, unraisableexception

    keys = (
        getattr(threadexception, "thread_exceptions", None),
        getattr(unraisableexception, "unraisable_exceptions", None),
    )
    queues = [item.config.stash.get(key, None) for key in keys if key]
    return [queue for queue in queues if queue is not None]


def _suite_properties(item: pytest.Item) -> list[Any]:
    """The properties of JUnit's report as a whole, where one is written."""
    from _pytest.junitxml import xml_key

    found: list[Any] = getattr(item.config.stash.get(xml_key, None), "global_properties", [])
    return found


# -------------------------------------------------------------------- time limits


@contextmanager
def alarm_stopped() -> Iterator[bool]:
    """Whether an alarm ran, pytest-timeout's or the test's own; it goes on where it was."""
    here = threading.current_thread() is threading.main_thread()
    if not (here and hasattr(signal, "setitimer")):
        yield False
        return
    left, interval = signal.setitimer(signal.ITIMER_REAL, 0)
    handler = signal.getsignal(signal.SIGALRM)
    try:
        yield left > 0
    finally:
        if handler is not None:
            signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, left, interval)


@contextmanager
def clocks_stopped(item: pytest.Item, recorder: Recorder, *, alarm: bool) -> Iterator[None]:
    """Stop the clocks that run in threads: pytest-timeout's second way, and faulthandler's."""
    now = REAL.clock()
    used = (now - recorder.started) / 1e9
    with ExitStack() as stack:
        stack.callback(lambda: recorder.exclude(REAL.clock() - now))
        if not alarm:
            stack.enter_context(_timeout_stopped(item, used))
        limit = float(item.config.getini("faulthandler_timeout") or 0)
        if limit > 0:
            from _pytest import faulthandler as plugin

            ends = getattr(plugin, "get_exit_on_timeout_config_value", lambda _: False)
            faulthandler.cancel_dump_traceback_later()
            stack.callback(
                faulthandler.dump_traceback_later,
                max(limit - used, 0.001),
                file=item.config.stash[plugin.fault_handler_stderr_fd_key],
                exit=ends(item.config),
            )
        yield


@contextmanager
def _timeout_stopped(item: pytest.Item, used: float) -> Iterator[None]:
    module = sys.modules.get("pytest_timeout")
    settings_of: Callable[..., Any] | None = getattr(module, "_get_item_settings", None)
    hook = item.ihook
    settings = None
    if settings_of is not None and item.config.pluginmanager.is_registered(module):
        settings = settings_of(item)
    if settings is None or not settings.timeout or settings.timeout < 0 or settings.func_only:
        yield
        return
    hook.pytest_timeout_cancel_timer(item=item)
    try:
        yield
    finally:
        left = settings._replace(timeout=max(settings.timeout - used, 0.001))
        hook.pytest_timeout_set_timer(item=item, settings=left)
