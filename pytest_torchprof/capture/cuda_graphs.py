"""Count the CUDA graphs that are captured; torch itself keeps no such number.

vLLM, inductor and everybody else capture through `torch.cuda.CUDAGraph`, whose ``capture_end`` is
wrapped while a test on an accelerator runs. Inductor's tree of graphs also captures one without any
work, to hold its memory pool; that one does not count.
"""

from __future__ import annotations

import sys
from functools import wraps
from types import FrameType
from typing import Any

#: Where inductor captures the graph without work. Source: torch/_inductor/cudagraph_trees.py,
#: ``CUDAGraphTreeManager.__init__``; those with work are captured in ``CUDAGraphNode._record``.
_TREES, _POOL_OWNER = "cudagraph_trees.py", "__init__"
#: From `capture_end` through ``torch.cuda.graph.__exit__`` to its user, with wrappers between.
_DEEPEST = 6


class CudaGraphs:
    """Counts captures in this process, from `watch` until `stop`; one instance per process."""

    def __init__(self) -> None:
        #: Captures so far; None until first asked to watch.
        self.captured: int | None = None
        self._kind: Any = None
        self._original: Any = None
        self._wrapper: Any = None

    def watch(self) -> None:
        """Count from now on."""
        self.stop()
        room = getattr(sys.modules.get("torch"), "cuda", None)
        kind: Any = getattr(room, "CUDAGraph", None)
        original = getattr(kind, "capture_end", None)
        if original is None:
            return
        self.captured = self.captured or 0

        @wraps(original)
        def capture_end(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if not _holds_pool() and self.captured is not None:
                self.captured += 1
            return result

        self._kind, self._original, self._wrapper = kind, original, capture_end
        kind.capture_end = capture_end

    def captured_since(self, before: int | None) -> bool:
        """Whether there were captures since then, when there had been so many."""
        return (self.captured or 0) > (before or 0)

    def stop(self) -> None:
        """Count no more, and restore torch's function, unless other code has replaced it."""
        kind, self._kind = self._kind, None
        if kind is not None and vars(kind).get("capture_end") is self._wrapper:
            kind.capture_end = self._original


def _holds_pool() -> bool:
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_DEEPEST):
        if frame is None:
            break
        if frame.f_code.co_filename.endswith(_TREES):  # the innermost one captures
            return frame.f_code.co_name == _POOL_OWNER
        frame = frame.f_back
    return False


CUDA_GRAPHS = CudaGraphs()
