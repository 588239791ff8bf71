"""Compilations and calls of compiled code while a test runs, and CUDA graphs."""

from __future__ import annotations

import os
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import wraps
from types import FrameType
from typing import Any

from msgspec import field
from msgspec.structs import replace

from pytest_torchprof.capture.dynamo import (
    Break,
    Compilation,
    break_of,
    broke,
    cause,
    compilation_of,
    own_breaks,
    recompiled,
)
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.unknown import Why, because
from pytest_torchprof.trace.facts import CompileNote, CompileWork, Facts, RecompileNote

# ---- Count the CUDA graphs that are captured; torch itself keeps no such number.
#
# vLLM, inductor and everybody else capture through `torch.cuda.CUDAGraph`, whose ``capture_end``
# is wrapped while a test on an accelerator runs. Inductor's tree of graphs also captures one
# without any work, to hold its memory pool; that one does not count.

#: Where inductor captures the graph without work. Source: torch/_inductor/cudagraph_trees.py,
#: ``CUDAGraphTreeManager.__init__``; those with work are captured in ``CUDAGraphNode._record``.
_TREES, _POOL_OWNER = "cudagraph_trees.py", "__init__"
#: From `capture_end` through ``torch.cuda.graph.__exit__`` to its user, with wrappers between.
_DEEPEST = 6


class CudaGraphs:
    """Counts captures in this process, from `watch` until `stop`; one instance per process."""

    def __init__(self) -> None:
        #: Captures so far; None until first asked to watch.
        self.captured: int | None = None
        self._kind: Any = None
        self._original: Any = None
        self._wrapper: Any = None

    def watch(self) -> None:
        """Count from now on."""
        self.stop()
        room = getattr(sys.modules.get("torch"), "cuda", None)
        kind: Any = getattr(room, "CUDAGraph", None)
        original = getattr(kind, "capture_end", None)
        if original is None:
            return
        self.captured = self.captured or 0

        @wraps(original)
        def capture_end(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if not _holds_pool() and self.captured is not None:
                self.captured += 1
            return result

        self._kind, self._original, self._wrapper = kind, original, capture_end
        kind.capture_end = capture_end

    def captured_since(self, before: int | None) -> bool:
        """Whether there were captures since then, when there had been so many."""
        return (self.captured or 0) > (before or 0)

    def stop(self) -> None:
        """Count no more, and restore torch's function, unless other code has replaced it."""
        kind, self._kind = self._kind, None
        if kind is not None and vars(kind).get("capture_end") is self._wrapper:
            kind.capture_end = self._original


def _holds_pool() -> bool:
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_DEEPEST):
        if frame is None:
            break
        if frame.f_code.co_filename.endswith(_TREES):  # the innermost one captures
            return frame.f_code.co_name == _POOL_OWNER
        frame = frame.f_back
    return False


CUDA_GRAPHS = CudaGraphs()


# ---- Compilations, recompilations and graph breaks of torch.compile in this process.
#
# Dynamo records all of this anyway: each compilation, and the reason and user stack of each graph
# break. Reading the records is free, invisible to the user, and imports nothing: until dynamo has
# been used, there is nothing to read.

#: The counters that torch's own tests of the compiler compare, by group, and what they count.
#: Sources: torch/_dynamo/output_graph.py, ``compile_and_call_fx_graph``;
#: torch/_functorch/_aot_autograd/autograd_cache.py; torch/_inductor/codecache.py and
#: output_code.py.
_COUNTED: Mapping[str, Mapping[str, str]] = {
    "stats": {"unique_graphs": "graphs"},
    "aot_autograd": {"autograd_cache_hit": "cache_hits", "autograd_cache_miss": "cache_misses"},
    "inductor": {
        "fxgraph_cache_hit": "cache_hits",
        "fxgraph_cache_miss": "cache_misses",
        "cudagraph_skips": "cudagraph_skips",
    },
}
#: dynamo keeps this many records. Source: torch/_dynamo/utils.py,
#: DEFAULT_COMPILATION_METRICS_LIMIT.
_KEPT_RECORDS = 64
#: A large model with graph breaks makes more than that in one test.
_WANTED_RECORDS = 1024


