"""What a session prints of tests that fail, test by test."""

from __future__ import annotations


def messages(out: str) -> dict[str, list[str]]:
    """Lines of the message of each failed test."""
    found: dict[str, list[str]] = {}
    name = None
    for line in out.splitlines():
        if line.startswith("___"):
            name = line.strip("_ ")
            found[name] = []
        elif line.startswith("==="):
            name = None
        elif name is not None:
            found[name].append(line)
    return found
