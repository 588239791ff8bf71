"""One payload for the GPU: a block to run, and what is known of it without any trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

Block: TypeAlias = Callable[[], Any]

#: Rules of payloads beside CUDA events: the kernel that spins before them has one block.
SPINS: Final = {"small-grid": 1}


@dataclass(frozen=True)
class Run:
    """A block, and what is done before each of its runs, unmeasured."""

    block: Block
    prepare: Block = lambda: None


Made: TypeAlias = Iterator[Block | Run]
Make: TypeAlias = Callable[[str], Made]


@dataclass(frozen=True)
class Payload:
    """A payload and its answers.

    Attributes:
        make: sets it up on a device, unmeasured, yields its block, and cleans up.
        counts: answers by hand: metrics, and the other numbers of `gpu_payloads.reading`.
        rules: how often each rule matches; rules that are not named are silent.
        stored: the same for the stored trace where it differs, as that does not identify tensors.
        may: rules that may match, because that depends on times or on the chip's libraries.
        unknown: metrics that a trace cannot tell here; the reader must say so.
        or_unknown: metrics that it need not know, but that must be right if it does.
        anywhere: the payload also runs on the CPU.
        counter: `FlopCounterMode` counts its FLOPs in full.
        timed: CUDA events around the block tell its device time, after a kernel that spins; the
            band of ``self_cuda_ms@timed`` as a share of it. Not for blocks that wait.
        rates: (operator, numerator) of rates that are checked by the events' time: FLOPs of the
            block by ``tflops_per_s@OPERATOR``, bytes by ``gb_per_s@OPERATOR``.
        compiles: the first run compiles, so facts of compilations are those of that run.
        warmups: runs before the captured one.
    """

    name: str
    make: Make
    counts: Mapping[str, int] = field(default_factory=dict)
    rules: Mapping[str, int] = field(default_factory=dict)
    stored: Mapping[str, int] = field(default_factory=dict)
    may: frozenset[str] = frozenset()
    unknown: frozenset[str] = frozenset()
    or_unknown: frozenset[str] = frozenset()
    anywhere: bool = True
    counter: bool = False
    timed: tuple[float, float] | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    compiles: bool = False
    warmups: int = 2

    @property
    def about(self) -> str:
        """What it is, in words."""
        return " ".join((self.make.__doc__ or self.name.replace("_", " ")).split())

    def set_up(self, device: str) -> AbstractContextManager[Run]:
        """Its block on this device, until the end of the context."""

        @contextmanager
        def context() -> Iterator[Run]:
            for made in self.make(device):
                yield made if isinstance(made, Run) else Run(made)

        return context()


class Payloads(list[Payload]):
    """The payloads of one file, in order, filled by the decorator below."""

    def add(
        self,
        *,
        rules: Mapping[str, int] | None = None,
        stored: Mapping[str, int] | None = None,
        may: str = "",
        unknown: str = "",
        or_unknown: str = "",
        anywhere: bool = True,
        counter: bool = False,
        timed: tuple[float, float] | None = None,
        rates: Mapping[str, float] | None = None,
        compiles: bool = False,
        warmups: int = 2,
        **counts: int,
    ) -> Callable[[Make], Make]:
        """The function below makes a payload; ``counts`` with ``__`` for the ``@`` of a scope."""

        def add(make: Make) -> Make:
            payload = Payload(
                make.__name__,
                make,
                {name.replace("__", "@", 1): count for name, count in counts.items()},
                rules or {},
                stored or {},
                frozenset(may.split()),
                frozenset(unknown.split()),
                frozenset(or_unknown.split()),
                anywhere=anywhere,
                counter=counter,
                timed=timed,
                rates=rates or {},
                compiles=compiles,
                warmups=warmups,
            )
            self.append(payload)
            return make

        return add
