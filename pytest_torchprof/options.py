"""The option table, and what becomes of it: command line, marker, ini and default to `Settings`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pytest_torchprof.errors import SettingsError, TorchprofError, near

if TYPE_CHECKING:
    from pytest_torchprof.settings import Settings
    from pytest_torchprof.stats import Budget

ACCEPT = "--accept"
STRICT_HELP = "also fail on: no baseline, an unaccepted improvement, a budget that was not checked"
#: Whoever types one of these wants something that there is only with profiling on.
_ASKING = ("--torchprof-strict", "--torchprof-json", "--torchprof-traces")
ACCEPT_HELP = "torchprof: write measured values as the new baseline, in files and inline"


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
            raise SettingsError(f"{text!r} is not one of {', '.join(known)}. {near(text, known)}")
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
        raise SettingsError(f"{text!r} is not a number of seconds of 0 or more")
    return value


def _threads(text: str) -> int | None:
    if text == "keep":
        return None
    if (count := _count(text)) == 0:
        raise SettingsError(f"{text!r} is not a number of threads, of 1 or more, or 'keep'")
    return count


def _file(text: str) -> str:
    if not text.strip():
        raise SettingsError("an empty name is no file and no folder")
    return text


def _metric(text: str) -> str:
    from pytest_torchprof.metrics import METRICS

    if text not in METRICS:
        raise SettingsError(f"there is no metric {text!r}. {near(text, METRICS)}")
    return text


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.replace("\n", ",").split(",") if word.strip()]


def _metrics(text: str) -> tuple[str, ...]:
    return tuple(_metric(word) for word in _words(text))


def _codes(text: str) -> frozenset[str]:
    return frozenset(_words(text))


#: Every option with a value. ``--torchprof``, ``--torchprof-strict`` and ``--accept`` are switches.
OPTIONS = (
    Option("select", "all", _choice("all", "marked"), "all|marked", "which tests to profile: every "
           "test, or those with a torchprof or budget marker or the torchprof fixture"),
    Option("warmup", "1", _count, "N", "unmeasured runs of each test, fixtures included, before "
           "the measured ones", marker=True),
    Option("rounds", "1", _count, "N", "timed, unprofiled runs, from which time metrics come",
           marker=True),
    Option("min_time", "0", _seconds, "S", "go on with timed rounds until they have taken this "
           "many seconds, or twice as many with their fixtures", marker=True),
    Option("time", "advisory", _choice("advisory", "gate", "off"), "advisory|gate|off",
           "what a time difference against a baseline does"),
    Option("baselines", "__torchprof__", _file, "DIR", "name of the baseline folder beside each "
           "test file; an absolute path puts all under that folder, mirrored"),
    Option("json", None, _file, "FILE", "write a machine-readable report", ini=False),
    Option("traces", None, _file, "DIR", "keep Chrome traces, one .pt.trace.json.gz a test"),
    Option("traces_of", "failed", _choice("failed", "all"), "failed|all",
           "the traces of which tests are kept", ini=False),
    Option("columns", None, _metrics, "M,M,…", "metrics shown in the summary table"),
    Option("sort", None, _metric, "M", "metric that sorts the summary table, largest first"),
    Option("top", "20", _count, "N", "rows of the summary table; 0 shows all"),
    Option("ignore", "", _codes, "RULE,…", "anti-pattern rules that are switched off"),
    Option("thresholds", "", str, "RULE.NAME=VALUE,…", "thresholds of anti-pattern rules, "
           "with units: pageable-copy.bytes=2 MiB"),
    Option("threads", "1", _threads, "N|keep", "intra-op CPU threads of the profiled run; 1 makes "
           "counts the same on every machine"),
)  # fmt: skip


def add_options(parser: pytest.Parser) -> None:
    """Register the table with pytest, command line and ini."""
    group = parser.getgroup("torchprof", "performance of PyTorch tests (torchprof)")
    add, ini = group.addoption, parser.addini
    switch: dict[str, Any] = {"default": None, "dest": "torchprof"}
    add("--torchprof", action="store_true", help="profile tests and compare", **switch)
    add("--no-torchprof", action="store_false", help="do not, whatever the ini says", **switch)
    ini("torchprof", "profile tests and compare (see --torchprof)", type="bool", default=False)
    add("--torchprof-strict", action="store_true", default=None, help=STRICT_HELP)
    ini("torchprof_strict", STRICT_HELP, type="bool", default=False)
    for option in OPTIONS:
        default = f" (default: {option.default})" if option.default else ""
        add(option.flag, dest=option.dest, default=None, metavar=option.metavar,
            help=option.help + default)  # fmt: skip
        if option.ini:
            ini(option.dest, option.help, default=None)


def add_accept(parser: pytest.Parser) -> bool:
    """Register ``--accept`` unless another plugin has; whether it is ours."""
    ours = parser.getgroup("torchprof")
    # Asking for forgiveness would not do: pytest raises now one error and now another, or later.
    groups = [parser._anonymous, *parser._groups]  # noqa: SLF001 - nothing public lists them
    if any(ACCEPT in option.names() for group in groups for option in group.options):
        return False
    dest = "torchprof_accept"
    ours.addoption(ACCEPT, action="store_true", default=False, dest=dest, help=ACCEPT_HELP)
    return True


def enabled(config: pytest.Config, given: object = None) -> bool:
    """Whether tests are to be profiled: ``--torchprof``, our own ``--accept``, or the ini.

    ``given`` are parsed options, by default the final ones.
    """
    given = config.option if given is None else given
    asked = getattr(given, "torchprof", None)
    if asked is not None:
        return bool(asked)
    return bool(getattr(given, "torchprof_accept", False) or config.getini("torchprof"))


def refuse_idle(config: pytest.Config) -> None:
    """With profiling off: what was typed to get a report or a stricter check would not be had.

    In ``addopts`` it may wait for ``--torchprof``, and ``--no-torchprof`` says that it is meant so.

    Raises:
        pytest.UsageError: it was typed all the same.
    """
    if config.option.torchprof is not None:
        return
    typed = {str(arg).partition("=")[0] for arg in config.invocation_params.args}
    for flag in _ASKING:
        if flag in typed:
            raise pytest.UsageError(f"{flag} does nothing without --torchprof; add --torchprof")


def build_settings(config: pytest.Config) -> Settings:
    """Weigh the sources of every option.

    Raises:
        pytest.UsageError: a value that cannot be, with its source and the near matches.
    """
    from pytest_torchprof.settings import Settings

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
            # What rules there are, only the session knows.
            if option.name == "ignore" and text:
                _check_rules(values["ignore"], config)
            elif option.name == "thresholds":
                values["thresholds"] = _thresholds_of(str(text), config)
        except TorchprofError as error:
            raise pytest.UsageError(f"{source}: {error}") from None
    strict = config.getoption("torchprof_strict")
    accept = config.getoption(ACCEPT, False)  # ours or another plugin's, wherever it keeps it
    here = config.invocation_params.dir
    for path in ("json", "traces"):
        values[path] = here / values[path] if values[path] else None
    return Settings(
        enabled=enabled(config),
        accept=bool(accept),
        strict=bool(config.getini("torchprof_strict") if strict is None else strict),
        **{**values, "columns": values["columns"] or ()},
        given=frozenset(given),
    )


def _check_rules(codes: Iterable[str], config: pytest.Config) -> frozenset[str]:
    """These names, if there is a rule of each, built in or of the users' own.

    Raises:
        SettingsError: there is none, with the near matches; or users' rules that make no sense.
    """
    from pytest_torchprof.rulebook import rules_of
    from pytest_torchprof.rules.thresholds import checked

    return checked(codes, rules_of(config).rules)


def _thresholds_of(text: str, config: pytest.Config) -> dict[str, dict[str, float]]:
    """Rule → name → value.

    Raises:
        SettingsError: a rule or threshold that is not there, or a wrong unit.
    """
    from pytest_torchprof.rulebook import rules_of
    from pytest_torchprof.rules.thresholds import parse

    return parse(text, rules_of(config).rules.values()) if text.strip() else {}


# -------------------------------------------------------------------- markers


def add_markers(config: pytest.Config) -> None:
    """Make the markers known to ``--markers`` and ``--strict-markers``."""
    from pytest_torchprof.metrics import METRICS

    arguments = ", ".join(f"{option.name}={option.metavar}" for option in OPTIONS if option.marker)
    lines = [
        f"torchprof({arguments}, enabled=True): settings of this test, when profiled",
        "no_antipatterns(*rules): fail on any anti-pattern finding, or on those named",
        "allow_antipatterns(*rules, reason): accept findings of these rules",
    ]
    for metric in METRICS.values():
        scope = ", op=None, module=None" if metric.scopable else ""
        lines.append(f"max_{metric.name}(limit{scope}): fail above this; {metric.help}")
    for line in lines:
        config.addinivalue_line("markers", line)


def budgets_of(item: pytest.Item) -> list[Budget]:
    """The limits set on this test by ``max_<metric>`` markers, wherever they stand.

    Raises:
        SettingsError: a limit that cannot be, an unknown metric, two limits for one metric.
    """
    from pytest_torchprof.metrics import METRICS

    found: dict[str, Budget] = {}
    for mark in item.iter_markers():
        if not mark.name.startswith("max_"):
            continue
        if mark.name[4:] not in METRICS:
            lines: list[str] = item.config.getini("markers")
            if mark.name in {line.partition("(")[0].partition(":")[0].strip() for line in lines}:
                continue  # somebody else's marker
            known = near(mark.name, [f"max_{name}" for name in METRICS])
            raise SettingsError(f"{mark.name}: there is no such metric. {known}")
        budget = _budget(mark)
        if budget.label in found:
            raise SettingsError(
                f"{mark.name} is given twice for {budget.label}: "
                f"{found[budget.label].limit} and {budget.limit}. Keep one."
            )
        found[budget.label] = budget
    return list(found.values())


def _budget(mark: pytest.Mark) -> Budget:
    from pytest_torchprof.metrics import METRICS
    from pytest_torchprof.stats import Budget
    from pytest_torchprof.units import parse_quantity

    metric = METRICS[mark.name[4:]]
    _check_arguments(mark, ("op", "module") if metric.scopable else ())
    if len(mark.args) != 1:
        found = f"{len(mark.args)} limits" if mark.args else "none"
        raise SettingsError(f"{mark.name} takes one limit, and got {found}: {mark.name}(5)")
    if {"op", "module"} <= mark.kwargs.keys():
        raise SettingsError(f"{mark.name} takes op= or module=, not both")
    for scope, what in mark.kwargs.items():
        if not isinstance(what, str) or not what:
            raise SettingsError(f"{mark.name}: {scope}= takes a name, and got {what!r}")
    try:
        limit = parse_quantity(mark.args[0], metric.unit)
    except TorchprofError as error:
        raise SettingsError(f"{mark.name}: {error}") from None
    return Budget(metric.name, limit, **mark.kwargs)


def _check_arguments(mark: pytest.Mark, known: Sequence[str]) -> None:
    for key in mark.kwargs:
        if key not in known:
            hint = near(key, known) if known else "It takes none."
            raise SettingsError(f"{mark.name} has no argument {key!r}. {hint}")


def overrides_of(item: pytest.Item) -> dict[str, Any]:
    """What ``@pytest.mark.torchprof(...)`` sets for this test; the closest marker wins.

    Raises:
        SettingsError: an unknown argument or a value that cannot be.
    """
    rows = {option.name: option for option in OPTIONS if option.marker}
    values: dict[str, Any] = {}
    for mark in item.iter_markers("torchprof"):
        if mark.args:
            raise SettingsError(f"the marker torchprof takes no positional argument: {mark.args}")
        _check_arguments(mark, [*rows, "enabled"])
        for key, value in mark.kwargs.items():
            if key in rows:
                try:
                    parsed = rows[key].parse(str(value))
                except SettingsError as error:
                    raise SettingsError(f"marker torchprof({key}=…): {error}") from None
            elif isinstance(value, bool):
                parsed = value
            else:
                raise SettingsError(f"marker torchprof({key}=…): {value!r} is not True or False")
            values.setdefault(key, parsed)
    # Precedence: the command line is stronger than the marker.
    for name, option in rows.items():
        if item.config.getoption(option.dest) is not None:
            values.pop(name, None)
    return values


def antipatterns_of(item: pytest.Item) -> tuple[list[Budget], dict[str, str]]:
    """(limits of 0 that ``no_antipatterns`` sets; rules that may match, and why).

    All markers count, wherever they stand; where one forbids by name what another allows, the
    closer one does, and of two at one place the one that allows.

    Raises:
        SettingsError: an unknown rule, or an allowance without a reason.
    """
    from pytest_torchprof.stats import Budget

    any_rule, named = False, set[str]()
    places: dict[int, tuple[dict[str, str], set[str]]] = {}
    for node, mark in item.iter_markers_with_node():
        allowed, forbidden = places.setdefault(id(node), ({}, set()))
        if mark.name == "no_antipatterns":
            _check_arguments(mark, ())
            forbidden |= _rules_of(mark, item.config)
            any_rule |= not mark.args
        elif mark.name == "allow_antipatterns":
            _check_arguments(mark, ("reason",))
            reason = mark.kwargs.get("reason")
            if not mark.args or not isinstance(reason, str) or not reason.strip():
                raise SettingsError(
                    'allow_antipatterns takes rules and a reason: ("host-sync", reason="…")'
                )
            allowed.update(dict.fromkeys(_rules_of(mark, item.config), reason))
    reasons: dict[str, str | None] = {}
    for allowed, forbidden in places.values():  # the closest first
        reasons = {**dict.fromkeys(forbidden), **allowed, **reasons}
        named |= forbidden
    budgets = [Budget("findings", 0)] if any_rule else []
    if named:
        budgets.append(Budget("findings", 0, rules=tuple(sorted(named))))
    return budgets, {rule: reason for rule, reason in reasons.items() if reason is not None}


def _rules_of(mark: pytest.Mark, config: pytest.Config) -> frozenset[str]:
    return _check_rules(map(str, mark.args), config)


def is_marked(item: pytest.Item) -> bool:
    """Whether the test asks to be profiled: by a marker of ours, or by the fixture."""
    ours = ("torchprof", "no_antipatterns", "allow_antipatterns")
    if "torchprof" in getattr(item, "fixturenames", ()):
        return True
    return any(m.name in ours or m.name.startswith("max_") for m in item.iter_markers())
