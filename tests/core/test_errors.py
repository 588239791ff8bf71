"""Errors say what, what was found and the next step, wherever they travel."""

import pickle

import pytest

from pytest_torchprof.core.errors import BaselineError, TorchprofError, UnitError, error_line


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TorchprofError("no trace"), "no trace"),
        (TorchprofError("no trace", found="a folder"), "no trace: a folder"),
        (TorchprofError("no trace", next_step="run it"), "no trace; run it"),
        (TorchprofError("no trace", "a folder", "run it"), "no trace: a folder; run it"),
    ],
)
def test_a_message_has_the_parts_it_was_given(error: TorchprofError, expected: str) -> None:
    assert expected == str(error)


def test_an_error_survives_the_way_from_a_worker() -> None:
    error = BaselineError("cannot read x.json", found="line 3", next_step="delete it")
    copy = pickle.loads(pickle.dumps(error))
    assert (BaselineError, str(error), "line 3") == (type(copy), str(copy), copy.found)


def test_one_except_clause_catches_all() -> None:
    with pytest.raises(TorchprofError):
        raise UnitError("no unit")


class _WordlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("no key"), "ValueError: no key"),
        (ValueError("no key\nin it"), "ValueError: no key"),
        (ValueError(), "ValueError"),
        (ValueError(" \n "), "ValueError"),
        (ValueError("\n\n-- Process 1:\nTraceback\nOSError: no\n"), "ValueError: OSError: no"),
        (_WordlessError(), "_WordlessError"),
    ],
)
def test_an_error_in_one_line(error: Exception, expected: str) -> None:
    assert expected == error_line(error)