class _Log:
    """Everything that dynamo has recorded since the first look; one per process."""

    def __init__(self) -> None:
        self.compilations: list[Compilation] = []
        self.loose: list[Break] = []
        #: How often records were gone before they were read.
        self.losses = 0
        self.kept = _KEPT_RECORDS
        #: Where the current numbering of frames begins: `torch._dynamo.reset` starts a new one.
        self.numbered_from = 0
        self.complete = True
        self._last_record: Any = None
        self._last_break: Any = None
        self._breaks_read = 0
        #: Sums of what `_COUNTED` names, whether or not a test has cleared the counters.
        self.sums: Counter[str] = Counter()
        self._groups: dict[str, tuple[Mapping[str, int], Mapping[str, int]]] = {}

    def read(self) -> Mapping[str, int]:
        """Read new records; return dynamo's counts of graph breaks by reason."""
        utils = sys.modules.get("torch._dynamo.utils")
        if utils is None:
            return {}
        breaks = [break_of(reason) for reason in self._new_breaks(utils)]
        records = self._new_records(utils)
        for record, own in zip(records, own_breaks(records, breaks), strict=True):
            self._add(compilation_of(record, utils, own))
        self.loose += breaks
        self.complete &= not breaks
        for group, counted in _COUNTED.items():
            self._count(group, counted, utils.counters.get(group, {}))
        return dict(utils.counters.get("graph_break", {}))

    def _add(self, made: Compilation) -> None:
        if made.forward and made.id == "0/0" and self.known("0/0"):
            self.numbered_from, self.complete = len(self.compilations), True
        if not made.name:  # one attempt too many: dynamo only records its number
            frame = made.id.rpartition("/")[0]
            same = (one for one in self._numbered() if one.id.rpartition("/")[0] == frame)
            if (first := next(same, None)) is not None:
                made = made._replace(
                    name=first.name,
                    location=first.location,
                    line=first.line,
                    wrapper=first.wrapper,
                    gave_up=True,
                )
        self.compilations.append(made)

    def _count(self, group: str, counted: Mapping[str, str], now: Mapping[str, int]) -> None:
        """Add what one of dynamo's counters has counted since the last look.

        After ``counters.clear()`` there is another object; the old one keeps its last numbers.
        """
        last, before = self._groups.get(group, ({}, {}))
        for name, what in counted.items():
            if last is not now:
                self.sums[what] += last.get(name, 0) - before.get(name, 0)
            since = now.get(name, 0) - (before.get(name, 0) if last is now else 0)
            self.sums[what] += since if since >= 0 else now.get(name, 0)
        self._groups[group] = now, dict(now)

    def _numbered(self) -> Sequence[Compilation]:
        return self.compilations[self.numbered_from :]

    def known(self, name: str) -> bool:
        """Whether a frame with this number was compiled since the numbering began."""
        return any(one.id == name for one in self._numbered())

    def _new_records(self, utils: Any) -> Sequence[Any]:
        records: list[Any] = getattr(utils, "get_compilation_metrics", list)()
        start = len(records)
        while start and records[start - 1] is not self._last_record:
            start -= 1
        kept = getattr(getattr(utils, "_compilation_metrics", None), "maxlen", None)
        self.kept = kept or _KEPT_RECORDS
        if start == 0 and len(records) >= self.kept:
            self.losses += 1
            self.complete = False
        if kept == _KEPT_RECORDS and hasattr(utils, "set_compilation_metrics_limit"):
            utils.set_compilation_metrics_limit(_WANTED_RECORDS)
        if records:
            self._last_record = records[-1]
        return records[start:]

    def _new_breaks(self, utils: Any) -> Sequence[Any]:
        reasons: list[Any] = getattr(utils, "graph_break_reasons", [])
        read, last = self._breaks_read, self._last_break
        cleared = len(reasons) < read or (read > 0 and reasons[read - 1] is not last)
        new = reasons[:] if cleared else reasons[read:]
        self._breaks_read, self._last_break = len(reasons), reasons[-1] if reasons else None
        return new


_LOG = _Log()


