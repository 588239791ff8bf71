"""The cost of the installed plugin for a session that does not use it."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.pairs import Row, paired, summarize
from benchmarks.processes import BLOCK_OURS, QUIET, block_others, project

HEAVY = ("torch", "numpy", "tabulate", "expecttest", "msgspec")
TRIVIAL = """\
import pytest

@pytest.mark.parametrize("n", range({count}))
def test_trivial(n):
    assert n >= 0
"""


def off(*, quick: bool) -> Iterator[Row]:
    """CPU and wall time of a session with the plugin off against one without it; what it loads."""
    with project(
        own_cache=True,
        test_many=TRIVIAL.format(count=200),
        test_one=TRIVIAL.format(count=1),
    ) as tests:
        for case, pairs in (("many", 40), ("one", 40)):
            with_ours = ["-m", "pytest", *QUIET, *block_others(), f"test_{case}.py"]
            samples = paired(
                lambda command=with_ours: tests.cost(command),  # type: ignore[misc]
                lambda command=with_ours: tests.cost([*command, *BLOCK_OURS]),  # type: ignore[misc]
                6 if quick else pairs,
            )
            name = "200 tests" if case == "many" else "1 test"
            yield summarize(
                f"off: {name}, CPU",
                [(ours.cpu_ms, peer.cpu_ms) for ours, peer in samples],
                unit="ms",
                goal=1.01,
                note="user and system time of the process; peer: -p no:torchprof; "
                "every other plugin blocked in both",
            )
            yield summarize(
                f"off: {name}, wall",
                [(ours.wall_ms, peer.wall_ms) for ours, peer in samples],
                unit="ms",
            )
        arguments = (*QUIET, *block_others(), "test_one.py")
        ours = tests.ask("watch", *arguments)
        peer = tests.ask("watch", *arguments, *BLOCK_OURS)
    more = set(ours["modules"]) - set(peer["modules"])
    heavy = {name.partition(".")[0] for name in ours["modules"]} & set(HEAVY)
    yield _count(
        "off: heavy imports",
        heavy,
        {name.partition(".")[0] for name in peer["modules"]} & set(HEAVY),
        f"of {', '.join(HEAVY)} in sys.modules at the very end",
        goal=0,
    )
    yield _count(
        "off: processes started",
        ours["started"],
        peer["started"],
        "audited: subprocess, spawn, fork, exec, system",
        goal=0,
    )
    yield _count("off: modules loaded", ours["modules"], peer["modules"], " ".join(sorted(more)))


def _count(
    name: str,
    ours: set[str] | list[str],
    peer: set[str] | list[str],
    note: str,
    goal: float | None = None,
) -> Row:
    """How many there are; the figure is how many more than without the plugin."""
    found = f"; found: {' '.join(sorted(ours))}" if goal == 0 and ours else ""
    more = len(ours) - len(peer) if goal is None else len(ours)
    return Row(
        name=name,
        unit="",
        ours=len(ours),
        peer=len(peer),
        figure=more,
        figure_unit="",
        low=more,
        high=more,
        interval=(more, more),
        pairs=1,
        goal=goal,
        note=note + found,
    )
