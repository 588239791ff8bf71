"""A whole page: one file that opens anywhere, also without scripts and from `file://`."""

from __future__ import annotations

import ast
import base64
import functools
import hashlib
import stat
import warnings
from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import jinja2
from markupsafe import Markup

from pytest_torchprof.core.errors import SettingsError, keep_others
from pytest_torchprof.core.files import head_of, replacing
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.units import (
    format_change,
    format_pair,
    format_quantity,
    format_spread,
    plural,
)
from pytest_torchprof.core.version import __version__
from pytest_torchprof.render import escape
from pytest_torchprof.render.escape import end_of, shorten, width_of
from pytest_torchprof.render.findings import source_line
from pytest_torchprof.render.html.svg import element, exact, shown
from pytest_torchprof.render.table import cell, heading

# ---- Where a page is written, without replacing another kind of file.

#: Near the beginning of each page, by which it is known as one of ours.
MARK = '<meta name="generator" content="torchprof'
#: The first line of styles and scripts in a folder; a comment in both.
ASSET_MARK = "/* of a page of torchprof */"


def check_page(path: Path) -> None:
    """Reject a name for a page that is the name of a folder, or of another kind of file.

    Raises:
        SettingsError: it is so.
    """
    if path.is_dir():
        raise SettingsError(f"{path}: is a folder", next_step="name a file in it")
    keep_others(path, lambda path: MARK.encode() in head_of(path), "a page of torchprof")


def check_asset(path: Path) -> None:
    """Reject a folder for styles and scripts in which another file has the name of one.

    Raises:
        SettingsError: such a file exists.
    """
    ours = ASSET_MARK.encode()
    keep_others(path, lambda path: head_of(path).startswith(ours), "of a page of torchprof")


def write_text(path: Path, text: str) -> None:
    """Write a page atomically.

    Raises:
        OSError: the file cannot be written; an old one is unchanged.
    """
    with replacing(path) as file:
        file.write(text.encode())


# ---- A whole page: one file that opens anywhere, also without scripts and from `file://`.
#
# Jinja2 is imported here, so this module is imported only where a page is asked for.

#: Files of `assets/`, in the order in which they are in the page.
STYLES = ("base.css", "report.css", "plots.css")
SCRIPTS = ("filter.js",)

_HERE = resources.files("pytest_torchprof.render.html")


def page(
    title: str, sections: Sequence[Section], *, data: object = None, assets: str | None = None
) -> str:
    """The whole file, of characters that UTF-8 can hold.

    Of sections about several files, the bar above has a link per file, and each file its own list.

    ``data`` is in the page as JSON. ``assets`` is the folder, relative to the page, with the files
    of `asset_files`; by default, they are in the page.
    """
    styles, scripts = _joined(STYLES), _joined(SCRIPTS)
    made = render(
        "page.html",
        title=title,
        sections=sections,
        groups=[(of, list(same)) for of, same in groupby(sections, lambda one: one.of)],
        styles=Markup(styles),  # noqa: S704 - our own file
        scripts=Markup(scripts),  # noqa: S704 - our own file
        script_hash=base64.b64encode(hashlib.sha256(scripts.encode()).digest()).decode(),
        data=None if data is None else json_block(data),
        assets=assets,
        version=__version__,
    )
    return str(made)


def asset_files() -> Mapping[str, str]:
    """The styles and scripts of pages whose assets are in a folder: file name → content."""
    return {
        "torchprof.css": f"{ASSET_MARK}\n{_joined(STYLES)}",
        "torchprof.js": f"{ASSET_MARK}\n{_joined(SCRIPTS)}",
    }


def render(template: str, **values: Any) -> Markup:
    """Fill in a file of `templates/`; values that are not `Markup` are escaped.

    Characters that are invisible, or no characters, are shown as Python escapes.
    """
    return Markup(_environment().get_template(template).render(values))  # noqa: S704 - escaped


def json_block(data: object) -> Markup:
    r"""JSON that can stand in a ``script`` element: no tag or comment begins or ends in it.

    >>> print(json_block({"a": "</script>"}))
    {"a":"\u003c/script>"}
    """
    text = escape.json_text(data, compact=True)
    return Markup(text.replace("<", r"\u003c"))  # noqa: S704 - JSON, not HTML


def macros(template: str, **asked: Any) -> Any:
    """The macros of a file of `templates/`, which may use what is ``asked``."""
    return _environment().get_template(template, globals=asked).module


@functools.cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: _text("templates", name)),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    made.filters |= {
        "quantity": format_quantity, "plural": plural, "spread": format_spread, "exact": exact,
        "line": shown,
    }  # fmt: skip
    made.globals |= {"pair": format_pair, "change": format_change}
    return made


