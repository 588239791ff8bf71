"""The traces of one job by rank, from files and folders."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from pytest_torchprof.core.errors import TorchprofError, TraceError
from pytest_torchprof.core.files import system_message
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.trace.read import WANTED, peek, read_trace

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.read import ReadProgress


# ---- Read the traces of one job by rank, from files and folders.

#: What tells the rank of a trace: its ``distributedInfo``, a name, or the order of the files.
RankSource: TypeAlias = Literal["metadata", "file name", "folder name", "order"]

#: How the names of traces end.
TRACE_NAMES = (".json", ".json.gz")
#: In the names of files and of their folders; if both occur, the first of these counts.
_RANK = [re.compile(rf"{word}[-_ ]?(\d{{1,6}})", re.IGNORECASE) for word in ("rank", "worker")]
_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True)
class _File:
    path: Path
    named: bool  # by the user, not found in a folder: it must be a trace
    size: int = 0


class _Found(NamedTuple):
    path: Path
    claim: int | None
    trace: Events | None  # None for a rank that was not requested


class LeftOut(NamedTuple):
    """A file of a folder that could not be read as a trace.

    ``maybe_rank``: it may be a rank, since it is damaged, or its name has a rank. Other JSON is
    not, such as a configuration.
    """

    source: str
    error: TorchprofError
    maybe_rank: bool


def read_ranks(
    paths: Sequence[Path], *, rank: int | None = None, progress: ReadProgress | None = None
) -> list[tuple[int, Events]]:
    """(rank, trace) of these files, and of all traces in these folders, by ascending rank.

    The rank is from the trace's ``distributedInfo``, else from the name of its file or folder
    (``rank0``, ``worker_1``), else the next free number, in the given order; files of a folder are
    in the order of their names, numbers by value. A second file of one rank gets the next free
    number too, and a warning. Other files in a folder are left out, with a warning in the first
    trace. ``rank`` reads only that rank, and the others' metadata.

    Raises:
        TraceError: a named file that is not a trace, a folder without any, or no such rank.
    """
    files = _files(paths)
    claims = [_claim(file, look_inside=rank is not None) for file in files]
    track = _tracker(progress, sum(f.size for f in files))
    found: list[_Found] = []
    left_out: list[TraceError] = []
    for file, claim in zip(files, claims, strict=True):
        if rank is not None and claim not in {None, rank}:
            found.append(_Found(file.path, claim, None))
            continue
        try:
            if not file.named:
                require_regular(file.path)
            trace = read_trace(file.path, progress=track())
        except TraceError as error:
            if file.named:
                raise
            left_out.append(error)
            continue
        own = rank_of(trace.metadata)
        found.append(_Found(file.path, claim if own is None else own, trace))
    if not found:
        raise nothing_found(paths, left_out)
    traces: list[tuple[int, Events]] = []
    lost = tuple(f"left out: {error}" for error in left_out)
    for one in chosen_ranks(
        [str(f.path) for f in found],
        [f.claim for f in found],
        [f.trace is not None for f in found],
        rank,
    ):
        events = found[one.at].trace
        assert events is not None  # noqa: S101 - only those that were read are chosen
        if notes := (*one.notes, *(() if traces else lost)):
            events = replace(events, warnings=(*events.warnings, *notes))
        traces.append((one.number, events))
    return traces


def short_names(paths: Sequence[Path]) -> list[str]:
    """The names of these files, with their folders where two files have the same name.

    >>> short_names([Path("a/0.json"), Path("b/0.json"), Path("b/1.json")])
    ['a/0.json', 'b/0.json', '1.json']
    """
    return short_texts([str(path) for path in paths])


def short_texts(sources: Sequence[str]) -> list[str]:
    """The same for files or URLs as texts; of a chain of URLs, the first one counts.

    >>> short_texts(["s3://a/0.json", "s3://b/0.json", "1.json"])
    ['s3://a/0.json', 's3://b/0.json', '1.json']
    """
    names = [PurePath(source.partition("::")[0]).name for source in sources]
    times = Counter(names)
    return [n if times[n] == 1 else s for n, s in zip(names, sources, strict=True)]


def rank_of(metadata: Mapping[str, Any]) -> int | None:
    """The rank in a trace's metadata."""
    info = metadata.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    if isinstance(rank, str) and rank.isdecimal():
        rank = int(rank)
    return rank if type(rank) is int and rank >= 0 else None


