"""The option table, and how command line, marker, ini file and default make `Settings`."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pytest

from pytest_torchprof.core.errors import SettingsError, TorchprofError, near

if TYPE_CHECKING:
    from pytest_torchprof.core.values import Settings, Tolerance


# ---- Which switches are on: profiling itself, and those with more sources than an option.

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


STRICT_HELP = "also fail on a missing baseline, an unaccepted improvement, or an unchecked budget"
JUNIT_HELP = "add what was measured to a JUnit report (--junit-xml), as properties of each test"
STABLE_HELP = "profile once more, with another seed, and name what differs (default: with --accept)"
IMPORTS_HELP = "seed all generators for files and shared fixtures (default: those left unseeded)"
BUDGETS_HELP = "limits for all tests, a line each: [GLOB:] max_NAME = VALUE[, op=NAME]"
TOLERANCE_HELP = "how much more is still ok, a line each: METRIC_GLOB: 1 %, or METRIC_GLOB: 4 KiB"
#: When the session started, before it imported user code: `time.time_ns`.
STARTED_NS = pytest.StashKey[int]()
ACCEPT_HELP = "write measured values as the new baseline, in files and inline"


class Option(NamedTuple):
    """One option: ``--torchprof-<name>``, ini ``torchprof_<name>``, `Settings` field.

    ``parse`` turns the text of any source into the value, and raises a SettingsError. ``ini`` and
    ``marker`` say where else than on the command line it may stand.
    """

    name: str
    default: str | None
    parse: Callable[[str], Any]
    metavar: str
    help: str
    ini: bool = True
    marker: bool = False

    @property
    def flag(self) -> str:
        """As typed on the command line."""
        return f"--torchprof-{self.name.replace('_', '-')}"

    @property
    def dest(self) -> str:
        """Its name in pytest's option namespace and in the ini file."""
        return f"torchprof_{self.name}"


# -------------------------------------------------------------------- parsers of option texts


def _choice(*known: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in known:
            meant = near(text, known, listed=True)
            raise SettingsError(f"{text!r} is not one of {', '.join(known)}. {meant}".rstrip())
        return text

    return parse


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise SettingsError(f"{text!r} is not a whole number of 0 or more")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < math.inf:
        raise SettingsError(f"{text!r} is not a number of seconds, 0 or more")
    return value


def _threads(text: str) -> int | None:
    if text == "keep":
        return None
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise SettingsError(f"{text!r} is not a number of threads, 1 or more, or 'keep'")
    return value


def _seed(text: str) -> int | None:
    if text == "keep":
        return None
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value < 2**63:
        raise SettingsError(f"{text!r} is not a seed, a whole number from 0 on, or 'keep'")
    return value


def _file(text: str) -> str:
    if not text.strip():
        raise SettingsError("the name of the file or folder is empty")
    if text == "-":
        raise SettingsError("- is no file here", "pytest writes to stdout", "name a file or folder")
    return text


def _metric(text: str) -> str:
    from pytest_torchprof.verdict.metrics import METRICS

    if text not in METRICS:
        raise SettingsError(f"no such metric: {text!r}. {near(text, METRICS)}")
    return text


def _chip(text: str) -> str | None:
    if text.strip() in {"", "off"}:
        return None
    from pytest_torchprof.work.devices import chip_named

    return chip_named(text).name


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.replace("\n", ",").split(",") if word.strip()]


def _metrics(text: str) -> tuple[str, ...]:
    from pytest_torchprof.core.values import OWN_COLUMNS

    return tuple(word if word == OWN_COLUMNS else _metric(word) for word in _words(text))


def _codes(text: str) -> frozenset[str]:
    return frozenset(_words(text))


