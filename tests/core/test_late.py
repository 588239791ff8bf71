"""Expressions that are compiled late: all of them can be."""

from __future__ import annotations

import importlib
import pkgutil
import re

import pytest_torchprof
from pytest_torchprof.core.process import _Late


def test_every_late_expression_in_the_package_compiles() -> None:
    found = 0
    for module in pkgutil.walk_packages(pytest_torchprof.__path__, "pytest_torchprof."):
        if module.name.endswith("__main__"):
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, _Late):
                re.compile(value.pattern, value.flags)
                found += 1
    assert found > 100
