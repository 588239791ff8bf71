"""Profile PyTorch tests and fail them when they need more than they did.

Importing this package loads nothing else: not torch, not pytest, not numpy. The names of
``__all__`` are loaded when they are used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_torchprof.api import Trace as Trace
    from pytest_torchprof.api import augment as augment
    from pytest_torchprof.api import diff as diff
    from pytest_torchprof.api import load_ranks as load_ranks

__version__ = "0.1.0"
__all__ = ["Trace", "__version__", "augment", "diff", "load_ranks"]


def __getattr__(name: str) -> Any:
    """A name of the Python API."""
    if name in __all__:
        import importlib

        return getattr(importlib.import_module("pytest_torchprof.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """For completion: names that are not loaded yet too."""
    return sorted({*globals(), *__all__})
