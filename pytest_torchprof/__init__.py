"""Profile PyTorch tests and fail them when they need more than they did.

Importing this package loads nothing else: not torch, not pytest, not numpy. The names of
``__all__`` are loaded when they are used.

PYTEST_DONT_REWRITE: a worker of ``torchprof ab`` imports this before pytest, which would warn.
"""

from typing import TYPE_CHECKING, Any

from pytest_torchprof.core.version import __version__

if TYPE_CHECKING:
    from pytest_torchprof.api import Trace as Trace
    from pytest_torchprof.api import augment as augment
    from pytest_torchprof.api import diff as diff
    from pytest_torchprof.api import load_ranks as load_ranks
    from pytest_torchprof.rules.engine.rule import Matches as Matches
    from pytest_torchprof.rules.engine.rule import Rule as Rule
    from pytest_torchprof.rules.engine.rule import Threshold as Threshold
    from pytest_torchprof.rules.engine.rule import rule as rule

__all__ = [
    "Matches",
    "Rule",
    "Threshold",
    "Trace",
    "__version__",
    "augment",
    "diff",
    "load_ranks",
    "rule",
]
_OF_RULES = frozenset({"Matches", "Rule", "Threshold", "rule"})


def __getattr__(name: str) -> Any:
    """A name of the Python API."""
    if name in __all__:
        import importlib

        room = "rules.engine.rule" if name in _OF_RULES else "api"
        return getattr(importlib.import_module(f"pytest_torchprof.{room}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """For completion: names that are not loaded yet too."""
    return sorted({*globals(), *__all__})
