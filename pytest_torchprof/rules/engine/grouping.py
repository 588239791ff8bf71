"""Turn a rule's matches into findings: one per message and place.

One line that several modules run is one place; so are the same operators in layers of a list, such
as ``layers.0.mlp`` and ``layers.1.mlp``, if no line is known.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING

from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.core.results import Finding

if TYPE_CHECKING:
    from pytest_torchprof.places.place import Place
    from pytest_torchprof.rules.engine.rule import Matches, Rule
    from pytest_torchprof.trace.nesting import Ints


#: Shapes in messages, numbers of layers at their start, and of parameters.
_SIZES = late(r"\[\d+(, \d+)*\]|^\d+ layers?(?= )|(?<= updates )\d+(?= parameters )")
#: The number of a module in a list, as in ``layers.0``, or of its class, as in ``Linear_0``.
_NUMBER = late(r"(?<=[._])\d+(?=\.|$)")


@dataclass
class _Group:
    """Sums over matches with one place, and one message except for sizes; -1 bytes if unknown.

    ``number``: its position among the rule's groups; ``place``: the first match's; ``modules``: the
    paths of all, in order.
    """

    number: int
    message: str
    place: Place
    count: int = 0
    bytes: int = -1
    modules: dict[str, None] = field(default_factory=dict)


def grouped(
    rule: Rule, found: Matches, places: Sequence[Place], place: Ints
) -> tuple[list[Finding], list[int]]:
    """The findings of one rule, without costs; and which of them each match is of.

    ``place`` is the position in ``places`` of each match.
    """
    # Several paths of operators may lead to one line, and several modules may run it.
    lines: dict[tuple[str | None, str | None], int] = {}
    line = [
        lines.setdefault((p.location, None) if p.location else (p.path, _layer(p.module)), i)
        for i, p in enumerate(places)
    ]
    groups: dict[tuple[int, str, str | None, str], _Group] = {}
    numbers = list[int]()
    for at, message, own, fix, count, moved in zip(
        place.tolist(),
        repeat(found.message) if isinstance(found.message, str) else found.message,
        repeat(None) if found.location is None else found.location,
        repeat(rule.fix) if found.fix is None else found.fix,
        repeat(1) if found.count is None else found.count.tolist(),
        repeat(0) if found.bytes is None else found.bytes.tolist(),
        strict=False,
    ):
        # Several sizes at one place have one cause: batches and sequences differ in size each time.
        key = (-1 if own else line[at], _SIZES.sub("", message), own, fix)
        group = groups.setdefault(key, _Group(len(groups), message, places[at]))
        numbers.append(group.number)
        if group.message != message:
            group.message = _SIZES.sub(_several, message)
        if (module := places[at].module) is not None:
            group.modules[module] = None
        group.count += count
        if moved >= 0:
            group.bytes = max(group.bytes, 0) + moved
    findings = [
        Finding(
            rule=rule.code,
            count=max(group.count, 1),  # of what matched once in all, this may be a part
            message=group.message,
            location=own or group.place.location or group.place.path,
            fix=fix,
            bytes=None if found.bytes is None or group.bytes < 0 else group.bytes,
            path=group.place.path,
            module=_layers(group.modules),
            modules=len(group.modules) or None,
            gated=not rule.timed,
        )
        for (_, _, own, fix), group in groups.items()
    ]
    return findings, numbers


def _several(size: re.Match[str]) -> str:
    """What stands for several sizes."""
    if size[0].startswith("["):
        return "[…]"
    return "several layers" if "layer" in size[0] else "several"


def _layer(module: str | None) -> str | None:
    """The path of a module, without its number in a list."""
    return module and _NUMBER.sub("*", module)


def _layers(modules: Collection[str]) -> str | None:
    """The common path of modules that differ by their numbers in lists, else the first one."""
    first = next(iter(modules), None)
    layers = {_layer(module) for module in modules}
    return layers.pop() if len(layers) == 1 < len(modules) else first
