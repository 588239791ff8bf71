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
from msgspec.structs import replace

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
    load_traces,
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
from pytest_torchprof.commands.tables import OK, rows_of_each, tree_note, write
from pytest_torchprof.commands.timeline import idle_gap, memory_notes, memory_texts, no_memory
from pytest_torchprof.core.errors import SettingsError, writing
from pytest_torchprof.core.files import in_the_way, same_file
from pytest_torchprof.core.units import plural
from pytest_torchprof.render.export import POLICY, perfetto_page
from pytest_torchprof.render.html.charts import ChipRoof, StepMark
from pytest_torchprof.render.html.page import page, write_text
from pytest_torchprof.render.html.trace_page import (
    DeviceTime,
    DiffFacts,
    Found,
    Kernels,
    Memory,
    Operators,
    TraceFacts,
    Tree,
    diff_sections,
    trace_sections,
    with_styles,
)
from pytest_torchprof.render.report import (
    StoredReport,
    check_target,
    merged,
    read_report,
    write_document,
)
from pytest_torchprof.render.trackers import EXPORTS
from pytest_torchprof.render.unknown import in_words
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
    from pytest_torchprof.render.html.page import Section
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
    """The sections of these traces, one after the other, without their styles.

    Where a page is of more, ``prefix`` is that of their anchors, and ``name`` tells them apart.
    """
    found: list[Section] = []
    several = len(ranks) > 1
    more = [f"{plural(left, f'more {ranks.column}')} left out: a page has {MOST_TRACES} at most"
            for left in [len(ranks) - MOST_TRACES] if left > 0]  # fmt: skip
    for number, (rank, trace) in enumerate(list(ranks.traces.items())[:MOST_TRACES], 1):
        label = ", ".join(filter(None, (name, ranks.label(rank) if several else "")))
        mark = f"{prefix}trace-{number}-" if several else prefix
        facts = facts_of(trace, label, chips)
        if more and number == 1:
            facts = replace(facts, warnings=[*more, *facts.warnings])
        found += trace_sections(facts, mark)
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


def facts_of(trace: Trace, label: str = "", chips: Sequence[Device] = ()) -> TraceFacts:
    """All that the page of a trace tells."""
    alone = Parts({0: part_with(trace)})
    name, numbers, median = _steps(trace)
    return TraceFacts(
        label=label,
        heading=alone.heading,
        warnings=list(trace.warnings),
        events=len(trace.events),
        metrics=trace.summary().to_dicts(),
        step_name=name,
        step_numbers=numbers,
        step_median_ms=median,
        time=_time(trace),
        found=_found(trace, alone),
        kernels=_kernels(trace, chips),
        operators=_operators(trace),
        memory=_memory(trace, alone),
    )


def _has_device(trace: Trace) -> bool:
    """Whether the selected part has work of a device."""
    return bool(trace.events.selection[trace.events.device_rows].any())


def _steps(trace: Trace) -> tuple[str, list[int], float | None]:
    """Name and numbers of the steps, and the median of their durations."""
    steps = steps_of(trace.events, "")
    inside = _inside(trace)
    if not len(steps) or not inside.any():
        return "", [], None
    durations = (steps.end - steps.begin)[inside]
    return steps.name, steps.number[inside].tolist(), float(np.median(durations)) / 1e6


def _inside(trace: Trace) -> Any:
    """Which of all steps are selected."""
    steps, chosen = steps_of(trace.events, ""), chosen_steps(trace.events)
    every = np.ones(len(steps), bool)
    return every if chosen is None else among(steps.number, chosen[1])


def _marks(trace: Trace) -> list[StepMark]:
    steps, inside = steps_of(trace.events, ""), _inside(trace)
    if not len(steps):
        return []
    first = int(trace.events.ts[0])
    columns = steps.number, steps.begin - first, steps.end - first
    return [
        StepMark(*marked) for marked in zip(*(c[inside].tolist() for c in columns), strict=True)
    ]


def _time(trace: Trace) -> DeviceTime:
    device = _has_device(trace)
    without = "" if device else "the trace has no device events"
    gap = idle_gap(trace)
    return DeviceTime(
        breakdown=trace.breakdown(),
        timelines=busy_timelines(trace.events, SHARES),
        steps=_marks(trace),
        idle_causes=trace.idle("cause"),
        idle=trace.idle().to_dicts(),
        without=without,
        idle_without=gap or (without and f"idle time is not measured: {without}"),
        notes=[*filter(None, (cpu_time_note(trace), device_time_note(trace), span_note(trace)))],
    )


