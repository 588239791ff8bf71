"""Names of events: their kinds, what torch and we call things, and an index of them by trace."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache, wraps
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeAlias, TypeVar
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from pytest_torchprof.core.process import late
from pytest_torchprof.core.records import cached
from pytest_torchprof.core.scopes import is_of_name

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints


# ---- Kinds of events, and Kineto's categories for them.


class Kind(IntEnum):
    """What an event is, from Kineto's category (of any year) and name."""

    OTHER = 0
    OP = 1
    ANNOTATION = 2
    RUNTIME = 3
    KERNEL = 4
    MEMCPY = 5
    MEMSET = 6
    MEMORY = 7
    PYTHON = 8
    CUDA_SYNC = 9
    GPU_ANNOTATION = 10


#: Kineto's category, lower case, to `Kind`. Categories of 2021 are capitalized ``Operator`` etc.
#: Source: libkineto/include/ActivityType.h, and 231 real traces of 2021 to 2026.
KINDS: Mapping[str, Kind] = {
    "cpu_op": Kind.OP,
    "operator": Kind.OP,
    "user_annotation": Kind.ANNOTATION,
    "cuda_runtime": Kind.RUNTIME,
    "cuda_driver": Kind.RUNTIME,
    "hip_runtime": Kind.RUNTIME,
    "xpu_runtime": Kind.RUNTIME,
    "xpu_driver": Kind.RUNTIME,
    "mtia_runtime": Kind.RUNTIME,
    "privateuse1_runtime": Kind.RUNTIME,
    "privateuse1_driver": Kind.RUNTIME,
    "runtime": Kind.RUNTIME,
    "driver": Kind.RUNTIME,
    "kernel": Kind.KERNEL,
    "concurrent_kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.MEMCPY,
    "memcpy": Kind.MEMCPY,
    "gpu_memset": Kind.MEMSET,
    "memset": Kind.MEMSET,
    "cpu_instant_event": Kind.MEMORY,
    "python_function": Kind.PYTHON,
    "cuda_sync": Kind.CUDA_SYNC,
    "gpu_user_annotation": Kind.GPU_ANNOTATION,
}

#: Categories of events with a duration that are not work of the host or a device, or that repeat
#: other events. Source: as above, and libkineto/src/output_json.cpp.
OF_THE_PROFILER = frozenset({
    "overhead", "trace", "external_correlation", "cuda_event", "cuda_profiler_range",
    "collective_comm", "xpu_scope_profiler", "xpu_sync", "mtia_insight", "mtia_counters",
})  # fmt: skip
#: Categories of work on devices whose events are not supported, and their devices. Source: as
#: above; gcu is from Enflame's fork.
OTHER_DEVICES: Mapping[str, str] = {
    "mtia_ccp_events": "MTIA",
    "mtia_workloadd": "MTIA",
    "hpu_op": "HPU",
    "glow_runtime": "Glow",
    "gcu_runtime": "GCU",
    "gcu_driver": "GCU",
    "gcu_memcpy": "GCU",
    "gcu_memset": "GCU",
    "async_npu": "NPU",
}

HOST_KINDS = (Kind.OP, Kind.ANNOTATION, Kind.RUNTIME)
DEVICE_KINDS = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)


# ---- Names that identify events: our own markers, and names from torch and from drivers.

#: The annotation around the measured region of a live capture.
REGION = "torchprof::call"
#: Prefix of the annotation of a region that a test has named; the name follows.
REGION_MARK = "torchprof::region:"
#: Prefix of the name of an event that is open while a module runs; the module's class follows.
MODULE_MARK = "torchprof::module:"

