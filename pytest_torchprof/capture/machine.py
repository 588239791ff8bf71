"""The machine as torch sees it, the parts of torch that we use, and all that could run by name."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, lru_cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from pytest_torchprof.capture.compiling import exempt_from_limit
from pytest_torchprof.core.errors import CaptureError, NotCapturedError
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.unknown import Reason, because

# ---- The machine as torch sees it, and the parts of torch that we use while a test runs.

# ---- Start torch's profiler without the seconds that its first start in a process takes.
#
# It evaluates ``hasattr(torch, "_inductor")`` to find out whether CUDA graphs are used, and that
# alone imports inductor and dynamo. Until other code has imported them, the answer is no.

#: Where torch asks: in the former, and up to 2.6 or later in the latter.
_ASKING = ("prepare_trace", "start_trace")


class _WithoutInductor:
    """The module ``torch`` as a single function sees it: looking at it imports nothing."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch

    def __getattr__(self, name: str) -> Any:
        if name == "_inductor":
            raise AttributeError(name)
        return getattr(self._torch, name)


def lean_profile() -> Any:
    """A class like ``torch.profiler.profile`` without a schedule, which imports nothing.

    No module of torch is changed for it, not even temporarily.
    """
    import torch

    base = getattr(torch.profiler, "_KinetoProfile", torch.profiler.profile)
    if base is torch.profiler.profile:
        return base  # an unknown implementation
    asking = {name: copy for name in _ASKING if (copy := _blind(getattr(base, name, None), torch))}
    if not asking:
        return torch.profiler.profile  # other code has replaced it

    def prepare_trace(self: Any) -> None:
        config = sys.modules.get("torch._inductor.config")
        self.has_cudagraphs = bool(getattr(getattr(config, "triton", None), "cudagraphs", 0))
        asking.get("prepare_trace", base.prepare_trace)(self)

    return type("Profile", (base,), {**asking, "prepare_trace": prepare_trace})


def _blind(original: Any, torch: ModuleType) -> FunctionType | None:
    """The same function with another view of torch; None if it does not ask.

    torch 2.11 warns in it, once per process: that warning is left for a session of the user's.
    """
    if not isinstance(original, FunctionType) or "_inductor" not in original.__code__.co_consts:
        return None
    return FunctionType(
        original.__code__,
        {
            **original.__globals__,
            "torch": _WithoutInductor(torch),
            "_warn_once": lambda *_, **__: None,
        },
        original.__name__,
        original.__defaults__,
        original.__closure__,
    )


def trace_only() -> Any:
    """A configuration for sessions that are only exported, never read through Python.

    Torch then makes no second copy of each event, which takes as long to free as the file takes to
    write; the exported file is the same. None if torch has no such option (before 2.13).
    """
    import torch

    with suppress(TypeError):
        return torch._C._profiler._ExperimentalConfig(trace_only=True)
    return None


# ---- Code objects of torch that a tracer recognizes, and code that dynamo must not compile.


def module_calls(module: Any) -> frozenset[CodeType]:
    """The code objects through which every module is called."""
    names = ("_wrapped_call_impl", "_call_impl")
    return frozenset(getattr(module, name).__code__ for name in names if hasattr(module, name))


class ConstructorCodes(NamedTuple):
    """Code objects that construct optimizers and loaders, that make a loader's iterator, through
    which optimizers step, and iterators fetch.
    """

    constructors: tuple[CodeType, ...]
    iterators: tuple[CodeType, ...]
    steps: tuple[CodeType, ...]
    fetches: tuple[CodeType, ...]


def constructor_codes() -> ConstructorCodes:
    """Those of this version of torch; none of what a mock has replaced."""
    from torch.optim import Optimizer
    from torch.utils.data import dataloader

    iterator = dataloader._BaseDataLoaderIter
    around = _codes(Optimizer, "profile_hook_step")  # around the step of every class
    return ConstructorCodes(
        _codes(Optimizer, "__init__") + _codes(dataloader.DataLoader, "__init__"),
        _codes(iterator, "__init__"),
        tuple(one for code in around for one in code.co_consts if isinstance(one, CodeType)),
        _codes(iterator, "__next__"),
    )


