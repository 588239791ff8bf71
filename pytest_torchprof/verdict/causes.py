"""What changed in the user's code, and where: a test's detail, compared with the accepted one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from msgspec.structs import replace

from pytest_torchprof.analysis.diff import deltas
from pytest_torchprof.core.process import late
from pytest_torchprof.core.units import format_pair, plural
from pytest_torchprof.core.values import Cause, Detail, DetailRow, HeldRow, MissingValue
from pytest_torchprof.verdict.compare import gradients_kept
from pytest_torchprof.verdict.seen import WIDTHS, Caller, Key, Line, Seen, function_name

if TYPE_CHECKING:
    from pytest_torchprof.core.values import Finding, Number, Verdict

# ---- Rows beside the accepted ones, each change explained once.

#: The metric that each column of a row counts.
_METRICS = {"calls": "ops", "flops": "flops", "bytes": "moved_bytes"}
#: Attention in one operator: where it vanishes, the operators in its place follow from that.
_FUSED = late(r"scaled_dot_product|flash_attention|multi_head_attention|_native_multi_head")
_READS = frozenset({"aten::item", "aten::is_nonzero", "aten::_local_scalar_dense", "aten::equal"})
_CHECKPOINT, _LOADER = "torch.utils.checkpoint", "torch.utils.data"
_SINGLE, _SEVERAL = "_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"
_ACCUMULATES = "AccumulateGrad"  # the node that adds a gradient to that of a parameter
_OF_MEMORY = late(r"(peak|allocated|leaked)_")
_COMPILING = frozenset({"graph_breaks", "recompiles", "graphs", "cudagraphs", "cudagraph_skips"})
#: A smaller share of the change is told only if nothing explains more.
_LEAST_SHARE = 0.05
_MOST_NAMES = 3


#: By name of an operator, its counts by column.
_Operators: TypeAlias = Mapping[str, Mapping[str, int]]


class _Change(NamedTuple):
    """A row with what it did more than follows from how often its function runs."""

    row: DetailRow
    calls: float
    flops: float
    bytes: float

    @property
    def sizes(self) -> dict[str, float]:
        """By metric."""
        return {_METRICS["calls"]: self.calls, _METRICS["flops"]: self.flops,
                _METRICS["bytes"]: self.bytes}  # fmt: skip


def causes_of(
    before: Detail | None,
    seen: Seen,
    regressed: Sequence[Verdict],
    findings: Sequence[Finding] = (),
    *,
    operators: tuple[_Operators, _Operators] = ({}, {}),
    gap: str = "the baseline has no detail for these numbers; accept once on code as it was",
) -> tuple[Cause, ...]:
    """Why these metrics are more than accepted, the largest share of the change first.

    ``findings`` are those that are not accepted; ``operators`` the counts of all operators and
    annotations, before and now. Without a detail, causes are by operator alone: ``gap`` says why.
    """
    grown: dict[str, float] = {}
    for v in regressed:  # of several regions, that with the most
        if v.baseline is not None and not isinstance(v.value, MissingValue):
            grown[v.metric] = max(grown.get(v.metric, 0.0), float(v.value - v.baseline))
    both = before is not None and before.rows and seen.detail.rows
    if before is not None and both and _has_lines(before) != _has_lines(seen.detail):
        before = None
    found: list[Cause] = []
    if before is not None:
        before = _with_files_of(before, seen.detail)
        found = _Compared(before, seen, grown).causes()
        found = _of_loaders(found, seen, operators)
    elif operators[0]:
        found = _by_operator(*operators, grown, gap)
    found = _with_findings(found, findings, grown, seen.functions)
    found += _of_compilation(found, regressed)
    found += [_slower(before, seen, v) for v in regressed if v.metric == "cpu_ms"]
    if not found and before is not None:
        found = _new_calls(before, seen)
    return _of_gradients(_ranked(found, grown), seen, operators)


def _has_lines(detail: Detail) -> bool:
    return any(row.function for row in detail.rows)


def _with_files_of(before: Detail, now: Detail) -> Detail:
    """The accepted detail with today's names of its files: these are in other folders now."""

    def files(detail: Detail) -> set[str]:
        functions = {row.function for row in detail.rows}.union(detail.runs, detail.calls)
        return {name.partition("::")[0] for name in functions if "::" in name}

    old, new = files(before), files(now)
    moved = {}
    for file in old - new:
        parts = file.split("/")[::-1]
        alike = {
            one: sum(1 for _ in takewhile(lambda both: both[0] == both[1],
                                          zip(parts, one.split("/")[::-1], strict=False)))
            for one in new - old
        }  # fmt: skip
        best = max(alike, key=lambda one: (alike[one], one), default="")
        if alike.get(best):
            moved[file] = best
    if not moved:
        return before

    def renamed(function: str) -> str:
        file, colons, name = function.partition("::")
        return f"{moved.get(file, file)}{colons}{name}"

    return Detail(
        tuple(replace(row, function=renamed(row.function)) for row in before.rows),
        {renamed(name): n for name, n in before.runs.items()},
        {
            renamed(name): {renamed(caller): n for caller, n in callers.items()}
            for name, callers in before.calls.items()
        },
        tuple(replace(row, function=renamed(row.function)) for row in before.held),
        before.grad and {renamed(name): n for name, n in before.grad.items()},
    )