#: Calls in which the host waits for the device: explicit synchronization, and copies without
#: ``Async`` in their name, which return when the copy is done.
SYNC_CALL = late(
    r"^(cuda|hip|musa|xpu)(Device|Stream|Event)Synchronize"
    r"|^cu(Ctx|Stream|Event)Synchronize"
    r"|^(cuda|hip|cu)Memcpy(?!.*(Async|Peer))"
)
#: Calls that put a kernel (or a graph of them) on a stream.
LAUNCH_CALL = late(
    r"LaunchKernel|LaunchCooperativeKernel|GraphLaunch|ModuleLaunch|Enqueue(Cooperative)?KernelLaunch"
)
#: Calls that launch kernels: without one, nothing ran on a device. A rule's trigger.
#: Calls that communicate between ranks, by operators or annotations.
COLLECTIVE_CALLS: Final = (
    r"_?c10d(_functional\w*)?::|record_param_comms$|(nccl|rccl|xccl|gloo|mpi|ucc):"
)
LAUNCHES: Final = r"\w*(Launch(Cooperative)?Kernel|ModuleLaunch|Enqueue(Cooperative)?KernelLaunch)"
#: Calls by which memory comes from the driver, or goes back to it: of a device, pinned, or mapped.
ALLOCATION_CALL = late(
    r"^(cuda|hip|musa|xpu)(Malloc|Free|HostAlloc|HostRegister|HostUnregister|MallocHost|FreeHost"
    r"|HostFree|MallocManaged|HostMalloc)"
    r"|^cuMem(Create|Map|Unmap|Release|Alloc|Free|SetAccess|AddressReserve)"
)
#: Those of them that a caching allocator makes for memory of a device, and that wait for it. The
#: driver's own pools (``cudaMallocAsync``) do not. A pattern for the beginning of a name.
MALLOC_CALLS = r"(cuda|hip|musa)(Malloc|Free)$|cuMem(Create|Map|Unmap|Release)$"
FREE_CALLS = r"(cuda|hip|musa)Free$|cuMem(Unmap|Release)$"
#: Of these, the ones by which expandable segments grow and shrink; no others are made then.
#: Source: c10/cuda/CUDACachingAllocator.cpp, ``ExpandableSegment``.
SEGMENT_CALLS = r"cuMem(Create|Map|Unmap|Release)$"
#: It waits for the device. Source: CUDA's programming guide, "Implicit Synchronization".
FREE_CALL = late(r"^(cuda|hip|musa)Free$")
#: Calls that load kernels, and those that may as they ask for one.
LOADING_CALL = late(r"^(cuda|hip|cu)(ModuleLoad|LibraryLoad|Link(Create|Add|Complete))")
LOOK_UP_CALL = late(
    LOADING_CALL.pattern
    + r"|^(cuda|hip|cu)(ModuleGetFunction|Library(GetKernel|GetModule)|FuncGetAttributes"
    r"|FuncSetAttribute|KernelGetFunction)"
)
#: Something in the name of each event that communicates between ranks: operators, annotations of
#: back ends, kernels. Others may have it too.
COMMUNICATION = late(
    r"(?i)c10d|[nrx]ccl|oneccl|gloo:|mpi:|ucc:|record_param_comms|symm_mem|all_?reduce|all_?gather"
    r"|reduce_?scatter|all_?to_?all|all2all|cross_device_reduce|multimem_|nvshmem|deep_ep|mscclpp|lamport"
)
H2D = late(r"HtoD|HostToDevice|M2D")
D2H = late(r"DtoH|DeviceToHost|D2M")
#: torch's annotation of a step, with its number; grouped, torch writes it with a star.
STEP, ALL_STEPS = late(r"^ProfilerStep\*?#\d+$"), "ProfilerStep*"
#: torch's own annotations that it may record as operators: until 2021, and of a compiled graph's
#: call without shapes, or with all threads profiled. Source: RecordFunctionFast_enter in
#: torch/csrc/profiler/python/init.cpp, which reads the scope only with the inputs of this thread.
TORCH_MARK = late(
    r"(?:ProfilerStep\*?|Optimizer\.\w+|enumerate\(DataLoader\))#|## Call CompiledFxGraph "
)
#: An operator with its overload, as ``capture_overload_names`` records it; and one of torch's own.
#: Source: parseName in torch/csrc/jit/frontend/function_schema_parser.cpp.
_OVERLOAD = late(r"^(\w+::\w+)\.[A-Za-z_]\w*$")
_OF_TORCH = late(r"^(aten|prims?|_?c10d\w*|quantized|torchvision)::\w+\.[A-Za-z_]")
#: Prefix of what we record ourselves.
OURS = "torchprof::"
#: Printable, but special within JSON or in the encoding of names.
_ODD = frozenset('"\\%')
MODULE = late(r"^nn\.Module: (\w+?)_\d+$")


def base_names(names: list[str], are_operators: list[bool]) -> list[str]:
    """The names of a trace's events, those of operators without their overloads.

    Names of torch's own operators have no dot, so one with a dot tells that overloads were
    recorded; elsewhere, a name with a dot is what someone called an event.

    >>> base_names(["aten::mm.out", "my::op.x"], [True, False])
    ['aten::mm', 'my::op.x']
    """
    both = list(zip(names, are_operators, strict=True))
    if not any(_OF_TORCH.match(name) for name, is_operator in both if is_operator):
        return names
    return [_OVERLOAD.sub(r"\1", name) if is_operator else name for name, is_operator in both]


