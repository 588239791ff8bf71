"""Build Chrome traces as Kineto (the back end of torch.profiler) writes them, with known answers.

Nothing here imports torch. `TraceBuilder` has one host clock and one clock per device stream;
`expected` counts what happens while the measured region is open, on any thread.
"""

from __future__ import annotations

import gzip
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support.trace_styles import LAYOUTS, STYLES, Event, Style, layout, times

from pytest_torchprof.trace.facts import FACTS_KEY, Facts

EPOCH_NS = 4_371_580_779_024_418  # of the first host event, after baseTimeNanoseconds
GAP_NS, LATENCY_NS = 500, 2_000  # between host events; from a launch call to the device
NO_STREAM, NUM_SMS = 4294967295, 132
CBID = {"cudaMemcpyAsync": 41, "cudaMemsetAsync": 51, "cudaStreamSynchronize": 131}
CBID |= {"cudaLaunchKernel": 211, "cuLaunchKernel": 307, "cudaGraphLaunch": 311}
CBID |= {"cudaMemcpy": 31, "cudaEventSynchronize": 137, "cudaDeviceSynchronize": 165}
FLOW_START = re.compile(r"cuda(Graph)?Launch|(cuda|hip)Mem(cpy|set)|cuda(Stream|Device)Sync|"
                        r"cuLaunch|hip(Module)?Launch")  # fmt: skip
HIP = {"cuLaunchKernel": "hipModuleLaunchKernel", "cudaMemcpy": "hipMemcpyWithStream"}
SYNC_KIND = {"cudaDeviceSynchronize": "Context Sync", "cudaStreamSynchronize": "Stream Sync"}
COPIES = {"HtoD": ("{} -> Device", "h2d", "1"), "DtoH": ("Device -> {}", "d2h", "2")}
COPIES |= {"DtoD": ("Device -> Device", "d2d", "3")}
COUNTS = """ops kernels launches graph_launches lost_kernels unlinked_kernels memsets syncs sync_ns
    h2d_copies h2d_bytes d2h_copies d2h_bytes d2d_copies d2d_bytes blocking_copies device_ns"""
SIZES = "allocated freed allocations frees peak live"
ADDRESSES = {"cpu": 0x55D0 << 32, "cuda": 0x7F00 << 32}


class Expected(SimpleNamespace):
    """COUNTS as attributes: `kernels` are records (without lost, with unlinked ones), `launches`
    are calls, a blocking copy is no sync. `memory["cpu" or "cuda"]` holds SIZES; its `peak` and
    `live` are measured against the start of the region.
    """

    def __init__(self) -> None:
        super().__init__(**dict.fromkeys(COUNTS.split(), 0))
        self.memory = {d: SimpleNamespace(**dict.fromkeys(SIZES.split(), 0)) for d in ADDRESSES}

    @property
    def device_us_total(self) -> float:
        return float(self.device_ns / 1000)


class Scope:
    """A host event. Alone it lasts its own duration; as a context manager, at least its body's."""

    def __init__(self, builder: TraceBuilder, kept: list[Event], event: Event) -> None:
        kept.append(event)
        self.builder, self.event, self.stack = builder, event, builder._stack()
        self.end = builder.now = event["ts"] + event["dur"] + GAP_NS

    def __enter__(self) -> None:
        if self.builder.now != self.end:
            raise RuntimeError("enter a scope where it is created: time has gone on since")
        self.builder.now = self.event["ts"] + GAP_NS
        self.stack.append(self.event)
        self.builder._enter_or_leave(self.event, 1)

    def __exit__(self, *exc: object) -> None:
        self.builder._enter_or_leave(self.event, -1)
        self.stack.remove(self.event)
        end = max(self.end - GAP_NS, self.builder.now)
        self.event["dur"], self.builder.now = end - self.event["ts"], end + GAP_NS


