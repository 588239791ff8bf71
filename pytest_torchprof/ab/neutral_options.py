"""Options of a user's own pytest runs that must not affect two workers."""

from __future__ import annotations

from typing import Any

from pytest_torchprof.core.errors import AbError

#: The value for each such option, if a plugin has it. They select tests by what failed last, stop
#: early, step through tests, distribute or repeat them, or write files that both workers would
#: write.
NEUTRAL: dict[str, Any] = {
    # pytest
    "continue_on_collection_errors": True,
    "maxfail": 0,
    "collectonly": False,
    "lf": False,
    "failedfirst": False,
    "newfirst": False,
    "cacheclear": False,
    "cacheshow": None,
    "stepwise": False,
    "stepwise_skip": False,
    "usepdb": False,
    "trace": False,
    "setuponly": False,
    "setupplan": False,
    "setupshow": False,
    "xmlpath": None,
    "pastebin": None,
    "log_file": None,
    "log_cli_level": None,
    "color": "no",
    "tbstyle": "short",
    "verbose": 0,
    # ours
    "torchprof": False,
    "torchprof_json": None,
    "torchprof_html": None,
    "torchprof_markdown": None,
    "torchprof_ci": "off",
    "torchprof_traces": None,
    "torchprof_history": None,
    # pytest-xdist
    "numprocesses": None,
    "distload": False,
    "dist": "no",
    "tx": [],
    "looponfail": False,
    # pytest-forked
    "forked": False,
    # pytest-rerunfailures
    "reruns": None,
    # pytest-cov
    "no_cov": True,
    "cov_source": [],
    # pytest-benchmark: each benchmark calls its function once
    "benchmark_disable": True,
    "benchmark_enable": False,
    "benchmark_only": False,
    "benchmark_json": None,
    "benchmark_save": None,
    "benchmark_autosave": None,
    "benchmark_compare": None,
    "benchmark_compare_fail": None,
    "benchmark_histogram": None,
    "benchmark_cprofile": None,
    # pytest-html, pytest-json-report, pytest-reportlog
    "htmlpath": None,
    "json_report": False,
    "json_report_file": None,
    "report_log": None,
    # pytest-randomly, pytest-random-order: both sides see the same
    "randomly_seed": 1,
    "randomly_reorganize": False,
    "random_order_bucket": None,
}


def neutralize(options: Any) -> None:
    """Set these where they differ."""
    for name, value in NEUTRAL.items():
        if hasattr(options, name):
            setattr(options, name, value)


def refuse(args: list[str], *, accepts: bool, has_us: bool) -> None:
    """Reject options that make no sense here.

    Raises:
        AbError: ``--accept``, or our plugin is blocked.
    """
    if accepts or "--accept" in args:
        raise AbError("--accept writes baselines, which `torchprof ab` does not use")
    if not has_us:
        raise AbError(
            "pytest did not load the torchprof plugin",
            "`torchprof ab` needs its markers and its fixture",
            "drop -p no:torchprof and PYTEST_DISABLE_PLUGIN_AUTOLOAD",
        )
