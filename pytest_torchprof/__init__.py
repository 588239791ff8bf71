"""Profile PyTorch tests and fail them when they need more than they did.

Importing this package loads nothing else: not torch, not pytest, not numpy. The names of
``__all__`` are loaded when they are used.

PYTEST_DONT_REWRITE: a worker of ``torchprof ab`` imports this before pytest, which would warn.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_torchprof.api import Trace as Trace
    from pytest_torchprof.api import augment as augment
    from pytest_torchprof.api import compare_ranks as compare_ranks
    from pytest_torchprof.api import diff as diff
    from pytest_torchprof.api import load_ranks as load_ranks
    from pytest_torchprof.core.errors import SettingsError as SettingsError
    from pytest_torchprof.core.errors import TraceError as TraceError
    from pytest_torchprof.core.version import __version__ as __version__
    from pytest_torchprof.render.notes import NotMeasured as NotMeasured
    from pytest_torchprof.rules.rule import Matches as Matches
    from pytest_torchprof.rules.rule import Rule as Rule
    from pytest_torchprof.rules.rule import Threshold as Threshold
    from pytest_torchprof.rules.rule import rule as rule
    from pytest_torchprof.verdict.metrics import Metric as Metric
    from pytest_torchprof.verdict.own import metric as metric
    from pytest_torchprof.work.dataflow import dataflow as dataflow
    from pytest_torchprof.work.devices import Device as Device

__all__ = [
    "Device",
    "Matches",
    "Metric",
    "NotMeasured",
    "Rule",
    "SettingsError",
    "Threshold",
    "Trace",
    "TraceError",
    "__version__",
    "augment",
    "compare_ranks",
    "dataflow",
    "diff",
    "load_ranks",
    "metric",
    "rule",
]
#: Modules of the names that are not in `api`.
_MODULES = {
    "Device": "work.devices",
    "Matches": "rules.rule",
    "Metric": "verdict.metrics",
    "NotMeasured": "render.notes",
    "Rule": "rules.rule",
    "SettingsError": "core.errors",
    "Threshold": "rules.rule",
    "TraceError": "core.errors",
    "__version__": "core.version",
    "dataflow": "work.dataflow",
    "metric": "verdict.own",
    "rule": "rules.rule",
}


def __getattr__(name: str) -> Any:
    """A name of the Python API."""
    if name in __all__:
        import importlib

        module = importlib.import_module(f"pytest_torchprof.{_MODULES.get(name, 'api')}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """For completion: names that are not loaded yet too."""
    return sorted({*globals(), *__all__})
