"""Lines of the user's files in a page: those that are meant, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_torchprof.render.html.page import Sources

CODE = "\n".join(f"line_{number}" for number in range(1, 21))
TESTS = '''
import pytest

class TestStep:
    @pytest.mark.slow
    def test_a(self):
        """Says what."""
        return 1

async def test_b(): ...
def test_b():
    pass
'''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "tests").mkdir(parents=True)
    (folder / "train.py").write_text(CODE, "utf-8")
    (folder / "tests" / "test_a.py").write_text(TESTS, "utf-8")
    (folder / "secret.txt").write_text("secret\n" * 9, "utf-8")
    (tmp_path / "outside.py").write_text("outside\n" * 9, "utf-8")
    (folder / "link.py").symlink_to(tmp_path / "outside.py")
    return folder


def shown(root: Path, location: str | None, operators: str | None = None) -> list[str] | None:
    excerpt = Sources(root).around(location, operators)
    return None if excerpt is None else [line.text for line in excerpt.lines]


def test_two_lines_before_and_after(root: Path) -> None:
    excerpt = Sources(root).around("train.py:10", None)
    assert excerpt is not None
    assert ("train.py", 10) == (excerpt.path, excerpt.line)
    assert [(number, f"line_{number}", number == 10) for number in range(8, 13)] == [
        tuple(line) for line in excerpt.lines
    ]


@pytest.mark.parametrize(("line", "first"), [(1, "line_1"), (2, "line_1"), (20, "line_18")])
def test_fewer_at_the_ends(root: Path, line: int, first: str) -> None:
    found = shown(root, f"train.py:{line}")
    assert found is not None
    assert first == found[0]


@pytest.mark.parametrize(
    "location",
    [
        None,
        "aten::item",
        "train.py:0",
        "train.py:21",
        "train.py:999999999",
        "missing.py:1",
        "secret.txt:1",
        "../outside.py:1",
        "link.py:1",
        "tests:1",
        "nul\x00.py:1",
        "lone\udcff.py:1",
        f"{'x' * 10_000}.py:1",
    ],
)
def test_no_other_file_is_read(root: Path, location: str | None) -> None:
    assert None is shown(root, location)


def test_absolute_names_of_files_below_are_known(root: Path) -> None:
    assert 5 == len(shown(root, f"{root}/train.py:9") or [])
    assert None is shown(root, f"{root.parent}/outside.py:1")


def test_a_path_of_operators_is_no_place(root: Path) -> None:
    assert None is shown(root, "train.py:3", operators="train.py:3")


def test_a_test_begins_at_its_first_decorator(root: Path) -> None:
    excerpt = Sources(root).of_test("tests/test_a.py::TestStep::test_a[1::2]")
    assert excerpt is not None
    assert 5 == excerpt.line
    assert ["    @pytest.mark.slow", "    def test_a(self):"] == [
        line.text for line in excerpt.lines[:2]
    ]
    assert 0 == excerpt.cut


def test_of_functions_with_one_name_the_last_counts(root: Path) -> None:
    excerpt = Sources(root).of_test("tests/test_a.py::test_b")
    assert excerpt is not None
    assert 11 == excerpt.line


@pytest.mark.parametrize(
    "nodeid",
    ["", "::", "tests/test_a.py", "tests/test_a.py::", "tests/test_a.py::TestStep", "tests::test_b",
     "tests/test_a.py::test_b::test_c", "../outside.py::test_b", "nul\x00.py::test_b"],
)  # fmt: skip
def test_a_test_that_is_not_there_has_no_lines(root: Path, nodeid: str) -> None:
    assert None is Sources(root).of_test(nodeid)


@pytest.mark.parametrize("content", [b"def test_b(:", b"\x00", b"(" * 100_000, b"\xff\xfe"])
def test_a_file_that_is_no_python_has_no_tests(root: Path, content: bytes) -> None:
    (root / "tests" / "test_a.py").write_bytes(content)
    assert None is Sources(root).of_test("tests/test_a.py::test_b")


def test_a_long_test_and_a_long_line_are_cut(root: Path) -> None:
    body = "\n".join("    pass" for _ in range(30))
    (root / "t.py").write_text(f"def test_x():\n    {'y' * 5000}\n{body}\n", "utf-8")
    excerpt = Sources(root).of_test("t.py::test_x")
    assert excerpt is not None
    assert (16, 16) == (len(excerpt.lines), excerpt.cut)
    assert len(excerpt.lines[1].text) == 200
