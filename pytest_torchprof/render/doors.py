"""Where text leaves a command: standard output and standard error, nothing in it raw."""

from __future__ import annotations

import sys

from pytest_torchprof.render import escape


def out(text: str) -> None:
    """To standard output, whatever its encoding can hold."""
    encoding = sys.stdout.encoding or "utf-8"
    safe = escape.block(text).encode(encoding, escape.ENCODING_ERRORS)
    sys.stdout.write(safe.decode(encoding))


def say(message: str) -> None:
    """One line on standard error, in the name of the command."""
    print(escape.line(f"torchprof: {' '.join(message.split())}"), file=sys.stderr)  # noqa: T201
