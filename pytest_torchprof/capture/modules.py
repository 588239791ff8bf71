"""Mark the running ``nn.Module``: a tracer opens and closes markers in a measuring profile.

``with_stack`` is not an option: torch keeps an event for each call of a Python function, so a test
that compiles, or makes a million calls, exhausts the memory.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

from pytest_torchprof.capture.lines import LineTracer
from pytest_torchprof.capture.machine import real_torch
from pytest_torchprof.capture.module_classes import RunningModules
from pytest_torchprof.core.reasons import Why, because
from pytest_torchprof.trace.known_names import MODULE_MARK


class ModuleTracer(LineTracer):
    """Marks modules by their class, in the thread that calls `start`, until `stop`.

    A module runs while it is called, including hooks, or while its ``forward`` is called directly.
    """

    measures = True
    _TOO_MANY = Why.TOO_MANY_MODULES

    def __init__(self) -> None:
        super().__init__()
        self._names = self._inside = RunningModules()
        self._module = real_torch().module
        self._entries = {*self._call_names, "forward"}

    @property
    def unseen(self) -> frozenset[str]:
        """Classes of modules that may have run inside scripted or compiled ones, unmarked."""
        return frozenset(self._inside.unseen)

    def _begin(self, innermost: FrameType) -> None:
        """Modules that are already running do not belong to the measured region."""

    def _called(self, frame: FrameType, event: str, arg: object) -> Any:
        """A function begins: all except modules' calls continue untraced."""
        if not (self._on and self._left):
            return super()._called(frame, event, arg)
        code = frame.f_code
        if code.co_name not in self._entries or not code.co_argcount:
            return None
        try:
            module = frame.f_locals.get(code.co_varnames[0])
            if self._inside.innermost() is not module and issubclass(type(module), self._module):
                name = self._inside.enter(module)
                self._push(frame, f"{MODULE_MARK}{name}", module=True)
                frame.f_trace_lines = False
                return self._module_local
        except Exception as error:  # noqa: BLE001 - a fault of ours must not reach the test
            self._give_up(because(Why.TRACER_RAISED, error=f"{type(error).__name__}: {error}"))
        return None