@lru_cache(maxsize=10_000)
def shown_name(name: str) -> str:
    """The name under which an event is grouped: all steps share one."""
    return ALL_STEPS if STEP.match(name) else region_name(name)


def region_name(name: str) -> str:
    """The name of a region as the user wrote it, of a test's or a ``record_function``.

    >>> region_name("torchprof::region:decode"), region_name("forward")
    ('decode', 'forward')
    """
    return unquote(name.removeprefix(REGION_MARK)) if name.startswith(REGION_MARK) else name


def region_mark(name: str) -> str:
    """The name of the annotation of a region that a test has named.

    torch drops or replaces other characters than plain ASCII in names, so they are encoded.

    >>> region_mark("größe"), region_name(region_mark("größe"))
    ('torchprof::region:gr%C3%B6%C3%9Fe', 'größe')
    """
    if name.isascii() and name.isprintable() and _ODD.isdisjoint(name):
        return REGION_MARK + name
    return REGION_MARK + "".join(map(_encoded, name))


def _encoded(character: str) -> str:
    if character.isascii() and character.isprintable() and character not in _ODD:
        return character
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "replace"))


# ---- Functions of a trace that are computed once, and whose result is cached with the trace.

_Shared = TypeVar("_Shared")
_Options = ParamSpec("_Options")


def once_per_trace(
    compute: Callable[Concatenate[Events, _Options], _Shared],
) -> Callable[Concatenate[Events, _Options], _Shared]:
    """Make a function of a trace compute its result once for the same options."""

    @wraps(compute)
    def cached(trace: Events, /, *options: _Options.args, **named: _Options.kwargs) -> _Shared:
        return trace.once(compute, *options, **named)

    return cached


def once_of_whole(
    compute: Callable[Concatenate[Events, _Options], _Shared],
) -> Callable[Concatenate[Events, _Options], _Shared]:
    """The same for what does not depend on the selection: of the whole trace."""

    @wraps(compute)
    def cached(trace: Events, /, *options: _Options.args, **named: _Options.kwargs) -> _Shared:
        return trace.whole.once(compute, *options, **named)

    return cached


# ---- Look up events by name: each name is matched once per process, each column once per trace.

#: As plain numbers, which numpy compares four times as fast.
OPERATOR: Final = int(Kind.OP)
ANNOTATION: Final = int(Kind.ANNOTATION)
_MARKS: Final = frozenset({OPERATOR, ANNOTATION})


