"""The page in a real browser, where there is one: offline, with scripts and without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.chromium import NAMES, Tab, chromium, tab
from support.hostile import HOSTILE
from support.stored_reports import finding, metric, report, test

from pytest_torchprof.render.html.page import Sources
from pytest_torchprof.render.html.report_page import report_page
from pytest_torchprof.render.report import of_document

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


@pytest.mark.parametrize("policy", [None, POLICY])
def test_it_can_be_read_without_scripts(browser: Tab, tmp_path: Path, policy: str | None) -> None:
    path = tmp_path / "page.html"
    text = report_page(of_document(REPORT, "r.json"), Sources(tmp_path))
    if policy is not None:
        meta = f'<head>\n<meta http-equiv="Content-Security-Policy" content="{policy}">'
        text = text.replace("<head>", meta, 1)
    path.write_text(text, "utf-8")
    browser.say("Emulation.setScriptExecutionDisabled", value=policy is None)
    try:
        browser.open(path.as_uri())
        nodes = browser.say("DOM.getDocument", depth=1)["root"]["nodeId"]
        box = browser.say("DOM.querySelector", nodeId=nodes, selector=".filters")["nodeId"]
        attributes = browser.say("DOM.getAttributes", nodeId=box)["attributes"]
        assert "hidden" in attributes
        browser.say("DOM.querySelector", nodeId=nodes, selector=".test[open] .metrics")
        style = browser.say("Page.getLayoutMetrics")["cssContentSize"]
        assert style["height"] > 1000
    finally:
        browser.say("Emulation.setScriptExecutionDisabled", value=False)


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_is_wider_than_the_window(
    browser: Tab, tmp_path: Path, width: int, dark: bool
) -> None:
    browser.look(width, 800, dark=dark)
    page = opened(browser, tmp_path)
    page.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert width == page.ask("document.documentElement.scrollWidth")
    assert ("rgb(16, 18, 22)" if dark else "rgb(255, 255, 255)") == page.ask(
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
