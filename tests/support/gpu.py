"""The marker of tests that need a GPU: ``make test-gpu`` runs them, elsewhere they skip."""

from __future__ import annotations

import pytest

needs_gpu = pytest.mark.gpu
