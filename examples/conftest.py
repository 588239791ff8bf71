"""Makes `minizoo` importable from any working directory and seeds every test."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def seed() -> None:
    """Give each test the same random numbers, whichever tests ran before it."""
    torch.manual_seed(0)
