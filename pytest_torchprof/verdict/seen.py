"""What a test did: its detail, by function, operator and dtype, and today's lines of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from linecache import getline
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar
from zlib import crc32

import numpy as np
from msgspec.structs import replace

from pytest_torchprof.analysis.memory import held_blocks
from pytest_torchprof.analysis.moved_bytes import counted_bytes
from pytest_torchprof.analysis.operators import Groups
from pytest_torchprof.core.process import late
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.values import Detail, DetailRow, HeldRow
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import AutogradArgs, decode
from pytest_torchprof.trace.names import Kind
from pytest_torchprof.work.counting import by_call, computing
from pytest_torchprof.work.operands import BY_TYPE, TABLE

if TYPE_CHECKING:
    from pytest_torchprof.places.place import Located, Roots
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints
    from pytest_torchprof.work.operands import Operands


_K = TypeVar("_K")
_V = TypeVar("_V")

#: (function, operator, dtype) of a row.
Key: TypeAlias = tuple[str, str, str]


class Line(NamedTuple):
    """A line of the user's code, its function, and a digest of its text, wherever it moves."""

    location: str
    function: str
    text: str = ""


class Caller(NamedTuple):
    """A line that calls a function of the user, through which one of a library, how often."""

    line: Line
    via: str
    times: int

    @property
    def key(self) -> str:
        """What stands for it in a detail, wherever its line moves."""
        via = f" via {self.via}" if self.via else ""
        return f"{self.line.function} {self.line.text}{via}".rstrip()


class Seen(Frozen, frozen=True):
    """A test's detail with today's lines.

    By row: its ``lines``, those with the most calls first, and the ``stacks`` of lines around its
    first call, from the outermost in. Rows are in the order of their first calls. ``callers`` are
    by function, and ``functions`` the names of those of all lines. ``inner``:
    which operator a node's backward begins with.
    """

    detail: Detail
    lines: Mapping[Key, tuple[Line, ...]] = {}
    stacks: Mapping[Key, tuple[Line, ...]] = {}
    callers: Mapping[str, tuple[Caller, ...]] = {}
    functions: Mapping[str, str] = {}
    inner: Mapping[str, str] = {}


#: Of a node's backward, the name of the node.
_NODE = late(r"autograd::engine::evaluate_function: (?:torch::autograd::)?(.+)")
#: By name, what orders dtypes: integers, real and complex numbers, and then bytes each.
WIDTHS = {
    row.name: (2 * ("complex" in row.name) + ("float" in row.name), row.item_bytes) for row in TABLE
}
_DTYPES = sorted(WIDTHS, key=lambda name: WIDTHS[name])


def _shown(name: str) -> str | None:
    """An operator as the user calls it; None of what is none of torch's, such as a profiler's.

    >>> _shown("aten::clone"), _shown("autograd::engine::evaluate_function: MulBackward0")
    ('aten::clone', 'MulBackward0')
    """
    node = _NODE.match(name)
    if node is not None:
        return node[1]
    return name if "::" in name and " " not in name else None


def _widest(_: str, call: Operands) -> int:
    """The number of the widest dtype of a call's tensors, -1 for none.

    A tensor without dimensions, as a number of Python becomes one, does not widen others.
    """
    known = [
        (bool(dims), _DTYPES.index(BY_TYPE[one].name))
        for dims, one in zip(call.dims, call.types or (), strict=False)
        if one in BY_TYPE
    ]
    if not any(sized for sized, _ in known):
        return known[0][1] if known else -1
    return max(number for sized, number in known if sized)


