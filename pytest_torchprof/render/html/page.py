"""A whole page: one file that opens anywhere, also without scripts and from `file://`.

Jinja2 is imported here, so this module is imported only where a page is asked for.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import groupby
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

from pytest_torchprof.core.version import __version__
from pytest_torchprof.render import escape
from pytest_torchprof.render.html.target import ASSET_MARK

if TYPE_CHECKING:
    from pytest_torchprof.render.html.section import Section

#: Files of `assets/`, in the order in which they are in the page.
STYLES = ("base.css", "report.css")
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
    styles, scripts = _joined("assets", STYLES), _joined("assets", SCRIPTS)
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
        "torchprof.css": f"{ASSET_MARK}\n{_joined('assets', STYLES)}",
        "torchprof.js": f"{ASSET_MARK}\n{_joined('assets', SCRIPTS)}",
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
    text = escape.strict_json_text(data, compact=True)
    return Markup(text.replace("<", r"\u003c"))  # noqa: S704 - JSON, not HTML


@functools.cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: _text("templates", name)),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )


def _shown(value: Any) -> Any:
    """Text as it can be read: a name moves no text, and fits into UTF-8."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return escape.block(value)
    return value


def _joined(folder: str, names: Sequence[str]) -> str:
    return "\n".join(_text(folder, name) for name in names)


@functools.cache
def _text(folder: str, name: str) -> str:
    return (_HERE / folder / name).read_text("utf-8")
