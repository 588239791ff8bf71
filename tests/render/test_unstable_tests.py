"""The lines that name tests whose numbers vary."""

from __future__ import annotations

from pytest_torchprof.core.values import Range, Unstable
from pytest_torchprof.render.summary import unstable_tests


def varying(*, drawn: bool, metrics: int = 1, operators: int = 1) -> Unstable:
    return Unstable(
        {f"m{n}": Range(n, 1024 * n + 2048) for n in range(metrics)},
        {f"m{n}": "B" for n in range(metrics)},
        {f"aten::o{n}": Range(1, n + 2) for n in range(operators)},
        drawn,
    )


def test_each_kind_is_named_with_what_to_do() -> None:
    found = {
        "test_a.py::test_a": varying(drawn=True, metrics=5, operators=5),
        "test_a.py::test_b": varying(drawn=False, operators=0),
        "test_a.py::test_c": varying(drawn=True),
    }
    assert [
        "2 tests vary with the values drawn; what varies is compared as a range:",
        (
            "  test_a.py::test_a: m0 0 B to 2 KiB, m1 1 B to 3 KiB, m2 2 B to 4 KiB, 2 more"
            " (aten::o4 1 to 6, aten::o3 1 to 5, aten::o2 1 to 4, 2 more)"
        ),
        "  test_a.py::test_c: m0 0 B to 2 KiB (aten::o0 1 to 2)",
        "  to compare it exactly, fix the sizes and branches that its values decide",
        (
            "1 test varies with the same seed: a race, a cache, the time, or its own generator; "
            "that only advises:"
        ),
        "  test_a.py::test_b: m0 0 B to 2 KiB",
        "  to compare it, seed its own generators; --torchprof-strict compares it with the range",
    ] == unstable_tests(found)


def test_of_many_tests_the_first_are_named() -> None:
    found = {f"test_{n}": varying(drawn=True) for n in range(12)}
    lines = unstable_tests(found)
    assert 1 + 10 + 1 + 1 == len(lines)
    assert "  … and 2 more tests" == lines[-2]
    assert [] == unstable_tests({})