def seen_in(trace: Events, located: Located | None, roots: Roots) -> Seen:
    """The detail of a trace; by operator alone without lines."""
    shown = [_shown(name) for name in trace.names]
    named = np.array([name is not None for name in shown], bool)
    called = trace.is_kind(Kind.OP) & (named[trace.name] if shown else False) & trace.selection
    top = np.where(called, np.arange(len(trace)), -1)
    for level in nesting.levels(trace.depth):
        above = top[trace.parent[level]]
        top[level] = np.where(above >= 0, above, top[level])
    calls = nesting.distinct(top[top >= 0])
    files = _Files(located, roots)
    stacks = located.stacks(trace, calls) if located is not None else [()] * len(calls)
    dtype = np.full(len(trace), -1, np.int64)
    works = np.flatnonzero(computing(trace) & (top >= 0))
    np.maximum.at(dtype, top[works], by_call(trace, works, _widest) if len(works) else works)
    number: dict[Key, int] = {}
    key = np.full(len(trace), -1, np.int64)
    lines: dict[Key, Counter[Line]] = defaultdict(Counter)
    first: dict[Key, tuple[Line, ...]] = {}
    did = np.zeros(len(trace), bool)
    did[top[works]] = True
    inner: dict[str, str] = {}
    for event, call in zip(works.tolist(), top[works].tolist(), strict=True):
        name = shown[trace.name[call]] or ""
        if "::" not in name:
            inner.setdefault(name, trace.names[trace.name[event]])
    for event, stack in zip(calls.tolist(), stacks, strict=True):
        line = files.line(stack[-1]) if stack else Line("", "")
        name = shown[trace.name[event]] or ""
        code = int(dtype[event])
        one = line.function, name, "" if code < 0 else _DTYPES[code]
        key[event] = number.setdefault(one, len(number))
        if line.location:
            lines[one][line] += 1
            first.setdefault(one, tuple(map(files.line, stack)))
    rows = _rows(trace, list(number), key, top, did, lines)
    runs, between, callers = files.calls()
    held = _held(trace, list(number), key, top)
    return Seen(
        Detail(
            rows, runs, between, held, _grad(trace, list(number), key, nesting.distinct(top[works]))
        ),
        {one: tuple(line for line, _ in count.most_common()) for one, count in lines.items()},
        first,
        callers,
        files.functions(),
        inner,
    )


def together(processes: Sequence[Seen]) -> Seen:
    """The sum of what each process of a test did, as its numbers are; the test's own is the first.

    Of peaks the largest; CPU time is that of the test's own process, and so are shares of it.
    """
    if not processes[1:]:
        return processes[0]
    details = [one.detail for one in processes]
    rows: dict[Key, DetailRow] = {}
    for number, detail in enumerate(details):
        for row in detail.rows:
            known = rows.get(row.key, replace(row, calls=0, flops=0, bytes=0, share=0.0, texts={}))
            rows[row.key] = replace(
                known,
                calls=known.calls + row.calls,
                flops=known.flops + row.flops,
                bytes=known.bytes + row.bytes,
                share=known.share if number else row.share,
                texts=_added(known.texts, row.texts),
            )
    held: dict[tuple[str, str], HeldRow] = {}
    for kept in (row for detail in details for row in detail.held):
        name = kept.function, kept.operator
        same = held.get(name, HeldRow(*name, 0, 0, 0))
        sizes = same.allocated + kept.allocated, max(same.peak, kept.peak), same.left + kept.left
        held[name] = HeldRow(*name, *sizes)
    between: dict[str, dict[str, int]] = {}
    for callee, ways in (pair for detail in details for pair in detail.calls.items()):
        between[callee] = _added(between.get(callee, {}), ways)
    times = Counter[tuple[str, Line, str]]()
    for callee, callers in (pair for one in processes for pair in one.callers.items()):
        for caller in callers:
            times[callee, caller.line, caller.via] += caller.times
    lines: dict[Key, dict[Line, None]] = defaultdict(dict)
    for key, at in (pair for one in processes for pair in one.lines.items()):
        lines[key] |= dict.fromkeys(at)
    called: dict[str, list[Caller]] = defaultdict(list)
    for (callee, line, via), n in times.items():
        called[callee].append(Caller(line, via, n))
    return Seen(
        Detail(
            tuple(rows.values()),
            _added(*(detail.runs for detail in details)),
            between,
            tuple(held.values()),
            _added(*(detail.grad or {} for detail in details)),
        ),
        {key: tuple(at) for key, at in lines.items()},
        _first(one.stacks for one in processes),
        {callee: tuple(callers) for callee, callers in called.items()},
        _first(one.functions for one in processes),
        _first(one.inner for one in processes),
    )


def _added(*counts: Mapping[str, int]) -> dict[str, int]:
    """The counts of all, added up; 0 is a count."""
    found: dict[str, int] = {}
    for name, n in (pair for one in counts for pair in one.items()):
        found[name] = found.get(name, 0) + n
    return found


def _first(known: Iterable[Mapping[_K, _V]]) -> dict[_K, _V]:
    """All of these, each as it is where it comes first."""
    found: dict[_K, _V] = {}
    for one in known:
        found = {**one, **found}
    return found


