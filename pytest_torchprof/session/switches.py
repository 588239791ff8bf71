"""Which switches are on: profiling itself, and those with more sources than an option."""

from __future__ import annotations

from contextlib import suppress
from typing import cast

import pytest

ACCEPT = "--accept"
#: Options that have an effect only with profiling on.
_ASKING = (
    "--torchprof-strict",
    "--torchprof-check-stable",
    "--torchprof-json",
    "--torchprof-html",
    "--torchprof-markdown",
    "--torchprof-traces",
    "--torchprof-history",
)
#: With ``--torchprof-ci=off`` or ``auto``, nothing is asked for.
_SERVICES = ("github", "gitlab")


def enabled(config: pytest.Config, given: object = None) -> bool:
    """Whether tests are to be profiled: ``--torchprof``, our own ``--accept``, or the ini.

    ``given`` are the parsed options; by default, the final ones.
    """
    given = config.option if given is None else given
    asked = getattr(given, "torchprof", None)
    if asked is not None:
        return bool(asked)
    return bool(getattr(given, "torchprof_accept", False) or switched(config, "torchprof"))


def enabled_early(config: pytest.Config) -> bool:
    """The same before the options are parsed as a whole, and ``--accept`` is registered."""
    given = config.known_args_namespace
    asked: bool | None = getattr(given, "torchprof", None)
    if asked is None and ACCEPT in typed(config):
        return True
    with suppress(pytest.UsageError):  # told later
        return enabled(config, given)
    return False


def seed_imports(config: pytest.Config, given: object) -> bool | None:
    """Whether ``given`` options or the ini ask for seeds while importing; None if neither does.

    Raises:
        pytest.UsageError: the ini's value is neither true nor false.
    """
    asked: bool | None = getattr(given, "torchprof_seed_imports", None)
    return _asked(config, "torchprof_seed_imports") if asked is None else asked


def switched(config: pytest.Config, name: str) -> bool:
    """The value of an ini switch, off by default; see `_asked`."""
    return bool(_asked(config, name))


def _asked(config: pytest.Config, name: str) -> bool | None:
    """The value of an ini switch; pytest's own error does not name it.

    Raises:
        pytest.UsageError: it is neither true nor false.
    """
    try:
        return cast("bool | None", config.getini(name))
    except (ValueError, pytest.UsageError) as error:
        raise _usage(f"ini option {name}: {error}; give true or false") from None


def refuse_idle(config: pytest.Config) -> None:
    """Reject options that do nothing while profiling is off, such as the one for a report.

    They are fine in ``addopts``, and with ``--no-torchprof``.

    Raises:
        pytest.UsageError: such an option is on the command line.
    """
    if config.option.torchprof is not None:
        return
    asking = (*_ASKING, *(("--torchprof-ci",) if config.option.torchprof_ci in _SERVICES else ()))
    for flag in asking:
        if flag in typed(config):
            raise _usage(f"{flag} does nothing without --torchprof; add --torchprof")


def typed(config: pytest.Config) -> set[str]:
    """The names of the options on the command line, without ``addopts``."""
    return {str(arg).partition("=")[0] for arg in config.invocation_params.args}


def _usage(message: str) -> pytest.UsageError:
    from pytest_torchprof.render import escape  # only where it is needed: profiling may be off

    return pytest.UsageError(escape.line(message))
