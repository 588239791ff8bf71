"""Facts that a live capture stores in its trace's metadata, beside the events."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Annotated, Final

# Under names that no test replaces.
from msgspec import Meta, ValidationError, convert
from msgspec.json import decode, encode
from msgspec.structs import asdict, replace

from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.unknown import Reason
from pytest_torchprof.core.values import Sample

#: The metadata key of the facts.
FACTS_KEY: Final = "torchprof"

#: The version of what is stored. Early files have none; readers ignore unknown keys.
VERSION: Final = 1

#: Older msgspec raises the second for whole numbers beyond 64 bits.
_UNFIT = (ValidationError, SystemError)


class Quantity(Frozen, frozen=True, omit_defaults=True, kw_only=True):
    """A quantity of the timed rounds: the fields of a `Sample`, or those of a `Reason`."""

    n: int | None = None
    median: float | None = None
    low: float | None = None
    high: float | None = None
    minimum: float | None = None
    rounds: tuple[float, ...] = ()
    code: str | None = None
    text: str | None = None

    @classmethod
    def of(cls, measured: Sample | Reason) -> Quantity:
        """The stored form of a sample, or of the reason for having none."""
        fields = decode(encode(measured))
        if isinstance(measured, Sample):
            fields["rounds"] = measured.rounds
        return cls(**fields)

    @property
    def sample(self) -> Sample | None:
        """The sample; None if a field is missing or invalid."""
        numbers = (self.median, self.low, self.high, self.minimum)
        known = [one for one in numbers if one is not None and math.isfinite(one)]
        if self.n is None or self.n < 1 or len(known) < 4:
            return None
        median, low, high, minimum = known
        fits = len(self.rounds) == self.n and all(map(math.isfinite, self.rounds))
        return Sample(self.n, median, low, high, minimum, self.rounds if fits else ())

    @property
    def reason(self) -> Reason | None:
        """Why there is no sample; None if no reason is stored."""
        if self.code is None or self.text is None:
            return None
        return convert({"code": self.code, "text": self.text}, Reason)


class ReferenceNote(Frozen, frozen=True, omit_defaults=True, kw_only=True):
    """The fastest of ``n`` runs of the reference kernel between the rounds, in ms.

    ``page_faults``: the fewest in a round. ``others``: the least share of a round's CPU time that
    other threads took. ``thread_ms``: the least CPU time of the test's own thread in a round.
    ``one_thread_ms``: the least CPU time of ``more`` rounds of one intra-op thread.
    """

    wall_ms: float | None = None
    cpu_ms: float | None = None
    n: int | None = None
    conditions: str | None = None
    page_faults: int | None = None
    others: float | None = None
    thread_ms: float | None = None
    one_thread_ms: float | None = None
    more: int | None = None


class RegionTimes(Frozen, frozen=True, omit_defaults=True, kw_only=True):
    """Times of a named region over the timed rounds, in ms; a round's is the sum over its laps.

    ``count``: the laps of each round. ``laps``: the median wall and CPU time of each lap, as far as
    they are stored.
    """

    wall_ms: Quantity | None = None
    cpu_ms: Quantity | None = None
    count: int | None = None
    laps: tuple[tuple[float, float], ...] = ()


class CompileNote(Frozen, frozen=True):
    """A graph break: dynamo's reason, the line, and the compilation's id.

    ``ms``: the time spent compiling because of it, in ms; None if unknown.
    """

    reason: str
    location: str | None = None
    id: str | None = None
    ms: float | None = None


class RecompileNote(CompileNote, frozen=True):
    """A recompilation.

    ``frame_before``: whether the function was already compiled before the test. ``users``:
    whether the function is the user's own. ``cause``: see `capture.dynamo.cause`.
    """

    frame_before: bool = False
    users: bool = False
    cause: str | None = None


class CompileWork(Frozen, frozen=True, omit_defaults=True, kw_only=True):
    """What torch.compile did, in torch's own numbers. None means unknown, never 0.

    Attributes:
        graphs: graphs that dynamo gave to a backend.
        cudagraphs: CUDA graphs captured, by compiled code or by other code.
        cudagraph_skips: compiled graphs that inductor was asked to run as CUDA graphs and does not.
        cache_hits: lookups in the caches of AOTAutograd and inductor that found compiled code.
        cache_misses: those that found none.
        ms: time spent compiling, in ms.
    """

    graphs: int | None = None
    cudagraphs: int | None = None
    cudagraph_skips: int | None = None
    cache_hits: int | None = None
    cache_misses: int | None = None
    ms: float | None = None


class Graph(Frozen, frozen=True, array_like=True):
    """The products in a compiled graph.

    ``flops`` are those of products with known shapes, ``products`` is the number of all products.
    ``dynamic`` names the products with unknown shapes, ``loops`` the kernels of products that are
    no longer in the graph.
    """

    flops: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    products: int = 0
    dynamic: tuple[str, ...] = ()
    loops: tuple[str, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether the graph has no products."""
        return not (self.products or self.loops)


