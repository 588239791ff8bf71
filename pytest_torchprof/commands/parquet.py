"""Rows as a Parquet file, for DuckDB, pandas, and others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_torchprof.core.errors import (
    SettingsError,
    not_onto_itself,
    not_replaced,
    not_written,
)
from pytest_torchprof.core.files import is_other_file, replacing, same_file, system_message

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from pytest_torchprof.commands.several import Several

#: The first bytes of every Parquet file.
_MAGIC = b"PAR1"
#: Suffixes of fields with fractions. All other numbers are whole, unless a row has a fraction.
_FRACTIONS = ("_ms", "_us", "_pct", "_per_s", "share", "value", "intensity", "waves", "tail")
_WHOLE = (
    "bytes",
    "flops",
    "calls",
    "count",
    "gaps",
    "traces",
    "rank",
    "step",
    "modules",
    "size",
)
_TRUTHS = ("accepted",)
_LARGEST = 2**63
#: Of a file that could not be read, the only columns with a value.
_UNREAD = ("trace", "reason")


def check_target(options: Namespace) -> None:
    """Whether the file can be written, before anything is read.

    Raises:
        SettingsError: no file is named, or one without the format, or pyarrow is missing.
        TraceError: it is a trace that is read, or a file of another kind.
    """
    if options.format != "parquet":
        if options.output:
            what = f"-o {options.output}: --format {options.format} is printed"
            raise SettingsError(what, "", "redirect it: > FILE, or use --format parquet")
        return
    if not options.output:
        raise SettingsError("--format parquet is a file", "none is named", "add -o FILE")
    _pyarrow()
    target = Path(options.output)
    if target.is_dir():
        raise SettingsError(f"{target}: is a folder", next_step="name a file in it")
    if any(same_file(target, Path(name)) for name in options.traces):
        raise not_onto_itself(target)
    if is_other_file(target, _is_parquet):
        raise not_replaced(target, "a Parquet file")


def write_parquet(
    options: Namespace,
    several: Several[Any],
    rows: Sequence[dict[str, Any]],
    fields: Sequence[str],
    schema: str,
) -> None:
    """Write these rows, and one for each file that could not be read, with its ``reason``.

    The schema's metadata has ``torchprof``: JSON with the schema's name and the traces. Lists are
    JSON, too.

    Raises:
        TraceError: the file cannot be written.
    """
    pyarrow = _pyarrow()
    columns = [*fields, *(name for name in _UNREAD if name not in fields)]
    unread = [{"trace": f.source, "reason": str(f.error)} for f in several.left_out]
    all_rows = [*rows, *unread]
    # Of memory, it is a name.
    whole = _WHOLE if options.command == "memory" else (*_WHOLE, "device")
    arrays = {
        name: _array(pyarrow, name, [row.get(name) for row in all_rows], whole) for name in columns
    }
    table = pyarrow.table(arrays)
    facts = {"schema": schema, "traces": [str(one.path) for one in several.values()]}
    table = table.replace_schema_metadata({"torchprof": json.dumps(facts)})
    target = Path(options.output)
    try:
        with replacing(target) as file:
            pyarrow.parquet.write_table(table, file)
    except (OSError, ValueError) as error:
        raise not_written(target, system_message(error)) from None


def _array(pyarrow: Any, name: str, values: Sequence[Any], whole: tuple[str, ...]) -> Any:
    """A column, of the same type in every file unless a value does not fit."""
    known = [value for value in values if value is not None]
    kind = _kind(pyarrow, name, known, whole)
    if kind == pyarrow.string():
        values = [None if value is None else _text(value) for value in values]
    elif kind == pyarrow.float64():
        values = [None if value is None else float(value) for value in values]
    return pyarrow.array(values, type=kind)


def _kind(pyarrow: Any, name: str, known: Sequence[Any], whole: tuple[str, ...]) -> Any:
    if any(not isinstance(value, int | float) for value in known):
        return pyarrow.string()
    if name in _TRUTHS:
        return pyarrow.bool_()
    if name.endswith(_FRACTIONS):
        return pyarrow.float64()
    if any(isinstance(value, float) or abs(value) >= _LARGEST for value in known):
        return pyarrow.float64()
    return pyarrow.int64() if known or name.endswith(whole) else pyarrow.string()


def _text(value: Any) -> str:
    return str(value) if isinstance(value, str) else json.dumps(value)


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        step = "pip install 'pytest-torchprof[parquet]'"
        raise SettingsError("--format parquet needs pyarrow", str(error), step) from None
    return pyarrow
