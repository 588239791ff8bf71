"""Make the tables in the documents: metrics, options, markers, commands, and the API."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import tabulate

import pytest_torchprof
from pytest_torchprof.baseline import store
from pytest_torchprof.cli import COMMANDS
from pytest_torchprof.core.units import format_tolerance
from pytest_torchprof.core.unknown import Why, because
from pytest_torchprof.core.values import Finding, Record, Verdict
from pytest_torchprof.render.report import REPORT_SCHEMA, test_of
from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.session.fixture import NamedRegion, Torchprof
from pytest_torchprof.session.markers import listed_markers
from pytest_torchprof.session.options import (
    IMPORTS_HELP,
    JUNIT_HELP,
    OPTIONS,
    STABLE_HELP,
    STRICT_HELP,
    TOLERANCE_HELP,
)
from pytest_torchprof.verdict.metrics import METRICS
from pytest_torchprof.work.devices import DTYPES, known_chips

ROOT = Path(__file__).resolve().parents[1]
_WIDTH = 88
#: Types that users create; the others are returned to them.
_MADE = {"Matches", "Threshold"}
#: Sections of Google-style docstrings.
_CODE = re.compile(r"\.\. code(?:-block)?:: *(\w*) *$")
_ROLE = re.compile(r"(?::\w+:)?(`{1,2})([^`]+)\1")
_SECTION = re.compile(r"^(Attributes|Raises):\n((?:    .*(?:\n|$)|\n)+)", re.MULTILINE)


def metrics() -> str:
    """The metric table."""
    rows = [
        [
            f"`{m.name}`",
            m.unit,
            f"{m.klass} {format_tolerance(m.tolerance, m.margin, m.unit)}".rstrip(),
            m.help,
        ]
        for m in METRICS.values()
    ]
    return tabulate.tabulate(rows, ["name", "unit", "class", "meaning"], tablefmt="github")


def options() -> str:
    """The option table."""
    rows = [
        ["`--torchprof` / `--no-torchprof`", "`torchprof`", "off", "profile tests and compare"],
        ["`--accept`", "–", "off", "write measured values as the new baseline; on by itself"],
        ["`--torchprof-check-stable` / `--no-torchprof-check-stable`", "–", "–", STABLE_HELP],
        ["`--torchprof-strict`", "`torchprof_strict`", "off", STRICT_HELP],
        [
            "`--torchprof-seed-imports` / `--no-torchprof-seed-imports`",
            "`torchprof_seed_imports`", "–", IMPORTS_HELP,
        ],
        ["–", "`torchprof_junit`", "off", JUNIT_HELP],
        ["–", "`torchprof_tolerance`", "–", TOLERANCE_HELP],
    ]  # fmt: skip
    for option in OPTIONS:
        metavar = option.metavar.replace("|", "\\|")
        ini = f"`{option.dest}`" if option.ini else "–"
        default = f"`{option.default}`" if option.default else "–"
        rows.append([f"`{option.flag}={metavar}`", ini, default, option.help])
    return tabulate.tabulate(rows, ["option", "ini", "default", "meaning"], tablefmt="github")


def devices() -> str:
    """The table of accelerators."""
    rows = []
    for device in known_chips():
        title, _, address = device.source.rpartition(", ")
        peaks = [f"{device.peaks[d] / 1e12:g}" if d in device.peaks else "–" for d in DTYPES]
        bandwidth = f"{device.bandwidth_bytes_per_s / 1e12:g}"
        memory = f"{(device.memory_bytes or 0) >> 30}"
        rows.append([device.name, memory, bandwidth, *peaks, f"[{title}]({address})"])
    headers = ["device", "GiB", "TB/s", *DTYPES, "source"]
    return tabulate.tabulate(rows, headers, tablefmt="github", disable_numparse=True)


def commands() -> str:
    """The subcommands of `torchprof`."""
    rows = [
        [f"`torchprof {command.name} {synopsis}`", command.help]
        for command in COMMANDS
        for synopsis in [command.synopsis.replace("|", "\\|")]
    ]
    return tabulate.tabulate(rows, ["command", "prints"], tablefmt="github")


def rules() -> str:
    """The anti-pattern rules, on a few lines."""
    codes = ", ".join(f"`{code}`" for code in RULES)
    return textwrap.fill(codes, 100, break_on_hyphens=False)


def markers() -> str:
    """The markers, as pytest lists them."""
    rows = [line.partition("): ")[::2] for line in listed_markers()]
    cells = [
        [f"`{call})`".replace("|", "\\|"), meaning.partition("; NAME")[0]] for call, meaning in rows
    ]
    return tabulate.tabulate(cells, ["marker", "meaning"], tablefmt="github")


def command_help() -> str:
    """The arguments of each subcommand."""
    parts = []
    for command in COMMANDS:
        parser = _Arguments()
        for add in command.arguments:
            add(parser)  # type: ignore[arg-type]
        synopsis = f"torchprof {command.name} {command.synopsis}"
        table = tabulate.tabulate(parser.rows, ["argument", "meaning"], tablefmt="github")
        parts.append(f"### torchprof {command.name}\n\n`{synopsis}`: {command.help}.\n\n{table}")
    return "\n\n".join(parts)


class _Arguments:
    """Stands in for a parser, and makes a row of each argument added to it."""

    def __init__(self) -> None:
        self.rows = list[list[str]]()

    def add_argument(self, name: str, *_: str, **options: Any) -> None:
        """Keep what the documents show: the first name."""
        choices, default = options.get("choices"), options.get("default")
        value = "|".join(choices) if choices else options.get("metavar", "")
        shown = f"{name} {value}".strip() if name.startswith("-") else value
        meaning = options.get("help", "")
        if choices and default:
            meaning = meaning or f"default: {default}"
        self.rows.append([f"`{shown}`".replace("|", "\\|"), meaning])


def fixture() -> str:
    """What the fixture's value can do."""
    inline, function = Torchprof.assert_expected_inline, Torchprof.measure_function
    rows = [
        ["`with torchprof:`", _summary(Torchprof.__enter__)],
        ['`with torchprof("name"):`', _summary(NamedRegion.__enter__)],
        ['`torchprof["name"]`', _summary(Torchprof.__getitem__)],
        [f"`torchprof{_signature(function, bare=True)}`", _summary(function)],
        ["`torchprof.stats.NAME`", "One measured metric, in its unit."],
        [f"`torchprof.table{_signature(Torchprof.table, bare=True)}`", _summary(Torchprof.table)],
        [f"`torchprof.ab{_signature(Torchprof.ab, bare=True)}`", _summary(Torchprof.ab)],
        [f"`torchprof.assert_expected_inline{_signature(inline, bare=True)}`", _summary(inline)],
    ]
    return tabulate.tabulate(rows, ["call", "meaning"], tablefmt="github")


