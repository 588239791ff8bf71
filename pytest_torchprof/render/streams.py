"""Print escaped text to standard output and standard error."""

from __future__ import annotations

import sys

from pytest_torchprof.render import escape


def out(text: str) -> None:
    """Print to standard output; characters that its encoding lacks are escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    safe = escape.block(text).encode(encoding, escape.ENCODING_ERRORS)
    sys.stdout.write(safe.decode(encoding))


def say(message: str) -> None:
    """Print one line to standard error, with the command's name."""
    print(escape.line(f"torchprof: {' '.join(message.split())}"), file=sys.stderr)  # noqa: T201
