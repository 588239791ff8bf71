"""Real traces, where there are any: TORCHPROF_TRACE_CORPUS names a folder of them."""

from __future__ import annotations

import os
from pathlib import Path

#: A clone has none. Tests that need some are skipped without, and say so.
CORPUS = Path(
    os.environ.get("TORCHPROF_TRACE_CORPUS")
    or Path(__file__).resolve().parents[2].parent / "shared" / "traces"
)