class _Compared:
    """The detail of a test beside the accepted one."""

    def __init__(self, before: Detail, seen: Seen, grown: Mapping[str, float]) -> None:
        self._before, self._seen, self._grown = before, seen, grown
        self._told: set[tuple[str, str]] = set()
        self._old = {row.key: row for row in before.rows}
        self._new = {row.key: row for row in seen.detail.rows}
        self._order = {key: at for at, key in enumerate(self._new)}
        runs = seen.detail.runs
        self._more = {
            name: n / before.runs[name] for name, n in runs.items() if before.runs.get(name, n) != n
        }
        self._gone: list[_Change] = []
        self._added: list[_Change] = []
        self._larger: list[_Change] = []
        self._sort()

    def causes(self) -> list[Cause]:
        """One for each thing that changed."""
        found = self._other_dtype()
        found += self._more_often()
        found += self._larger_inputs()
        found += self._new_operators()
        return [*found, *self._kept()]

    def _sort(self) -> None:
        """Tell what was added, what is gone and what got larger."""
        for key, row in self._new.items():
            ratio = self._more.get(key[0], 1.0)
            old = self._old.get(key)
            was = [part * ratio for part in _sizes(old)] if old is not None else (0, 0, 0)
            change = _less(_Change(row, *_sizes(row)), was)
            if change.calls > 0:
                self._added.append(change)
            elif change.flops > 0 or change.bytes > 0:
                self._larger.append(change)
            elif change.calls < 0:
                self._gone.append(_negative(change))
        for key, row in self._old.items():
            if key not in self._new:
                self._gone.append(_Change(row, *_sizes(row)))
        self._cancel()

    def _cancel(self) -> None:
        """What only moved, as to a function of another name or to several, did not change."""
        left = list(self._gone)
        added = []
        for one in self._added:
            for n, gone in enumerate(left):
                if gone.row.key[1:] == one.row.key[1:] and gone.row.function != one.row.function:
                    both = [min(was, now) for was, now in zip(gone[1:], one[1:], strict=True)]
                    one, left[n] = _less(one, both), _less(gone, both)  # noqa: PLW2901
            if one.calls > 0:
                added.append(one)
        self._added, self._gone = added, [one for one in left if one.calls > 0]

    # ---------------------------------------------------------------- kinds

    def _other_dtype(self) -> list[Cause]:
        """Operators that compute in a wider dtype than before."""
        gone = {one.row.key[:2]: one for one in self._gone}
        by_dtype: dict[str, list[tuple[_Change, _Change]]] = {}
        for one in sorted(self._added, key=lambda one: self._order[one.row.key]):
            old = gone.get(one.row.key[:2])
            if old is not None and _is_wider(one.row.dtype, old.row.dtype):
                by_dtype.setdefault(one.row.dtype, []).append((one, old))
        found = []
        for dtype, pairs in by_dtype.items():
            changes = [_less(one, was[1:]) for one, was in pairs]
            first, old = pairs[0]
            name = _plain(first.row.operator)
            more = f", and {plural(len(pairs) - 1, 'operator')} after it" if pairs[1:] else ""
            found.append(
                self._cause(
                    "other_dtype",
                    f"{name} in {dtype} instead of {old.row.dtype}{more}",
                    changes,
                )
            )
            for one, was in pairs:
                self._added.remove(one)
                if was in self._gone:
                    self._gone.remove(was)
        return found

    def _more_often(self) -> list[Cause]:
        """Functions that run more often than before, outermost ones only."""
        more = {name: ratio for name, ratio in self._more.items() if ratio > 1}
        found = []
        for name, ratio in more.items():
            around = {line.function for line, *_ in self._callers(name)} - {name}
            if any(self._grows(function, ratio) for function in around):
                continue
            inside = self._called_in(name, set(more))
            changes = [
                _Change(row, *(part * (1 - 1 / self._more[row.function]) for part in _sizes(row)))
                for row in self._new.values()
                if row.function in inside and row.key in self._old
            ]
            changes += [one for one in self._added if one.row.function in inside]
            if not changes:
                continue
            self._added = [one for one in self._added if one.row.function not in inside]
            found.append(self._run_again(name, changes))
        return found

    def _run_again(self, name: str, changes: Sequence[_Change]) -> Cause:
        """The cause of a function that runs more often: the call that is new."""
        before, now = self._before.runs[name], self._seen.detail.runs[name]
        short = function_name(name)
        message = f"{short} runs {now} times instead of {before}"
        if before == 1 and now == 2:
            message = f"{short} runs twice instead of once"
        callers = self._callers(name)
        known = self._before.calls.get(name, {})
        again = [one for one in callers if one.via.startswith(_CHECKPOINT)]
        if again and not any(f" via {_CHECKPOINT}" in key for key in known):
            message = f"{message}: torch.utils.checkpoint recomputes it in backward"
            by_checkpoint = (one.line for one in again if one.via.endswith(".checkpoint"))
            line = next(by_checkpoint, again[0].line)
            return self._cause("runs_more_often", message, changes, (line,))
        more = [one for one in callers if one.times > known.get(one.key, 0)] or callers
        lines = [one.line for one in more if one.key not in known and one.line.location][:1]
        if lines:
            return self._cause("runs_more_often", message, changes, lines)
        # No call is new: a hook that was added again, or a loop that takes more steps.
        own = [line for key, at in self._seen.lines.items() if key[0] == name for line in at]
        at = [one.line.location for one in more if one.line.location]
        calls = _called(at[:_MOST_NAMES])
        return self._cause("runs_more_often", message, changes, own[:1], calls)

    def _grows(self, caller: str, ratio: float) -> bool:
        return self._more.get(caller, 1.0) >= ratio * 0.999

    def _callers(self, name: str) -> tuple[Caller, ...]:
        return self._seen.callers.get(name, ())

    def _called_in(self, name: str, among: set[str]) -> set[str]:
        """This function, and those among these that it calls, at any depth."""
        inside, size = {name}, 0
        while len(inside) > size:
            size = len(inside)
            inside |= {
                one
                for one in among - inside
                if any(caller.line.function in inside for caller in self._callers(one))
            }
        return inside

    def _larger_inputs(self) -> list[Cause]:
        """As many calls as before, on more data."""
        larger = self._larger
        if not larger:
            return []
        larger = sorted(larger, key=lambda one: self._order[one.row.key])
        # What is larger after a backward, as in an optimizer, follows from what is before it.
        forward = list(takewhile(lambda one: not _is_backward(one), larger)) or larger
        top = max(forward, key=lambda one: (one.flops, one.bytes))
        told = [one for one in forward if one.flops > 0] or forward
        alone = len({one.row.function for one in told}) == 1
        lines = self._around([top] if alone else told, {one.row.key for one in forward})
        if alone and lines and lines[0].function == top.row.function:
            lines = ()  # all those of the operator
        old = self._old[top.row.key]
        was, now = (old.flops, top.row.flops) if top.flops > 0 else (old.bytes, top.row.bytes)
        name = _plain(top.row.operator)
        more = f" and {plural(len(larger) - 1, 'other operator')}" if larger[1:] else ""
        unit, what = ("FLOP", "FLOPs") if top.flops > 0 else ("B", "bytes")
        before, after = format_pair(was, now, unit)
        message = f"larger inputs of {name}{more}: {what} of {name} {before} → {after}"
        larger.sort(key=lambda one: one is not top)
        return [self._cause("larger_inputs", message, larger, lines)]

    def _around(self, changes: Sequence[_Change], keys: Collection[Key]) -> tuple[Line, ...]:
        """The innermost line around all of them; around its function, if all of that changed.

        ``keys`` are those of all that changed.
        """
        stack = list(_shared([self._seen.stacks.get(one.row.key, ()) for one in changes]))
        while stack[1:]:
            function = stack[-1].function
            inside = [
                key
                for key, lines in self._seen.stacks.items()
                if key in self._new and any(line.function == function for line in lines)
            ]
            changed = [key for key in inside if key in keys]
            few = len({key[0] for key in changed}) < _MOST_NAMES
            if few or len(changed) < 0.8 * len(inside):
                break
            stack.pop()
        return tuple(stack[-1:])

    def _new_operators(self) -> list[Cause]:
        """Operators that a function did not call before, or not as often."""
        by_function: dict[str, list[_Change]] = {}
        for one in sorted(self._added, key=lambda one: self._order[one.row.key]):
            by_function.setdefault(self._known(one), []).append(one)
        gone: dict[str, list[_Change]] = {}
        for one in self._gone:
            gone.setdefault(one.row.function, []).append(one)
        return [
            self._appeared(changes, gone.get(function, []))
            for function, changes in by_function.items()
        ]

    def _known(self, one: _Change) -> str:
        """The function of the change, or the innermost around it that is not new."""
        old = self._before.runs.keys() | {key[0] for key in self._old}
        stack = self._seen.stacks.get(one.row.key, ())
        if one.row.function in old or not stack:
            return one.row.function
        return next((line.function for line in reversed(stack) if line.function in old),
                    stack[0].function)  # fmt: skip

    def _appeared(self, changes: list[_Change], gone: Sequence[_Change]) -> Cause:
        changes.sort(key=lambda one: (_is_backward(one), -self._weight(one)))
        names = self._counted(changes)
        fused = [one for one in gone if _FUSED.search(one.row.operator)]
        if fused:
            name = _plain(fused[0].row.operator)
            message = f"{name} is gone, {names} instead"
        else:
            told = self._names(changes)
            old = self._old.get(changes[0].row.key)
            known = {_plain(one.row.operator) for one in changes if one.row.key in self._old}
            are = "is" if len(told) == 1 else "are"
            message = f"{names} {'more than before' if told.keys() & known else f'{are} new'}"
            if old is not None and not told.keys() - {_plain(old.operator)}:
                now = changes[0].row.calls
                message = f"{names.partition(' ')[0]} is called {now} times instead of {old.calls}"
        reads = any(one.row.operator in _READS for one in changes)
        message += ": the host reads values" if reads and "host_reads" in self._grown else ""
        evidence = [f"gone: {self._counted(gone)}"] if gone else []
        lines: tuple[Line, ...] = ()
        if len({one.row.function for one in changes}) > 1:
            lines = _shared([self._seen.stacks.get(one.row.key, ()) for one in changes])[-1:]
        net = [*changes, *map(_negative, gone)]
        return self._cause("new_operators", message, net, lines, evidence)

    def _names(self, changes: Iterable[_Change]) -> Counter[str]:
        """How much more often each operator is called; backward alone only without another."""
        calls = Counter[str]()
        changes = list(changes)
        for one in [one for one in changes if not _is_backward(one)] or changes:
            name = _plain(self._seen.inner.get(one.row.operator, one.row.operator))
            calls[name] += round(one.calls)
        return calls

    def _counted(self, changes: Sequence[_Change]) -> str:
        """``clone ×6, mul ×2``: what is called how much more often."""
        names = list(self._names(changes).items())
        shown = [f"{name} ×{n}" if n != 1 else name for name, n in names[:_MOST_NAMES]]
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        return f"{', '.join(shown)}{more}"

    def _kept(self) -> list[Cause]:
        """Memory that is live at the peak or left at the end, and was not."""
        metrics = [name for name in self._grown if _OF_MEMORY.match(name)]
        if not metrics:
            return []
        if recorded := self._recorded(metrics):
            return [recorded]
        old = {(row.function, row.operator): row for row in self._before.held}
        more: dict[tuple[str, str], dict[str, int]] = {}
        for row in self._seen.detail.held:
            was = old.get((row.function, row.operator), HeldRow("", "", 0, 0, 0))
            change = {"allocated": row.allocated - was.allocated, "peak": row.peak - was.peak,
                      "leaked": row.left - was.left}  # fmt: skip
            more[row.function, row.operator] = {
                name: change[name.partition("_")[0]] for name in metrics
            }
        for name in ("leaked", "peak", "allocated"):
            first = next((metric for metric in metrics if metric.startswith(name)), "")
            by_size = sorted(more.items(), key=lambda one: (-one[1].get(first, 0), one[0]))
            top = [(key, sizes) for key, sizes in by_size if sizes.get(first, 0) > 0]
            if top and top[0][0] in self._told:
                return []  # that it is called more often says why
            if top:
                return [self._holds(name, *top[0][0], top)]
        return []

    def _recorded(self, metrics: Sequence[str]) -> Cause | None:
        """A graph for backward, where there was none."""
        old, now = self._before.grad, self._seen.detail.grad or {}
        if old is None:
            return None
        functions = {name for name, n in now.items() if n and old.get(name) == 0}
        stacks = [self._seen.stacks[key] for key in self._new
                  if key[0] in functions and key in self._seen.stacks]  # fmt: skip
        around = _shared(stacks)[-1:]
        if not around:
            return None
        what = "autograd records a graph for backward here now: is a no_grad missing?"
        sizes = {name: self._grown[name] for name in metrics}
        return _at(Cause("kept_memory", what, metrics=sizes), around, "")

    def _holds(
        self,
        name: str,
        function: str,
        operator: str,
        top: Sequence[tuple[tuple[str, str], Mapping[str, int]]],
    ) -> Cause:
        words = {
            "leaked": "is kept after the test now",
            "peak": "is kept longer, until memory is at its peak",
            "allocated": "allocates more",
        }[name]
        shown = _plain(operator)
        what = f"what {shown} allocates {words}" if name != "allocated" else f"{shown} {words}"
        keys = [key for key in self._seen.lines if key[:2] == (function, operator)]
        lines = tuple(line for key in keys for line in self._seen.lines[key])
        if name == "allocated" and len({key[0] for key, _ in top}) > 1:
            some = {key for key, _ in top}
            stacks = [way for key, way in self._seen.stacks.items() if key[:2] in some]
            lines = _shared(stacks)[-1:] or lines
        metrics: dict[str, Number] = {}
        for _, sizes in top:
            for metric, size in sizes.items():
                metrics[metric] = metrics.get(metric, 0) + max(size, 0)
        metrics = {metric: min(size, self._grown[metric]) for metric, size in metrics.items()}
        found = _at(Cause("kept_memory", what, metrics=metrics), lines[:2], function)
        stack = next((self._seen.stacks[key] for key in keys if key in self._seen.stacks), ())
        around = [f"{line.location} ({function_name(line.function)})" for line in stack[-3:-1]]
        return replace(found, evidence=(*found.evidence, *_called(around[::-1])))

    # ---------------------------------------------------------------- making them

    def _weight(self, one: _Change) -> float:
        """The largest share of a metric's change that a row has."""
        return max(
            (
                size / self._grown[metric]
                for metric, size in one.sizes.items()
                if self._grown.get(metric)
            ),
            default=0.0,
        )

    def _cause(
        self,
        kind: str,
        message: str,
        changes: Sequence[_Change],
        lines: Sequence[Line] = (),
        evidence: Sequence[str] = (),
    ) -> Cause:
        """A cause of these changes, at these lines, or at those of the first change."""
        metrics: dict[str, Number] = {}
        for one in changes:
            for metric, size in one.sizes.items():
                if size:
                    metrics[metric] = metrics.get(metric, 0) + round(size)
        first = changes[0].row
        self._told |= {one.row.key[:2] for one in changes}
        if not lines:
            lines = self._seen.lines.get(first.key, ())
            old = self._old.get(first.key)
            known = old.texts if old is not None else {}
            lines = [line for line in lines if line.text not in known] or lines
        return _at(
            Cause(kind, message, metrics=metrics, evidence=tuple(evidence)),  # type: ignore[arg-type]
            lines,
            first.function,
        )