def switched_off() -> str | None:
    """What keeps torch.compile from compiling anything; None if nothing does.

    Sources: torch/_dynamo/eval_frame.py, ``_optimize`` and ``_callback_from_stance``;
    torch/_dynamo/config.py, ``disable``.
    """
    if os.environ.get("TORCHDYNAMO_DISABLE") == "1":
        return "TORCHDYNAMO_DISABLE=1"
    variable = os.environ.get("TORCH_COMPILE_DISABLE") == "1"
    config = sys.modules.get("torch._dynamo.config")  # it reads the variable on import
    if variable if config is None else getattr(config, "disable", None):
        return "TORCH_COMPILE_DISABLE=1" if variable else "torch._dynamo.config.disable"
    frames = sys.modules.get("torch._dynamo.eval_frame")
    if getattr(getattr(frames, "_stance", None), "stance", None) == "force_eager":
        return "the stance force_eager"
    return None


class CompileCount(Frozen, frozen=True):
    """What torch.compile has compiled so far in this process, and its graph breaks.

    The annotation of a compiled region repeats the compile id, "frame/attempt".
    """

    compilations: int = 0
    loose: int = 0
    losses: int = 0
    counted: Mapping[str, int] = field(default_factory=dict)
    sums: Mapping[str, int] = field(default_factory=dict)
    cudagraphs: int | None = None

    @classmethod
    def now(cls) -> CompileCount:
        """Read dynamo's records; all zero until dynamo is imported."""
        counted = _LOG.read()
        return cls(
            len(_LOG.compilations),
            len(_LOG.loose),
            _LOG.losses,
            counted,
            dict(_LOG.sums),
            CUDA_GRAPHS.captured,
        )

    def compiled_since(self, before: CompileCount) -> bool:
        """Whether anything was compiled between two readings."""
        made = _LOG.compilations[before.compilations : self.compilations]
        return any(not one.at_run_time for one in made)

    def since(self, before: CompileCount) -> Facts:
        """The facts about compilation between two readings; see `analysis.compilations`."""
        if replace(self, cudagraphs=before.cudagraphs) == before:
            how = switched_off()
            off = because(*Why.DYNAMO_OFF, how=how) if how else None
            return Facts(
                graph_breaks=off or 0,
                recompiles=off or 0,
                compile_work=self._work(before, ()),
                compiled=(),
                breaks=(),
                recompilations=(),
                earlier_breaks=self._earlier(before),
            )
        made = _LOG.compilations[before.compilations : self.compilations]
        breaks = [_row(broken, one.id) for one in made for broken in one.breaks]
        breaks += [_row(b) for b in self._unplaced(before, made)]
        own = {one.id for one in made if not one.at_run_time}
        again = [
            RecompileNote(
                recompiled(one),
                one.location,
                one.id,
                _whole_ms(number, made),
                frame_before=f"{one.id.rpartition('/')[0]}/0" not in own,
                users=one.users,
                cause=cause(one),
            )
            for number, one in enumerate(made)
            if one.reason is not None
        ]
        lost = left = None
        if self.losses > before.losses:
            lost = because(
                "compilations_lost", "torch keeps at most {kept} compilations", kept=_LOG.kept
            )
        if name := next((one.name for one in made if one.left and one.users), None):
            left = because(
                "ran_in_python",
                (
                    "{name} ran in Python, and this torch does not say whether because of a "
                    "graph break"
                ),
                name=name,
            )
        return Facts(
            graph_breaks=lost or left or len(breaks),
            recompiles=lost or len(again),
            compile_work=self._work(before, made),
            compiled=tuple(sorted(own - {"None"})),
            breaks=tuple(breaks),
            recompilations=tuple(again),
            earlier_breaks=self._earlier(before),
        )

    def _work(self, before: CompileCount, made: Sequence[Compilation]) -> CompileWork:
        """What torch's counters say, and how long all of it took."""
        spent = [one.whole_ms for one in made if one.whole_ms is not None]
        counts = {
            what: self.sums.get(what, 0) - before.sums.get(what, 0)
            for counted in _COUNTED.values()
            for what in counted.values()
        }
        captured = None
        if self.cudagraphs is not None and before.cudagraphs is not None:
            captured = self.cudagraphs - before.cudagraphs
        complete = self.losses == before.losses and (spent or not made)
        ms = round(sum(spent), 3) if complete else None
        return CompileWork(**counts, cudagraphs=captured, ms=ms)

    def _unplaced(self, before: CompileCount, made: Iterable[Compilation]) -> Iterable[Break]:
        """Breaks without a known compilation, and those only counted: a reset cleared the rest."""
        loose = _LOG.loose[before.loose : self.loose]
        yield from loose
        # A test may clear dynamo's counters: then all current counts are its own.
        cleared = sum(self.counted.values()) < sum(before.counted.values())
        left = Counter(self.counted)
        left.subtract({} if cleared else before.counted)
        left.subtract(b.text for one in made for b in one.breaks)
        left.subtract(b.text for b in loose)
        yield from (Break(text, None) for text in (+left).elements())

    def _earlier(self, before: CompileCount) -> dict[str, tuple[CompileNote, ...]] | None:
        """Graph breaks by compile id in earlier compilations; None if not all are known."""
        if not _LOG.complete:
            return None
        earlier = _LOG.compilations[_LOG.numbered_from : before.compilations]
        return {one.id: tuple(_row(b, one.id) for b in one.breaks) for one in earlier if one.breaks}