def _codes(kind: Any, name: str) -> tuple[CodeType, ...]:
    """The code of a method, if it is a function."""
    method = getattr(kind, name, None)
    return (method.__code__,) if isinstance(method, FunctionType) else ()


def code_skipper() -> Callable[[CodeType], object]:
    """Dynamo's function that excludes code objects; its C part exists without dynamo."""
    try:
        import torch._C._dynamo.eval_frame as room
    except ImportError:
        room = None  # type: ignore[assignment]
    # Up to 2.6 it was a function of the C part; since then, a strategy.
    older: Callable[[CodeType], object] | None = getattr(room, "skip_code", None)
    set_strategy = getattr(room, "set_code_exec_strategy", None)
    if older is not None or set_strategy is None:
        return older or (lambda _: None)
    action = room._FrameAction
    strategy = room._FrameExecStrategy(action.SKIP, action.DEFAULT)
    return lambda code: set_strategy(code, strategy)


_LEVEL = "KINETO_LOG_LEVEL"


class Machine(Frozen, frozen=True):
    """What the numbers depend on: the accelerator, torch's version, the CPU's instruction set."""

    accelerator: str | None
    device_type: str | None
    torch_version: str
    threads: int | None
    host: str
    cpu_capability: str

    @property
    def key(self) -> str:
        """The environment key of baselines: ``cpu, torch 2.13``, ``NVIDIA H200, torch 2.13``."""
        release = ".".join(self.torch_version.split("+")[0].split(".")[:2])
        key = f"{self.accelerator or 'cpu'}, torch {release}"
        return key if self.threads == 1 else f"{key}, {self.threads} threads"


@contextmanager
def kineto_quiet() -> Iterator[None]:
    """Keep Kineto's messages off stderr, permanently if the process's first session starts within.

    Kineto reads its variable once; tests and their children must not see it.
    """
    if _LEVEL in os.environ:
        yield
        return
    os.environ[_LEVEL] = "99"
    try:
        yield
    finally:
        os.environ.pop(_LEVEL, None)


def require_torch() -> None:
    """Check for torch, without the seconds that importing it takes.

    Raises:
        CaptureError: it is not installed.
    """
    try:
        found = importlib.util.find_spec("torch")
    except ImportError as error:
        raise _no_torch(error) from error
    if found is None:
        raise _no_torch("there is no module named torch")


def _no_torch(why: object) -> CaptureError:
    return CaptureError(
        f"--torchprof needs torch, but importing it failed: {why}. "
        "Install torch (pip install torch), or drop --torchprof."
    )


def probe_machine(threads: int | None) -> Machine:
    """The machine as torch sees it; ``threads`` are the intra-op threads of profiled runs.

    Raises:
        CaptureError: torch is not installed or cannot be imported.
    """
    torch = imported_torch()
    device = accelerator()
    if device is None:
        return described(None, None, threads)
    module = getattr(torch, device)
    name = module.get_device_name() if hasattr(module, "get_device_name") else device
    return described(str(name), device, threads)


def imported_torch() -> Any:
    """The module.

    Raises:
        CaptureError: it is not installed, cannot be imported, or is not torch.
    """
    try:
        import torch
    except ImportError as error:
        raise _no_torch(error) from error
    if not is_torch(torch):
        raise CaptureError(
            "--torchprof needs torch, but what is imported by that name is a "
            f"{type(torch).__name__}. Does a conftest.py or a plugin put it into sys.modules? "
            "Leave torch in place, or drop --torchprof."
        )
    return torch


def is_torch(module: object) -> bool:
    """Whether it is torch, not what somebody has put in its place."""
    # A mock's class says what it stands for, and its type what it is.
    return all(issubclass(type(one), ModuleType) for one in (module, getattr(module, "_C", None)))


