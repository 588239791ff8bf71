"""Commands that write a file: pages, exports, merged reports."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import threading
import urllib.parse
import webbrowser
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pytest_torchprof import api
from pytest_torchprof.analysis.breakdown import busy_timelines
from pytest_torchprof.analysis.kernels import UNLINKED, device_of, parse_grouping
from pytest_torchprof.api import Trace
from pytest_torchprof.commands.inputs import (
    Parts,
    call_counts,
    calls_in_words,
    cpu_time_note,
    device_time_note,
    extra_chips,
    no_flops,
    only,
    part_with,
    peaks_used,
    ungrouped,
    unused_chips,
    warn,
)
from pytest_torchprof.commands.lint import blind_lines, finding_rows, what_was_blind
from pytest_torchprof.commands.ops import kernel_lines
from pytest_torchprof.commands.summary import span_note
from pytest_torchprof.commands.tables import OK, load, rows_of_each, tree_note, write
from pytest_torchprof.commands.timeline import idle_gap, memory_notes, memory_texts, no_memory
from pytest_torchprof.core.errors import SettingsError, writing
from pytest_torchprof.core.files import in_the_way, same_file
from pytest_torchprof.core.units import plural
from pytest_torchprof.render.findings import gaps
from pytest_torchprof.render.html.charts import ChipRoof, StepMark
from pytest_torchprof.render.html.page import (
    Section,
    Sources,
    asset_files,
    check_asset,
    check_page,
    page,
    render,
    write_text,
)
from pytest_torchprof.render.html.report_page import data_of, headline, report_sections
from pytest_torchprof.render.html.trace_page import (
    diff_sections,
    finding_row,
    trace_sections,
)
from pytest_torchprof.render.kernel_names import readable_kernel
from pytest_torchprof.render.report import (
    check_target,
    merged,
    read_report,
    write_document,
)
from pytest_torchprof.render.trackers import EXPORTS
from pytest_torchprof.rules.registry import check_chosen, gather
from pytest_torchprof.trace.nesting import among
from pytest_torchprof.trace.ranks import short_names
from pytest_torchprof.trace.read import is_trace
from pytest_torchprof.trace.steps import chosen_steps, steps_of

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable

    from pytest_torchprof.analysis.kernels import KernelRow
    from pytest_torchprof.analysis.operators import TreeBy
    from pytest_torchprof.commands.tables import Sides
    from pytest_torchprof.render.table import Row, Rows
    from pytest_torchprof.work.devices import Device


# ---- Gather what the page of a trace, or of two, tells: the same tables that the commands print.

#: Bars of the timeline of each device, and moments of that of its memory.
SHARES: Final = 160
MOMENTS: Final = 200
#: Traces of a folder; the ranks of a job do much the same.
MOST_TRACES: Final = 8
#: How the page groups kernels: what launched a kernel tells as much as its name.
KERNELS_BY: Final = "op,kernel"


def sections_of(
    ranks: Parts, chips: Sequence[Device] = (), *, prefix: str = "", name: str = ""
) -> list[Section]:
    """The sections of these traces, one after the other.

    Where a page is of more, ``prefix`` is that of their anchors, and ``name`` tells them apart.
    """
    found: list[Section] = []
    several = len(ranks) > 1
    for number, (rank, trace) in enumerate(list(ranks.traces.items())[:MOST_TRACES], 1):
        label = ", ".join(filter(None, (name, ranks.label(rank) if several else "")))
        facts = facts_of(trace, chips)
        facts["warnings"] = list(ranks[rank].warnings)
        if number == 1 and (left := len(ranks) - MOST_TRACES) > 0:
            more = f"{plural(left, f'more {ranks.column}')} left out"
            facts["warnings"].insert(0, f"{more}: a page has {MOST_TRACES} at most")
        found += trace_sections(facts, label, f"{prefix}trace-{number}-" if several else prefix)
    return found


def data_of_traces(ranks: Parts) -> dict[str, Any]:
    """What the page has as JSON: the main tables, as the commands print them."""

    def rows(make: Callable[[Trace], Rows[Any]]) -> list[Row]:
        made = {rank: make(trace).to_dicts() for rank, trace in ranks.traces.items()}
        return rows_of_each(ranks, made)

    return {
        "traces": [part.path for part in ranks.values()],
        "metrics": rows(Trace.summary),
        "breakdown": rows(Trace.breakdown),
        "idle": rows(lambda trace: trace.idle("cause")),
    }


def facts_of(trace: Trace, chips: Sequence[Device] = ()) -> dict[str, Any]:
    """All that the page of a trace tells, by the names in `trace.html`."""
    alone = Parts({0: part_with(trace)})
    events, kernels = trace.events, trace.kernels(KERNELS_BY, chips)
    operators, peaks = trace.ops(), trace.memory()
    if unused := unused_chips(trace, chips):
        warn(unused)
    on_device = bool(events.selection[events.device_rows].any())
    no_device = "" if on_device else "the trace has no device events"
    steps, median = _steps(trace)
    checked = check_chosen(events)
    unchecked = {rule: why.text for rule, why in checked.gaps.items()}
    memory_gap = no_memory(trace)
    time_notes = cpu_time_note(trace), device_time_note(trace), span_note(trace)
    return {
        "heading": alone.heading,
        "metrics": trace.summary().to_dicts(),
        "steps": steps,
        "step_median_ms": median,
        "no_device": no_device,
        "breakdown": trace.breakdown(),
        "timelines": busy_timelines(events, SHARES),
        "time_notes": [*filter(None, time_notes)],
        "idle_causes": trace.idle("cause"),
        "idle": [
            {**row, "where": row["location"] or row["path"]} for row in trace.idle().to_dicts()
        ],
        "no_idle": idle_gap(trace) or (no_device and f"idle time is not measured: {no_device}"),
        "findings": [finding_row(row) for row in finding_rows(trace, checked)],
        "finding_notes": [
            *gaps("not checked", unchecked),
            *gaps("failed, so not checked", checked.errors),
            *blind_lines(alone, {0: what_was_blind(trace, checked)}, len(gather().rules)),
        ],
        "kernels": kernels,
        "kernel_table": [
            {**row, "operator": UNLINKED if row["operator"] is None else row["operator"]}
            for row in kernels.to_dicts()
        ],
        "roofs": _roofs(trace, kernels, chips),
        "no_kernels": peaks_used(trace, chips),
        "kernel_notes": [
            note
            for note in kernel_lines(trace, chips, parse_grouping(KERNELS_BY))
            if note and kernels
        ],
        "operators": operators,
        "trees": {by: (trace.tree(by), _tree_note(trace, by)) for by in ("module", "stack")},
        "operator_notes": [*filter(None, [no_flops(trace), calls_in_words([call_counts(trace)])])],
        "peaks": peaks,
        "points": trace.memory_timeline(MOMENTS),
        "no_memory": memory_gap or "nothing was allocated",
        "memory_notes": [
            *filter(None, [memory_gap]),
            *memory_notes(alone, {0: memory_texts(trace)}),
        ]
        if peaks
        else [],
    }


def _steps(trace: Trace) -> tuple[list[StepMark], float | None]:
    """The selected steps, and the median of their durations in ms."""
    steps, chosen = steps_of(trace.events, ""), chosen_steps(trace.events)
    inside = np.ones(len(steps), bool) if chosen is None else among(steps.number, chosen[1])
    if not inside.any():
        return [], None
    first = int(trace.events.ts[0])
    columns = steps.number, steps.begin - first, steps.end - first
    rows = zip(*(column[inside].tolist() for column in columns), strict=True)
    median = np.median((steps.end - steps.begin)[inside])
    return [StepMark(*row) for row in rows], float(median) / 1e6


def _tree_note(trace: Trace, by: TreeBy) -> str:
    """What the parts of a tree are, if not those that were asked for, and why."""
    note = tree_note(trace, by)
    return ": ".join(filter(None, [note, note and ungrouped(trace, by)]))


def _roofs(
    trace: Trace, rows: Iterable[KernelRow], chips: Sequence[Device]
) -> dict[int | None, ChipRoof]:
    """By device: its bandwidth, and the peaks of the dtypes that its kernels compute in."""
    used: dict[int | None, list[float]] = {}
    for row in rows:
        if row.compute_pct and row.tflops_per_s:
            used.setdefault(row.device, []).append(row.tflops_per_s * 1e14 / row.compute_pct)
    roofs = {}
    for device, peaks in used.items():
        chip = device_of(trace.events, -1 if device is None else device, chips)
        if chip is None:
            continue
        # A row's kernels may compute in several dtypes; then its peak is that of none.
        levels = {
            dtype: peak
            for dtype, peak in chip.peaks.items()
            if any(abs(peak - one) < 1e-6 * peak for one in peaks)
        }
        roofs[device] = ChipRoof(chip.name, chip.bandwidth_bytes_per_s, levels or dict(chip.peaks))
    return roofs


def write_page(
    target: Path,
    ranks: Parts,
    sides: Mapping[int, Sides],
    growth: Sequence[Row],
    notes: Sequence[str],
) -> None:
    """Write the page of a comparison; ``growth`` and ``notes`` are what the command prints.

    Raises:
        TraceError: the file cannot be written; an old one is unchanged.
    """
    sections: list[Section] = []
    several = len(sides) > 1
    for number, (rank, side) in enumerate(sides.items(), 1):
        facts = _diff_facts(side)
        facts["growth"] = [row for row in growth if row.get("rank", rank) == rank]
        facts["notes"] = notes if number == 1 else ()
        label, prefix = (ranks.label(rank), f"rank-{number}-") if several else ("", "")
        sections += diff_sections(facts, label, prefix)
    first = next(iter(sides.values()))
    title = f"{first.a.path.name} → {first.b.path.name}"
    data = {"growth": list(growth), "notes": list(notes)}
    with writing(target):
        write_text(target, page(title, sections, data=data))


def _diff_facts(side: Sides) -> dict[str, Any]:
    """What the page tells of two traces; metrics that changed come first."""
    per_step = side.steps is not None
    operators, kernels = (
        api.diff(side.a, side.b, by, per_step=per_step).to_dicts() for by in ("op", "kernel")
    )
    notes = []
    if side.steps is not None:
        one, other = side.steps
        notes.append(f"metrics are those of all steps together: {one} of A, {other} of B")
    pairs = list(zip(side.a.summary().to_dicts(), side.b.summary().to_dicts(), strict=True))
    unknown = [pair for pair in pairs if pair[0]["value"] is pair[1]["value"] is None]
    if unknown:
        notes.append(f"measured in neither trace: {', '.join(a['metric'] for a, _ in unknown)}")
    known = [pair for pair in pairs if pair not in unknown]
    return {
        "headings": [Parts({0: part_with(trace)}).heading for trace in (side.a, side.b)],
        "metrics": sorted(known, key=lambda pair: pair[0]["value"] == pair[1]["value"]),
        "metric_notes": notes,
        "operators": operators,
        "kernels": [{**row, "name": readable_kernel(row["name"])} for row in kernels],
    }


# ---- `torchprof report`: reports of test sessions and traces as one page of HTML.

_NEXT = "name a trace, or a report of pytest --torchprof --torchprof-json=FILE"


def run_report(options: Namespace) -> int:
    """Write the page, and its assets if they go into a folder."""
    target = Path(options.output)
    folder = None if options.assets is None else Path(options.assets)
    _check_other(target, options.files, "the files to read", "page")
    check_page(target)
    assets = {} if folder is None else {folder / name: look for name, look in asset_files().items()}
    if folder is not None:
        _check_folder(folder, target)
        for path in assets:
            check_asset(path)
    chips = extra_chips(options)
    paths = [Path(name) for name in options.files]
    several = len(paths) > 1
    sections: list[Section] = []
    data: dict[str, Any] = {}
    title = ""
    for number, (path, name) in enumerate(zip(paths, short_names(paths), strict=True), 1):
        prefix, label = (f"file-{number}-", name) if several else ("", "")
        if path.is_dir() or (not path.is_fifo() and is_trace(path)):
            ranks = load([str(path)], None)
            sections += sections_of(ranks, chips, prefix=prefix, name=label)
            title, data[name] = path.resolve().name, data_of_traces(ranks)
        else:
            report = read_report(path, _NEXT)
            if report.interrupted:
                warn(f"{path}: the session was interrupted; tests may be missing")
            sections += report_sections(report, Sources(Path.cwd()), prefix=prefix, name=label)
            title, data[name] = headline(report), data_of(report)
    text = page(
        plural(len(paths), "file") if several else title,
        sections,
        data={"files": data} if several else next(iter(data.values())),
        assets=None if folder is None else _link(target, folder),
    )
    for where, content in {**assets, target: text}.items():
        with writing(where):
            write_text(where, content)
    return OK


def _check_other(target: Path, names: Sequence[str], what: str, made: str) -> None:
    """Reject a target that would replace what is read.

    Raises:
        SettingsError: it is one of these files.
    """
    if any(same_file(target, Path(name)) for name in names):
        raise SettingsError(
            f"{target}: this is one of {what}",
            "they are never overwritten",
            f"give another name for the {made}",
        )


def _check_folder(folder: Path, target: Path) -> None:
    """Reject a folder of styles and scripts that can be none, or that no page could link to.

    Raises:
        SettingsError: it is so.
    """
    if target == Path("/dev/stdout"):
        raise SettingsError(
            "--assets does not go with -o -",
            "a page on standard output has no place from which it could link to a folder",
            "name a file with -o",
        )
    if (path := in_the_way(folder)) is not None:
        raise SettingsError(
            f"{folder} cannot be a folder", f"{path} exists and is a file", "name another folder"
        )


def _link(target: Path, folder: Path) -> str:
    """The folder as the page links to it, with a slash at its end."""
    relative = os.path.relpath(folder.resolve(), target.resolve().parent)
    return urllib.parse.quote(Path(relative).as_posix()) + "/"


# ---- `torchprof open`: hand a trace to the Perfetto UI in a browser.
#
# Source of the protocol: https://perfetto.dev/docs/visualization/deep-linking-to-perfetto-ui. The
# UI gets the trace by a message to its window: its own security policy lets it fetch from one
# port only.

HOST: Final = "127.0.0.1"
#: The only origin that the trace is sent to.
PERFETTO: Final = "https://ui.perfetto.dev"
#: What the page itself may do: run its script, and ask our server.
_POLICY: Final = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'"
)


def perfetto_page(name: str, nonce: str) -> str:
    """The page for a trace of this name; scripts and styles run by the nonce only."""
    return str(render("perfetto.html", title=name, nonce=nonce, origin=PERFETTO))


def run_open(options: Namespace) -> int:
    """Serve the trace until the browser has it, or Ctrl-C."""
    # What is no trace is said here, not in the browser.
    path = only(load([options.trace], options.rank)).path
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
        self.send_header("Content-Security-Policy", _POLICY.format(nonce=self.server.nonce))
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Say nothing: requests are no news."""


# ---- `torchprof export`: a report in the format of a service that follows numbers over time.


def run_export(options: Namespace) -> int:
    """Print the report in the other format."""
    report = read_report(Path(options.report))
    if report.interrupted:
        warn(f"{options.report}: the session was interrupted; tests may be missing")
    exported = EXPORTS[options.format](report)
    if exported.left_out:
        what = plural(exported.left_out, "number")
        warn(f"left out: {what} of which a higher value is better, which {options.format} lacks")
    return write(exported.text)


# ---- `torchprof merge`: one report of several.


def run_merge(options: Namespace) -> int:
    """Write the merged report."""
    target = Path(options.output)
    _check_other(target, options.reports, "the reports", "output")
    document = merged({name: read_report(Path(name)) for name in options.reports})
    check_target(target)
    with writing(target):
        write_document(target, document)
    return OK