def _at(cause: Cause, lines: Sequence[Line], function: str) -> Cause:
    """The cause at the first of these lines; further ones are evidence."""
    if not lines or not lines[0].location:
        file, _, name = function.partition("::")
        return replace(cause, file=file or None, function=name or None)
    file, _, number = lines[0].location.rpartition(":")
    more = dict.fromkeys(line.location for line in lines)
    more.pop(lines[0].location)
    also = (f"also at {', '.join(list(more)[:_MOST_NAMES])}",) if more else ()
    return replace(
        cause,
        file=file,
        line=int(number) if number.isdecimal() else 0,
        function=function_name(lines[0].function) or None,
        evidence=(*cause.evidence, *also),
    )


def _plain(operator: str) -> str:
    return operator.removeprefix("aten::")


def _called(places: Sequence[str]) -> tuple[str, ...]:
    """The line of evidence that says from where."""
    return (f"called at {', '.join(dict.fromkeys(places))}",) if places else ()


def _negative(one: _Change) -> _Change:
    return one._replace(calls=-one.calls, flops=-one.flops, bytes=-one.bytes)


def _sizes(row: DetailRow) -> tuple[int, int, int]:
    return row.calls, row.flops, row.bytes


def _less(one: _Change, parts: Sequence[float]) -> _Change:
    """Without these, except for what rounding leaves of them."""
    sizes = (round(size - part, 3) for size, part in zip(one[1:], parts, strict=True))
    return _Change(one.row, *sizes)