def world_size_of(metadata: Mapping[str, Any]) -> int | None:
    """The number of ranks of the job, from a trace's metadata; None if unknown or absurd."""
    info = metadata.get("distributedInfo")
    size = info.get("world_size") if isinstance(info, dict) else None
    return size if type(size) is int and 0 < size <= 10**6 else None


def _files(paths: Sequence[Path]) -> list[_File]:
    """Each file once, however it is named, with folders replaced by their contents."""
    files: dict[str, _File] = {}
    for path in paths:
        try:
            inside = traces_in(path) if path.is_dir() else None
            if inside is None:
                entry = _File(path, named=True, size=path.stat().st_size)
                known = files.get(where := os.path.realpath(path), entry)
                files[where] = replace(known, named=True)
                continue
            for file in inside:
                entry = _File(file, named=False, size=size_of(file))
                files.setdefault(os.path.realpath(file), entry)
        except (OSError, ValueError) as error:
            raise TraceError(f"{path}: cannot be read", system_message(error), WANTED) from error
        if not inside:
            raise nothing_found([path], [])
    return list(files.values())


def traces_in(folder: Path) -> list[Path]:
    """All but folders that has the name of a trace, by name, numbers by value.

    What cannot be read, such as a link to nothing, may be a rank: reading it says why.

    Raises:
        OSError: the folder cannot be listed.
    """
    named = [file for file in folder.iterdir() if file.name.lower().endswith(TRACE_NAMES)]
    return sorted((file for file in named if not os.path.isdir(file)), key=natural_key)  # noqa: PTH112 - never raises


def size_of(path: Path) -> int:
    """Bytes of a file; 0 if it is none, or gone."""
    with suppress(OSError, ValueError):
        return path.stat().st_size
    return 0


def require_regular(path: Path) -> None:
    """Do not open what nobody named and may never end.

    Raises:
        TraceError: it is a pipe, a socket, or a device.
    """
    if os.path.exists(path) and not os.path.isfile(path):  # noqa: PTH110, PTH113 - never raise
        raise TraceError(f"{path}: cannot be read", "it is a pipe, a socket, or a device", WANTED)


