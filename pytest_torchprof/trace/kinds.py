"""Kinds of events, and Kineto's categories for them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum


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
