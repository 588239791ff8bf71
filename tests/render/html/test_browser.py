"""Pages in a real browser, where there is one: offline, with scripts and without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.chromium import NAMES, Tab, chromium, tab
from support.hostile import HOSTILE
from support.small_traces import build
from support.stored_reports import finding, metric, report, test

from pytest_torchprof.render.html.page import Sources
from pytest_torchprof.render.html.report_page import report_page
from pytest_torchprof.render.report import of_document

if TYPE_CHECKING:
    from support.command_line import Say

pytestmark = [
    pytest.mark.skipif(chromium() is None, reason=f"no browser here: {', '.join(NAMES)}"),
    pytest.mark.thorough,
]

REPORT = report(
    *(test(f"t.py::test_{n}", metrics={"wall_ms": metric(n, "ms")}) for n in range(30)),
    test("t.py::test_bad", status="regressed", metrics={"ops": metric(2, baseline=1)},
         findings=[finding()]),
    *(test(text, status="regressed", findings=[finding(message=text)]) for text in HOSTILE),
)  # fmt: skip
SHOWN = "[...document.querySelectorAll('.test')].filter(t => !t.hidden)"
#: What a server such as Jenkins may send with the page.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
#: Marks that no style has colored.
BLACK = (
    "[...document.querySelectorAll('.plot rect, .plot path, .plot circle')].filter(mark => "
    "['rgb(0, 0, 0)', ''].includes(getComputedStyle(mark).fill)).length"
)
PAGES = pytest.mark.parametrize("kind", ["report", "trace", "diff"])


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    """A browser for all tests of this file."""
    with tab(str(chromium()), tmp_path_factory.mktemp("browser")) as opened:
        opened.say("Network.emulateNetworkConditions", offline=True, latency=0,
                   downloadThroughput=-1, uploadThroughput=-1)  # fmt: skip
        yield opened


def opened(browser: Tab, folder: Path, document: Any = REPORT, anchor: str = "") -> Tab:
    """The page, open; nothing was asked for but the file, and the console is empty."""
    path = folder / "page.html"
    text = report_page(of_document(document, "r.json"), Sources(folder))
    path.write_text(text, "utf-8")
    browser.open(path.as_uri() + anchor)
    assert [path.as_uri()] == browser.requests
    assert [] == browser.complaints
    return browser


def test_it_filters_sorts_and_opens(browser: Tab, tmp_path: Path) -> None:
    page = opened(browser, tmp_path)
    count = len(REPORT["tests"])
    assert f"{count} shown" == page.ask("document.querySelector('.shown').textContent")
    page.key("/")
    assert "INPUT" == page.ask("document.activeElement.tagName")
    for letter in "test_2":
        page.key(letter)
    assert 11 == page.ask(f"{SHOWN}.length")
    assert f"11 of {count} shown" == page.ask("document.querySelector('.shown').textContent")
    page.ask("document.querySelector('.order').value = 'time'")
    page.ask("document.querySelector('.order').dispatchEvent(new Event('change'))")
    assert "29 ms" == page.ask(f"{SHOWN}[0].querySelector('.time').textContent")
    page.ask("document.querySelector('.filters .all').click()")
    assert page.ask(f"{SHOWN}.every(t => t.open)")
    page.ask("document.querySelector('.of-status').value = 'regressed'")
    page.ask("document.querySelector('.of-status').dispatchEvent(new Event('change'))")
    assert 0 == page.ask(f"{SHOWN}.length")
    assert [] == page.complaints


def test_a_link_opens_its_test(browser: Tab, tmp_path: Path) -> None:
    anchor = opened(browser, tmp_path).ask("[...document.querySelectorAll('.test')].at(-1).id")
    page = opened(browser, tmp_path, anchor=f"#{anchor}")
    assert page.ask(f"document.getElementById('{anchor}').open")
    assert 0 < page.ask("window.scrollY")


def made(say: Say, folder: Path, kind: str) -> Path:
    """A page of each kind."""
    page = folder / "page.html"
    if kind == "report":
        text = report_page(of_document(REPORT, "r.json"), Sources(folder))
        page.write_text(text, "utf-8")
        return page
    trace, other = (build().save(folder / f"{name}.json") for name in "ab")
    words = ("report", trace, "-o") if kind == "trace" else ("diff", trace, other, "--html")
    assert 0 == say(*words, page)[0]
    return page


@PAGES
@pytest.mark.parametrize("policy", [None, POLICY])
def test_it_can_be_read_without_scripts(
    say: Say, browser: Tab, tmp_path: Path, kind: str, policy: str | None
) -> None:
    path = made(say, tmp_path, kind)
    if policy is not None:
        meta = f'<head>\n<meta http-equiv="Content-Security-Policy" content="{policy}">'
        path.write_text(path.read_text("utf-8").replace("<head>", meta, 1), "utf-8")
    browser.say("Emulation.setScriptExecutionDisabled", value=policy is None)
    try:
        browser.open(path.as_uri())
        assert [path.as_uri()] == browser.requests
        assert all("script" in line for line in browser.complaints)
        nodes = browser.say("DOM.getDocument", depth=1)["root"]["nodeId"]
        if kind == "report":
            box = browser.say("DOM.querySelector", nodeId=nodes, selector=".filters")["nodeId"]
            assert "hidden" in browser.say("DOM.getAttributes", nodeId=box)["attributes"]
        height = browser.say("Page.getLayoutMetrics")["cssContentSize"]["height"]
        assert height > 1000
    finally:
        browser.say("Emulation.setScriptExecutionDisabled", value=False)


@PAGES
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_it_loads_nothing_and_fits_the_window(
    say: Say, browser: Tab, tmp_path: Path, kind: str, width: int, dark: bool
) -> None:
    path = made(say, tmp_path, kind)
    browser.look(width, 800, dark=dark)
    browser.open(path.as_uri())
    assert ([path.as_uri()], []) == (browser.requests, browser.complaints)
    browser.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert width == browser.ask("document.documentElement.scrollWidth")
    assert 0 == browser.ask(BLACK)
    assert ("rgb(16, 18, 22)" if dark else "rgb(255, 255, 255)") == browser.ask(
        "getComputedStyle(document.body).backgroundColor"
    )


def test_a_thousand_tests_open_in_two_seconds(browser: Tab, tmp_path: Path) -> None:
    many = {f"metric_{n}": metric(n * 1000, "B", baseline=n * 1000) for n in range(30)}
    tests = [test(f"t.py::test_{n}", metrics=many) for n in range(1000)]
    # Its own time, not that of a machine that is busy otherwise.
    browser.say("Performance.enable", timeDomain="threadTicks")
    page = opened(browser, tmp_path, report(*tests))
    spent = {one["name"]: one["value"] for one in page.say("Performance.getMetrics")["metrics"]}
    assert 0 < spent["TaskDuration"] < 2
