"""What a test saw, in its captured output: for whoever reads a run on another machine."""

from __future__ import annotations

import sys


def show(*found: object) -> None:
    """Write it out, as far as pytest shows the output of this test."""
    sys.stdout.write(" ".join(map(str, found)) + "\n")
