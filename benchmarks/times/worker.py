"""One measured process: runs a turn on request, and otherwise waits for input.

Usage: ``python -m benchmarks.times.worker plain|shaken``. A line on stdin (``NAME|12|1|0``: 12
calls of this work, in pair 1, without a new setup; 0 calls: how many fill a turn?) is answered by
a line of JSON: the durations, or the count, and the time of a new setup, in ns.

``plain`` is how a benchmark is usually run: the work is set up once. ``shaken`` is how
`torchprof ab` runs a test: each turn has another memory layout, the setup (like a fixture's) is
repeated on request, and the turns of a pair start on one processor.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable

from benchmarks.times.work import WORK, Body, reference
from pytest_torchprof.capture.clock import move_to, shaken
from pytest_torchprof.verdict.paired import TURN_NS


class Subject:
    """What is called, and the cost of its setup."""

    def __init__(self, make: Callable[[], Body]) -> None:
        self._make = make
        self._body = make()
        self.turn(3)
        # The first calls are slow, and any single call may be disturbed.
        middle = min(sorted(self.turn(9))[4] for _ in range(5))
        self.usual = max(1, round(TURN_NS / middle))

    def renew(self) -> int:
        """Set it up again; return how long that took, in ns."""
        start = time.perf_counter_ns()
        self._body = self._make()
        self._body()
        return time.perf_counter_ns() - start

    def turn(self, calls: int) -> list[int]:
        """The duration of each call, in ns."""
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
        name, calls, pair, fresh = line.strip().split("|")
        subject = subjects[name]
        held, making = None, 0
        if sys.argv[1] == "shaken" and int(calls):
            held = shaken()
            move_to(int(pair))
            making = subject.renew() if int(fresh) else 0
        answer = subject.turn(int(calls)) if int(calls) else [subject.usual]
        del held
        try:
            print(json.dumps([answer, making]), flush=True)
        except BrokenPipeError:  # the reader is gone
            os._exit(1)


if __name__ == "__main__":
    main()