#: Shown first, beside the switches; the others have a group of their own.
_FIRST = ("select", "time", "json", "html", "traces")
#: Every option with a value. ``--torchprof``, ``--torchprof-strict`` and ``--accept`` are switches.
OPTIONS = (
    Option("select", "all", _choice("all", "marked"), "all|marked", "profile all tests, or those "
           "with a marker of ours or the torchprof fixture"),
    Option("warmup", "1", _count, "N", "unmeasured runs of each test before the measured ones",
           marker=True),
    Option("rounds", "1", _count, "N", "timed, unprofiled runs of each test", marker=True),
    Option("min_time", "0", _seconds, "S", "repeat timed runs until they have taken so many "
           "seconds", marker=True),
    Option("time", "advisory", _choice("advisory", "gate", "off"), "advisory|gate|off",
           "tell of a slower test, fail it, or leave times out"),
    Option("baselines", "__torchprof__", _file, "DIR", "folder of baselines beside each test "
           "file, or an absolute path"),
    Option("json", None, _file, "FILE", "write a report for machines", ini=False),
    Option("html", None, _file, "FILE", "write a report as one page of HTML", ini=False),
    Option("markdown", None, _file, "FILE", "write a comment for a pull request", ini=False),
    Option("history", None, _file, "DIR|URL", "add this run to a history: a folder, s3:// or "
           "gs://; see torchprof history"),
    Option("ci", "auto", _choice("auto", "github", "gitlab", "off"), "auto|github|gitlab|off",
           "what to write for a service of CI; auto: the one it runs in"),
    Option("traces", None, _file, "DIR", "keep Chrome traces of failed tests in this folder"),
    Option("traces_of", "failed", _choice("failed", "all"), "failed|all",
           "which tests to keep traces of", ini=False),
    Option("columns", None, _metrics, "M,M,…", "metrics in the summary table; own: those that "
           "tests record and hooks define"),
    Option("sort", None, _metric, "M", "metric that sorts the summary table, largest first"),
    Option("top", "20", _count, "N", "rows of the summary table; 0 shows all"),
    Option("ignore", "", _codes, "RULE,…", "anti-pattern rules to switch off"),
    Option("thresholds", "", str, "RULE.NAME=VALUE,…", "thresholds of rules, as in "
           "pageable-copy.bytes=2 MiB"),
    Option("device", None, _chip, "CHIP", "estimate what this chip would have to do, as in H200, "
           "or off"),
    Option("threads", "1", _threads, "N|keep", "CPU threads of an operator in the profiled run"),
    Option("seed", "0", _seed, "N|keep", "seed of all generators in the runs after the first; "
           "keep: none"),
)  # fmt: skip


def add_options(parser: pytest.Parser) -> None:
    """Register the table with pytest, command line and ini."""
    first = parser.getgroup("torchprof", "performance of PyTorch tests (torchprof)").addoption
    more, ini = parser.getgroup("torchprof-more", "torchprof, more").addoption, parser.addini
    switch: dict[str, Any] = {"default": None, "dest": "torchprof"}
    first(
        "--torchprof", action="store_true", help="profile tests, compare with baselines", **switch
    )
    more("--no-torchprof", action="store_false", help="off, whatever the ini says", **switch)
    ini("torchprof", "profile tests and compare (see --torchprof)", type="bool", default=False)
    first("--torchprof-strict", action="store_true", default=None, help=STRICT_HELP)
    ini("torchprof_strict", STRICT_HELP, type="bool", default=False)
    ini("torchprof_junit", JUNIT_HELP, type="bool", default=False)
    ini("torchprof_budgets", BUDGETS_HELP, type="linelist", default=[])
    ini("torchprof_tolerance", TOLERANCE_HELP, type="linelist", default=[])
    stable: dict[str, Any] = {"default": None, "dest": "torchprof_check_stable"}
    more("--torchprof-check-stable", action="store_true", help=STABLE_HELP, **stable)
    more(
        "--no-torchprof-check-stable",
        action="store_false",
        help="not with --accept either",
        **stable,
    )
    seeds: dict[str, Any] = {"default": None, "dest": "torchprof_seed_imports"}
    more("--torchprof-seed-imports", action="store_true", help=IMPORTS_HELP, **seeds)
    more("--no-torchprof-seed-imports", action="store_false", help="seed none of them", **seeds)
    ini("torchprof_seed_imports", IMPORTS_HELP, type="bool", default=None)
    for option in OPTIONS:
        default = f" (default: {option.default})" if option.default else ""
        add = first if option.name in _FIRST else more
        add(option.flag, dest=option.dest, default=None, metavar=option.metavar,
            help=option.help + default)  # fmt: skip
        if option.ini:
            ini(option.dest, option.help, default=None)