class Names:
    """All names that begin with a match of an expression; rules define them as constants."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.match: Final = re.compile(pattern).match
        _ALL.append(self)
        _KNOWN.clear()
        _joined.cache_clear()
        _kept_vocabulary.cache_clear()
        _kept_index.cache_clear()


#: What can be looked up: an exact name, or all names that begin with a match.
Name: TypeAlias = Names | str

_ALL: Final[list[Names]] = []
#: For each name seen so far, the expressions that match it.
_KNOWN: Final[dict[str, tuple[Names, ...]]] = {}
_MOST_KNOWN: Final = 100_000
#: For fewer names, a joined expression costs more to compile (6 ms) than it saves.
_MANY: Final = 500
_NONE: Final = np.zeros(0, np.int64)
#: Above this fraction of all events, rows are not collected name by name.
_DENSE: Final = 4
#: Nor below this number of events: checking each one is faster.
_FEW: Final = 2_000
#: Names of traces with more of them are not kept for the next trace.
_MOST_KEPT: Final = 2_000
#: Names of which an expression is not asked again.
_MOST_FOUND: Final = 5_000
#: What cannot be part of a joined expression: it refers to a group by number, or has flags.
_ALONE: Final = re.compile(r"\\\d|\(\?(P|\(|[aiLmsux]+\))")


@lru_cache(maxsize=1)
def _joined() -> tuple[Callable[[str], object], list[Names]]:
    """One matcher for all expressions that can be joined, and the other expressions."""
    alone = [one for one in _ALL if _ALONE.search(one.pattern)]
    rest = [f"(?:{one.pattern})" for one in _ALL if one not in alone]
    return re.compile("|".join(rest) or "(?!)").match, alone


def _all_of(name: str) -> tuple[Names, ...]:
    looks = _ALL
    if len(_KNOWN) > _MANY:
        together, alone = _joined()
        looks = _ALL if together(name) else alone
    return tuple([one for one in looks if one.match(name)])


@lru_cache(maxsize=1000)
def names_of(pattern: str) -> Names:
    """The same object for all rules that have the same expression."""
    return Names(pattern)


def learn(names: Iterable[str]) -> list[tuple[Names, ...]]:
    """The expressions that match each name; names new to the process are matched now."""
    if len(_KNOWN) > _MOST_KNOWN:
        _KNOWN.clear()
    try:
        return [_KNOWN[name] for name in names]
    except KeyError:
        new = [name for name in names if name not in _KNOWN]
        _KNOWN.update(zip(new, map(_all_of, new), strict=True))
        return [_KNOWN[name] for name in names]


class _Vocabulary(dict[tuple[Name, ...], tuple[Sequence[int], "Bools"]]):
    """What is known about a trace's names alone; repeated runs of a test share it.

    For names to look up: the numbers of the names that belong to any of them, in order, and for
    each name whether it does; the extra last entry is false.
    """

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self._names: Final = names
        self._learn()

    def _learn(self) -> None:
        names, belong = self._names, learn(self._names)
        self._looks = len(_ALL)
        #: All expressions that match a name.
        self.present: AbstractSet[Names] = frozenset(chain.from_iterable(belong))
        #: The number of each name, and the numbers of the names that match each expression.
        self._numbers: dict[Name, list[int]] = {name: [i] for i, name in enumerate(names)}
        for number, every in enumerate(belong):
            for one in every:
                self._numbers.setdefault(one, []).append(number)

    def refresh(self) -> None:
        """Ask the expressions again if there are more of them."""
        if self._looks != len(_ALL):
            self._learn()

    def __missing__(self, names: tuple[Name, ...]) -> tuple[Sequence[int], Bools]:
        self.refresh()
        numbers = sorted({*chain.from_iterable([self._numbers.get(one, ()) for one in names])})
        marked = np.zeros(len(self._names) + 1, bool)
        marked[numbers] = True
        found = self[names] = numbers, marked
        return found


@lru_cache(maxsize=20)
def _kept_vocabulary(names: tuple[str, ...]) -> _Vocabulary:
    return _Vocabulary(names)


class NameIndex:
    """The events of a trace by name, for the functions of this module.

    Small traces with the same columns share it, and what follows from it: runs of one test, and of
    one with other parameters, mostly call the same operators.
    """

    def __init__(self, names: Sequence[str], name: Ints, kind: npt.NDArray[np.int8]) -> None:
        self.vocabulary: Final = (
            _kept_vocabulary(tuple(names)) if len(names) <= _MOST_KEPT else _Vocabulary(names)
        )
        #: How many events have each name.
        self.counts: Final[list[int]] = np.bincount(name, minlength=len(names)).tolist()
        self.is_small: Final = len(name) < _FEW
        #: For each event whether it is an operator; the extra last entry, index -1, is false.
        self.is_operator: Final = np.zeros(len(name) + 1, bool)
        np.equal(kind, OPERATOR, out=self.is_operator[:-1])
        self._unnamed: Final = len(names)
        self._name: Final = name
        #: Of a small trace, what was looked up: events and operators by names.
        self.events: Final[dict[tuple[Name, ...], Ints]] = {}
        self.operators: Final[dict[tuple[Name, ...], Ints]] = {}
        #: What follows from these numbers, with so many expressions.
        self.looks = len(_ALL)
        self.by_counts: dict[Any, Any] = {}
        #: What follows from names, kinds and nesting, by the nesting.
        self.nested: Final[dict[bytes, dict[Any, Any]]] = {}

    @cached
    def name(self) -> Ints:
        """The number of each event's name; for index -1, that of none."""
        padded = np.empty(len(self._name) + 1, self._name.dtype)
        padded[:-1] = self._name
        padded[-1] = self._unnamed
        return padded

    @cached
    def operator_name(self) -> Ints:
        """The number of each operator's name; for other events and index -1, that of none."""
        return np.where(self.is_operator, self.name, self._unnamed)

    @cached
    def _ordered(self) -> tuple[npt.NDArray[np.int32], list[int]]:
        """Events sorted by name, and where each name's events end."""
        # Numbers of 16 bits are sorted in linear time.
        name = self._name.astype(np.uint16) if len(self.counts) <= 1 << 16 else self._name
        order = np.argsort(name, kind="stable").astype(np.int32)
        return order, list(accumulate(self.counts))

    def kept(
        self, known: dict[tuple[Name, ...], Ints], names: tuple[Name, ...], rows: Ints
    ) -> Ints:
        """These rows, kept for such names if the trace is small."""
        if self.is_small:
            rows.flags.writeable = False
            known[names] = rows
        return rows

    def sparse(self, numbers: Sequence[int]) -> Ints | None:
        """Events with names of these numbers, in time order; None where it is faster to look at
        each event, as in each trace that `is_small`.
        """
        counts = self.counts
        if _DENSE * sum([counts[i] for i in numbers]) > len(self._name):
            return None
        order, ends = self._ordered
        parts = [order[ends[i] - counts[i] : ends[i]] for i in numbers]
        rows = parts[0] if len(parts) == 1 else np.sort(np.concatenate(parts), kind="stable")
        return rows.astype(np.int64)