def described(name: str | None, device: str | None, threads: int | None) -> Machine:
    """This machine with an accelerator of this name and type, or None."""
    import torch

    if threads is None:
        threads = torch.get_num_threads()
    return Machine(name, device, str(torch.__version__), threads, _host(), _cpu_capability())


def _host() -> str:
    """The CPU's model and number, to distinguish machines when times are compared."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    model = next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), model)
    return f"{model} x{os.cpu_count()}"


#: Instruction sets of x86 in order, by the names that torch and oneDNN share.
_LEVELS = ("SSE41", "AVX", "AVX2", "AVX512")
#: oneDNN uses nothing above the one that its environment variable names; the second is older.
_MOST = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")


def _cpu_capability() -> str:
    """The instruction set that decides how convolutions run, such as ``AVX2`` and ``AVX512``.

    It is `torch.backends.cpu.get_cpu_capability`, or less if oneDNN's variable says so. With the
    architecture, if torch names none: ``arm64 DEFAULT``.
    """
    import torch

    found = torch.backends.cpu.get_cpu_capability()
    most = next((os.environ[name].upper() for name in _MOST if name in os.environ), "")
    level = next((one for one in reversed(_LEVELS) if most.startswith(one)), None)
    if found in _LEVELS:
        return found if level is None else min(found, level, key=_LEVELS.index)
    return f"{platform.machine()} {found}"


@cache
def accelerator() -> str | None:
    """The accelerator's name; cached, so a test that fakes devices does not change it."""
    import torch

    probe = getattr(torch, "accelerator", None)
    if probe is not None and probe.is_available():
        name = str(probe.current_accelerator().type)
    else:
        name = "cuda" if torch.cuda.is_available() else ""
    return None if not name or (name == "cuda" and not _has_cuda(torch)) else name


def _has_cuda(torch: Any) -> bool:
    """Whether there is a device, also where a suite has `torch.cuda.is_available` say so.

    With this variable torch counts devices without the driver, so that a process can be forked.
    """
    count = getattr(torch._C, "_cuda_getDeviceCount", None)
    if count is None or os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK") == "1":
        return count is not None
    return bool(count() > 0)


def capability() -> str | None:
    """The accelerator's compute capability, ``sm_90``, or architecture, ``gfx942``; None if it has
    none.
    """
    import torch

    if accelerator() != "cuda":
        return None
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    if torch.version.hip:
        return str(found.gcnArchName).partition(":")[0]
    return f"sm_{found.major}{found.minor}"


def lend_threads(wanted: int | None, undo: ExitStack) -> Callable[[], None]:
    """Set the intra-op threads until ``undo``, or until the returned function is called.

    If other code has changed them in the meantime, its setting stays. None leaves them unchanged.
    """
    t = real_torch()
    if wanted is None or wanted == (old := t.get_threads()):
        return _nothing
    given_back = False

    def give_back() -> None:
        nonlocal given_back
        if not given_back and t.get_threads() == wanted:
            t.set_threads(old)
        if not given_back:
            exempt()
        given_back = True

    exempt = exempt_from_limit()
    t.set_threads(wanted)
    undo.callback(give_back)
    return give_back


def _nothing() -> None:
    pass


