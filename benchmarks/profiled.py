"""The cost of a profiled run beyond torch's profiler and torch's own analysis."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

from benchmarks.pairs import Row, added, paired, ratio, summarize
from benchmarks.payloads import PAYLOADS, Body, session

#: Pairs per payload, normally and with ``--quick``: torch takes 10 s for the last payload.
PROFILE_PAIRS = {"MLP step": (60, 8), "transformer step": (30, 4), "100k-operator loop": (5, 1)}
POST_PAIRS = {"MLP step": (30, 4), "transformer step": (15, 2), "100k-operator loop": (2, 1)}


def profile(*, quick: bool) -> Iterator[Row]:
    """Everything that one profiled run adds to a bare profiler block that exports its trace."""
    for case, make in _cases():
        with TemporaryDirectory() as folder:
            body = make()
            samples = paired(
                lambda body=body, folder=folder: ours(body, Path(folder)),  # type: ignore[misc]
                lambda body=body, folder=folder: bare(body, Path(folder)),  # type: ignore[misc]
                PROFILE_PAIRS[case][quick],
            )
        yield summarize(
            f"profile: {case}",
            samples,
            unit="ms",
            figure=added,
            goal=1.0,
            note="figure: (ours - peer) / peer; peer: bare block, same flags, export_chrome_trace",
        )


def post(*, quick: bool) -> Iterator[Row]:
    """Our processing of a profile against torch's."""
    for case, make in _cases():
        with TemporaryDirectory() as folder:
            body = make()
            count = POST_PAIRS[case][quick]
            if count > 2:
                both(body, Path(folder), ours_first=True)  # the first of all is not counted
            samples = [both(body, Path(folder), ours_first=n % 2 == 0) for n in range(count)]
        yield summarize(
            f"post: {case}",
            [(ours, peer) for ours, _, peer in samples],
            unit="ms",
            figure=ratio,
            goal=0.15,
            note="ours: read, metrics, operator table; peer: key_averages and the pattern matcher "
            "without source locations (a lower bound) on the same profile",
        )
        yield summarize(
            f"post: {case}, with export",
            [(ours + export, peer) for ours, export, peer in samples],
            unit="ms",
            note="as above, and the export that the peer does not need",
        )


#: The parts of the rules' cost, with goal and description. Places by operator are only needed
#: without a locating run: for accepted findings.
_PARTS = (
    ("rules", 0.05, "checking all rules"),
    ("places", None, "saying by operator where the findings are"),
)


def rules(*, quick: bool) -> Iterator[Row]:
    """The cost of the anti-pattern rules in a profiled run, after its metrics."""
    from pytest_torchprof.rules.registry import warm_up

    warm_up()  # as before the tests of a session
    for case, make in _cases():
        with TemporaryDirectory() as name:
            body, folder = make(), Path(name)
            pairs = paired(
                lambda body=body, folder=folder: _rules(body, folder),  # type: ignore[misc]
                lambda body=body, folder=folder: (bare(body, folder),),  # type: ignore[misc]
                PROFILE_PAIRS[case][quick],
            )
        for number, (part, goal, what) in enumerate(_PARTS):
            yield summarize(
                f"{part}: {case}",
                [(ours[number], peer[0]) for ours, peer in pairs],
                unit="ms",
                figure=ratio,
                goal=goal,
                note=f"ours: {what}; peer: bare block, same flags, export_chrome_trace",
            )


