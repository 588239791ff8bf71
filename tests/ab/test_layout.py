"""Processes whose memory lies alike."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_torchprof.ab.sides import ENVIRONMENT, same_addresses, same_environment

PERSONALITY = Path("/proc/self/personality")


@pytest.mark.skipif(not PERSONALITY.exists(), reason="Linux has it")
def test_processes_started_within_have_the_same_addresses_and_others_as_before() -> None:
    def address() -> str:
        program = "print(id(object()))"
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    before = PERSONALITY.read_text()
    with same_addresses():
        inside = PERSONALITY.read_text()
        found = {address() for _ in range(3)}
    assert before == PERSONALITY.read_text()
    assert inside == before or len(found) == 1  # where a container forbids it, nothing changes


def test_without_system_support_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    with same_addresses():
        pass


@pytest.mark.parametrize(
    ("users", "ours"),
    [
        ({}, set(ENVIRONMENT)),
        ({"PYTHONHASHSEED": "3"}, {"GOMP_SPINCOUNT", "KMP_BLOCKTIME"}),
        ({"GOMP_SPINCOUNT": "5"}, {"PYTHONHASHSEED", "KMP_BLOCKTIME"}),
        ({"OMP_WAIT_POLICY": "active"}, {"PYTHONHASHSEED"}),
        ({"OMP_NUM_THREADS": "2"}, set(ENVIRONMENT)),
    ],
)
def test_settings_that_the_user_left_open_are_equal_on_both_sides(
    users: dict[str, str], ours: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*ENVIRONMENT, "OMP_WAIT_POLICY", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in users.items():
        monkeypatch.setenv(name, value)
    assert same_environment() == {**os.environ, **{name: ENVIRONMENT[name] for name in ours}}
