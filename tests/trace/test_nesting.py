"""Questions about arrays of events and their parents."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pytest_torchprof.trace import nesting


@given(st.lists(st.integers(-3, 5)))
def test_distinct_values_are_those_of_numpy(values: list[int]) -> None:
    found = nesting.distinct(np.array(values, np.int32))
    assert found.dtype == np.int32
    assert np.unique(np.array(values, np.int32)).tolist() == found.tolist()


def test_they_import_nothing_more() -> None:
    code = (
        "import sys; import numpy as np; from pytest_torchprof.trace import nesting\n"
        "before = set(sys.modules); nesting.distinct(np.arange(3))\n"
        "print(set(sys.modules) - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "set()" == done.stdout.strip()