def _is_wider(dtype: str, than: str) -> bool:
    """Whether numbers of a kind take more bytes each, or are of a wider kind; False if unknown."""
    if dtype not in WIDTHS or than not in WIDTHS:
        return False
    return WIDTHS[dtype] > WIDTHS[than]


def _is_backward(one: _Change) -> bool:
    return "::" not in one.row.operator


def _shared(stacks: Sequence[Sequence[Line]]) -> tuple[Line, ...]:
    """The lines that all of these stacks begin with."""
    known = [stack for stack in stacks if stack]
    if not known:
        return ()
    both = list(known[0])
    for stack in known[1:]:
        pairs = zip(both, stack, strict=False)
        both = [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
    return tuple(both)


# ---- Loaders, compilations and findings.


def _of_loaders(
    found: list[Cause], seen: Seen, operators: tuple[_Operators, _Operators]
) -> list[Cause]:
    """With a cause for a loader that works without workers now, which explains what its data set
    calls in the test's own process.
    """
    before, now = ({kind for name in names for kind in (_SINGLE, _SEVERAL) if kind in name}
                   for names in operators)  # fmt: skip
    if _SINGLE in before or _SINGLE not in now or _SEVERAL not in before:
        return found
    fetched = {
        name
        for name, callers in seen.callers.items()
        if any(one.via.startswith(_LOADER) for one in callers)
    }
    lines = [one.line for name in sorted(fetched) for one in seen.callers[name]]
    cause = _at(
        Cause("loader", "the DataLoader works without workers, in the test's own process"),
        lines,
        "",
    )
    names = {function_name(name) for name in fetched}
    mine = [one for one in found if one.function in names or one.place == cause.place]
    metrics: dict[str, Number] = {}
    for one in mine:
        for metric, size in one.metrics.items():
            metrics[metric] = metrics.get(metric, 0) + size
    others = [one for one in found if one not in mine]
    return [replace(cause, metrics=metrics), *others]


def _slower(before: Detail | None, seen: Seen, verdict: Verdict) -> Cause:
    """The operator that takes the most more CPU time; shares are those of the profiled runs."""
    assert not isinstance(verdict.value, MissingValue)  # noqa: S101 - it is regressed
    was_ms, now_ms = verdict.baseline or 0, verdict.value
    why = (verdict.reason.text,) if verdict.reason is not None else ()
    old = {row.key: row.share for row in before.rows} if before is not None else {}
    rows = {row.key: row for row in seen.detail.rows}
    sizes = {key: row.share * now_ms - old.get(key, 0) * was_ms for key, row in rows.items()}
    key = max(sizes, key=lambda one: sizes[one], default=("", "", ""))
    if key not in rows or sizes[key] < _LEAST_SHARE * (now_ms - was_ms):
        what = "the CPU time is not in an operator: Python, or a library"
        return Cause("slower", what, metrics={"cpu_ms": 0}, evidence=why)
    pair = format_pair(old.get(key, 0) * was_ms, rows[key].share * now_ms, "ms")
    name = _plain(key[1])
    found = Cause(
        "slower",
        f"{name} takes about {' → '.join(pair)} of CPU time",
        metrics={"cpu_ms": sizes[key]},
        evidence=why,
    )
    return _at(found, seen.lines.get(key, ()), key[0])


def _by_operator(
    before: _Operators, now: _Operators, grown: Mapping[str, float], gap: str
) -> list[Cause]:
    """The operators that compute more often than accepted; version 1 has only all calls."""
    known = any("ops" in row for row in before.values())
    rows = {name: row for name, row in now.items() if row.get("ops")}
    more = [
        one for one in deltas(before, rows, "ops" if known else "calls") if one.now > one.before
    ]
    if not more:
        return []
    names = ", ".join(f"{_plain(one.name)} {one.before} → {one.now}" for one in more[:_MOST_NAMES])
    why = f"by operator alone: {gap}"
    whole = {name: size for name, size in grown.items() if size > 0}
    return [Cause("new_operators", names, metrics=whole, evidence=(why,))]


def _new_calls(before: Detail, seen: Seen) -> list[Cause]:
    """Where no operator explains the change: a function that is called otherwise than before."""
    for callee, callers in seen.callers.items():
        known = before.calls.get(callee, {})
        ways = {key.partition(" via ")[2] for key in known}
        for one in callers:
            if known and one.via not in ways and one.line.location:
                what = f"{function_name(callee)} is called through {one.via or 'no library'} now"
                return [_at(Cause("unknown", what), (one.line,), callee)]
    return []


def _of_gradients(
    found: tuple[Cause, ...], seen: Seen, operators: tuple[_Operators, _Operators]
) -> tuple[Cause, ...]:
    """Begin with gradients that are not set to zero, if so, at the backward that adds to them."""
    why = gradients_kept(*operators) if operators[0] else None
    if why is None:
        return found
    lines = next((at for key, at in seen.lines.items() if key[1] == _ACCUMULATES), ())
    same = [one for one in found if _ACCUMULATES in one.message]
    whole = {name: size for one in same for name, size in one.metrics.items()}
    cause = _at(Cause("new_operators", why.text, metrics=whole), lines, "")
    return (cause, *(one for one in found if one not in same))


def _of_compilation(found: Sequence[Cause], regressed: Sequence[Verdict]) -> list[Cause]:
    """A cause for compilations that no finding explains."""
    told = {metric for cause in found for metric in cause.metrics}
    more = [v for v in regressed if v.metric in _COMPILING and v.metric not in told]
    if not more:
        return []
    changes = [f"{v.metric} {v.baseline} → {v.value}" for v in more]
    metrics = {v.metric: v.value - v.baseline for v in more}  # type: ignore[operator]
    what = f"torch.compile compiles differently: {', '.join(changes)}"
    return [Cause("compilation", what, metrics=metrics)]


def _with_findings(
    found: Sequence[Cause],
    findings: Sequence[Finding],
    grown: Mapping[str, float],
    functions: Mapping[str, str],
) -> list[Cause]:
    """With the findings: a cause at the same line has one, others are causes themselves."""
    causes = list(found)
    for finding in findings:
        file, _, line = (finding.location or "").rpartition(":")
        number = int(line) if line.isdecimal() else 0
        at = next(
            (n for n, cause in enumerate(causes)
             if cause.finding is None and number and (cause.file, cause.line) == (file, number)),
            None,
        )  # fmt: skip
        if at is not None:
            found_ = f"{finding.rule}: {finding.message}"
            evidence = (found_, *causes[at].evidence)
            causes[at] = replace(
                causes[at], finding=finding.rule, fix=finding.fix, evidence=evidence
            )
            continue
        metrics: dict[str, Number] = {"findings": finding.count}
        compiles = finding.rule in ("graph-break", "recompile")
        metrics |= {name: size for name, size in grown.items() if compiles and name in _COMPILING}
        if finding.bytes:
            metrics |= {name: min(finding.bytes, size) for name, size in grown.items()
                        if _OF_MEMORY.match(name)}  # fmt: skip
        causes.append(
            Cause(
                "compilation" if compiles else "finding",
                f"{finding.rule}: {finding.message}",
                file if number else None,
                number,
                functions.get(finding.location or ""),
                metrics=metrics,
                evidence=() if number or not finding.location else (f"at {finding.location}",),
                finding=finding.rule,
                fix=finding.fix,
            )
        )
    return causes


#: What explains others comes first: where a dtype, a loader or a graph changed, operators follow.
_FIRST = {
    "other_dtype": 1.0,
    "loader": 2.0,
    "compilation": 0.5,
    "runs_more_often": 0.1,
    "kept_memory": -1.0,
}
#: These are told only if they are a part of the change.
_BY_SHARE = ("new_operators", "larger_inputs", "other_dtype", "runs_more_often", "kept_memory")


def _ranked(found: Sequence[Cause], grown: Mapping[str, float]) -> tuple[Cause, ...]:
    def share(cause: Cause) -> float:
        known = {name: size for name, size in cause.metrics.items() if grown.get(name, 0) > 0}
        return max((min(size / grown[name], 1.0) for name, size in known.items()), default=0.0)

    ranked = sorted(found, key=lambda one: -(share(one) + _FIRST.get(one.kind, 0.0)))
    large = [one for one in ranked if share(one) >= _LEAST_SHARE or one.kind not in _BY_SHARE]
    return tuple(large or ranked[:1])