def _cases() -> Iterator[tuple[str, Callable[[], Body]]]:
    """The payloads, on one thread as in our measuring run."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    import torch

    torch.set_num_threads(1)
    yield from PAYLOADS.items()


def _gatherer(folder: Path) -> Any:
    from pytest_torchprof.capture.machine import probe_machine
    from pytest_torchprof.session.measurement import Gatherer
    from pytest_torchprof.session.plan import Plan

    return Gatherer(Plan(warmup=1, rounds=0), probe_machine(1), folder)


def ours(body: Body, folder: Path) -> float:
    """One profiled run as in a session: capture, export, read, all metrics, operators; in ms."""
    from pytest_torchprof.capture.profiler import Capture
    from pytest_torchprof.session.measurement import Captured
    from pytest_torchprof.verdict.profile import profile_of

    gatherer = _gatherer(folder)
    gc.collect()
    start = time.perf_counter()
    capture = Capture(threads=1)
    capture.start()
    body()
    recording = capture.stop(folder, gatherer.facts())
    file = recording.path
    gatherer.take(Captured("profile", recording.events(), file.open("rb")))
    profile_of(gatherer.measured())
    elapsed = _since(start)
    file.unlink()
    return elapsed


def _rules(body: Body, folder: Path) -> tuple[float, float]:
    """(checking all rules, placing their matches by operator) in ms, on one profile."""
    from pytest_torchprof.capture.profiler import Capture
    from pytest_torchprof.places.place import by_operator
    from pytest_torchprof.rules.check import check
    from pytest_torchprof.rules.registry import RULES
    from pytest_torchprof.verdict.metrics import METRICS, measure

    gc.collect()  # as before each run, but not between metrics and rules
    capture = Capture(threads=1)
    capture.start()
    body()
    recording = capture.stop(folder, _gatherer(folder).facts())
    trace = recording.events()
    recording.path.unlink()
    for name, metric in METRICS.items():
        if name != "findings":
            measure(metric, trace)
    start = time.perf_counter()
    checked = check(trace, RULES.values())
    rules_ms = _since(start)
    start = time.perf_counter()
    checked.findings(by_operator)
    return rules_ms, _since(start)


def bare(body: Body, folder: Path) -> float:
    """A bare profiler block with the same flags that exports its trace; in ms."""
    file = folder / "bare.json"
    gc.collect()
    start = time.perf_counter()
    with session() as profiler:
        body()
    profiler.export_chrome_trace(str(file))
    elapsed = _since(start)
    file.unlink()
    return elapsed


def both(body: Body, folder: Path, *, ours_first: bool) -> tuple[float, float, float]:
    """(ours, the export before it, torch's own) in ms, on one profile."""
    from torch.profiler import record_function

    from pytest_torchprof.session.measurement import Captured
    from pytest_torchprof.trace.names import REGION
    from pytest_torchprof.trace.read import read_trace
    from pytest_torchprof.verdict.profile import profile_of

    file = folder / "both.json"
    with session() as profiler, record_function(REGION):
        body()
    start = time.perf_counter()
    profiler.export_chrome_trace(str(file))
    export = _since(start)

    def read_and_measure() -> float:
        gatherer = _gatherer(folder)
        gc.collect()
        start = time.perf_counter()
        gatherer.take(Captured("profile", read_trace(file), file.open("rb")))
        profile_of(gatherer.measured())
        return _since(start)

    def peer() -> float:
        gc.collect()
        start = time.perf_counter()
        profiler.key_averages()
        _match_patterns(profiler)
        return _since(start)

    if ours_first:
        mine = read_and_measure()
        return mine, export, peer()
    theirs = peer()
    return read_and_measure(), export, theirs


def _match_patterns(profiler: Any) -> None:
    """Run torch's pattern matcher to its end.

    Its report needs the source line of every match, and raises ValueError on a profile without
    stacks, like ours; so it is given a made-up line.
    """
    try:
        from torch.profiler import _pattern_matcher as matcher
    except ImportError:  # gone from torch 2.15
        return
    with mock.patch.object(matcher, "source_code_location", _no_location):
        matcher.report_all_anti_patterns(profiler, should_benchmark=False, print_enable=False)


def _no_location(_event: object) -> str:
    """A plain function: a mock's own cost would count against torch."""
    return "unknown:0"


def _since(start: float) -> float:
    return (time.perf_counter() - start) * 1000