def index_of(names: Sequence[str], name: Ints, kind: npt.NDArray[np.int8]) -> NameIndex:
    """The index of events with these names, numbers of names, and kinds."""
    if len(name) >= _FEW or len(names) > _MOST_KEPT:
        return NameIndex(names, name, kind)
    return _kept_index(tuple(names), name.dtype.str, name.tobytes(), kind.tobytes())


@lru_cache(maxsize=20)
def _kept_index(names: tuple[str, ...], dtype: str, name: bytes, kind: bytes) -> NameIndex:
    return NameIndex(names, np.frombuffer(name, dtype), np.frombuffer(kind, np.int8))


def present(trace: Events) -> AbstractSet[Names]:
    """All expressions that match a name of the trace."""
    trace.by_name.vocabulary.refresh()
    return trace.by_name.vocabulary.present


def kept_by_names(trace: Events) -> dict[Any, Any]:
    """A place to keep what follows from how many events of each kind have each name."""
    index = trace.by_name
    index.vocabulary.refresh()
    if index.looks != len(_ALL):
        index.looks, index.by_counts = len(_ALL), {}
    return index.by_counts


def count(trace: Events, *names: Name) -> int:
    """How many events of any kind have such names."""
    index = trace.by_name
    numbers = index.vocabulary[names][0]
    return sum([index.counts[i] for i in numbers]) if numbers else 0


def numbers_of(trace: Events, *names: Name) -> Sequence[int]:
    """The numbers of such names, in order."""
    return trace.by_name.vocabulary[names][0]


def events_named(trace: Events, *names: Name) -> Ints:
    """Events of any kind, in time order."""
    index = trace.by_name
    if (known := index.events.get(names)) is not None:
        return known
    numbers, marked = index.vocabulary[names]
    if not numbers:
        return _NONE
    rows = None if index.is_small else index.sparse(numbers)
    if rows is None:
        rows = marked[trace.name].nonzero()[0]
    return index.kept(index.events, names, rows)


def operators_between(trace: Events, start: int, stop: int, *names: Name) -> Ints:
    """Operators from one event up to another one, in time order."""
    index = trace.by_name
    numbers, marked = index.vocabulary[names]
    if not numbers:
        return _NONE
    rows = marked[index.operator_name[start:stop]].nonzero()[0]
    rows += start
    return rows


def operators_named(trace: Events, *names: Name) -> Ints:
    """Operators, in time order."""
    index = trace.by_name
    if (known := index.operators.get(names)) is not None:
        return known
    numbers, marked = index.vocabulary[names]
    if not numbers:
        return _NONE
    rows = None if index.is_small else index.sparse(numbers)
    if rows is None:
        rows = marked[index.operator_name].nonzero()[0]
    else:
        rows = rows[index.is_operator[rows]]
    return index.kept(index.operators, names, rows)


def selected_operators(trace: Events, *names: Name) -> Ints:
    """Selected operators, in time order."""
    rows = operators_named(trace, *names)
    return rows[trace.selection[rows]] if len(rows) else rows


def marks_named(trace: Events, *names: Name) -> Ints:
    """Annotations, in time order; some versions write them as operators."""
    rows = events_named(trace, *names)
    kind = trace.kind[rows]
    if _MARKS.issuperset(kind.tolist()):  # mostly
        return rows
    found: Ints = rows[(kind == OPERATOR) | (kind == ANNOTATION)]
    return found


def are_operators(trace: Events) -> Bools:
    """For each event whether it is an operator; the extra last entry, index -1, is false.

    It is shared, and not to be written to.
    """
    return trace.by_name.is_operator


