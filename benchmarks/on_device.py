"""``python -m benchmarks.on_device [PART…]``: what profiling costs where tests use a GPU.

Parts: ``profile`` (a profiled run against a bare profiler block), ``empty`` (a run of nothing),
``post`` (our processing against torch's), ``suite`` (200 small tests with and without the plugin),
``ab`` (verdicts of `torchprof ab` on tests that are bound by the device). Ratios are of one run;
goals are printed and never enforced. ``--within SECONDS`` is for a machine that is lent: what does
not fit is left out. ``--device cpu`` is for trying it without a GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tabulate import tabulate

from benchmarks.__main__ import HEADERS as ROW_HEADERS
from benchmarks.__main__ import cells
from benchmarks.ab_live import HEADERS as AB_HEADERS
from benchmarks.ab_live import Tally, commit, compared, git, lines
from benchmarks.pairs import Row, added, difference, paired, ratio, summarize
from benchmarks.payloads import Body, gpt, loop, mlp
from benchmarks.processes import QUIET, project

#: Of the time that is given to all parts.
_SHARE_OF_AB = 0.65
_SUITE = """\
import pytest
import torch

DEVICE = "{device}"
LAYER = torch.nn.Linear(64, 64, device=DEVICE)

@pytest.mark.parametrize("number", range({tests}))
def test_small(number):
    x = torch.ones(16, 64, device=DEVICE)
    loss = LAYER(x).relu().square().mean()
    loss.backward()
    assert loss.isfinite()
"""

_PACKAGE = """\
import torch

PRODUCTS = {{"same": {same}, "more": {more}}}

def work(kind, length, a, b, out):
    for _ in range(PRODUCTS[kind][length]):
        torch.mm(a, b, out=out)
"""
#: Side of the square matrices, dtype, and products in a short and a long call: about 1.5 and 10 ms
#: on an H100. A turn has several short calls, or a single long one.
_PRODUCTS = {"cuda": (2048, "bfloat16", (50, 360)), "cpu": (256, "float32", (10, 50))}
_LENGTHS = ("short", "long", "long")
_AB_TESTS = """\
import pytest
import torch
import payload

@pytest.fixture(scope="module")
def operands():
    torch.set_num_threads(1)
    make = lambda: torch.full(({size}, {size}), 0.01, dtype=torch.{dtype}, device="{device}")
    return make(), make(), make()