def _shown(value: Any) -> Any:
    """Text as it can be read: a name moves no text, and fits into UTF-8."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return escape.block(value)
    return value


def _joined(names: Sequence[str]) -> str:
    return "\n".join(_text("assets", name) for name in names)


@functools.cache
def _text(folder: str, name: str) -> str:
    return (_HERE / folder / name).read_text("utf-8")


# ---- A part of a page.


class Section(Frozen, frozen=True):
    """A part of a page: an anchor, a heading, and its HTML, already escaped.

    ``of`` is the file, or the rank, that it is about, where a page is about several, and ``part``
    its heading among those of the same one.
    """

    anchor: str
    title: str
    body: Markup
    of: str = ""
    part: str = ""


# ---- Lines of the user's files, to be shown beside what was found there.

#: Lines before and after the one that is named.
_AROUND = 2
#: The longest line shown, in columns; the most lines of a test; the largest file that is read.
_WIDEST, _MOST_LINES, _LARGEST_BYTES = 200, 16, 2_000_000


class CodeLine(NamedTuple):
    """A line of a file; ``named``: it is the one that is meant."""

    number: int
    text: str
    named: bool


class Excerpt(NamedTuple):
    """Some lines of a file; ``cut``: how many more the test has."""

    path: str
    line: int
    lines: list[CodeLine]
    cut: int = 0


class Sources:
    """Reads Python files below ``root``, and no others: a report may name any file."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lines = functools.cache(functools.partial(_read, root))

    def around(self, location: str | None, operators: str | None) -> Excerpt | None:
        """The lines around a finding's ``location``; None if they are not at hand."""
        place = source_line(location, operators, self._root)
        if place is None or not 1 <= place.line <= len(self._lines(place.path)):
            return None
        first, last = max(1, place.line - _AROUND), place.line + _AROUND
        return self._excerpt(place.path, first, last, place.line)

    def of_test(self, nodeid: str) -> Excerpt | None:
        """The first lines of a test's function; None if it is not found."""
        file, _, name = nodeid.partition("::")
        place = source_line(f"{file}:1", None, self._root)
        if place is None:
            return None
        scope: ast.AST | None = _parsed(self._lines(place.path))
        for part in name.partition("[")[0].split("::"):
            scope = _defined(part, scope)
        if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
            return None
        first = min([scope.lineno, *(mark.lineno for mark in scope.decorator_list)])
        last = scope.end_lineno or first
        shown = min(last, first + _MOST_LINES - 1)
        return self._excerpt(place.path, first, shown)._replace(line=first, cut=last - shown)

    def _excerpt(self, path: str, first: int, last: int, named: int = 0) -> Excerpt:
        lines = enumerate(self._lines(path)[first - 1 : last], first)
        cut = [(number, shorten(text.expandtabs(4), _WIDEST)) for number, text in lines]
        return Excerpt(path, named, [CodeLine(at, text, at == named) for at, text in cut])


@functools.lru_cache(maxsize=16)
def _parsed(lines: tuple[str, ...]) -> ast.Module | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the user's code, which pytest has told
        try:
            return ast.parse("\n".join(lines))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def _defined(name: str, scope: ast.AST | None) -> ast.AST | None:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    parts = getattr(scope, "body", [])
    found = [part for part in parts if isinstance(part, kinds) and part.name == name]
    return found[-1] if found else None  # the last one is the one that counts


def _read(root: Path, path: str) -> tuple[str, ...]:
    """The lines of a Python file below the root; none if it is not there."""
    try:
        file = (root / path).resolve()
        if file.suffix != ".py" or not file.is_relative_to(root.resolve()):
            return ()
        status = file.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST_BYTES:
            return ()
        # As Python counts lines, which form feeds and others do not end.
        return tuple(file.read_bytes().decode("utf-8", "replace").replace("\r\n", "\n").split("\n"))
    except (OSError, ValueError, RuntimeError):
        return ()


# ---- Rows as a table of HTML whose cells also have the exact values.

#: Names, which are set as code, and the letters of each that are shown; the tooltip has more.
_NAMES: Final = {
    "name": 44, "kernel": 30, "operator": 29, "shapes": 30, "what": 32, "location": 34,
    "path": 40, "where": 36, "module": 34, "stack": 44,
}  # fmt: skip
#: Names whose end tells most.
_ENDS: Final = frozenset({"location", "path", "where", "module", "stack"})
#: Sentences, which are wrapped.
_WORDS: Final = frozenset({"reason", "message", "fix"})


def data_table(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    fields: Sequence[str],
    *,
    numbered: bool = False,
    headings: Mapping[str, str] = MappingProxyType({}),
) -> Markup:
    """A table called ``name``; fields that no row has a value for are left out.

    Each cell of a number has it in ``data-value``, as ``--format json`` prints it; a number that is
    not known is ``null`` there.  ``numbered``: a first column counts the rows. ``headings`` of
    columns that need other words than usual.
    """
    used = [field for field in fields if any(row.get(field) is not None for row in rows)]
    numeric = {field for field in used if all(_is_number(row.get(field)) for row in rows)}
    head = [element("th", "#", scope="col", class_="number")] if numbered else []
    for field in used:
        words = headings.get(field) or heading(field).replace("_", " ")
        class_ = "number" if field in numeric else None
        head.append(element("th", words, scope="col", data_field=field, class_=class_))
    body = []
    for number, row in enumerate(rows, 1):
        cells = [_cell(field, row.get(field), field in numeric) for field in used]
        first = [element("td", str(number), class_="t-rank")] if numbered else []
        body.append(element("tr", *first, *cells))
    parts = element("thead", element("tr", *head)), element("tbody", *body)
    table = element("table", *parts, class_="data", data_table=name)
    return element("div", table, class_="scroll")


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _cell(field: str, value: Any, is_number: bool) -> Markup:
    words = cell(field, value)
    if is_number:
        return element("td", words, class_="number", data_value=exact(value))
    if field == "cause":
        return element("td", words, class_="t-cause")
    if field in _WORDS:
        return element("td", shown(words, 400), class_="t-words")
    if field not in _NAMES or value is None:
        return element("td", shown(words, 80))
    full, width = shown(str(value)), _NAMES[field]
    short = shown(words, width)
    if field in _ENDS and width_of(words) > width:
        short = f"…{end_of(words, width - 1)}"
    title = full if full != short else None
    return element("td", element("code", short), class_="t-name", title=title)
