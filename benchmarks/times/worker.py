"""One measured process: does a turn when it is told to, and is blocked on its input otherwise.

Usage: ``python -m benchmarks.times.worker plain|shaken``. A line on stdin (``NAME|12|1``: 12 calls
of this work, in pair 1; 0: how many fill a turn?) is answered by a line of JSON: the durations in
ns, or the count.

``plain`` is how a benchmark is usually run: the work is set up once. ``shaken`` is how
`torchprof ab` runs a test: memory lies elsewhere in each turn, what a fixture would make is made
anew as long as that is cheap, and the turns of a pair start on one processor.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable

from benchmarks.times.work import WORK, Body, reference
from pytest_torchprof.ab.layout import move_to, shaken

#: A turn is about as long.
TURN_NS = 8_000_000
#: Share of the measured time that new fixtures may cost.
_FRESH = 0.05


class Subject:
    """What is called, and what it cost to make it."""

    def __init__(self, make: Callable[[], Body]) -> None:
        self._make = make
        self._measured = self._making = 0
        self._body = make()
        self._timed(3)
        # The first calls are slow, and so may be a moment.
        middle = min(sorted(self._timed(9))[4] for _ in range(5))
        self.usual = max(1, round(TURN_NS / middle))

    def turn(self, calls: int) -> list[int]:
        """The duration of each call, in ns."""
        found = self._timed(calls)
        self._measured += sum(found)
        return found

    def renew(self) -> None:
        """Make it anew, as long as that costs little of the whole."""
        if self._making > _FRESH * self._measured:
            return
        start = time.perf_counter_ns()
        self._body = self._make()
        self._body()
        self._making += time.perf_counter_ns() - start

    def _timed(self, calls: int) -> list[int]:
        body, clock = self._body, time.perf_counter_ns
        found = []
        for _ in range(calls):
            start = clock()
            body()
            found.append(clock() - start)
        return found


def main() -> None:
    """Serve until the input ends."""
    import torch

    torch.set_num_threads(1)
    subjects = {name: Subject(make) for name, make in {**WORK, "reference": reference}.items()}
    gc.collect()
    gc.freeze()
    gc.disable()
    for line in sys.stdin:
        name, calls, pair = line.strip().split("|")
        subject = subjects[name]
        held = None
        if sys.argv[1] == "shaken" and int(calls):
            held = shaken()
            move_to(int(pair))
            subject.renew()
        answer = subject.turn(int(calls)) if int(calls) else [subject.usual]
        del held
        try:
            print(json.dumps(answer), flush=True)
        except BrokenPipeError:  # nobody listens any more
            os._exit(1)


if __name__ == "__main__":
    main()
