"""What our reader says of a trace, and where that differs from the answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pytest_torchprof.analysis.kernels import kernel_rows
from pytest_torchprof.core.values import MissingValue
from pytest_torchprof.rules.check import check
from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.trace.names import SYNC_CALL, Kind
from pytest_torchprof.verdict.metrics import METRICS, measure, measure_all

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

#: A number, or the reason for having none, in words.
Shown = int | float | str | None


def read(trace: Events, scoped: Iterable[str] = ()) -> dict[str, Shown]:
    """Every metric; copies within the device and memsets; and ``scoped`` numbers.

    Those are ``METRIC@REGION`` of a ``record_function``, and ``FIELD@OPERATOR`` of the rows of
    ``torchprof kernels --by op``.
    """
    found = {name: shown(value) for name, value in measure_all(trace).items()}
    copies = trace.selection & trace.is_kind(Kind.MEMCPY) & trace.names_where(_within_device)
    found["d2d_copies"] = int(copies.sum())
    found["d2d_bytes"] = int(trace.bytes[copies].sum())
    found["memsets"] = int((trace.selection & trace.is_kind(Kind.MEMSET)).sum())
    for name in scoped:
        what, _, where = name.partition("@")
        if where and what in METRICS:
            found[name] = shown(measure(METRICS[what], trace.within(region=where)))
        elif where:
            found[name] = _of_operator(trace, what, where)
    return found


def _within_device(name: str) -> bool:
    return "DtoD" in name or "DeviceToDevice" in name


def _of_operator(trace: Events, what: str, operator: str) -> float | None:
    rows = [row for row in kernel_rows(trace, by="op") if row.operator == operator]
    values = [getattr(row, what) for row in rows]
    known = [value for value in values if value is not None]
    return float(known[0]) if len(known) == 1 else None


def shown(value: object) -> Shown:
    """A value for JSON; one that is missing by its reason."""
    if isinstance(value, MissingValue):
        return f"unknown: {value.reason.text}"
    return value if isinstance(value, int | float) else None


def rules_of(trace: Events) -> dict[str, Any]:
    """What all rules say of a trace."""
    checked = check(trace, RULES.values())
    return {
        "counts": checked.counts,
        "unchecked": {code: reason.text for code, reason in checked.unchecked.items()},
        "partly": {code: reason.text for code, reason in checked.partly.items()},
        "errors": dict(checked.errors),
        "costs_ms": {
            f"{one.rule} {number}": one.cost_ms for number, one in enumerate(checked.findings())
        },
        "messages": [f"{one.rule}: {one.message}" for one in checked.findings()],
    }


def syncing_calls(trace: Events) -> dict[str, int]:
    """The calls that `syncs` counts, by name: to understand a difference."""
    calls = trace.selection & trace.is_kind(Kind.RUNTIME) & trace.names_where(SYNC_CALL.search)
    names = [trace.names[name] for name in trace.name[calls].tolist()]
    return {name: names.count(name) for name in sorted(set(names))}


def kernels_by_name(trace: Events) -> dict[str, int]:
    """All device work by name, with its number: to understand a difference."""
    return {row.kernel: row.calls for row in kernel_rows(trace)}


# ---------------------------------------------------------------------------- differences


def differences(answers: Mapping[str, Any], found: Mapping[str, Shown]) -> list[str]:
    """Where what was read is not as the answers say, in words."""
    lines = []
    for name, answer in answers.items():
        value = found.get(name)
        if not _fits(answer, value):
            lines.append(f"{name}: {value}, not {_wanted(answer)} ({answer['source']})")
    return lines


def _fits(answer: Mapping[str, Any], value: Shown) -> bool:
    missing = value is None or isinstance(value, str)
    if answer.get("unknown"):
        return missing
    if missing:
        return bool(answer.get("or_unknown"))
    assert isinstance(value, int | float)
    if "value" in answer:
        return bool(value == answer["value"])
    return bool(answer["low"] <= value <= answer["high"])


def _wanted(answer: Mapping[str, Any]) -> str:
    if answer.get("unknown"):
        return "unknown"
    return str(answer["value"]) if "value" in answer else f"{answer['low']} to {answer['high']}"


def rule_differences(
    rules: Mapping[str, int], may: Iterable[str], counts: Mapping[str, int]
) -> list[str]:
    """Rules that match as they should not, or do not match as they should."""
    allowed = set(may)
    return [
        f"{code}: {counts.get(code, 0)}, not {rules.get(code, 0)}"
        for code in sorted({*rules, *counts})
        if code not in allowed and counts.get(code, 0) != rules.get(code, 0)
    ]
