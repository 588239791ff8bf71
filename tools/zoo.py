"""Print the FLOPs of a zoo of modules and functions beside FlopCounterMode's.

Exit with 1 unless each difference is explained.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT / "tests")

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # before the profiler is used

from zoo import keeper  # noqa: E402


def main() -> int:
    """Print the table, and what is wrong below it."""
    with tempfile.TemporaryDirectory() as folder:
        table, problems = keeper.table(keeper.ROWS, Path(folder))
    print(table)
    print(*problems, sep="\n")
    equal = sum(not row.why for row in keeper.ROWS)
    print(f"{len(keeper.ROWS)} rows, {equal} equal, {len(problems)} not explained")
    return int(bool(problems))


if __name__ == "__main__":
    raise SystemExit(main())