def api() -> str:
    """The names that the package exports, with their docstrings."""
    parts = []
    for name in pytest_torchprof.__all__:
        value = getattr(pytest_torchprof, name)
        if isinstance(value, str):
            parts.append(f"## `{name}`\n\nThe version, as a string.")
            continue
        shown = not inspect.isclass(value) or name in _MADE
        head = f"```text\n{name}{_signature(value)}\n```\n\n" if shown else ""
        parts.append(f"## `{name}`\n\n{head}{_doc(value)}")
        if inspect.isclass(value):
            parts += _members(value)
    return "\n\n".join(parts)


def _members(value: type) -> list[str]:
    parts = []
    for name, member in vars(value).items():
        if name.startswith("_") or not inspect.getdoc(member):
            continue
        if isinstance(member, property):
            parts.append(f"### `{value.__name__}.{name}`\n\n{_doc(member)}")
            continue
        if inspect.isroutine(member) or isinstance(member, classmethod):
            head = f"{value.__name__}.{name}{_signature(getattr(value, name))}"
            code = f"```text\n{head}\n```"
            parts.append(f"### `{value.__name__}.{name}`\n\n{code}\n\n{_doc(member)}")
    return parts


class _Source(str):
    """An annotation in its source spelling."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _signature(function: Callable[..., object], *, bare: bool = False) -> str:
    """In its source spelling, without ``self``; ``bare`` also without types.

    A long one has a line for each argument.
    """
    found = _struct(function) or inspect.signature(function)
    empty = inspect.Parameter.empty
    names = [
        name.replace(annotation=empty if bare else _Source(name.annotation))
        for name in found.parameters.values()
        if name.name != "self"
    ]
    returned = (
        empty if bare or found.return_annotation is empty else _Source(found.return_annotation)
    )
    text = str(found.replace(parameters=names, return_annotation=returned))
    if len(text) <= _WIDTH:
        return text
    before, _, after = text.rpartition(")")
    lines = [f"    {line}," for line in _split(before[1:])]
    return "\n".join(["(", *lines, f"){after}"])


def _struct(made: object) -> inspect.Signature | None:
    """The signature of a msgspec struct, whose types only a type checker can resolve."""
    if not (isinstance(made, type) and issubclass(made, msgspec.Struct)):
        return None
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = made.__struct_fields__
    defaults = [inspect.Parameter.empty] * len(names) + list(made.__struct_defaults__)
    types = made.__annotations__
    rows = zip(names, defaults[-len(names) :], strict=True)
    return inspect.Signature(
        [inspect.Parameter(name, kind, default=d, annotation=types[name]) for name, d in rows]
    )


def _split(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _doc(value: object) -> str:
    """A docstring as Markdown, its sections as lists."""
    return _markdown(_SECTION.sub(_listed, inspect.getdoc(value) or ""))


def _markdown(text: str) -> str:
    r"""A section as Markdown: ``.. code::`` becomes fenced, double backquotes become single.

    >>> print(_markdown("As ``x``:\n\n.. code:: python\n\n    x = 1\n\nend"))
    As `x`:
    <BLANKLINE>
    ```python
    x = 1
    ```
    <BLANKLINE>
    end
    """
    out, lines = list[str](), text.splitlines()
    while lines:
        line = lines.pop(0)
        if (found := _CODE.fullmatch(line.strip())) is None:
            out.append(_inline(line))
            continue
        code = _taken(lines, len(line) - len(line.lstrip()))
        out += [f"```{found[1]}".rstrip(), code, "```", ""]
    return "\n".join(out).strip("\n")


def _taken(lines: list[str], indent: int) -> str:
    """Take the leading lines that are indented more, and dedent them."""
    block = list[str]()
    while lines and (not lines[0].strip() or len(lines[0]) - len(lines[0].lstrip()) > indent):
        block.append(lines.pop(0))
    return textwrap.dedent("\n".join(block)).strip("\n")


def _inline(text: str) -> str:
    """Markdown of a line: roles and double backquotes become single backquotes."""
    return _ROLE.sub(r"`\2`", text)


def _listed(section: re.Match[str]) -> str:
    lines = list[str]()
    for line in section[2].splitlines():
        if line.startswith("     "):
            lines[-1] += f" {line.strip()}"
        elif line.strip():
            lines.append(re.sub(r"^ *(\w+):", r"- ``\1``:", line))
    return "\n".join([f"{section[1]}:", "", *lines])


def _summary(function: Callable[..., object]) -> str:
    return _inline((inspect.getdoc(function) or "").partition("\n\n")[0].replace("\n", " "))


def baseline_example() -> str:
    """One test of an example's baseline."""
    path = ROOT / "examples" / "__torchprof__" / "test_dataloader.json"
    stored = json.loads(path.read_text("utf-8"))
    name, entry = next(iter(stored["tests"].items()))
    ((key, sections),) = [pair for pair in entry.items() if pair[0].startswith("cpu")][:1]
    stored["tests"] = {name: {key: sections}}
    return f"```json\n{store.render(stored).rstrip()}\n```"


def report_example() -> str:
    """One test of a report, with one metric and one finding."""
    finding = Finding(
        "host-sync", 3, "aten::item reads back from the device", "tests/test_a.py:12",
        fix="keep the value on the device", cost_ms=0.21,
    )  # fmt: skip
    verdict = Verdict("flops", 240, "regressed", 200)
    record = Record(
        "tests/test_a.py::test_step[cpu]", "regressed", metrics={verdict.label: verdict},
        findings=(finding,), unchecked={"fp32-matmul": because(*Why.NO_DEVICE)}, outcome="failed",
    )  # fmt: skip
    tests = [test_of(record)]
    report = {"schema": REPORT_SCHEMA, "environment": {"key": "cpu, torch 2.13"}, "tests": tests}
    return f"```json\n{json.dumps(report, indent=2, ensure_ascii=False)}\n```"


MAKERS: dict[str, Callable[[], str]] = {
    "api": api,
    "baseline_example": baseline_example,
    "commands": commands,
    "devices": devices,
    "fixture": fixture,
    "help": command_help,
    "markers": markers,
    "metrics": metrics,
    "options": options,
    "report_example": report_example,
    "rules": rules,
}