@cache
def real_torch() -> SimpleNamespace:
    """The parts of torch used while a test runs, bound before a test can patch them; see `REAL`."""
    import torch

    device = accelerator()
    module = getattr(torch, device) if device is not None else None
    return SimpleNamespace(
        active=getattr(torch.autograd, "_profiler_enabled", lambda: False),
        disable=torch._C._autograd._disable_profiler,
        runs_backend=_runs_backend(),
        clear_callbacks=getattr(torch._C._autograd, "_clear_callbacks", lambda: None),
        profile=lean_profile(),
        begin_unprepared=_begin_unprepared(),
        activity=torch.profiler.ProfilerActivity,
        supported=torch.profiler.supported_activities,
        config=torch._C._profiler._ExperimentalConfig,
        trace_only=trace_only(),
        region=torch.profiler.record_function,
        get_threads=torch.get_num_threads,
        set_threads=torch.set_num_threads,
        detects_anomalies=torch.is_anomaly_enabled,
        fp32_precision=getattr(torch._C, "_get_fp32_precision_getter", None),
        matmul_precision=torch.get_float32_matmul_precision,
        synchronize=getattr(module, "synchronize", lambda: None),
        initialized=getattr(module, "is_initialized", lambda: True),
        capturing=getattr(module, "is_current_stream_capturing", lambda: False),
        devices=cache(getattr(module, "device_count", lambda: 1)),
        empty=torch.empty,
        spin=getattr(module, "_sleep", None),
        in_use=getattr(torch._C, "_cuda_hasPrimaryContext", lambda _: True),
        in_backward=lambda: torch._C._current_graph_task_id() != -1,
        backward_pass=torch._C._current_graph_task_id,
        after_backward=torch.autograd.Variable._execution_engine.queue_callback,
        mark=getattr(torch._C._profiler, "_RecordFunctionFast", torch.profiler.record_function),
        module=torch.nn.Module,
        scripted=torch.jit.ScriptModule,
        calls_modules=module_calls(torch.nn.Module),
        constructor_codes=constructor_codes(),
        skip_code=code_skipper(),
    )


def _runs_backend() -> Callable[[], bool]:
    """Whether this thread has a session of the backend: not an emitter's, nor of all threads."""
    import torch

    kind, kineto = torch._C._autograd._profiler_type, torch._C._profiler.ActiveProfilerType.KINETO
    return lambda: bool(kind() == kineto)


def _begin_unprepared() -> Callable[[], object]:
    """What begins a session of the backend without having prepared it, in this thread."""
    import torch

    profile = torch.autograd.profiler.profile
    begin: Any = profile._start_trace

    def start() -> None:
        begin(profile(use_kineto=True))

    return start


def uses_accelerator() -> bool:
    """Whether there is an accelerator, and this process has begun to use it."""
    return accelerator() is not None and bool(real_torch().initialized())


def captures_graph() -> bool:
    """Whether the current stream captures a CUDA graph; no on a device that reports an error."""
    try:
        return uses_accelerator() and bool(real_torch().capturing())
    except RuntimeError:
        return False


def await_device() -> bool:
    """Wait for the accelerator; return whether this process uses one and could wait for it.

    It cannot while the current stream captures a graph: waiting would invalidate the capture.

    Raises:
        RuntimeError: the accelerator reports an error of earlier work.
    """
    if not uses_accelerator() or captures_graph():
        return False
    t = real_torch()
    if t.devices() < 2:
        t.synchronize()
    else:
        for number in filter(t.in_use, range(t.devices())):
            t.synchronize(number)
    return True


def synchronize() -> bool:
    """The same, where an error is not the test's business.

    Raises:
        NotCapturedError: the accelerator reports an error of earlier work.
    """
    try:
        return await_device()
    except RuntimeError as error:
        message = str(error).partition("\n")[0]
        raise NotCapturedError(
            because("device_error", "the device reports an error: {message}", message=message)
        ) from error


def unseen_allocator() -> Reason | None:
    """Why torch's profiler does not see what is allocated on the device; None if it does.

    Only the caching allocator reports to the profiler. Source: c10/cuda, where
    CUDAMallocAsyncAllocator.cpp and ``uncached_delete`` call no `reportMemoryUsageToProfiler`.
    """
    import torch

    if accelerator() != "cuda":
        return None
    backend = getattr(torch._C, "_cuda_getAllocatorBackend", lambda: "native")()
    if backend == "native" and not os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING"):
        return None
    name = backend if backend != "native" else "cudaMalloc"
    return because(
        "allocator_unseen", "torch's profiler does not see the allocator {name}", name=name
    )