def add_accept(parser: pytest.Parser) -> bool:
    """Register ``--accept`` unless another plugin has; return whether it is ours."""
    ours = parser.getgroup("torchprof")
    # Catching the error would not work: pytest raises different ones, or raises later.
    groups = [parser._anonymous, *parser._groups]  # noqa: SLF001 - nothing public lists them
    if any(ACCEPT in option.names() for group in groups for option in group.options):
        return False
    dest = "torchprof_accept"
    ours.addoption(ACCEPT, action="store_true", default=False, dest=dest, help=ACCEPT_HELP)
    return True


def _source_of(config: pytest.Config, name: str) -> str:
    """Where the value of an option comes from, or where to change it if that is the default."""
    option = next(option for option in OPTIONS if option.name == name)
    of_ini = not _is_option(config, name) and config.getini(option.dest) is not None
    return f"ini option {option.dest}" if of_ini else option.flag


def _is_option(config: pytest.Config, name: str) -> bool:
    """Whether it is on the command line, or in ``addopts``."""
    return config.getoption(f"torchprof_{name}") is not None


def require_folder(config: pytest.Config, name: str, folder: Path) -> None:
    """Reject a folder for this option that can be none.

    Raises:
        pytest.UsageError: there is a file of that name, or of that of a folder around it.
    """
    from pytest_torchprof.core.files import in_the_way
    from pytest_torchprof.render import escape

    if (path := in_the_way(folder)) is not None:
        what = "it" if path == folder else str(path)
        error = SettingsError(
            f"{folder} cannot be a folder", f"{what} exists and is a file", "name another folder"
        )
        raise pytest.UsageError(escape.line(f"{_source_of(config, name)}: {error}"))


def _require_writable(config: pytest.Config, name: str, folder: Path) -> None:
    """Reject a folder in which, or in whose place, nothing can be written.

    Raises:
        pytest.UsageError: so it is, as a file shows that is gone at once.
    """
    from tempfile import TemporaryFile

    from pytest_torchprof.core.files import system_message
    from pytest_torchprof.render import escape

    around = next(path for path in (folder, *folder.parents) if os.path.isdir(path))  # noqa: PTH112
    try:
        TemporaryFile(dir=around).close()
    except OSError as error:
        what = f"{folder} cannot be written to: {system_message(error)}; name another folder"
        raise pytest.UsageError(escape.line(f"{_source_of(config, name)}: {what}")) from None


def _tolerance(line: str) -> Tolerance:
    """A line of ``torchprof_tolerance``.

    Raises:
        TorchprofError: it has no share or amount of this metric, or nearly names a built-in one.
    """
    from difflib import get_close_matches

    from pytest_torchprof.core.units import parse_share, parse_signed
    from pytest_torchprof.core.values import Tolerance
    from pytest_torchprof.verdict.metrics import METRICS

    glob, colon, text = (part.strip() for part in line.partition(":"))
    if not colon or text.startswith("-"):
        what = "it is negative" if colon else ""
        raise SettingsError(f"{line!r} is no tolerance", what, "write METRIC_GLOB: 1 %, or 4 KiB")
    if text.endswith("%"):
        found = Tolerance(glob, share=parse_share(text, glob))
    else:
        amount, unit = parse_signed(text)
        found = Tolerance(glob, unit or "1", amount=amount)
    named = [one for one in METRICS.values() if Tolerance(glob).is_for(one.name, one.unit)]
    if not named and get_close_matches(glob, METRICS, cutoff=0.8):  # else, of the user's own
        raise SettingsError(f"{line!r}: no such metric. {near(glob, METRICS)}")
    if named and not any(found.is_for(one.name, one.unit) for one in named):
        units = ", ".join(sorted({one.unit for one in named}))
        raise SettingsError(f"{line!r}: the unit does not fit", f"{glob} is in {units}", "use that")
    return found


def _history_address(config: pytest.Config, text: str) -> str:
    """A URL, or a whole path: relative to where pytest was started; in an ini file, to the root."""
    if "://" in text:
        return text
    base = config.invocation_params.dir if _is_option(config, "history") else config.rootpath
    return str(base / Path(text).expanduser())


