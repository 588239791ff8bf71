"""Names that identify events: our own markers, and names from torch and from drivers."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import unquote

from pytest_torchprof.core.lazy_regex import late

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
