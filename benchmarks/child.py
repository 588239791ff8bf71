"""The code of a measured process: an observed pytest session, or a loop of bare profiler sessions.

Usage: ``python -m benchmarks.child MODE REPORT ARGUMENT…``. The report is JSON. Nothing is imported
before it is needed: this process is what is measured.
"""

from __future__ import annotations

import atexit
import sys

MODE = sys.argv[1]


def report(value: object) -> None:
    """Write the result; the last thing that this process does."""
    import json

    with open(sys.argv[2], "w", encoding="utf-8") as file:  # noqa: PTH123 - pathlib is watched
        json.dump(value, file)


def watch() -> int:
    """A pytest session: which modules it has loaded at the very end, which processes it started."""
    started: list[str] = []
    # The handler registered first runs last, so this one sees what all others have imported.
    atexit.register(lambda: report({"modules": sorted(sys.modules), "started": started}))

    def hook(event: str, args: tuple[object, ...]) -> None:
        if event == "subprocess.Popen" or event.startswith(
            ("os.posix_spawn", "os.fork", "os.exec", "os.spawn", "os.system")
        ):
            started.append(f"{event} {args[:2]}")

    sys.addaudithook(hook)
    import pytest

    return int(pytest.main(sys.argv[3:]))


def clock() -> int:
    """A pytest session: wall time in ms of each test's protocol, and resident MiB after each.

    In mode ``bare``, each test is called within a bare profiler session.
    """
    import time
    from collections.abc import Generator

    import pytest

    times: list[float] = []
    resident: list[float] = []

    class BareProfiler:
        """Starts and stops torch's profiler around each test's call; its results are not read."""

        @pytest.hookimpl(wrapper=True, trylast=True)
        def pytest_runtest_call(self) -> Generator[None, object, object]:
            """Profile one call."""
            from benchmarks.payloads import session

            with session():
                return (yield)

    class Clock:
        """Times everything that belongs to one test."""

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_protocol(self) -> Generator[None, object, object]:
            """Time one test."""
            start = time.perf_counter()
            result = yield
            times.append((time.perf_counter() - start) * 1000)
            resident.append(resident_mib())
            return result

    plugins: list[object] = [Clock()]
    if MODE == "bare":
        import torch

        torch.set_num_threads(1)
        plugins.append(BareProfiler())
    status = int(pytest.main(sys.argv[3:], plugins=plugins))
    report({"times": times, "resident": resident})
    return status


def sessions() -> int:
    """Bare profiler sessions around a file's ``body``, each exported: resident MiB after each."""
    import runpy
    import tempfile
    from pathlib import Path

    body = runpy.run_path(sys.argv[3])["body"]
    import torch

    from benchmarks.payloads import session

    torch.set_num_threads(1)
    resident = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(int(sys.argv[4])):
            file = Path(folder, f"{number}.json")
            with session() as profiler:
                body()
            profiler.export_chrome_trace(str(file))
            file.unlink()
            resident.append(resident_mib())
    report({"resident": resident})
    return 0


def resident_mib() -> float:
    """Resident memory now; its peak so far if the system does not tell."""
    import resource

    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - called after every test
            return int(file.read().split()[1]) * resource.getpagesize() / 2**20
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (2**20 if sys.platform == "darwin" else 2**10)


if __name__ == "__main__":
    sys.exit({"watch": watch, "clock": clock, "bare": clock, "sessions": sessions}[MODE]())
