"""A hash of a test's own source."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from pytest_torchprof.history.runs import source_hashes

PLAIN = """\
import pytest
import torch

@pytest.mark.max_ops(3)
@torch.no_grad()
def test_a(torchprof):
    x = torch.ones(3)
    torchprof.assert_expected_inline('''\\
ops  3
''')
    return x + 1
"""


def hashed(folder: Path, text: str, line: int | None = None) -> str | None:
    """The hash of the test on this line; by default of the one called test_a, as pytest says."""
    text = dedent(text)
    (folder / "test_it.py").write_text(text, "utf-8")
    if line is None:
        at = next(n for n, row in enumerate(text.splitlines(), 1) if "def test_a" in row)
        rows = text.splitlines()
        while rows[at - 2].strip().startswith("@"):
            at -= 1
        line = at
    return source_hashes({"test_it.py::test_a": ("test_it.py", line)}, folder).get(
        "test_it.py::test_a"
    )


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("import torch\n", "import torch\n\nX = 1\n", True),  # other code of the file
        ("    x = torch.ones(3)\n", "    # note\n\n    x = torch.ones(3)   \n", True),
        ("@pytest.mark.max_ops(3)\n", "@pytest.mark.max_ops(9)\n", True),
        ("@pytest.mark.max_ops(3)\n", "", True),
        ("@pytest.mark.max_ops(3)\n", "@pytest.mark.max_ops(\n    3,\n    op='x',\n)\n", True),
        ("ops  3\n", "ops  4\nflops  0\n", True),  # what --accept rewrites
        ("torch.ones(3)", "torch.ones(4)", False),
        ("@torch.no_grad()\n", "", False),
        ("return x + 1", "return x + 1 + 1", False),
    ],
)
def test_only_what_changes_the_work_changes_the_hash(
    tmp_path: Path, old: str, new: str, same: bool
) -> None:
    assert old in PLAIN
    assert same == (hashed(tmp_path, PLAIN) == hashed(tmp_path, PLAIN.replace(old, new)))


def test_a_method_is_the_same_wherever_its_class_is(tmp_path: Path) -> None:
    inner = "class TestA:\n    def test_a(self):\n        assert self\n"
    deeper = "if True:\n    class TestB:\n        def test_a(self):\n            assert self\n"
    assert hashed(tmp_path, inner) == hashed(tmp_path, deeper) is not None


@pytest.mark.parametrize(
    "text", ["def broken(:\n", "x = 1\n", "\udc80".encode("utf-8", "ignore").decode()]
)
def test_what_is_not_found_has_no_hash(tmp_path: Path, text: str) -> None:
    assert hashed(tmp_path, text, line=1) is None


def test_a_missing_file_has_no_hash(tmp_path: Path) -> None:
    assert {} == source_hashes({"a": ("gone.py", 1)}, tmp_path)
