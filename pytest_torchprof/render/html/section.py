"""A part of a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_torchprof.core.structs import Frozen

if TYPE_CHECKING:
    from markupsafe import Markup


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