def _rows(
    trace: Events,
    keys: Sequence[Key],
    key: Ints,
    top: Ints,
    did: nesting.Bools,
    lines: Mapping[Key, Counter[Line]],
) -> tuple[DetailRow, ...]:
    """The rows of the calls that compute, in the order of the first ones."""
    inside = np.flatnonzero(top >= 0)
    if not len(inside):
        return ()
    groups = Groups(trace, inside, key[top[inside]])
    moved = np.maximum(counted_bytes(trace), 0)[inside]
    columns = (
        groups.total(did[inside].astype(np.int64)),
        groups.flops,
        groups.total(moved),
        groups.self_cpu_ns,
    )
    total = max(int(columns[3].sum()), 1)
    found = zip(groups.keys.tolist(), *(column.tolist() for column in columns), strict=True)
    rows = []
    for one, calls, flops, size, own in found:
        of = keys[int(one)]
        if calls:
            texts = Counter[str]()
            for line, n in lines.get(of, {}).items():
                texts[line.text] += n
            share = round(own / total, 4)
            rows.append(DetailRow(*of[:3], calls, flops, size, share, texts))
    return tuple(rows)


def _held(trace: Events, keys: Sequence[Key], key: Ints, top: Ints) -> tuple[HeldRow, ...]:
    """What each operator of each function allocated, host and device together."""
    total: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for on_device in (False, True):
        events, *sizes = held_blocks(trace, on_device=on_device)
        around = trace.enclosing(events)
        of = np.where(around >= 0, top[around], -1)
        for call, *bytes_ in zip(of.tolist(), *(size.tolist() for size in sizes), strict=True):
            if call >= 0:
                function, operator, _ = keys[key[call]]
                known = total[function, operator]
                known[:] = [a + b for a, b in zip(known, bytes_, strict=True)]
    return tuple(HeldRow(*name, *sizes) for name, sizes in total.items())


def _grad(trace: Events, keys: Sequence[Key], key: Ints, calls: Ints) -> dict[str, int]:
    """How many of these calls of each function ran where autograd records.

    Only there a forward operator has a sequence number, whether or not a gradient is needed
    (torch's Dispatcher.h: `runRecordFunction`).
    """
    found = Counter[str]()
    numbers = decode(AutogradArgs, trace.args[calls])
    for of, one in zip(key[calls].tolist(), numbers, strict=True):
        found[keys[of][0]] += one.sequence >= 0 and one.forward_thread == 0
    return dict(found)


class _Files:
    """Names of functions as they are stored: with the file, relative to the tests' root."""

    def __init__(self, located: Located | None, roots: Roots) -> None:
        self._marks = None if located is None else located.marks
        self._roots = roots
        self._lines: dict[int, Line] = {}

    def line(self, number: int) -> Line:
        """The line of a marker."""
        if (known := self._lines.get(number)) is None:
            assert self._marks is not None  # noqa: S101 - lines have numbers only then
            where = self._marks.lines[number] or ""
            file, _, at = where.rpartition(":")
            names = self._marks.functions
            name = names[number] if number < len(names) else ""
            text = getline(file, int(at)).strip() if at.isdecimal() else ""
            digest = f"{crc32(text.encode(errors='replace')):08x}" if text else ""
            place = f"{self._roots.relative(file) or file}:{at}"
            known = Line(place, f"{self._roots.shared(file)}::{name}", digest)
            self._lines[number] = known
        return known

    def functions(self) -> dict[str, str]:
        """The name of each line's function, by ``file:line``."""
        count = len(self._marks.lines) if self._marks is not None else 0
        lines = map(self.line, range(count))
        return {line.location: function_name(line.function) for line in lines}

    def calls(
        self,
    ) -> tuple[dict[str, int], dict[str, dict[str, int]], dict[str, tuple[Caller, ...]]]:
        """How often each function began; by caller; and the lines that called it."""
        runs: dict[str, int] = {}
        between: dict[str, dict[str, int]] = {}
        callers: dict[str, list[Caller]] = {}
        for one in self._marks.calls if self._marks is not None else ():
            callee = f"{self._roots.shared(one.file)}::{one.name}"
            runs[callee] = runs.get(callee, 0) + one.count
            line = self.line(one.line) if one.line >= 0 else Line("", "")
            known = between.setdefault(callee, {})
            caller = Caller(line, one.via, one.count)
            known[caller.key] = known.get(caller.key, 0) + one.count
            callers.setdefault(callee, []).append(caller)
        return runs, between, {name: tuple(found) for name, found in callers.items()}


def function_name(name: str) -> str:
    """The function's name without its file.

    >>> function_name("a/b.py::Block.forward")
    'Block.forward'
    """
    return name.rpartition("::")[2]