class Facts(Frozen, frozen=True, omit_defaults=True, kw_only=True):
    """What a live capture knows beyond its events. None means unknown, never 0.

    Attributes:
        version: the version of what was stored; None in early files.
        environment: the key of the environment in baselines.
        accelerator: its name; None also without an accelerator.
        device_type: torch's name for the type of accelerator.
        torch: torch's version.
        wall_ms: of the timed rounds, like ``cpu_ms`` and ``instructions``.
        reference: the reference kernel, which ran between the rounds.
        regions: times of the regions that the test has named.
        graph_breaks: their number in the first run, like all facts of compilations, or why
            it is unknown.
        recompiles: the same.
        compile_work: what else is known of the first run's compilations.
        breaks: a row for each graph break.
        recompilations: a row for each recompilation.
        earlier_breaks: graph breaks of earlier compilations by compile id; None if not all known.
        compiled: compile ids of everything that was compiled since the test began.
        compiled_calls: how often the region was seen to call a function that torch.compile has
            wrapped, if it was.
        graphs: the graphs that inductor compiled, by key.
        lost_loops: loops of products whose inductor graph is lost.
        marks_graphs: whether this torch annotates calls of inductor's graphs.
        packages: the number of calls of AOTInductor packages.
        no_device: why the device is not recorded, if it is not.
        no_memory: why memory is not recorded, if it is not.
        no_device_memory: why the device's memory is not recorded, if it is not.
        awaited: whether the capture itself waited for the device after the region; then a trace
            that does not record this call may lack others.
        elsewhere: why numbers are lower bounds, if they are.
        left_threads: native ids of threads that the region started and that neither had ended nor
            waited for work a moment after its end, and of older ones that were running code of the
            user's before it, too.
        allow_tf32: whether products of fp32 may run as TF32; None if there is no such setting.
        anomaly_before: whether anomaly mode was on before the region.
        asked: metrics of a device's work that the test asks for, and that are measured only then.
        chip: the chip for which its work is estimated.
        estimated_cuda_bytes: the peak on a device, estimated by a run of one thread's memory, where
            this one has none.
    """

    version: int | None = None
    environment: str | None = None
    accelerator: str | None = None
    device_type: str | None = None
    torch: str | None = None
    wall_ms: Quantity | None = None
    cpu_ms: Quantity | None = None
    instructions: Quantity | None = None
    reference: ReferenceNote | None = None
    regions: dict[str, RegionTimes] | None = None
    graph_breaks: int | Reason | None = None
    recompiles: int | Reason | None = None
    compile_work: CompileWork | None = None
    compiled: tuple[str, ...] | None = None
    compiled_calls: int | None = None
    breaks: tuple[CompileNote, ...] | None = None
    recompilations: tuple[RecompileNote, ...] | None = None
    earlier_breaks: dict[str, tuple[CompileNote, ...]] | None = None
    graphs: dict[str, Graph] | None = None
    lost_loops: tuple[str, ...] | None = None
    marks_graphs: bool | None = None
    packages: int | None = None
    no_device: Reason | None = None
    no_memory: Reason | None = None
    no_device_memory: Reason | None = None
    awaited: bool | None = None
    elsewhere: Reason | None = None
    left_threads: tuple[int, ...] | None = None
    allow_tf32: bool | None = None
    anomaly_before: bool | None = None
    asked: tuple[str, ...] | None = None
    chip: str | None = None
    estimated_cuda_bytes: int | None = None

    def __or__(self, more: Facts) -> Facts:
        """The facts of both; ``more`` wins where both know one."""
        if more == _NOTHING:
            return self
        if self == _NOTHING:
            return more
        known = {name: value for name, value in asdict(more).items() if value is not None}
        return replace(self, **known)

    def stored(self) -> str:
        """The JSON text for a trace's metadata, with the current version."""
        return encode(replace(self, version=VERSION)).decode()

    @classmethod
    def read(cls, noted: object) -> Facts:
        """Facts from a trace's metadata, as decoded JSON; a value of a wrong type is unknown."""
        if not isinstance(noted, dict):
            return _NOTHING
        try:
            return convert(noted, cls)
        except _UNFIT:
            pass
        found = {}
        for name in noted.keys() & {*cls.__struct_fields__}:
            with suppress(*_UNFIT):
                found[name] = getattr(convert({name: noted[name]}, cls), name)
        return cls(**found)


_NOTHING: Final = Facts()
