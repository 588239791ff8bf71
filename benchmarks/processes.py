"""Start the measured processes, in a separate project."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parent.parent
PLUGIN = "torchprof"
BLOCK_OURS = ("-p", f"no:{PLUGIN}")
QUIET = ("-q", "-p", "no:cacheprovider")


@dataclass(frozen=True)
class Cost:
    """What a process took: user and system CPU time, and wall time, in ms."""

    cpu_ms: float
    wall_ms: float


@dataclass(frozen=True)
class Project:
    """A folder with tests, and an environment in which byte code is cached as usual."""

    folder: Path
    environment: dict[str, str]

    def cost(self, command: Sequence[str], *, allowed: tuple[int, ...] = (0,)) -> Cost:
        """Run Python with these arguments to its end.

        Raises:
            RuntimeError: it ends with a status that is not allowed.
        """
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, *command],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        wall = time.perf_counter() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode not in allowed:
            raise RuntimeError(
                f"{' '.join(command)} ended with status {done.returncode}:\n"
                f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
            )
        cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        return Cost(cpu * 1000, wall * 1000)

    def ask(self, mode: str, *arguments: str) -> dict[str, Any]:
        """What `benchmarks.child` reports in this mode."""
        file = self.folder / "report.json"
        self.cost(["-m", "benchmarks.child", mode, str(file), *arguments])
        found: dict[str, Any] = json.loads(file.read_text("utf-8"))
        return found


@contextmanager
def project(*, own_cache: bool = False, **files: str) -> Iterator[Project]:
    """A temporary project with these test files, ``name=text``.

    ``own_cache`` keeps byte code in the project, so that code is compiled once and then loaded, as
    in an installation, whatever this environment's settings for byte code are.

    Raises:
        RuntimeError: the plugin is not installed, so there is nothing to measure.
    """
    if PLUGIN not in {entry.name for entry in entry_points(group="pytest11")}:
        raise RuntimeError("the plugin is not installed here: pip install -e .")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT), environment.get("PYTHONPATH")])
    )
    with TemporaryDirectory(prefix="benchmark-") as name:
        folder = Path(name)
        if own_cache:
            environment = cached_in(folder, environment)
        (folder / "pytest.ini").write_text("[pytest]\n", "utf-8")
        for stem, text in files.items():
            (folder / f"{stem}.py").write_text(text, "utf-8")
        yield Project(folder, environment)


def cached_in(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """This environment, with byte code in the folder, as an installation has its own."""
    kept = {k: v for k, v in environment.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(folder / "byte-code")}


@cache
def _byte_code() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="benchmark-")


def installed() -> dict[str, str]:
    """An environment in which our code is found, and compiled once, not in each process."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return cached_in(Path(_byte_code().name), {**os.environ, "PYTHONPATH": path})


def block_others() -> tuple[str, ...]:
    """Arguments that disable all other installed plugins, to make the base as small as possible."""
    names = sorted(entry.name for entry in entry_points(group="pytest11"))
    return tuple(arg for name in names if name != PLUGIN for arg in ("-p", f"no:{name}"))
