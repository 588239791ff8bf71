"""Names in a trace stay names: nothing of them becomes markup, moves text, or fills the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.hostile import HOSTILE, assert_terminal, in_utf8
from support.html_pages import Element, read_page
from support.trace_builder import TraceBuilder
from support.trace_pages import assert_drawn_well

if TYPE_CHECKING:
    from pathlib import Path

    from support.command_line import Say

LONG = "x" * 10_000
NAMES = (*HOSTILE, "]]><!--", '"><svg onload=alert(1)>', "</script></style></title>", LONG)


def hostile(name: str) -> TraceBuilder:
    b = TraceBuilder(f"NVIDIA {name}")
    for step in range(3):
        with b.annotation(f"step {step} {name}"), b.module(f"nn.Module: {name}_{step}"):
            with b.python(f"{name}.py(3): {name}"), b.op(name, [[4, 4], [4, 4]]):
                b.launch(name, 20)
                b.memory(1024)
            with b.op("aten::mm", [[512, 1024], [1024, 2048]]):
                b.launch(f"sgemm_{name}", 30)
            b.sync("cudaStreamSynchronize")
    return b


def check(page: Element, text: str) -> None:
    for plot in page.every("svg"):
        assert_drawn_well(plot)
    assert {"src", "onload", "onerror"}.isdisjoint(_attributes(page))
    assert len(page.every("script")) == 2
    assert not page.every("img")
    assert_terminal(text)
    assert "x" * 1_000 not in text
    assert len(text) < 2_000_000


def _attributes(element: Element) -> set[str]:
    found = set(element.attributes)
    for child in element.children:
        if isinstance(child, Element):
            found |= _attributes(child)
    return found


@pytest.mark.thorough
@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", [in_utf8(name) for name in NAMES], ids=range(len(NAMES)))
def test_a_name_is_shown_and_nothing_else(say: Say, tmp_path: Path, name: str) -> None:
    trace = hostile(name).save(tmp_path / "trace.json")
    target = tmp_path / "page.html"
    status, out, err = say("report", trace, "-o", target)
    assert (0, "") == (status, out), err
    text = target.read_bytes().decode("utf-8")
    check(read_page(text), text)
    status, _, err = say("diff", trace, trace, "--html", target)
    assert status == 0, err
    text = target.read_bytes().decode("utf-8")
    check(read_page(text), text)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ['<script>"\x1b[31m&.json', "not utf-8 \udcff.json"])
def test_so_is_the_name_of_a_file(say: Say, tmp_path: Path, name: str) -> None:
    trace = hostile("aten::add").save(tmp_path / name)
    target = tmp_path / "page.html"
    assert say("report", trace, "-o", target)[0] == 0
    text = target.read_bytes().decode("utf-8")
    check(read_page(text), text)
