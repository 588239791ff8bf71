"""The shell of a page: one file that needs nothing else and escapes everything."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest
from markupsafe import Markup
from support.hostile import EVERY, HOSTILE, LEGIT
from support.html_pages import assert_quiet, data_of_page, read_page

from pytest_torchprof.render.html.page import Section, asset_files, page, render

PARTS = [Section("one", "First", Markup("<p>a</p>")), Section("two", "Second", Markup("<p>b</p>"))]


def test_sections_have_anchors_and_links_to_them() -> None:
    made = read_page(page("A title", PARTS))
    assert "A title – torchprof" == made.one("title").text
    assert "A title" == made.one("h1").text
    assert ["one", "two"] == [one.attributes["id"] for one in made.every("section")]
    links = made.one("nav").every("a")
    assert [("#one", "First"), ("#two", "Second")] == [
        (a.attributes["href"], a.text) for a in links
    ]


@pytest.mark.parametrize("text", [*HOSTILE, "]]>", "x" * 10_000, LEGIT])
def test_titles_are_text_and_data_is_data(text: str) -> None:
    made = read_page(page(text, [Section("a", text, Markup(""))], data={"key": [text]}))
    assert_quiet(made)
    assert not made.every("b")
    (read,) = data_of_page(made)["key"]
    assert text.encode(errors="backslashreplace").decode() == read
    if text == LEGIT:
        assert LEGIT == made.one("h1").text


def test_a_template_shows_hidden_characters_as_escapes() -> None:
    shown = render("page.html", **_VALUES, title="\x1b[31m\u202e\ud800")
    assert r"\x1b[31m\u202e\ud800" in shown
    assert "\x1b" not in shown


_VALUES: dict[str, Any] = {
    "sections": [],
    "groups": [],
    "styles": "",
    "scripts": "",
    "script_hash": "",
    "data": None,
    "assets": None,
    "version": "1",
}


def test_only_our_script_may_run() -> None:
    made = read_page(page("t", PARTS, data={"a": EVERY}))
    policy = made.one("meta", http_equiv="Content-Security-Policy").attributes["content"] or ""
    (script,) = [one for one in made.every("script") if "type" not in one.attributes]
    digest = base64.b64encode(hashlib.sha256(script.text.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:;")


def test_assets_may_be_in_a_folder() -> None:
    made = read_page(page("t", PARTS, assets="look%20here/"))
    assert "look%20here/torchprof.css" == made.one("link").attributes["href"]
    assert "look%20here/torchprof.js" == made.one("script").attributes["src"]
    assert not made.every("style")
    assert {"torchprof.css", "torchprof.js"} == set(asset_files())


def test_no_style_is_in_an_attribute_so_that_servers_may_forbid_them() -> None:
    assert " style=" not in page("t", PARTS)
