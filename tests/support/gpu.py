"""The marker of tests that need a GPU: they skip themselves, with a reason, where there is none."""

from __future__ import annotations

import pytest
import torch

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU: torch sees no CUDA or ROCm device"
)
