"""The pytest plugin: hooks that delegate. Imports nothing heavy until profiling is requested."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

import pytest


@contextmanager
def _quick_imports() -> Iterator[None]:
    """Import our modules as any others: pytest would rewrite the asserts of a plugin.

    That takes a second a session where byte code cannot be cached, as in many containers.
    """
    sys.meta_path.insert(0, PathFinder)
    try:
        yield
    finally:
        sys.meta_path.remove(PathFinder)


with _quick_imports():
    from pytest_torchprof.session import hookspecs, markers, options

if TYPE_CHECKING:
    from pytest_torchprof.session.fixture import Torchprof
    from pytest_torchprof.session.hooks import TorchprofSession


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Register the hook for users' rules; it is called only when profiling is on."""
    pluginmanager.add_hookspecs(hookspecs)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the option table."""
    options.add_options(parser)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser
) -> Generator[None, None, None]:
    """Register ``--accept`` last, because another plugin may own it."""
    early_config.stash[options.STARTED_NS] = time.time_ns()
    if options.enabled_early(early_config):
        with _quick_imports():
            from pytest_torchprof.session.seeds import ImportSeeds

        ImportSeeds.of(early_config)
    yield
    options.add_accept(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers; import everything else only when profiling is on."""
    markers.add_markers(config)
    if options.enabled(config):
        session = _session(config)
        config.pluginmanager.register(session, "torchprof-session")
        if session.settings.history is not None and not session.is_worker:
            from pytest_torchprof.session.reports import RunHistory

            config.pluginmanager.register(RunHistory(session), "torchprof-history")
    else:
        options.refuse_idle(config)


def _session(config: pytest.Config) -> TorchprofSession:
    """The plugin object of a session, which may be one rank of a job."""
    with _quick_imports():
        from pytest_torchprof.session.hooks import TorchprofSession

    if (room := sys.modules.get("pytest_torchprof.capture.children")) is not None:
        room.step_aside()  # a measured test has started this session, which measures itself
    settings = options.build_settings(config)
    if not {"RANK", "WORLD_SIZE"} <= os.environ.keys() or hasattr(config, "workerinput"):
        return TorchprofSession(config, settings)
    with _quick_imports():
        from pytest_torchprof.session.job import JobSession, settings_of, world_of

    world = world_of(os.environ)
    if world is None:
        return TorchprofSession(config, settings)
    return JobSession(config, settings_of(world[0], settings), *world)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say why nothing is accepted."""
    if config.getoption("torchprof_accept", False) and not options.enabled(config):
        terminalreporter.write_line(
            "torchprof: --accept with --no-torchprof: nothing is measured, so nothing is accepted"
        )


@pytest.fixture
def torchprof(request: pytest.FixtureRequest) -> Torchprof:
    """Measure a part of the test: ``with torchprof:`` or ``torchprof(fn)``; then ``.stats``."""
    session = request.config.pluginmanager.get_plugin("torchprof-session")
    if session is None:
        from pytest_torchprof.session.fixture import Torchprof
        from pytest_torchprof.session.known import names_for

        return Torchprof(defined=names_for(request.node))
    from pytest_torchprof.session.fixture import handle_for

    return handle_for(session, request.node)
