"""`torchprof report`: reports of test sessions and traces as one page of HTML."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_torchprof.commands.inputs import extra_chips, load_traces, warn
from pytest_torchprof.commands.printing import OK
from pytest_torchprof.core.errors import ReportError, SettingsError
from pytest_torchprof.core.files import in_the_way, same_file, system_message
from pytest_torchprof.core.units import plural
from pytest_torchprof.render.stored_report import StoredReport, read_report
from pytest_torchprof.trace.ranks import short_names
from pytest_torchprof.trace.read import is_trace

if TYPE_CHECKING:
    from argparse import Namespace

    from pytest_torchprof.render.html.section import Section
    from pytest_torchprof.work.devices.device import Device


_NEXT = "name a trace, or a report of pytest --torchprof --torchprof-json=FILE"


def run_report(options: Namespace) -> int:
    """Write the page, and its assets if they go into a folder."""
    target = Path(options.output)
    _check(target, options.files, options.assets)
    from pytest_torchprof.render.html.page import asset_files, page
    from pytest_torchprof.render.html.target import check_asset, check_page, write_text

    check_page(target)
    for name in asset_files() if options.assets is not None else ():
        check_asset(Path(options.assets) / name)
    chips = extra_chips(options)
    paths = [Path(name) for name in options.files]
    names = short_names(paths)
    several = len(paths) > 1
    sections: list[Section] = []
    traces: list[Section] = []
    data: dict[str, Any] = {}
    title = plural(len(paths), "file")
    for number, (path, name) in enumerate(zip(paths, names, strict=True), 1):
        prefix, label = (f"file-{number}-", name) if several else ("", "")
        if path.is_dir() or (not path.is_fifo() and is_trace(path)):
            made, own_title, own_data = _of_trace(path, prefix, label, chips)
            traces += made
        else:
            made, own_title, own_data = _of_report(path, prefix, label)
        sections += made
        data[name] = own_data
        title = title if several else own_title
    folder = None if options.assets is None else Path(options.assets)
    looks = dict(asset_files())
    if traces:
        from pytest_torchprof.render.html.trace_sections import plot_styles, with_styles

        looks["torchprof.css"] += plot_styles()
        sections = sections if folder else with_styles(sections)
    text = page(
        title,
        sections,
        data={"files": data} if several else next(iter(data.values())),
        assets=None if folder is None else _link(target, folder),
    )
    styled = {} if folder is None else {folder / name: look for name, look in looks.items()}
    for where, content in {**styled, target: text}.items():
        try:
            write_text(where, content)
        except (OSError, ValueError) as error:
            raise ReportError(
                f"{where}: cannot be written", system_message(error), "name another file"
            ) from None
    return OK


def _check(target: Path, files: Sequence[str], assets: str | None) -> None:
    """Reject a target that would replace what is read, and a folder that can be none.

    Raises:
        SettingsError: it is so.
    """
    if any(same_file(target, Path(name)) for name in files):
        raise SettingsError(
            f"{target}: this is one of the files to read",
            "they are never overwritten",
            "give another name for the page",
        )
    if target.is_dir():
        raise SettingsError(f"{target}: is a folder", next_step="name a file in it")
    if assets is not None and target == Path("/dev/stdout"):
        raise SettingsError(
            "--assets does not go with -o -",
            "a page on standard output has no place from which it could link to a folder",
            "name a file with -o",
        )
    if assets is not None and (path := in_the_way(Path(assets))) is not None:
        raise SettingsError(
            f"{assets} cannot be a folder", f"{path} exists and is a file", "name another folder"
        )


def _of_report(path: Path, prefix: str, name: str) -> tuple[list[Section], str, Mapping[str, Any]]:
    """A report's sections, its verdict, and its data."""
    from pytest_torchprof.render.html.report_page import data_of, headline, report_sections
    from pytest_torchprof.render.html.sources import Sources

    report: StoredReport = read_report(path, _NEXT)
    if report.interrupted:
        warn(f"{path}: the session was interrupted; tests may be missing")
    sections = report_sections(report, Sources(Path.cwd()), prefix=prefix, name=name)
    return sections, headline(report), data_of(report)


def _of_trace(
    path: Path, prefix: str, name: str, chips: Sequence[Device]
) -> tuple[list[Section], str, Mapping[str, Any]]:
    """The sections of a trace, or of the traces in a folder, their title, and their data."""
    from pytest_torchprof.commands.trace_page import data_of_traces, sections_of

    ranks = load_traces([str(path)], None)
    sections = sections_of(ranks, chips, prefix=prefix, name=name)
    return sections, path.resolve().name, data_of_traces(ranks)


def _link(target: Path, folder: Path) -> str:
    """The folder as the page links to it, with a slash at its end."""
    relative = os.path.relpath(folder.resolve(), target.resolve().parent)
    return urllib.parse.quote(Path(relative).as_posix()) + "/"