def operators_marked(trace: Events, *names: Name) -> Bools:
    """For each event, whether it is an operator of such a name; for index -1, false."""
    index = trace.by_name
    found: Bools = index.vocabulary[names][1][index.operator_name]
    return found


def named(trace: Events, *names: Name) -> Bools:
    """For each event, whether its name belongs to any of these."""
    found: Bools = trace.by_name.vocabulary[names][1][trace.name]
    return found


def are_named(trace: Events, rows: Ints, *names: Name) -> Bools:
    """Which of these events have a name among these; -1 has none."""
    index = trace.by_name
    found: Bools = index.vocabulary[names][1][index.name[rows]]
    return found


def verdicts_on(names: Sequence[str], predicate: Callable[[str], object]) -> list[bool]:
    """What a predicate says of each name.

    A method of an expression is called once per name and process: long names of kernels recur.
    """
    if not isinstance(getattr(predicate, "__self__", None), re.Pattern):
        return [bool(found) for found in map(predicate, names)]
    known = _found_by(predicate)
    if len(known) > _MOST_FOUND:
        known.clear()
    try:
        return [known[name] for name in names]
    except KeyError:
        known.update({name: bool(predicate(name)) for name in names if name not in known})
        return [known[name] for name in names]


@lru_cache(maxsize=500)
def _found_by(_: Callable[[str], object]) -> dict[str, bool]:
    """What a method of an expression said of names, a table for each: it takes least memory."""
    return {}


@once_of_whole
def communicates(trace: Events) -> bool:
    """Whether any event of the whole trace has a name of communication between ranks."""
    return True in verdicts_on(trace.names, COMMUNICATION.search)


# ---- Regions within the measured one: ``record_function`` labels, and those that a test has
# named.

#: torch's own annotation of a DataLoader with workers.
_WORKERS = late(r"^enumerate\(DataLoader\)#_MultiProcessing")


def uses_workers(trace: Events) -> bool:
    """Whether a DataLoader with workers was iterated over."""
    return trace.region is not None and any(map(_WORKERS.match, trace.names))


def received(trace: Events) -> Ints:
    """What makes tensors of the batches of workers: how many have come by now is chance.

    That is an `empty` and a `set_` each, and the memory that a worker has filled before.
    """
    memory = trace.memory.event
    rows = np.concatenate([trace.is_kind(Kind.OP).nonzero()[0], memory])
    rows = rows[np.lexsort((rows, trace.thread[rows]))]
    empty, filled = trace.named("aten::empty")[rows], trace.named("aten::set_")[rows]
    near = trace.thread[rows[1:]] == trace.thread[rows[:-1]]
    made = (empty[:-1] & filled[1:] & near).nonzero()[0]
    before = made[(made > 0) & near[made - 1]] - 1
    before = before[np.isin(rows[before], memory)]
    found: Ints = rows[np.concatenate([made, made + 1, before])]
    return found


@once_of_whole
def named_regions(trace: Events) -> Mapping[str, int]:
    """The regions that the test has named, in the order in which they began, and their laps."""
    if not any(name.startswith(REGION_MARK) for name in trace.names):
        return {}
    marks = trace.is_kind(Kind.ANNOTATION) & trace.in_region
    marks &= trace.names_where(lambda name: name.startswith(REGION_MARK))
    names = [region_name(trace.names[number]) for number in trace.name[marks].tolist()]
    return dict(Counter(names))


@once_per_trace
def laps_of(trace: Events, what: str) -> Ints:
    """The annotations of this name or glob in the measured region, in time order.

    A test's own regions alone have their mark before the name.
    """
    named = trace.names_where(
        lambda name: name == what or (name != REGION and is_of_name(what, region_name(name)))
    )
    found: Ints = (named & trace.is_kind(Kind.ANNOTATION) & trace.in_region).nonzero()[0]
    return found


def within_laps(trace: Events, laps: Ints) -> Bools:
    """What ran while any of these annotations was open, in any thread; device events by launch."""
    begin, end = np.sort(trace.ts[laps]), np.sort(trace.ts[laps] + trace.dur[laps])
    opened = np.searchsorted(begin, trace.ts, side="right")
    inside: Bools = (opened > np.searchsorted(end, trace.ts, side="right")) & trace.in_region
    if len(device := trace.device_rows):
        launch = trace.launch[device]
        inside[device] = np.where(launch >= 0, inside[launch], inside[device])
    return inside
