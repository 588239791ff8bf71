"""How many workers a DataLoader could have in a live test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_torchprof.analysis.unprofiled_time import cpu_ns, wall_ns
from pytest_torchprof.core.reasons import Reason, Why, because

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

#: From this load average per processor on, workers wait for a processor.
_BUSY: Final = 2
#: What workers save is estimated for so many.
_WORKERS: Final = 2
#: A test that uses a processor for less of its time waits, as for a disk.
_COMPUTES: Final = 0.5


def lacks_processors(trace: Events) -> Reason | None:
    """Why it is unknown whether workers pay: other programs use the processors."""
    busy = (trace.facts.load_per_processor or 0) >= _BUSY or not workers(trace)
    return because(Why.NO_FREE_PROCESSORS) if busy else None


def workers(trace: Events) -> int:
    """Two; but no more than the processors besides the test's own, unless it mostly waits."""
    processors = trace.facts.processors
    if processors is None or _waits(trace):
        return _WORKERS
    return min(_WORKERS, processors - 1)


def _waits(trace: Events) -> bool:
    wall, cpu = wall_ns(trace), cpu_ns(trace)
    return wall is not None and cpu is not None and cpu < _COMPUTES * wall
