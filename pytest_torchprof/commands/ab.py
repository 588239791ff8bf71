"""`torchprof ab`: which tests are slower on side B than on side A."""

from __future__ import annotations

import signal
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_torchprof.commands.tables import FAILED, OK, limited, page_target, terminal_width, write
from pytest_torchprof.core.errors import AbStoppedError, SettingsError
from pytest_torchprof.render import ab, escape
from pytest_torchprof.render import escape as streams
from pytest_torchprof.render.escape import shorten
from pytest_torchprof.render.report import check_target, report_document, write_document
from pytest_torchprof.render.table import Table, to_json
from pytest_torchprof.verdict.paired import CONFIDENCE

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from pytest_torchprof.ab.sides import Side
    from pytest_torchprof.verdict.paired import PairedRow

_BLIND, _INTERRUPTED = 2, 130
_REPORT = "--torchprof-json"
#: How much more time is recommended where the answer is unclear.
_MORE = 5
#: Width of a name beside the bar.
_NAME = 40


@dataclass
class Found:
    """Results so far; complete unless ``interrupted``."""

    sides: Sequence[Side] = ()
    rows: list[PairedRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False
    #: Seconds since the command began, start-up of the workers included.
    seconds: float = 0.0


def run_ab(options: Namespace) -> int:
    """Compare two revisions, test by test."""
    args, report = _report_of(options.rest)
    page = page_target(options)
    found = Found()
    start = time.perf_counter()
    failure = None
    with _ended_by_signals():
        try:
            _measure(options, args, found)
        except KeyboardInterrupt:
            found.interrupted = True
        except AbStoppedError as error:
            if not found.rows:
                raise
            failure = error
    found.seconds = time.perf_counter() - start
    found.rows = ab.by_urgency(found.rows)
    try:
        if report is not None and found.sides:
            write_document(report, _report(found))
        if page is not None and found.sides:
            _write_page(page, found)
    finally:
        if found.sides and (found.rows or options.format == "json"):
            _show(options, found)
    if failure is not None:
        streams.say(str(failure))
        return FAILED if _regressed(found) else _BLIND
    return _status(found)


def _measure(options: Namespace, args: tuple[str, ...], found: Found) -> None:
    """Run the tests of both sides; ``found`` keeps partial results if interrupted."""
    from pytest_torchprof.ab.controller import Options, run
    from pytest_torchprof.ab.sides import Request, sides

    request = Request(
        ref=options.ref,
        a=options.a and Path(options.a),
        b=options.b and Path(options.b),
        python_a=options.python_a,
        python_b=options.python_b,
        cwd=Path.cwd(),
        args=args,
    )
    how = Options(options.min_time, options.rounds, options.threshold / 100)
    with _bar() as progress, sides(request) as (a, b, folder):
        found.sides = a, b
        found.notes += run(a, b, folder, how, progress, found.rows)


@contextmanager
def _bar() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on a terminal: the current test, its number from 1, and the total."""
    if not sys.stderr.isatty():
        yield lambda _test, _number, _every: None
        return
    import tqdm

    start = "starting both sides"
    with tqdm.tqdm(desc=start, bar_format="{desc} …", leave=False, dynamic_ncols=True) as bar:

        def progress(test: str, number: int, every: int) -> None:
            bar.bar_format, bar.unit = None, "test"
            bar.total, bar.n = every, number - 1
            bar.set_description_str(shorten(escape.line(test), _NAME), refresh=True)

        yield progress


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Handle terminating signals like Ctrl-C, so that everything is cleaned up."""
    names = ("SIGTERM", "SIGHUP", "SIGBREAK")  # the last is Windows's
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores it
                before[number] = signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


# -------------------------------------------------------------------- the report


def _report_of(args: Sequence[str]) -> tuple[tuple[str, ...], Path | None]:
    """Pytest's arguments without the report option, and the report's file.

    Raises:
        SettingsError: the file name is missing, or names a folder or a file of another kind.
    """
    rest, name, words = list[str](), None, iter(args)
    for word in words:
        if word == _REPORT:
            name = next(words, "")
        elif word.startswith(f"{_REPORT}="):
            name = word.partition("=")[2]
        else:
            rest.append(word)
    if name is None:
        return tuple(rest), None
    path = Path(name)
    if not name.strip() or path.is_dir():
        found = "a folder" if name.strip() else "nothing"
        raise SettingsError(f"{_REPORT} {name}", found, f"give a file: {_REPORT}=FILE")
    check_target(path)
    return tuple(rest), path.absolute()


def _write_page(path: Path, found: Found) -> None:
    """Write the report as a page, with lines of side B."""
    from pytest_torchprof.render.html.page import Sources, write_text
    from pytest_torchprof.render.html.report_page import report_page
    from pytest_torchprof.render.report import of_document

    document = of_document(_report(found), "this run")
    write_text(path, report_page(document, Sources(Path(found.sides[1].root))))


def _report(found: Found) -> dict[str, Any]:
    """The report."""
    environment = {**_described(found), "interrupted": found.interrupted}
    records = map(ab.test_of_row, found.rows)
    return report_document(environment, records, interrupted=found.interrupted)


def _described(found: Found) -> dict[str, Any]:
    """What each side is."""
    return {
        side.name.lower(): {
            "label": side.label,
            "root": str(side.root),
            "cwd": str(side.cwd),
            "python": side.python,
            "args": list(side.args),
        }
        for side in found.sides
    }


def _notes(found: Found) -> list[str]:
    return [note for side in found.sides for note in side.notes] + found.notes


# -------------------------------------------------------------------- what is printed


def _show(options: Namespace, found: Found) -> None:
    rows, left = limited(options, [{"row": row} for row in found.rows])
    shown: list[PairedRow] = [row["row"] for row in rows]
    if options.format == "json":
        write(to_json(_document(options, found, shown, left)))
    elif options.format == "csv":
        write(Table([ab.row_cells(row) for row in shown], ab.FIELDS).csv())
    else:
        page = ab.Page(
            heading=[f"{side.name}: {side.label}" for side in found.sides],
            rows=shown,
            left=left,
            notes=_notes(found),
            end=[*_advice(options, found), _totals(options, found)],
            every=options.limit == 0,
        )
        wide = options.format == "markdown"
        write(ab.page_markdown(page) if wide else ab.text(page, terminal_width()))


def _document(
    options: Namespace, found: Found, shown: Sequence[PairedRow], left: int
) -> dict[str, Any]:
    return {
        "schema": "torchprof-ab/1",
        **_described(found),
        "confidence": CONFIDENCE,
        "threshold": options.threshold / 100,
        "tests": ab.compared_tests(found.rows),
        "rows": [ab.row_cells(row) for row in shown],
        "left_out": left,
        "interrupted": found.interrupted,
        "seconds": found.seconds,
        "notes": _notes(found),
    }


def _advice(options: Namespace, found: Found) -> list[str]:
    """How to get an answer where there is none."""
    if not any(row.verdict == "unclear" for row in found.rows):
        return []
    if options.rounds is not None:
        return [f"unclear: more pairs may decide it: --rounds {_MORE * options.rounds}"]
    return [f"unclear: more time may decide it: --min-time {_MORE * options.min_time:g}"]


def _totals(options: Namespace, found: Found) -> str:
    line = ab.ab_totals(found.rows, options.threshold / 100, found.seconds)
    return f"interrupted; so far: {line}" if found.interrupted else line


def _status(found: Found) -> int:
    """Return the exit status; if nothing was compared, say why on stderr."""
    if found.interrupted:
        return _INTERRUPTED
    if _regressed(found):
        return FAILED
    if ab.compared_tests(found.rows):
        return OK
    streams.say(_why_blind(found))
    return _BLIND


def _regressed(found: Found) -> bool:
    """Whether a test is slower in B, or broken by it, so that its speed is unknown."""
    fine = {"failed": ("A",), "error": ("A", "AB")}  # B did not make these worse
    return any(
        row.verdict == "slower" or row.broken not in fine.get(row.verdict, (row.broken,))
        for row in found.rows
    )


def _why_blind(found: Found) -> str:
    why = {
        "": "no tests were collected",
        "new": "every test is only in B",
        "gone": "every test is only in A",
        "skipped": "every test was skipped",
    }.get(" ".join({row.verdict for row in found.rows}))
    return f"nothing was compared: {why or ab.verdict_counts(found.rows)}"
