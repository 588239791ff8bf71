"""One measured process: does a turn when it is told to, and is blocked on its input otherwise.

Usage: ``python -m benchmarks.times.worker``. A line on stdin (``NAME|12``: 12 calls of this
work; 0: how many fill a turn?) is answered by a line of JSON: the durations in ns, or the count.
"""

from __future__ import annotations

import gc
import json
import sys
import time

#: A turn is about as long.
TURN_NS = 8_000_000


def durations(body: object, calls: int) -> list[int]:
    """Of each call, in ns."""
    assert callable(body)
    clock = time.perf_counter_ns
    found = []
    for _ in range(calls):
        start = clock()
        body()
        found.append(clock() - start)
    return found


def calls_of_a_turn(body: object) -> int:
    """Warms up, and says how many calls fill a turn."""
    durations(body, 3)
    found = sorted(durations(body, max(5, TURN_NS // max(durations(body, 1)[0], 1))))
    return max(1, round(TURN_NS / found[len(found) // 2]))


def main() -> None:
    """Serve until the input ends."""
    import torch

    from benchmarks.times.work import WORK, reference

    torch.set_num_threads(1)
    bodies = {name: make() for name, make in {**WORK, "reference": reference}.items()}
    usual = {name: calls_of_a_turn(body) for name, body in bodies.items()}
    gc.collect()
    gc.freeze()
    gc.disable()
    for line in sys.stdin:
        name, _, calls = line.strip().partition("|")
        answer = durations(bodies[name], int(calls)) if int(calls) else [usual[name]]
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