def natural_key(path: PurePath) -> list[tuple[int, str]]:
    """Sort key that puts rank10 after rank9."""
    parts = _DIGITS.split(path.name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _claim(file: _File, *, look_inside: bool) -> int | None:
    """The rank of a file without reading its events, if it can be determined."""
    rank = None
    if look_inside and file.path.is_file():  # a pipe can only be read once
        with suppress(TraceError):
            rank = rank_of(peek(file.path))
    return rank_in_name(file.path) if rank is None else rank


def rank_source_of(own: int | None, path: Path) -> RankSource:
    """What tells the rank of a trace at this path, whose metadata has the rank ``own``."""
    if own is not None:
        return "metadata"
    if _rank_in(path.name) is not None:
        return "file name"
    return "order" if rank_in_name(path) is None else "folder name"


def rank_in_name(path: Path) -> int | None:
    """The rank in the name of a file, or of its folder."""
    own = _rank_in(path.name)
    return _rank_in(path.absolute().parent.name) if own is None else own


def _rank_in(name: str) -> int | None:
    for pattern in _RANK:
        if match := pattern.search(name):
            return int(match[1])
    return None


class Numbered(NamedTuple):
    """The number of a trace, its place in the given order, and warnings on the number."""

    number: int
    at: int
    notes: tuple[str, ...]


def chosen_ranks(
    sources: Sequence[str],
    claims: Sequence[int | None],
    are_read: Sequence[bool],
    rank: int | None,
) -> list[Numbered]:
    """The traces that were read by ascending number, or the one with the number ``rank``.

    Raises:
        TraceError: there is no such rank.
    """
    numbered = numbers(sources, claims)
    chosen = [one for one in numbered if rank in {None, one.number} and are_read[one.at]]
    if not chosen:
        known = ", ".join(str(one.number) for one in numbered)
        raise TraceError(f"there is no rank {rank}", f"the ranks are {known}", "choose one of them")
    twins = [at for at, claim in enumerate(claims) if rank is not None and claim == rank]
    if twins[1:]:
        names = short_texts([sources[at] for at in twins])
        notes = tuple(
            f"skipped: {name} is rank {rank} too, from another job or step"
            for at, name in zip(twins, names, strict=True)
            if at != chosen[0].at
        )
        chosen[0] = chosen[0]._replace(notes=(*chosen[0].notes, *notes))
    return chosen


def numbers(sources: Sequence[str], claims: Sequence[int | None]) -> list[Numbered]:
    """A distinct number for each trace, ascending: the rank that it claims, else the next free one.

    >>> [(one.number, one.at) for one in numbers(["a", "b", "c"], [1, None, 1])]
    [(0, 1), (1, 0), (2, 2)]
    """
    taken: dict[int, int] = {}
    for at, claim in enumerate(claims):
        if claim is not None:
            taken.setdefault(claim, at)
    names = short_texts(sources)
    free = (number for number in count() if number not in taken)
    numbered = []
    for at, claim in enumerate(claims):
        if claim is not None and taken[claim] == at:
            numbered.append(Numbered(claim, at, ()))
            continue
        number = next(free)
        notes: tuple[str, ...] = ()
        if claim is not None:
            notes = (f"it claims rank {claim} like {names[taken[claim]]}: its number is {number}",)
        numbered.append(Numbered(number, at, notes))
    return sorted(numbered)


def nothing_found(paths: Sequence[Path], skipped: Sequence[TorchprofError]) -> TraceError:
    """The error for names without any trace; ``skipped``: why their files are none."""
    found = "no file ends in .json or .json.gz"
    if skipped:
        found = f"none of {len(skipped)}; the first: {skipped[0]}"
    mend = "give the folder of --torchprof-traces, or of export_chrome_trace"
    return TraceError(f"{', '.join(map(str, paths))}: no trace found", found, mend)


def _tracker(progress: ReadProgress | None, total: int) -> Callable[[], ReadProgress | None]:
    """Combine the progress of each file into one of all files."""
    before, last = 0, 0

    def start() -> ReadProgress | None:
        nonlocal before, last
        before, last = before + last, 0
        return None if progress is None else step

    def step(done: int, size: int) -> None:
        nonlocal last
        last = size
        assert progress is not None  # noqa: S101 - start() returns this function only with a progress
        progress(before + done, max(total, before + done))

    return start


# ---- Tell whether traces are the ranks of one job or come from several.

#: Ranks of one job are recorded together; their hosts' clocks differ by less than this.
_APART_NS = 60 * 10**9


class JobFacts(Frozen, frozen=True):
    """What one trace says about its job.

    ``source`` is empty if it is not from a file. ``start_ns`` and ``end_ns`` are since the epoch if
    the trace has its base; None without events.
    """

    source: str
    rank: int | None
    world_size: int | None
    distributed: bool
    start_ns: int | None
    end_ns: int | None


#: A trace, and its name in a message.
_Named: TypeAlias = tuple[str, JobFacts]


def job_facts(trace: Events) -> JobFacts:
    """What this trace says about its job."""
    info = trace.metadata.get("distributedInfo")
    own = rank_of(trace.metadata)
    start, end = _span(trace) if len(trace) else (None, None)
    return JobFacts(
        trace.source,
        rank_in_name(Path(trace.source)) if own is None else own,
        world_size_of(trace.metadata),
        isinstance(info, dict) and bool(info),
        start,
        end,
    )


def not_one_job(traces: Sequence[JobFacts]) -> str:
    """Why these are not the ranks of one job; empty if they may be.

    In one job, each rank occurs once. All ranks are recorded at one time, and have the same number
    of ranks, which is at least the number of traces; all of them are distributed, or none. Traces
    without any rank, even in their names, are of one job only if they were recorded together.
    """
    if len(traces) < 2:
        return ""
    named = list(zip(_names(traces), traces, strict=True))
    return next(filter(None, (check(named) for check in _CHECKS)), "")


def _names(traces: Sequence[JobFacts]) -> list[str]:
    names = short_texts([trace.source for trace in traces])
    return [name if trace.source else "a trace" for name, trace in zip(names, traces, strict=True)]


def _twice(traces: Sequence[_Named]) -> str:
    by_rank: dict[int, list[str]] = {}
    for name, trace in traces:
        if trace.rank is not None:
            by_rank.setdefault(trace.rank, []).append(name)
    for rank, (first, *others) in sorted(by_rank.items()):
        if others[1:]:
            return f"{first}, {others[0]} and {len(others) - 1} more all claim rank {rank}"
        if others:
            return f"{first} and {others[0]} both claim rank {rank}"
    return ""


def _sizes(traces: Sequence[_Named]) -> str:
    known = [(size, name) for name, trace in traces if (size := trace.world_size) is not None]
    for other, second in known:
        size, name = known[0]
        if size != other:
            return f"{name} belongs to a job of size {size}, {second} to one of size {other}"
    if known and known[0][0] < len(traces):
        size, name = known[0]
        return f"{name} belongs to a job of size {size}, but there are {len(traces)} traces"
    return ""


def _mixed(traces: Sequence[_Named]) -> str:
    ranked = [name for name, trace in traces if trace.distributed]
    alone = [name for name, trace in traces if trace.rank is None]
    if ranked and alone:
        return f"{ranked[0]} belongs to a distributed job, {alone[0]} does not"
    return ""


def _times(traces: Sequence[_Named]) -> str:
    spans = sorted(
        (trace.start_ns, trace.end_ns, name)
        for name, trace in traces
        if trace.start_ns is not None and trace.end_ns is not None
    )
    ranked = all(trace.rank is not None for _, trace in traces)
    allowed = _APART_NS if ranked else 0
    until: int | None = None
    last = ""
    for start, end, name in spans:
        if until is not None and start - until > allowed:
            return f"{name} begins {_lasting(start - until)} after {last} ends"
        if until is None or end < until:  # the first to end must still run when the last begins
            until, last = end, name
    return ""


def _span(trace: Events) -> tuple[int, int]:
    """Nanoseconds since the epoch, if the trace has its base."""
    base = trace.metadata.get("baseTimeNanoseconds")
    zero = base if type(base) is int else 0
    return zero + int(trace.ts[0]), zero + int((trace.ts + trace.dur).max())


def _lasting(ns: int) -> str:
    """A duration in a suitable unit.

    >>> _lasting(5_000_000), _lasting(90 * 10**9), _lasting(2 * 86_400 * 10**9)
    ('5 ms', '90 s', '2 days')
    """
    for size, unit in ((86_400 * 10**9, "days"), (60 * 10**9, "min"), (10**9, "s")):
        if ns >= 2 * size:
            return f"{ns / size:.0f} {unit}"
    return f"{ns / 1e6:.3g} ms"


_CHECKS: tuple[Callable[[Sequence[_Named]], str], ...] = (_twice, _sizes, _mixed, _times)