def allows_tf32() -> bool | None:
    """Whether fp32 products may run as TF32 right now; None if there is no such setting.

    Without an accelerator it is what a program has set: the default tells nothing of a device.
    """
    import torch

    device = accelerator()
    if device not in (None, "cuda") or torch.version.hip is not None:
        return None
    t = real_torch()
    try:
        # The older query raises if a test has set the newer flags, since torch 2.9.
        if t.fp32_precision is not None:
            found = t.fp32_precision("cuda", "matmul")
            return None if device is None and found == "none" else bool(found == "tf32")
        return None if device is None else bool(t.matmul_precision() != "highest")
    except (RuntimeError, TypeError):
        return None


# ---- The machine as far as it can be told while test files may still choose their device.
#
# CUDA reads ``CUDA_VISIBLE_DEVICES`` when it is initialized, and torch the allocator's
# configuration. Files that pytest has not collected yet may set both, so the name of the GPU
# comes from NVML, which initializes nothing.

#: NVML_DEVICE_NAME_V2_BUFFER_SIZE of nvml.h.
_NAME_BYTES = 96


def early_machine(threads: int | None) -> Machine:
    """The machine, see `probe_machine`; whether torch can use the GPU is not known yet.

    Raises:
        CaptureError: torch is not installed or cannot be imported.
    """
    torch = imported_torch()
    if not torch.version.cuda or torch.cuda.is_initialized():
        return probe_machine(threads)
    name = None
    with suppress(OSError, AttributeError, ValueError):  # no driver, or another torch
        visible = torch.cuda._parse_visible_devices()
        name = _name(visible[0]) if visible else None
    return described(name, "cuda" if name else None, threads)


def _name(device: int | str) -> str | None:
    """The name of a GPU by its number or UUID."""
    library: Any = ctypes.CDLL("libnvidia-ml.so.1")
    if library.nvmlInit_v2():
        return None
    handle, found = ctypes.c_void_p(), ctypes.create_string_buffer(_NAME_BYTES)
    if isinstance(device, int):
        failed = library.nvmlDeviceGetHandleByIndex_v2(device, ctypes.byref(handle))
    else:
        failed = library.nvmlDeviceGetHandleByUUID(device.encode(), ctypes.byref(handle))
    if not failed:
        failed = library.nvmlDeviceGetName(handle, found, _NAME_BYTES)
    library.nvmlShutdown()
    return None if failed else found.value.decode(errors="replace")


# ---- The names of all that could run in this process: operators and modules.


def could_run() -> Mapping[str, frozenset[str]]:
    """By kind of scope, the names that torch and the user's code have registered.

    Empty where this torch does not tell its operators.
    """
    import torch

    # Operators come with modules, or by `torch.library`.
    registered = _of_torch(len(sys.modules), len(getattr(torch.library, "_defs", ())))
    if not registered:
        return {}
    steps = {
        f"Optimizer.{what}#{name}.{what}"
        for name in _classes(torch.optim.Optimizer)
        for what in ("step", "zero_grad")
    }
    functions = _with_backward(_classes(torch.autograd.Function))
    return {
        "op": registered.union(functions, steps),
        "module": frozenset(_classes(torch.nn.Module)),
    }


@lru_cache(maxsize=1)
def _of_torch(_modules: int, _defined: int) -> frozenset[str]:
    """Operators and functions of C++, which take 9 ms to list; the arguments date the answer."""
    import torch

    list_names: Any = getattr(torch._C, "_dispatch_get_all_op_names", None)
    if list_names is None:
        return frozenset()
    operators = {name.partition(".")[0] for name in list_names()}
    return frozenset(operators.union(_with_backward(dir(torch._C._functions))))


def _with_backward(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        for one in (name, f"{name}Backward"):
            yield from (one, f"autograd::engine::evaluate_function: {one}")


def _classes(base: type[Any]) -> Iterator[str]:
    for one in type.__subclasses__(base):
        yield one.__name__
        yield from _classes(one)