class TraceBuilder:
    """Events in the order of the calls. `device=None`: CPU only; `start_bytes`: live before.

    `external` says what joins device events to operators besides the correlation id: the
    operator's "External id" ("op"), a value that joins nothing ("correlation"), or "none".
    """

    def __init__(
        self, device: str | None = None, compute_capability: tuple[int, int] = (9, 0), *,
        vendor: str = "nvidia", device_index: int = 0, pid: int = 4242, external: str = "op",
        region: str = "torchprof::call", cuda_sync_events: bool = False,
        start_bytes: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        self.device, self.capability, self.amd = device, compute_capability, vendor == "amd"
        self.device_index, self.pid, self.tid, self.region = device_index, pid, pid, region
        self.external, self.cuda_sync_events = external, cuda_sync_events
        self.now, self.expected, self.extra = EPOCH_NS, Expected(), Event()
        self._totals = dict.fromkeys(ADDRESSES, 0) | dict(start_bytes or {})
        self._base, self._depth = dict(self._totals), 0
        self._ops, self._memory, self._python = list[Event](), list[Event](), list[Event]()
        self._rest = list[Event]()  # runtime calls, device events and flows
        self._stacks: dict[int, list[Event]] = {}
        self._blocks: dict[int, tuple[str, int]] = {}
        self._streams: dict[int, int] = {}
        self._spans: dict[tuple[int, str, int], tuple[int, int]] = {}
        self._ids, self._frames, self._counter = (itertools.count(1) for _ in range(3))
        self._correlations = itertools.count(8001)

    def _stack(self, *cats: str) -> list[Event]:
        stack = self._stacks.setdefault(self.tid, [])
        return [e for e in stack if e["cat"] in cats] if cats else stack

    def _enter_or_leave(self, event: Event, step: int) -> None:
        if event["cat"] == "user_annotation" and event["name"] == self.region:
            if step == 1 and not self._depth:
                self._base = dict(self._totals)
            self._depth += step

    def _count(self, **more: int) -> None:
        for key, value in more.items() if self._depth else ():
            setattr(self.expected, key, getattr(self.expected, key) + value)

    @contextmanager
    def thread(self, tid: int) -> Iterator[None]:
        """Host events of the body belong to thread `tid`; the one host clock goes on."""
        self.tid, before = tid, self.tid
        try:
            yield
        finally:
            self.tid = before

    def advance(self, us: float) -> None:
        self.now += round(us * 1000)

    def metadata(self, key: str, value: Any) -> None:
        """A top-level key, as `profile.add_metadata_json` writes it."""
        self.extra[key] = value

    def facts(self, facts: Facts) -> None:
        """What a live capture notes, as it writes it."""
        self.metadata(FACTS_KEY, json.loads(facts.stored()))

    def _host(self, cat: str, name: str, us: float, args: Event) -> Event:
        return _event("X", cat, name, self.pid, self.tid, self.now, dur=round(us * 1000), args=args)

    def annotation(self, name: str, dur_us: float = 1) -> Scope:
        args = {"External id": next(self._ids), "Record function id": 0}
        return Scope(self, self._ops, self._host("user_annotation", name, dur_us, args))

    def op(
        self, name: str, dims: Sequence[Any] | None = None, types: Sequence[str] | None = None,
        concrete: Sequence[str] | None = None, dur_us: float = 5, *,
        strides: Sequence[Any] | None = None, args: Mapping[str, Any] | None = None,
    ) -> Scope:  # fmt: skip
        """An operator; without `dims` it has no shape arguments. `args` is for the rest, such as
        {"Sequence number": 0, "Fwd thread id": 0}.
        """
        inside: Event = {"External id": next(self._ids), **(args or {}), "Record function id": 0}
        if dims is not None:
            inside["Concrete Inputs"] = list(concrete or [""] * len(dims))
            inside["Input type"] = list(types or ["float"] * len(dims))
            inside["Input Strides"] = list(strides or map(_contiguous, dims))
            inside["Input Dims"] = list(dims)
        self._count(ops=1)
        return Scope(self, self._ops, self._host("cpu_op", name, dur_us, inside))

    def python(self, name: str, dur_us: float = 1, **args: Any) -> Scope:
        """A frame, named as in "model.py(12): forward"."""
        parent = [None, *(e["args"]["Python id"] for e in self._stack("python_function"))][-1]
        args = {"Python parent id": parent, "Python id": next(self._frames), **args}
        return Scope(self, self._python, self._host("python_function", name, dur_us, args))

    def module(self, name: str, dur_us: float = 1) -> Scope:
        """A module call, named as in "nn.Module: Linear_0"."""
        number = re.search(r"_(\d+)$", name)
        return self.python(name, dur_us, **{"Python module id": int(number[1]) if number else 0})

    def overhead(self, name: str = "Activity Buffer Request", dur_us: float = 10) -> None:
        self._rest.append(_event("X", "overhead", name, -1, 0, self.now, dur=round(dur_us * 1000)))

    def memory(self, size: int, device: str = "cuda") -> int:
        """Allocate and return the address; a negative size frees a block from before the trace."""
        address = ADDRESSES[device] + (next(self._counter) << 24)
        self._blocks[address] = (device, size)
        self._move(size, device, address)
        return address

    def free(self, address: int) -> None:
        device, size = self._blocks.pop(address)
        self._move(-size, device, address)

    def _move(self, size: int, device: str, address: int) -> None:
        cuda = device == "cuda"
        if cuda:
            self._need_device()
        self._totals[device] += size
        total, known = self._totals[device], self.expected.memory[device]
        args = {"Total Reserved": -(-total // 2**21) * 2**21 if cuda else 0}
        args |= {"Total Allocated": total, "Bytes": size, "Addr": address}
        args |= {"Device Id": self.device_index if cuda else -1, "Device Type": int(cuda)}
        event = self._host("cpu_instant_event", "[memory]", 0, args) | {"ph": "i", "s": "t"}
        del event["dur"]
        self._memory.append(event)
        self.now += GAP_NS
        if self._depth:
            known.allocated += max(size, 0)
            known.freed += max(-size, 0)
            known.allocations += size > 0
            known.frees += size < 0
            known.live = total - self._base[device]
            known.peak = max(known.peak, known.live)

    def _need_device(self) -> None:
        if self.device is None:
            raise ValueError("this trace has no device")

    def _keep(self, event: Event, flow: str, correlation: int) -> None:
        pid, tid, ts = event["pid"], event["tid"], event["ts"]
        bind = {"bp": "e"} if flow == "f" else {}
        self._rest += [event, _event(flow, "ac2g", "ac2g", pid, tid, ts, id=correlation, **bind)]

    def _external(self, correlation: int) -> Event:
        ops = [e["args"]["External id"] for e in self._stack("cpu_op")]
        ids = {"op": ops, "correlation": [correlation], "none": []}[self.external]
        return {"External id": ids[-1]} if ids else {}

    def runtime(self, name: str, host_us: float = 5, amd_args: Event | None = None) -> Event:
        """Any other runtime call, such as cudaMalloc; an AMD trace has its hip name."""
        self._need_device()
        cat, correlation = "cuda_runtime", next(self._correlations)
        args = self._external(correlation)
        if self.amd:
            name = HIP.get(name, name.replace("cuda", "hip", 1))
            args |= {"cid": 0, "correlation": correlation, **(amd_args or {})}
        else:
            cat = cat if name.startswith("cuda") else "cuda_driver"
            args |= {"cbid": CBID.get(name, 0), "correlation": correlation}
        event = self._host(cat, name, host_us, args)
        self._keep(event, "s" if FLOW_START.match(name) else "f", correlation)
        self.now += event["dur"] + GAP_NS
        return event

    def _on_device(
        self, cat: str, name: str, us: float, stream: int, call: Event | None, args: Event
    ) -> int:
        """One device event, after its call began and its stream's last; returns when it ends."""
        correlation = call["args"]["correlation"] if call else next(self._correlations)
        start = max(self._streams.get(stream, 0), (call["ts"] if call else self.now) + LATENCY_NS)
        place: Event = {"device": self.device_index, "stream": stream, "correlation": correlation}
        args = (self._external(correlation) if call else {}) | place | args
        args |= {} if self.amd else {"context": 1}
        dur, gpu = round(us * 1000), self.device_index
        event = _event("X", cat, name, gpu, stream, start, dur=dur, args=args)
        end = self._streams[stream] = start + dur
        self._keep(event, "f", correlation)
        for scope in self._stack("user_annotation") if call else ():
            key = (scope["args"]["External id"], scope["name"], stream)
            self._spans[key] = (self._spans.get(key, (start, 0))[0], end)
        self._count(device_ns=dur)
        return end

    def _kernel(self, name: str, us: float, stream: int, call: Event | None, shape: Event) -> None:
        if self.amd:
            args = shape | {"kind": "Dispatch Kernel" if shape else "Dispatch Task"}
        else:
            args = shape or {"grid": [1024, 1, 1], "block": [128, 1, 1]}
            blocks = prod(args["grid"]) / NUM_SMS
            warps = blocks * prod(args["block"]) / 32
            args |= {"queued": 0, "registers per thread": 32, "shared memory": 0}
            args |= {"blocks per SM": round(blocks, 6), "warps per SM": round(warps, 6)}
            args |= {"est. achieved occupancy %": min(100, round(warps / 64 * 100))}
        self._on_device("kernel", name, us, stream, call, args)
        self._count(kernels=1)

    def launch(
        self, name: str, device_us: float = 10, stream: int = 7, *, host_us: float = 5,
        grid: Sequence[int] = (1024, 1, 1), block: Sequence[int] = (128, 1, 1),
        driver: bool = False, record_kernel: bool = True, call_name: str = "",
    ) -> None:  # fmt: skip
        """A launch call and its kernel, which `record_kernel=False` loses (partial capture)."""
        shape = {"grid": list(grid), "block": list(block)}
        amd_args = {"kernel": name, **shape, "shared memory": 0}
        name_of_call = call_name or ("cuLaunchKernel" if driver else "cudaLaunchKernel")
        call = self.runtime(name_of_call, host_us, amd_args)
        if record_kernel:
            self._kernel(name, device_us, stream, call, shape)
        self._count(launches=1, lost_kernels=int(not record_kernel))

    def wait(self, stream: int, other: int) -> None:
        """What a stream begins from now on waits for what another one has been given."""
        self._streams[stream] = max(self._streams.get(s, 0) for s in (stream, other))

    def graph_launch(
        self, names: Sequence[str], device_us: float = 10, stream: int = 7, host_us: float = 20,
        *, grid: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """One call, many kernels, one correlation id. On AMD the kernels have no External id."""
        call = self.runtime("cudaGraphLaunch", host_us)
        external, self.external = self.external, "none" if self.amd else self.external
        for name in names:
            shape = {"grid": list(grid), "block": [128, 1, 1]} if grid else {}
            self._kernel(name, device_us, stream, call, shape)
        self.external = external
        self._count(launches=1, graph_launches=1)

    def kernel_without_runtime(self, name: str, device_us: float = 10, stream: int = 7) -> None:
        self._need_device()
        self._kernel(name, device_us, stream, None, {"grid": [1024, 1, 1], "block": [128, 1, 1]})
        self._count(unlinked_kernels=1)

    def memcpy(
        self, kind: str, bytes: int, pageable: bool = True, device_us: float = 5,  # noqa: A002
        blocking: bool = False, *, stream: int = 7, host_us: float = 5,
    ) -> None:  # fmt: skip
        """A copy HtoD, DtoH or DtoD; a blocking one's call (cudaMemcpy) lasts until it ends."""
        peers, short, number = COPIES[kind]
        amd_args = {"src": "0x7f1800000000", "dst": "0x7f1900000000", "bytes": str(bytes)}
        call = self.runtime(
            "cudaMemcpy" if blocking else "cudaMemcpyAsync", host_us, amd_args | {"kind": number}
        )
        args = _bandwidth(bytes, device_us) | ({"kind": kind} if self.amd else {})
        name = f"Memcpy {kind} ({peers.format('Pageable' if pageable else 'Pinned')})"
        end = self._on_device("gpu_memcpy", name, device_us, stream, call, args)
        if blocking:
            call["dur"] = max(call["dur"], end + GAP_NS - call["ts"])
            self.now = call["ts"] + call["dur"] + GAP_NS
        self._count(**{f"{short}_copies": 1, f"{short}_bytes": bytes, "blocking_copies": blocking})

    def memset(self, bytes: int, device_us: float = 2, stream: int = 7) -> None:  # noqa: A002
        args = _bandwidth(bytes, device_us) | ({"kind": "Memset"} if self.amd else {})
        call = self.runtime("cudaMemsetAsync")
        self._on_device("gpu_memset", "Memset (Device)", device_us, stream, call, args)
        self._count(memsets=1)

    def sync(self, name: str, wait_us: float | None = None, stream: int = 7) -> None:
        """Synchronise for `wait_us`, or else until the device (or the stream) is done."""
        of_all, of_stream = (name == f"cuda{w}Synchronize" for w in ("Device", "Stream"))
        ends = self._streams.values() if of_all else [self._streams.get(stream, 0)]
        free_in = max(1.0, (max(ends, default=0) + GAP_NS - self.now) / 1000)
        call = self.runtime(name, free_in if wait_us is None else wait_us)
        self._count(syncs=1, sync_ns=call["dur"])
        if self.cuda_sync_events and not self.amd:
            number, kind = call["args"]["correlation"], SYNC_KIND.get(name, "Event Sync")
            args = {"External id": number, **self._external(number), "cuda_sync_kind": kind}
            if not of_all and not of_stream:
                args |= {"wait_on_stream": stream, "wait_on_cuda_event_record_corr_id": number}
                args |= {"wait_on_cuda_event_id": 1}
            args |= {"stream": stream if of_stream else NO_STREAM, "correlation": number}
            args |= {"device": self.device_index, "context": 1}
            where, ts, dur = stream if of_stream else -1, call["ts"], call["dur"]
            event = _event("X", "cuda_sync", kind, self.device_index, where, ts, dur=dur, args=args)
            self._keep(event, "f", number)

    def document(self) -> Event:
        """The trace as one JSON object, with times in microseconds."""
        known = sorted(self._ops, key=lambda e: e["ts"]) + self._memory + self._python
        body = [e | {"args": e["args"] | {"Ev Idx": i}} for i, e in enumerate(known)] + self._rest
        for (number, name, stream), (start, end) in self._spans.items():
            args, dur, gpu = {"External id": number}, end - start + 2, self.device_index
            more = {"dur": dur, "args": args}
            body.append(_event("X", "gpu_user_annotation", name, gpu, stream, start - 1, **more))
        first, last = EPOCH_NS - 100_000, max([self.now, *self._streams.values()])
        places = sorted({(e["pid"], e["tid"]) for e in body if "dur" in e} | {(self.pid, self.tid)})
        head = list[Event]()
        for pid in sorted({pid for pid, _ in places}):
            host = pid == self.pid
            head.append(_meta("process_name", pid, 0, "name", "python"))
            head.append(_meta("process_labels", pid, 0, "labels", "CPU" if host else f"GPU {pid}"))
            order = pid if host else 5_000_000 + pid
            head.append(_meta("process_sort_index", pid, 0, "sort_index", order))
        for pid, tid in places:
            label = f"thread {tid} (python)" if pid == self.pid else f"stream {tid} "
            head.append(_meta("thread_name", pid, tid, "name", label))
            head.append(_meta("thread_sort_index", pid, tid, "sort_index", tid))
        who, more = "PyTorch Profiler", {"dur": last - first, "args": {"Op count": 0}}
        tail = [_event("X", "Trace", f"{who} (0)", "Spans", who, first, **more)]
        tail.append(
            _event("i", None, f"Iteration Start: {who}", "Traces", f"Trace {who}", first, s="g")
        )
        tail.append(_event("i", None, "Record Window End", "", "", last, s="g"))
        events = times(head + body + tail, lambda ns: ns / 1000)
        return self._top() | {"traceEvents": events, "traceName": "trace.json"}

    def _top(self) -> Event:
        (major, minor), properties = self.capability, list[Event]()
        if self.device is not None:
            per_sm = (
                "maxSharedMemoryPerMultiProcessor" if self.amd else "sharedMemPerMultiprocessor"
            )
            base = {"name": self.device, "totalGlobalMem": 85_018_279_936, "computeMajor": major}
            base |= {"computeMinor": minor, "maxThreadsPerBlock": 1024, "regsPerBlock": 65536}
            base |= {"maxThreadsPerMultiprocessor": 2048, "warpSize": 64 if self.amd else 32}
            base |= {"sharedMemPerBlock": 49152, "numSms": NUM_SMS, per_sm: 233472}
            base |= {} if self.amd else {"regsPerMultiprocessor": 65536}
            properties = [{"id": i} | base for i in range(self.device_index + 1)]
        top: Event = {"schemaVersion": 1, "deviceProperties": properties, "trace_id": "0" * 32}
        top |= {"profile_memory": 1, "record_shapes": 1, "with_stack": int(bool(self._python))}
        top |= {"displayTimeUnit": "ms", "baseTimeNanoseconds": 1_751_410_836_000_000_000}
        return top | self.extra

    def to_bytes(self, style: str | Style | Sequence[str | Style] = ()) -> bytes:
        """The file's content. `style`: names out of STYLES and LAYOUTS or functions, in order."""
        styles = [style] if isinstance(style, str) or callable(style) else list(style)
        document, layouts = self.document(), {s for s in styles if s in LAYOUTS}
        for change in (s for s in styles if s not in LAYOUTS):
            document = (STYLES[change] if isinstance(change, str) else change)(document)
        if layouts & {"bare_list", "compact"}:
            events = document["traceEvents"]
            whole = events if "bare_list" in layouts else {"traceEvents": events, **document}
            text = json.dumps(whole, separators=(",", ":"))
        else:
            text = layout(document)
        return text.encode()[: -len(text) // 4 if "truncated" in layouts else None]

    def save(self, path: str | Path, style: str | Style | Sequence[str | Style] = ()) -> Path:
        """Write the file, compressed where `path` ends in .gz."""
        data = self.to_bytes(style)
        Path(path).write_bytes(gzip.compress(data, mtime=0) if str(path).endswith(".gz") else data)
        return Path(path)


def _event(
    ph: str, cat: str | None, name: str, pid: int | str, tid: int | str, ts: int, **more: Any
) -> Event:
    event = {"ph": ph, "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, **more}
    return {k: v for k, v in event.items() if k != "cat" or v is not None}


def _meta(name: str, pid: int, tid: int, key: str, value: Any) -> Event:
    return _event("M", None, name, pid, tid, EPOCH_NS, args={key: value})


def _contiguous(shape: Any) -> list[Any]:
    if any(isinstance(part, list) for part in shape):  # a list of tensors
        return [_contiguous(part) for part in shape]
    return [prod(shape[i + 1 :]) for i in range(len(shape))]


def _bandwidth(size: int, us: float) -> Event:
    return {"bytes": size, "memory bandwidth (GB/s)": size / (us * 1000) if us else "N/A"}
