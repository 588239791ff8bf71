"""The device and seeds of the tests beside this file."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def seed() -> None:
    """Give each test the same numbers and precision, whichever tests ran before it."""
    torch.manual_seed(0)
    if torch.cuda.is_available():
        torch.set_float32_matmul_precision("high")  # as the examples do, in any order


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The GPU, if there is one that torch sees."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
