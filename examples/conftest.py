"""Makes `minizoo` importable from any working directory, seeds every test, and picks the device."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def seed() -> None:
    """Give each test the same random numbers, whichever tests ran before it."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def device() -> Iterator[torch.device]:
    """The GPU, if there is one that torch sees: `CUDA_VISIBLE_DEVICES= pytest …` hides it."""
    if not torch.cuda.is_available():
        yield torch.device("cpu")
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")  # TF32, which the rule fp32-matmul asks for
    yield torch.device("cuda")
    torch.set_float32_matmul_precision(before)


@pytest.fixture(scope="session")
def tolerance(device: torch.device) -> float:
    """For a result that is computed in two ways: products in TF32 have 10 bits of a fraction."""
    return 1e-4 if device.type == "cpu" else 1e-2