def _row(broken: Break, id_: str | None = None) -> CompileNote:
    return CompileNote(broke(broken.text), broken.location, id_)


def _whole_ms(number: int, made: Sequence[Compilation]) -> float | None:
    own, backward = made[number].ms, _backward_ms(number, made)
    return None if own is None or backward is None else round(own + backward, 3)


def _backward_ms(number: int, made: Sequence[Compilation]) -> float | None:
    """What backends compile later for the same graph; None if one of the times is unknown."""
    ms: float | None = 0.0
    for one in made[number + 1 :]:
        if one.id == made[number].id != "None" and not one.at_run_time:
            if one.forward:  # torch.compiler.reset began to number anew
                break
            ms = None if ms is None or one.whole_ms is None else ms + one.whole_ms
    return ms


# ---- Notice calls of functions that torch.compile has wrapped, whether or not they are compiled.


class CompiledCalls:
    """Counts them within a block; what runs compiled is in the trace.

    Sources: torch/_dynamo/eval_frame.py, ``_callback_from_stance``, which each call of a wrapped
    function asks for its compiler, and ``_NullDecorator`` of ``torch.compile(disable=True)``.
    """

    def __init__(self) -> None:
        #: Those seen so far.
        self.count = 0

    def watch(self, replace: Callable[..., None], undo: ExitStack) -> None:
        """Watch until ``undo``, if dynamo is imported."""
        room = sys.modules.get("torch._dynamo.eval_frame")
        if hasattr(room, "_callback_from_stance"):
            replace(room, "_callback_from_stance", self._asked, undo)
        if (kind := getattr(room, "_NullDecorator", None)) is not None:
            replace(kind, "__call__", self._left_alone, undo)

    def _asked(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def callback_from_stance(callback: Any) -> Any:
            self.count += callable(callback)  # there is none where dynamo is switched off
            return original(callback)

        return callback_from_stance

    def _left_alone(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(decorator: Any, function: Any) -> Any:
            self.count += 1
            return original(decorator, function)

        return call


# ---- Keep our runs' compilations from using up a test's recompile limit.
#
# Compiled code has a guard on the number of intra-op threads, so a run with one thread compiles
# every variant of a function once more. After ``recompile_limit`` variants dynamo gives up on the
# function, and with ``fullgraph=True`` it raises, in a later test that would have been far from
# the limit.


class _Nobody:
    """Stands for an object that no frame has among its variables."""


_NOBODY = _Nobody()


def exempt_from_limit() -> Callable[[], None]:
    """Call the returned function after a run: what dynamo compiled in between does not count.

    Dynamo counts the variants that were compiled for the objects that the frame has now.
    Source: torch/_dynamo/cache_size.py, ``_has_same_id_matched_objs``.
    """
    before = {id(guards) for guards in _guards()}

    def exempt() -> None:
        for guards in _guards():
            if id(guards) not in before:
                guards.id_matched_objs = {"<torchprof>": weakref.ref(_NOBODY)}

    return exempt


def _guards() -> Iterator[Any]:
    """The guards of each variant of each function that dynamo has compiled."""
    dynamo = sys.modules.get("torch._dynamo.convert_frame")
    room = sys.modules.get("torch._C._dynamo.eval_frame")
    # Private names, since torch 2.6 at least; without them, dynamo counts as usual.
    with suppress(AttributeError, TypeError):
        for known in list(dynamo.input_codes.seen):  # type: ignore[union-attr]
            if (code := known()) is not None:
                for entry in room._debug_get_cache_entry_list(code):  # type: ignore[union-attr]
                    yield entry.guard_manager