def _found(trace: Trace, alone: Parts) -> Found:
    checked = check_chosen(trace.events)
    return Found(
        rows=finding_rows(trace, checked),
        unchecked={rule: in_words(why) for rule, why in checked.gaps.items()},
        errors=checked.errors,
        notes=blind_lines(alone, {0: what_was_blind(trace, checked)}, len(gather().rules)),
    )


# ------------------------------------------------------------------------------------ kernels


def _kernels(trace: Trace, chips: Sequence[Device]) -> Kernels:
    rows = trace.kernels(KERNELS_BY, chips)
    notes = kernel_lines(trace, chips, parse_grouping(KERNELS_BY))
    table = rows.to_dicts()
    if unused := unused_chips(trace, chips):
        warn(unused)
    for row in table:
        row["operator"] = UNLINKED if row["operator"] is None else row["operator"]
    return Kernels(
        rows=rows,
        table=table,
        roofs=_roofs(trace, rows, chips),
        without=peaks_used(trace, chips),
        notes=[note for note in notes if note and rows],
    )


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


# -------------------------------------------------------------------------- operators, memory


def _operators(trace: Trace) -> Operators:
    rows = trace.ops()
    empty = "recorded without operators" if not len(rows) else ""
    notes = [no_flops(trace), calls_in_words([call_counts(trace)])] if rows else []
    return Operators(
        table=rows.to_dicts(),
        fields=rows.columns,
        modules=_tree(trace, "module"),
        stacks=_tree(trace, "stack"),
        without=empty,
        notes=[note for note in notes if note],
    )


def _tree(trace: Trace, by: TreeBy) -> Tree:
    note = tree_note(trace, by)
    why = ungrouped(trace, by) if note else ""
    return Tree(trace.tree(by), f"{note}: {why}" if note and why else note)


def _memory(trace: Trace, alone: Parts) -> Memory:
    peaks = trace.memory()
    gaps = [why for why in [no_memory(trace)] if why]
    return Memory(
        peaks=peaks,
        points=trace.memory_timeline(MOMENTS),
        without=" ".join(gaps) or "nothing was allocated",
        notes=[*gaps, *memory_notes(alone, {0: memory_texts(trace)})] if peaks else [],
    )


# ---- Gather what the page of `torchprof diff` tells, and write it.


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
    for number, (rank, side) in enumerate(sides.items(), 1):
        several = len(sides) > 1
        mine = [row for row in growth if row.get("rank", rank) == rank]
        label = ranks.label(rank) if several else ""
        facts = diff_facts(side, label, mine, notes if number == 1 else ())
        sections += diff_sections(facts, f"rank-{number}-" if several else "")
    first = next(iter(sides.values()))
    title = f"{first.a.path.name} → {first.b.path.name}"
    data = {"growth": list(growth), "notes": list(notes)}
    with writing(target):
        write_text(target, page(title, with_styles(sections), data=data))


def diff_facts(side: Sides, label: str, growth: Sequence[Row], notes: Sequence[str]) -> DiffFacts:
    """All that the page tells of two traces."""
    a, b = (Parts({0: part_with(trace)}) for trace in (side.a, side.b))
    per_step = side.steps is not None
    rows: dict[str, list[dict[str, Any]]] = {
        by: api.diff(side.a, side.b, by, per_step=per_step).to_dicts() for by in ("op", "kernel")
    }
    note = ""
    if side.steps is not None:
        one, other = side.steps
        note = f"metrics are those of all steps together: {one} of A, {other} of B"
    metrics = zip(side.a.summary().to_dicts(), side.b.summary().to_dicts(), strict=True)
    return DiffFacts(
        label=label,
        headings=(a.heading, b.heading),
        metrics=list(metrics),
        growth=growth,
        metric_note=note,
        operators=rows["op"],
        kernels=rows["kernel"],
        notes=list(notes),
    )


# ---- `torchprof report`: reports of test sessions and traces as one page of HTML.

_NEXT = "name a trace, or a report of pytest --torchprof --torchprof-json=FILE"


