"""The machine that a session runs on: first as it looks, then as torch says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from pytest_torchprof.capture.early_machine import early_machine
from pytest_torchprof.capture.forking import expect_threads, threads_now
from pytest_torchprof.capture.machine import Machine, probe_machine

if TYPE_CHECKING:
    from pytest_torchprof.core.settings import Settings


class KnownMachine:
    """Base class of a session's plugin object."""

    settings: Settings
    _machine: Machine | None = None

    @property
    def machine(self) -> Machine:
        """The machine, as torch describes it; asked once, which initializes the device."""
        if self._machine is None:
            before = threads_now()
            self._machine = probe_machine(self.settings.threads)
            expect_threads(threads_now() - before)  # the driver's, which no test has started
        return self._machine

    def first_look(self) -> dict[str, Any]:
        """The environment, as far as it can be told before tests are collected.

        Raises:
            CaptureError: torch is not installed or cannot be imported.
        """
        return self._environment(early_machine(self.settings.threads))

    def closer_look(self) -> dict[str, Any]:
        """The environment as it is."""
        return self._environment(self.machine)

    def _environment(self, machine: Machine) -> dict[str, Any]:
        chip = self.settings.device
        return {
            **asdict(machine),
            "key": machine.key,
            **({} if chip is None else {"chip": chip}),
        }