def build_settings(config: pytest.Config) -> Settings:
    """Resolve every option from its sources.

    Raises:
        pytest.UsageError: an invalid value, with its source and close matches.
    """
    from pytest_torchprof.core.values import Settings
    from pytest_torchprof.render import escape
    from pytest_torchprof.session.known import check_rules, thresholds_of

    values: dict[str, Any] = {}
    given: set[str] = set()
    for option in OPTIONS:
        text, source = config.getoption(option.dest), option.flag
        if text is None and option.ini:
            text, source = config.getini(option.dest), f"ini option {option.dest}"
            text = ",".join(map(str, text)) if isinstance(text, list) else text
        given |= {option.name} if text is not None else set()
        text = option.default if text is None else str(text)
        try:
            values[option.name] = None if text is None else option.parse(text)
            # Rules are known only once the session has its plugins.
            if option.name == "ignore" and text:
                check_rules(values["ignore"], config)
            elif option.name == "thresholds":
                values["thresholds"] = thresholds_of(str(text), config)
        except TorchprofError as error:
            raise pytest.UsageError(escape.line(f"{source}: {error}")) from None
    try:
        tolerances = tuple(map(_tolerance, config.getini("torchprof_tolerance")))
    except TorchprofError as error:
        raise pytest.UsageError(escape.line(f"ini option torchprof_tolerance: {error}")) from None
    strict = config.getoption("torchprof_strict")
    accept = config.getoption(ACCEPT, False)  # ours or another plugin's
    stable = config.getoption("torchprof_check_stable")
    here = config.invocation_params.dir
    for path in ("json", "html", "markdown", "traces"):
        values[path] = here / values[path] if values[path] else None
        if path == "traces" and values[path] is not None:
            require_folder(config, path, values[path])
            _require_writable(config, path, values[path])
    # A relative name in an ini file only means folders beside tests; see `TorchprofSession`.
    if _is_option(config, "baselines") or Path(values["baselines"]).is_absolute():
        require_folder(config, "baselines", here / values["baselines"])
    if values["history"] is not None:
        values["history"] = _history_address(config, values["history"])
    if values["traces"] is None and "--torchprof-traces-of" in typed(config):
        raise pytest.UsageError(
            "--torchprof-traces-of does nothing without a folder; add --torchprof-traces=DIR"
        )
    check_files(values["json"], values["html"], values["markdown"])
    return Settings(
        started_ns=config.stash.get(STARTED_NS, time.time_ns()),
        enabled=enabled(config),
        accept=bool(accept),
        strict=switched(config, "torchprof_strict") if strict is None else bool(strict),
        junit=switched(config, "torchprof_junit"),
        seed_imports=seed_imports(config, config.option),
        checks_stable=bool(accept if stable is None else stable),
        **{**values, "columns": values["columns"] or ()},
        given=frozenset(given),
        tolerances=tolerances,
    )


# ---- Check the files that options name, before anything is written to them.


def _check_name(option: str, files: Mapping[str, Path]) -> None:
    """Reject a folder, and the file of an option before it.

    Raises:
        SettingsError: it is one of these.
    """
    path = files.get(option)
    if path is None:
        return
    same = next(o for o, other in files.items() if other.resolve() == path.resolve())
    if same != option:
        raise SettingsError(f"{path} is the file of --torchprof-{same}, too")
    if os.path.isdir(path):  # noqa: PTH112 - no error for names that are too long
        raise SettingsError(f"{path} is a folder", next_step="name a file in it")


def check_files(json: Path | None, html: Path | None, markdown: Path | None) -> None:
    """Reject names of files that are there and not ours.

    Raises:
        pytest.UsageError: there is such a file.
    """
    from pytest_torchprof.render import escape
    from pytest_torchprof.render.report import check_target

    named = {"json": json, "html": html, "markdown": markdown}
    name = "json"
    try:
        for name in named:
            _check_name(name, {o: path for o, path in named.items() if path is not None})
        name = "json"
        if json is not None:
            check_target(json)
        if html is not None:
            from pytest_torchprof.render.html.page import check_page

            name = "html"
            check_page(html)
        if markdown is not None:  # most sessions load none of that
            from pytest_torchprof.render.ci import check_comment

            name = "markdown"
            check_comment(markdown)
    except SettingsError as error:
        raise pytest.UsageError(escape.line(f"--torchprof-{name}: {error}")) from None