@pytest.mark.parametrize(("kind", "length", "copy"), {cases})
def test_work(kind, length, copy, operands): payload.work(kind, length, *operands)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts that are named, and print and write what they found as they end."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.on_device", description=__doc__)
    parser.add_argument("part", nargs="*", help=f"which: {', '.join(PARTS)} (default: all)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--pairs", type=int, default=10, help="of runs in profile and post")
    parser.add_argument("--tests", type=int, default=200, help="in the suite")
    parser.add_argument("--suites", type=int, default=1, help="pairs of suites")
    parser.add_argument("--same", type=int, default=100, help="comparisons of the same code")
    parser.add_argument("--more", type=int, default=40, help="comparisons with more work")
    parser.add_argument("--extra", type=int, default=10, help="how much more work, in percent")
    parser.add_argument("--min-time", type=float, default=0.3, help="as `torchprof ab` has it")
    parser.add_argument("--rounds", type=int, help="as `torchprof ab` has it, instead")
    parser.add_argument("--within", type=float, metavar="SECONDS", help="of all parts together")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    options = parser.parse_args(arguments)
    if unknown := set(options.part) - PARTS.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(PARTS)}")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    options.ends = math.inf if options.within is None else time.monotonic() + options.within
    found: dict[str, Any] = {}
    failed = 0
    for name, part in PARTS.items():
        if name not in (options.part or PARTS):
            continue
        started = time.monotonic()
        try:
            found[name] = part(options)
        except Exception:  # noqa: BLE001 - the other parts are of use
            found[name] = traceback.format_exc()
            print(found[name])
            failed = 1
        print(f"{name}: {time.monotonic() - started:.1f} s\n", flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    print(_machine(options.device))  # last: it takes a moment
    return failed


def _left_s(options: argparse.Namespace) -> float:
    return float(options.ends - time.monotonic())


def _machine(device: str) -> dict[str, Any]:
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    return {"device": name, "torch": str(torch.__version__), "cpus": os.cpu_count()}


def _shown(rows: Iterator[Row], options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows for which there is time, as a table too."""
    kept: list[Row] = []
    # `ab` takes the longest, and comes last.
    needed = 0.0 if options.within is None else _SHARE_OF_AB * options.within
    while _left_s(options) > needed and (row := next(rows, None)) is not None:
        kept.append(row)
    print(tabulate([cells(row) for row in kept], ROW_HEADERS, disable_numparse=True))
    return [asdict(row) for row in kept]


# -------------------------------------------------------------------- one profiled run


def _payloads(device: str) -> dict[str, Body]:
    """Payloads by name, warm, and the profiler too."""
    import torch

    from benchmarks import profiled

    torch.set_num_threads(1)
    made = {
        "MLP step": mlp(device),
        "transformer step": gpt(device),
        "5k-operator loop": loop(device, 5_000),
    }
    with TemporaryDirectory() as folder:
        for body in made.values():
            profiled.bare(body, Path(folder))
    return made


def profile(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Everything that one profiled run adds to a bare profiler block that exports its trace."""
    from benchmarks import profiled

    def rows() -> Iterator[Row]:
        for case, body in _payloads(options.device).items():
            with TemporaryDirectory() as name:
                samples = paired(
                    partial(profiled.ours, body, Path(name)),
                    partial(profiled.bare, body, Path(name)),
                    options.pairs,
                )
            yield summarize(f"profile: {case}", samples, unit="ms", figure=added, goal=1.0)

    return _shown(rows(), options)


def empty(options: argparse.Namespace) -> list[dict[str, Any]]:
    """What a profiled run of nothing costs beyond a bare session that is not exported."""
    from benchmarks import profiled
    from benchmarks.payloads import session

    def bare() -> float:
        start = time.perf_counter()
        with session():
            pass
        return (time.perf_counter() - start) * 1000

    def rows() -> Iterator[Row]:
        with TemporaryDirectory() as name:
            ours = partial(profiled.ours, lambda: None, Path(name))
            samples = paired(ours, bare, 5 * options.pairs)
        yield summarize("empty", samples, unit="ms", figure=difference, goal=5.0)

    return _shown(rows(), options)


def post(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Our processing of a profile against torch's own."""
    from benchmarks import profiled

    def rows() -> Iterator[Row]:
        for case, body in _payloads(options.device).items():
            with TemporaryDirectory() as name:
                found = [
                    profiled.both(body, Path(name), ours_first=n % 2 == 0)
                    for n in range(max(options.pairs // 2, 1))
                ]
            samples = [(ours, peer) for ours, _, peer in found]
            yield summarize(f"post: {case}", samples, unit="ms", figure=ratio, goal=0.15)

    return _shown(rows(), options)


# -------------------------------------------------------------------- many small tests


def suite(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Wall time of a suite of small tests with the plugin's default settings, against without."""

    def rows() -> Iterator[Row]:
        with project(test_small=_SUITE.format(device=options.device, tests=options.tests)) as made:
            made.environment["OMP_NUM_THREADS"] = "1"
            command = ["-m", "pytest", *QUIET]
            samples = paired(
                lambda: made.cost([*command, "--torchprof"]).wall_ms / 1000,
                lambda: made.cost(command).wall_ms / 1000,
                options.suites,
                warm=False,
            )
        yield summarize(f"suite: {options.tests} tests", samples, unit="s")
        each = [
            (ours * 1000 / options.tests, peer * 1000 / options.tests) for ours, peer in samples
        ]
        yield summarize("suite: added to a test", each, unit="ms", figure=difference)

    return _shown(rows(), options)


# -------------------------------------------------------------------- two revisions


def _cases(same: int, more: int) -> list[tuple[str, str, int]]:
    """Both kinds, mixed, so that a run that is interrupted has seen both."""
    made = [((n + 0.5) / same, "same", n) for n in range(same)]
    made += [((n + 0.5) / more, "more", n) for n in range(more)]
    return [(kind, _LENGTHS[n % len(_LENGTHS)], n) for _, kind, n in sorted(made)]


@contextmanager
def _repository(options: argparse.Namespace) -> Iterator[Path]:
    """A repository with the tags A and B, which is checked out."""
    size, dtype, units = _PRODUCTS[options.device]
    of_tests = {"cases": _cases(options.same, options.more), "device": options.device}
    with TemporaryDirectory(prefix="ab-device-") as name:
        folder = Path(name)
        tests = _AB_TESTS.format(size=size, dtype=dtype, **of_tests)
        (folder / "test_work.py").write_text(tests, "utf-8")
        (folder / "pytest.ini").write_text("[pytest]\npythonpath = .\n", "utf-8")
        (folder / ".gitignore").write_text("__pycache__/\n", "utf-8")
        git(folder, "init", "-q")
        for title, percent in (("A", 100), ("B", 100 + options.extra)):
            counts = dict(zip(("short", "long"), units, strict=True))
            more = {length: round(count * percent / 100) for length, count in counts.items()}
            text = f'"""{title}."""\n\n' + _PACKAGE.format(same=counts, more=more)
            (folder / "payload.py").write_text(text, "utf-8")
            commit(folder, title)
            git(folder, "tag", title)
        yield folder


def ab(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Verdicts of one run of the command: on tests of the same work, and of more work."""
    tallies: dict[tuple[int, str], Tally] = {}
    limit = None if options.within is None else max(_left_s(options), 1.0)
    with _repository(options) as folder:
        given = (options.min_time, "test_work.py")
        rows = compared(folder, *given, base="A", pairs=options.rounds, limit_s=limit)
    for row in rows:
        extra = options.extra if "[more" in row["name"] else 0
        length = "short" if "-short-" in row["name"] else "long"
        tallies.setdefault((extra, length), Tally()).add(row)
    print(tabulate(list(lines(tallies)), AB_HEADERS, tablefmt="github", disable_numparse=True))
    for row in rows:
        if row["verdict"] != ("slower" if "[more" in row["name"] else "same"):
            print(row)
    return rows


PARTS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "suite": suite,
    "profile": profile,
    "empty": empty,
    "post": post,
    "ab": ab,
}

if __name__ == "__main__":
    sys.exit(main())
