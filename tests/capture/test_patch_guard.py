"""Inside the guard everything is as before the tests, whether or not Python numbers its dicts."""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from pytest_torchprof.capture import patches
from pytest_torchprof.capture.patches import PatchGuard


def replaced(*_: Any, **__: Any) -> Any:
    raise AssertionError("a test's patch was called")


@pytest.fixture(params=["as this Python does", "no versions"])
def guard(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> PatchGuard:
    if request.param == "no versions":
        monkeypatch.setattr(patches, "counts_versions", lambda: False)
    made = PatchGuard()
    made.learn()
    assert bool(made._versions) == patches.counts_versions()
    return made


@pytest.mark.parametrize(
    ("owner", "name"),
    [(os, "getcwd"), (random.Random, "getstate"), (Counter, "update"), (sys, "getprofile")],
)
def test_a_function_that_a_test_replaced_is_the_original_inside(
    guard: PatchGuard, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    original = vars(owner)[name]
    for _ in range(2):  # what was verified once, too
        with monkeypatch.context() as patch:
            with guard:
                pass
            patch.setattr(owner, name, replaced)
            for _ in range(2):
                with guard:
                    assert vars(owner)[name] is original
                    with guard.suspended:
                        assert vars(owner)[name] is replaced
                assert vars(owner)[name] is replaced
        with guard:
            assert vars(owner)[name] is original


def test_a_function_that_a_test_deleted_exists_inside(
    guard: PatchGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "getcwd")
    monkeypatch.setitem(sys.modules, "random", None)
    with guard:
        assert os.getcwd()  # noqa: PTH109 - it is what is missing
        assert sys.modules["random"] is random
    assert not hasattr(os, "getcwd")
    assert sys.modules["random"] is None


CHANGES: list[Callable[[dict[str, Any]], object]] = [
    lambda names: names.update(a=2),
    lambda names: names.__setitem__("new", None),
    lambda names: names.pop("a"),
    lambda names: names.clear(),
    lambda names: names.setdefault("new", 1),
]


@pytest.mark.skipif(not patches.counts_versions(), reason="this Python does not number its dicts")
@pytest.mark.parametrize("change", CHANGES)
def test_a_dict_has_another_version_after_a_change_and_only_then(
    change: Callable[[dict[str, Any]], object],
) -> None:
    names = {"a": 1, "b": 2}
    version = patches.version_of(names)
    assert version is not None
    before = version.value
    assert (1, None, ["a", "b"]) == (names["a"], names.get("c"), list(names))
    assert before == version.value
    change(names)
    assert before != version.value


@pytest.mark.parametrize(("name", "offset"), [("cpython", 8), ("cpython", 0), ("other", 24)])
def test_a_number_that_is_not_a_version_is_not_taken_for_one(
    monkeypatch: pytest.MonkeyPatch, name: str, offset: int
) -> None:
    monkeypatch.setattr(patches, "_OFFSET", offset)
    monkeypatch.setattr(sys.implementation, "name", name)
    assert not patches.counts_versions.__wrapped__()
