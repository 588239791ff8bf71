"""Annotations of GitHub Actions: lines of a log that the runner shows beside the code.

The syntax is that of GitHub's documentation, "Workflow commands for GitHub Actions"; what is
escaped is that of ``escapeData`` and ``escapeProperty`` in ``@actions/core``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from pytest_torchprof.core.units import plural
from pytest_torchprof.render import escape
from pytest_torchprof.render.source_lines import SourceLine  # noqa: TC001 - of a NamedTuple
from pytest_torchprof.render.text_width import shorten, shorten_text

#: GitHub shows ten annotations of each kind per step.
MOST_ANNOTATIONS = 10
#: A longer title or message hides the others.
_TITLE, _MESSAGE = 200, 2_000


class Annotation(NamedTuple):
    """A message on a line of the user's file, or on none."""

    level: Literal["error", "warning", "notice"]
    title: str
    message: str
    place: SourceLine | None = None


def workflow_commands(found: Sequence[Annotation], most: int = MOST_ANNOTATIONS) -> list[str]:
    """The lines to print: at most so many annotations, and how many are left.

    >>> place = SourceLine("train.py", 21)
    >>> print(*workflow_commands([Annotation("warning", "host-sync", "100 % slow", place)]))
    ::warning file=train.py,line=21,title=host-sync::100 %25 slow
    """
    lines = [command_of(one) for one in found[:most]]
    if left := len(found) - most:
        lines += [f"torchprof: … and {plural(left, 'more annotation')}"] if left > 0 else []
    return lines


def command_of(annotation: Annotation) -> str:
    """One annotation, as the runner reads it."""
    level, title, message, place = annotation
    properties = {} if place is None else {"file": place.path, "line": str(place.line)}
    properties["title"] = shorten(escape.line(title), _TITLE)
    named = ",".join(f"{name}={_property(text)}" for name, text in properties.items())
    return f"::{level} {named}::{_data(shorten_text(escape.block(message), _MESSAGE))}"


def plain_line(text: str) -> str:
    """A line of the log that the runner takes for no command, whatever it says."""
    shown = escape.line(text).replace("##[", "# #[")
    return shown.replace("::", ": :", 1) if shown.lstrip().startswith("::") else shown


def _data(text: str) -> str:
    text = escape.block(text)
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(escape.line(text)).replace(":", "%3A").replace(",", "%2C")
