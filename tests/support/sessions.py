"""Running pytest inside a test, and reading what it left behind."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch

import pytest_torchprof.analysis.operators
import pytest_torchprof.baseline.inline
import pytest_torchprof.render.table
import pytest_torchprof.session.hooks  # noqa: F401 - see `prime` below
from pytest_torchprof.capture.profiler import prime
from pytest_torchprof.rules.registry import RULES

if TYPE_CHECKING:
    from pytest_torchprof.rules.rule import Rule

# Load torch whole, now: pytester forgets what an inner session imports, and torch cannot bear to be
# imported twice.
prime(whole=True)
hasattr(torch, "_inductor")
torch._dynamo.list_backends()

#: Inner sessions run without these, whether installed or not, unless a test asks for one.
OTHER_PLUGINS = (
    "anyio",
    "asyncio",
    "cacheprovider",
    "hypothesispytest",
    "randomly",
    "rerunfailures",
    "timeout",
    "xdist",
)
NO_OTHER_PLUGINS = tuple(f"-pno:{name}" for name in OTHER_PLUGINS)

#: A test module with one test: one addition of four floats to four floats, and one constant.
ADD = """
    import torch

    X = torch.ones(4)

    def test_add():
        X + X
"""


@contextmanager
def replaced_rules() -> Iterator[dict[str, Rule]]:
    """No anti-pattern rules but those that are put into what this gives."""
    known = cast("dict[str, Rule]", RULES)
    before = dict(known)
    known.clear()
    try:
        yield known
    finally:
        known.clear()
        known.update(before)  # in their order, which pages and tables have too


@dataclass(frozen=True)
class Ran:
    """What an inner session said: pytest's result, and our report."""

    result: pytest.RunResult
    report: Mapping[str, Any]

    @property
    def ret(self) -> int:
        return int(self.result.ret)

    @property
    def out(self) -> str:
        return self.result.stdout.str()

    @property
    def err(self) -> str:
        return self.result.stderr.str()

    @property
    def tests(self) -> dict[str, dict[str, Any]]:
        """Records by the test's name within its file."""
        return {test["nodeid"].partition("::")[2]: test for test in self.report.get("tests", [])}

    @property
    def statuses(self) -> dict[str, str]:
        return {name: test["status"] for name, test in self.tests.items()}

    @property
    def outcomes(self) -> dict[str, int]:
        return self.result.parseoutcomes()

    def metric(self, name: str, test: str = "test_add") -> dict[str, Any]:
        """One metric of one test, as the report has it."""
        found: dict[str, Any] = self.tests[test]["metrics"][name]
        return found

    def usage_error(self) -> str:
        """The message of a usage error, with the exit status checked."""
        assert pytest.ExitCode.USAGE_ERROR == self.result.ret
        text = self.err + self.out
        assert "Traceback" not in text
        assert "INTERNALERROR" not in text
        return " ".join(line for line in text.splitlines() if line.startswith("ERROR: ")) or text


def run(
    pytester: pytest.Pytester,
    *args: str | Path,
    needs: Collection[str] = (),
    subprocess: bool = False,
    fresh: bool = True,
) -> Ran:
    """Run pytest on what the test has made; ``needs`` are the other plugins that it is about."""
    file = pytester.path / "report.json"
    if fresh:  # no report is there
        file.unlink(missing_ok=True)
    off = [flag for flag in NO_OTHER_PLUGINS if flag.partition(":")[2] not in needs]
    start = pytester.runpytest_subprocess if subprocess else pytester.runpytest_inprocess
    extra = {} if subprocess else {"no_reraise_ctrlc": True}
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("default")  # what the outer session makes an error is not ours
        # Not on the command line, where it is refused when profiling is off.
        patch.setenv("PYTEST_ADDOPTS", "--torchprof-json=report.json")
        result = start(*off, *args, **extra)
    return Ran(result, json.loads(file.read_text("utf-8")) if file.exists() else {})


def session(
    pytester: pytest.Pytester, source: str, *options: str
) -> tuple[pytest.RunResult, list[dict[str, Any]]]:
    """The result of a session over this test file, and its tests as the report has them."""
    sys.dont_write_bytecode = True  # of a file that is rewritten within its time stamp
    pytester.makepyfile(test_it=source)
    ran = run(pytester, *options)
    return ran.result, list(ran.tests.values())


def accept(pytester: pytest.Pytester, *args: str | Path, needs: Collection[str] = ()) -> Ran:
    """Make what the tests measure now their baseline."""
    ran = run(pytester, "--accept", *args, needs=needs)
    assert 0 == ran.ret, ran.out
    return ran


def baseline_file(pytester: pytest.Pytester, file: str = "test_it") -> Path:
    """Where the baselines of ``test_it.py`` lie."""
    return pytester.path / "__torchprof__" / f"{file}.json"


def read_baseline(pytester: pytest.Pytester, file: str = "test_it") -> dict[str, Any]:
    """The decoded baseline file."""
    data: dict[str, Any] = json.loads(baseline_file(pytester, file).read_text("utf-8"))
    return data


def read_detail(pytester: pytest.Pytester, test: str) -> dict[str, Any]:
    """The decoded line of the detail file that explains this test, in the one environment."""
    text = baseline_file(pytester).with_suffix(".detail.jsonl").read_text("utf-8")
    found: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    (detail,) = (one for one in found if one["test"] == test)
    return detail


def doctor(
    pytester: pytest.Pytester, test: str = "test_add", section: str = "metrics", **values: Any
) -> None:
    """Change accepted values of a test in the one environment that it has."""
    data = read_baseline(pytester)
    (entry,) = data["tests"][test].values()
    entry[section].update(values)
    baseline_file(pytester).write_text(json.dumps(data), "utf-8")


def doctor_times(pytester: pytest.Pytester, factor: float, test: str = "test_add") -> None:
    """Multiply the accepted times of rounds by a factor."""
    (entry,) = read_baseline(pytester)["tests"][test].values()
    times = entry["times"]
    names = ("wall_ms", "cpu_ms")
    multiples = {name: times["normalised"][name] * factor for name in names}
    scaled = {name: times[name] * factor for name in names}
    scaled["normalised"] = {**times["normalised"], **multiples}
    doctor(pytester, test, section="times", **scaled)


def note(file: str) -> None:
    """Append a line to a file; for inner tests, to count their real runs with `calls`."""
    with Path(file).open("a", encoding="utf-8") as lines:
        lines.write("called\n")


def calls(pytester: pytest.Pytester, file: str = "calls") -> int:
    """How often the inner tests have called `note`."""
    path = pytester.path / file
    return len(path.read_text("utf-8").splitlines()) if path.exists() else 0
