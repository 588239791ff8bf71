"""Signs of a busy machine, from files that a test has written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_torchprof.capture import load as busy
from pytest_torchprof.capture.load import PROBES, BusyWatch, Window
from pytest_torchprof.capture.patches import REAL

TICKS = os.sysconf("SC_CLK_TCK")


class System:
    """A machine of 4 CPUs as Linux tells of it, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 0
        self.cpu = [0.0] * 10  # user, nice, system, idle, iowait, irq, softirq, steal, …
        self.own = 0.0

    def write(self, **throttles: int) -> None:
        ticks = " ".join(str(round(seconds * TICKS)) for seconds in self.cpu)
        (self.folder / "stat").write_text(f"cpu  {ticks}\ncpu0 1 2 3\n", "ascii")
        for name, count in throttles.items():
            file = self.folder / "cpu0" / "thermal_throttle" / f"{name}_throttle_count"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{count}\n", "ascii")

    def container(self, throttled_usec: int) -> None:
        text = f"usage_usec 5\nthrottled_usec {throttled_usec}\n"
        (self.folder / "cpu.stat").write_text(text, "ascii")


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> System:
    made = System(tmp_path)
    monkeypatch.setattr(busy, "STAT", tmp_path / "stat")
    monkeypatch.setattr(busy, "THROTTLES", tmp_path)
    monkeypatch.setattr(busy, "CGROUP", tmp_path / "cpu.stat")
    monkeypatch.setattr(REAL, "cpus", lambda: 4)
    monkeypatch.setattr(os, "times", lambda: (made.own, 0.0, 0.0, 0.0, 0.0))
    monkeypatch.setattr(REAL, "clock", lambda: made.now)
    return made


def after(system: System, seconds: float = 1.0) -> str | None:
    """The watch's explanation after this many seconds, if only `later` changes anything."""
    watch = BusyWatch()
    system.now += int(seconds * 1e9)
    return said_by(watch)


def said_by(watch: BusyWatch) -> str | None:
    """In words."""
    return ", ".join(one.text for one in watch.explain()) or None


def test_a_machine_without_load_counters_does_not_count_as_busy(system: System) -> None:
    assert after(system) is None


@pytest.mark.parametrize(
    ("user", "own", "message"),
    [
        (2.0, 2.0, None),  # our own two threads are no other's
        (3.0, 2.0, None),  # a quarter
        (3.1, 2.0, "other processes used about 30% of the CPUs"),
        (4.0, 0.0, "other processes used about 100% of the CPUs"),
        (0.0, 2.0, None),  # children that we have waited for, all at once
    ],
)
def test_cpu_time_of_others(system: System, user: float, own: float, message: str | None) -> None:
    system.write()
    watch = BusyWatch()
    system.now, system.own, system.cpu[0] = 10**9, own, user
    system.write()
    assert message == said_by(watch)


@pytest.mark.parametrize(
    ("stolen", "message"),
    [(0.2, None), (0.25, "the hypervisor took about 10% of the CPUs"),
     (1.2, "the hypervisor took about 30% of the CPUs")],
)  # fmt: skip
def test_steal(system: System, stolen: float, message: str | None) -> None:
    system.write()
    watch = BusyWatch()
    system.now, system.cpu[7] = 10**9, stolen
    system.write()
    assert message == said_by(watch)


def test_heat_and_a_containers_quota_are_reported_together(system: System) -> None:
    system.write(core=3, package=4)
    system.container(100)
    assert after(system) is None
    watch = BusyWatch()
    system.now += 10**9
    system.write(core=3, package=5)
    system.container(100 + 60_000)
    heat, quota = (
        "a CPU was throttled because of heat",
        "the container's CPU quota was used",
    )
    assert f"{heat}, {quota} up" == said_by(watch)


def test_a_short_window_says_nothing(system: System) -> None:
    system.write()
    watch = BusyWatch()
    system.now, system.cpu[0] = int(busy.LEAST_S * 1e9) - 1, 4.0
    system.write()
    assert said_by(watch) is None


@pytest.mark.parametrize("text", ["", "cpu\n", "cpu a b c d e f g h\n", "intr 1 2 3 4 5 6 7 8 9\n"])
def test_a_probe_that_cannot_be_read_is_not_there(system: System, text: str) -> None:
    (system.folder / "stat").write_text(text, "ascii")
    (system.folder / "cpu.stat").write_text("throttled_usec many\n", "ascii")
    assert after(system) is None
    watch = BusyWatch()
    system.write()  # nor one that comes later
    system.cpu[0], system.now = 99.0, system.now + 10**9
    system.write()
    assert said_by(watch) is None


def test_the_probes_work_here_or_are_not_there() -> None:
    for probe in PROBES.values():
        try:
            probe.read()
        except (OSError, ValueError):
            continue
        assert probe.explain(Window(0.0, 1.0, 1)) is None