def run_report(options: Namespace) -> int:
    """Write the page, and its assets if they go into a folder."""
    target = Path(options.output)
    _check(target, options.files, options.assets)
    from pytest_torchprof.render.html.page import (
        asset_files,
        check_asset,
        check_page,
        page,
        write_text,
    )

    check_page(target)
    for name in asset_files() if options.assets is not None else ():
        check_asset(Path(options.assets) / name)
    chips = extra_chips(options)
    paths = [Path(name) for name in options.files]
    names = short_names(paths)
    several = len(paths) > 1
    sections: list[Section] = []
    traces: list[Section] = []
    data: dict[str, Any] = {}
    title = plural(len(paths), "file")
    for number, (path, name) in enumerate(zip(paths, names, strict=True), 1):
        prefix, label = (f"file-{number}-", name) if several else ("", "")
        if path.is_dir() or (not path.is_fifo() and is_trace(path)):
            made, own_title, own_data = _of_trace(path, prefix, label, chips)
            traces += made
        else:
            made, own_title, own_data = _of_report(path, prefix, label)
        sections += made
        data[name] = own_data
        title = title if several else own_title
    folder = None if options.assets is None else Path(options.assets)
    looks = dict(asset_files())
    if traces:
        from pytest_torchprof.render.html.trace_page import plot_styles, with_styles

        looks["torchprof.css"] += plot_styles()
        sections = sections if folder else with_styles(sections)
    text = page(
        title,
        sections,
        data={"files": data} if several else next(iter(data.values())),
        assets=None if folder is None else _link(target, folder),
    )
    styled = {} if folder is None else {folder / name: look for name, look in looks.items()}
    for where, content in {**styled, target: text}.items():
        with writing(where):
            write_text(where, content)
    return OK


def _check(target: Path, files: Sequence[str], assets: str | None) -> None:
    """Reject a target that would replace what is read, and a folder that can be none.

    Raises:
        SettingsError: it is so.
    """
    if any(same_file(target, Path(name)) for name in files):
        raise SettingsError(
            f"{target}: this is one of the files to read",
            "they are never overwritten",
            "give another name for the page",
        )
    if target.is_dir():
        raise SettingsError(f"{target}: is a folder", next_step="name a file in it")
    if assets is not None and target == Path("/dev/stdout"):
        raise SettingsError(
            "--assets does not go with -o -",
            "a page on standard output has no place from which it could link to a folder",
            "name a file with -o",
        )
    if assets is not None and (path := in_the_way(Path(assets))) is not None:
        raise SettingsError(
            f"{assets} cannot be a folder", f"{path} exists and is a file", "name another folder"
        )


def _of_report(path: Path, prefix: str, name: str) -> tuple[list[Section], str, Mapping[str, Any]]:
    """A report's sections, its verdict, and its data."""
    from pytest_torchprof.render.html.page import Sources
    from pytest_torchprof.render.html.report_page import data_of, headline, report_sections

    report: StoredReport = read_report(path, _NEXT)
    if report.interrupted:
        warn(f"{path}: the session was interrupted; tests may be missing")
    sections = report_sections(report, Sources(Path.cwd()), prefix=prefix, name=name)
    return sections, headline(report), data_of(report)


def _of_trace(
    path: Path, prefix: str, name: str, chips: Sequence[Device]
) -> tuple[list[Section], str, Mapping[str, Any]]:
    """The sections of a trace, or of the traces in a folder, their title, and their data."""
    ranks = load_traces([str(path)], None)
    sections = sections_of(ranks, chips, prefix=prefix, name=name)
    return sections, path.resolve().name, data_of_traces(ranks)


def _link(target: Path, folder: Path) -> str:
    """The folder as the page links to it, with a slash at its end."""
    relative = os.path.relpath(folder.resolve(), target.resolve().parent)
    return urllib.parse.quote(Path(relative).as_posix()) + "/"


# ---- `torchprof open`: hand a trace to the Perfetto UI in a browser.

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
    if any(same_file(target, Path(name)) for name in options.reports):
        raise SettingsError(
            f"{target}: this is one of the reports",
            "they are never overwritten",
            "give another name for the output",
        )
    document = merged({name: read_report(Path(name)) for name in options.reports})
    check_target(target)
    with writing(target):
        write_document(target, document)
    return OK
