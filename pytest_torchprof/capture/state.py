"""State of the process that a rerun must not change, or that tells what it compiled."""

from __future__ import annotations

import os
import random
import sys
import warnings
from contextlib import suppress
from dataclasses import dataclass
from typing import Any


class RandomState:
    """The generators' states, so that a rerun neither sees nor leaves other random numbers."""

    def __init__(self) -> None:
        self._python = random.getstate()
        numpy = sys.modules.get("numpy.random")
        self._numpy = numpy.get_state() if numpy is not None else None
        torch = sys.modules.get("torch")
        self._torch = torch.default_generator.get_state() if torch is not None else None
        device = getattr(torch, "cuda", None)
        self._cuda = device.get_rng_state_all() if device and device.is_initialized() else None

    def restore(self) -> None:
        """Put the generators back to where they were."""
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy.random"].set_state(self._numpy)
        if self._torch is not None:
            sys.modules["torch"].default_generator.set_state(self._torch)
        if self._cuda is not None:
            sys.modules["torch"].cuda.set_rng_state_all(self._cuda)


#: Source: torch/_dynamo/utils.py, DEFAULT_COMPILATION_METRICS_LIMIT.
_KEPT_RECORDS = 64


@dataclass(frozen=True)
class CompileCount:
    """What torch.compile has compiled so far in this process, and the graph breaks it counted.

    ``records`` are dynamo's, one a compilation, as (compile id, start, identity): the annotation of
    a compiled region repeats the compile id.
    """

    graph_breaks: int = 0
    records: frozenset[tuple[str, Any, int]] = frozenset()
    full: bool = False

    @classmethod
    def now(cls) -> CompileCount:
        """Read dynamo's counters; all zero while dynamo has not been imported."""
        utils = sys.modules.get("torch._dynamo.utils")
        if utils is None:
            return cls()
        breaks = utils.counters.get("graph_break", {})
        records: list[Any] = getattr(utils, "get_compilation_metrics", list)()
        known = frozenset(
            (str(getattr(r, "compile_id", None)), getattr(r, "start_time_us", None), id(r))
            for r in records
        )
        return cls(sum(breaks.values()), known, len(records) >= _KEPT_RECORDS)

    def compiled_since(self, before: CompileCount) -> bool:
        """Whether anything was compiled between two readings."""
        return not self.records <= before.records

    def since(self, before: CompileCount) -> dict[str, Any]:
        """The facts about compilation between two readings."""
        compiled = sorted(name for name, *_ in self.records - before.records)
        # As long as an older record is kept, no later one has been dropped.
        lost = self.full and not self.records & before.records
        return {
            # A test may clear dynamo's counters: then what is there now is all its own.
            "graph_breaks": self.graph_breaks - before.graph_breaks
            if self.graph_breaks >= before.graph_breaks
            else self.graph_breaks,
            # A compile id is "frame/attempt": an attempt after the first is a recompilation.
            "recompiles": f"torch keeps no more than {_KEPT_RECORDS} compilations"
            if lost
            else sum(not one.endswith(("/0", "None")) for one in compiled),
            "compiled": compiled,
        }


class World:
    """What a test may change for those after it, and a rerun of it must not."""

    def __init__(self) -> None:
        self._random = RandomState()
        self._filters = list(warnings.filters)
        self._environ = dict(os.environ)
        self._folder: str | None = None
        with suppress(OSError):  # a test has deleted it
            self._folder = os.getcwd()  # noqa: PTH109 - nothing of this is a Path

    def restore(self) -> None:
        """Put it back."""
        self._random.restore()
        warnings.filters[:] = self._filters  # type: ignore[index]
        if dict(os.environ) != self._environ:
            os.environ.clear()
            os.environ.update(self._environ)
        warnings._filters_mutated()  # type: ignore[attr-defined]
        if self._folder is not None:
            with suppress(OSError):
                os.chdir(self._folder)
