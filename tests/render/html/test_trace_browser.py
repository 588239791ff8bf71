"""A page about a trace in a real browser, where there is one: offline, in any width and theme."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.chromium import NAMES, Tab, chromium, tab
from support.small_traces import build

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.command_line import Say

pytestmark = [
    pytest.mark.skipif(chromium() is None, reason=f"no browser here: {', '.join(NAMES)}"),
    pytest.mark.thorough,
]

#: Marks that no style has colored.
BLACK = (
    "[...document.querySelectorAll('.plot rect, .plot path, .plot circle')].filter(mark => "
    "['rgb(0, 0, 0)', ''].includes(getComputedStyle(mark).fill)).length"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    """A browser for all tests of this file."""
    with tab(str(chromium()), tmp_path_factory.mktemp("browser")) as opened:
        yield opened


def pages(say: Say, tmp_path: Path) -> list[Path]:
    """That of a trace, and that of a comparison."""
    trace, other = (build().save(tmp_path / f"{name}.json") for name in "ab")
    made = [tmp_path / "trace.html", tmp_path / "diff.html"]
    assert 0 == say("report", trace, "-o", made[0])[0]
    assert 0 == say("diff", trace, other, "--html", made[1])[0]
    return made


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_it_loads_nothing_and_fits_the_window(
    say: Say, browser: Tab, tmp_path: Path, width: int, dark: bool
) -> None:
    for path in pages(say, tmp_path):
        browser.look(width, 800, dark=dark)
        browser.open(path.as_uri())
        assert [path.as_uri()] == browser.requests
        assert [] == browser.complaints
        browser.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert width == browser.ask("document.documentElement.scrollWidth")


def test_each_mark_has_a_color(say: Say, browser: Tab, tmp_path: Path) -> None:
    path, _ = pages(say, tmp_path)
    browser.open(path.as_uri())
    assert 0 == browser.ask(BLACK)
    assert 0 < browser.ask("document.querySelectorAll('.plot rect').length")


def test_it_can_be_read_where_a_server_allows_only_styles(
    say: Say, browser: Tab, tmp_path: Path
) -> None:
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    meta = f'<head>\n<meta http-equiv="Content-Security-Policy" content="{policy}">'
    for path in pages(say, tmp_path):
        path.write_text(path.read_text("utf-8").replace("<head>", meta, 1), "utf-8")
        browser.open(path.as_uri())
        assert [path.as_uri()] == browser.requests
        assert all("script" in line for line in browser.complaints)
        assert 0 == browser.ask(BLACK)
        shown = browser.ask("document.body.innerText")
        assert ("aten::" if path.stem == "trace" else "no kernel changed") in shown
