"""Takes names of machines, users and folders out of a trace, and leaves its layout as it is."""

from __future__ import annotations

import getpass
import platform
import re
import socket
from collections.abc import Iterable
from contextlib import suppress

#: Names that tell nothing.
_PLAIN = frozenset({"", "root", "user", "python", "python3", "localhost", "vm", "none"})
#: An absolute path of two parts or more, in torch's JSON or in a text within it.
_PATH = re.compile(r"(?<![\w.:/\\)*&])(?:\\?/[\w.@+~=-]+){2,}\\?/?")
_KEPT = re.compile(r".*\\?/(?:site|dist)-packages\\?/(.+)", re.DOTALL)
_ADDRESS = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])")
_HOST = re.compile(r'("(?:host_?name|hostname|HOSTNAME)"\s*:\s*)"[^"]*"')
_UUID = re.compile(r"\b(?:GPU-|MIG-)?[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")


def own_names() -> tuple[str, ...]:
    """The names of this machine and of its user that may occur in a trace."""
    found = {platform.node(), socket.gethostname()}
    with suppress(Exception):
        found.add(getpass.getuser())
    found |= {name.split(".")[0] for name in tuple(found)}
    return tuple(sorted((one for one in found if one.lower() not in _PLAIN), key=len, reverse=True))


def scrubbed(text: str, names: Iterable[str] = ()) -> str:
    """The text without ``names``, host names, addresses, UUIDs, and folders of absolute paths.

    >>> scrubbed('"file": "/home/ann/lib/python3.12/site-packages/torch/nn/x.py:3"')
    '"file": "torch/nn/x.py:3"'
    >>> scrubbed('{"host_name": "gpu-17", "on": "at /home/ann/train.py"}', ["ann"])
    '{"host_name": "host", "on": "at train.py"}'
    """
    text = _HOST.sub(r'\1"host"', text)
    text = _PATH.sub(_shortened, text)
    text = _UUID.sub("uuid", text)
    text = _ADDRESS.sub("address", text)
    for name in names:
        text = re.sub(rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])", "name", text)
    return text


def _shortened(found: re.Match[str]) -> str:
    path = found.group()
    if (kept := _KEPT.fullmatch(path)) is not None:
        return kept.group(1)
    return re.split(r"\\?/", path.rstrip("/\\"))[-1]


def leftovers(text: str, names: Iterable[str] = ()) -> list[str]:
    """What `scrubbed` would still take out of the text."""
    found = [one.group() for one in _PATH.finditer(text)]
    found += [one.group() for one in _ADDRESS.finditer(text)]
    found += [one.group() for one in _UUID.finditer(text)]
    found += [one.group() for one in _HOST.finditer(text) if not one.group().endswith('"host"')]
    for name in names:
        found += re.findall(rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])", text)
    return found
