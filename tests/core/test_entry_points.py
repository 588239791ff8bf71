"""Entry points of installed packages, found without the module that takes long to import."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from pathlib import Path
from typing import Any

import pytest

from pytest_torchprof.core.entry_points import entry_points

GROUP = "torchprof.rules"
METADATA = "importlib.metadata"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages, beside those of Python itself, in a process that has looked for none.

    Nothing else finds packages, as a library that other tests use may.
    """
    own = [path for path in sys.path if path and "site-packages" not in path and "python3" in path]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *own])

    def found(*given: Any) -> object:
        from importlib.metadata import MetadataPathFinder

        return MetadataPathFinder.find_distributions(*given)

    # As in Python's own, from which `importlib_metadata` takes it.
    monkeypatch.setattr(PathFinder, "find_distributions", staticmethod(found), raising=False)
    monkeypatch.setattr(sys, "meta_path", [BuiltinImporter, FrozenImporter, PathFinder])
    monkeypatch.delitem(sys.modules, METADATA, raising=False)
    monkeypatch.delattr(importlib, "metadata", raising=False)
    return tmp_path


def install(site: Path, name: str, text: str | None) -> None:
    info = site / name
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n", "utf-8")
    if text is not None:
        (info / "entry_points.txt").write_text(text, "utf-8")


def test_where_no_package_offers_any_the_module_is_not_imported(site: Path) -> None:
    install(site, "mine-1.0.dist-info", "[console_scripts]\nmine = mine:main\n")
    install(site, "other-1.0.dist-info", None)
    assert [] == list(entry_points(GROUP))
    assert METADATA not in sys.modules


@pytest.mark.parametrize("name", ["mine-1.0.dist-info", "Mine-1.0.EGG-INFO"])
def test_what_a_package_offers_is_found(site: Path, name: str) -> None:
    install(site, name, f"[{GROUP}]\nmine = my_rules\n")
    assert [("mine", "my_rules")] == [(one.name, one.value) for one in entry_points(GROUP)]


def test_folders_that_are_missing_or_no_folders_are_left_to_the_module(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = site / "packages.zip"
    archive.write_bytes(b"PK\x05\x06" + bytes(18))
    monkeypatch.setattr(sys, "path", [str(site / "missing"), *sys.path])
    assert [] == list(entry_points(GROUP))
    assert METADATA not in sys.modules
    monkeypatch.setattr(sys, "path", [str(archive), *sys.path])
    assert [] == list(entry_points(GROUP))
    assert METADATA in sys.modules


def test_packages_that_are_found_otherwise_are_left_to_the_module(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Finder:
        @staticmethod
        def find_spec(*_: object) -> None: ...

        @staticmethod
        def find_distributions(*_: object) -> list[object]:
            return []

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert [] == list(entry_points(GROUP))
    assert METADATA in sys.modules
