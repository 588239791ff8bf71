"""Pages as a browser reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

#: Elements without an end.
_EMPTY = {"meta", "link", "input", "br", "img", "hr"}
#: What may be requested from elsewhere, or runs.
_ACTIVE = ("src", "srcset", "href", "action", "data", "poster", "formaction", "background")


@dataclass
class Element:
    """An element: its name, attributes, and what is in it, in order."""

    tag: str
    attributes: dict[str, str | None] = field(default_factory=dict)
    children: list[Element | str] = field(default_factory=list)

    def every(self, tag: str, **attributes: str) -> list[Element]:
        """All elements within of this name, with these attributes (``class_`` for ``class``)."""
        wanted = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
        found = []
        for child in self.children:
            if isinstance(child, Element):
                if child.tag == tag and all(child.has(*pair) for pair in wanted.items()):
                    found.append(child)
                found += child.every(tag, **attributes)
        return found

    def has(self, name: str, value: str) -> bool:
        """Whether the attribute is that, or one of the classes is."""
        known = self.attributes.get(name) or ""
        return value in known.split() if name == "class" else value == known

    def one(self, tag: str, **attributes: str) -> Element:
        """The only one."""
        (found,) = self.every(tag, **attributes)
        return found

    @property
    def text(self) -> str:
        """All text within."""
        return "".join(c if isinstance(c, str) else c.text for c in self.children)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = Element("")
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, dict(attrs))
        self._open[-1].children.append(element)
        if tag not in _EMPTY:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open[-1].children.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert tag == self._open[-1].tag, f"</{tag}> within <{self._open[-1].tag}>"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)

    def close(self) -> None:
        super().close()
        assert [self.root] == self._open


def read_page(text: str) -> Element:
    """The page; every element has its end."""
    text.encode("utf-8")
    reader = _Reader()
    reader.feed(text)
    reader.close()
    return reader.root


def data_of_page(page: Element) -> Any:
    """The page's JSON."""
    return json.loads(page.one("script", type="application/json").text)


def assert_quiet(page: Element) -> None:
    """Nothing is requested, no script is there but ours, and no handler."""
    scripts = page.every("script")
    assert len([one for one in scripts if "type" not in one.attributes]) == 1
    for element in _all(page):
        for name, value in element.attributes.items():
            assert not name.startswith("on"), element
            if name in _ACTIVE:
                assert re.match(r"#[\w-]+$", value or ""), element
        assert element.tag not in {"img", "iframe", "object", "embed", "base", "form"}
    assert "@import" not in page.one("style").text
    assert "url(" not in page.one("style").text


def _all(element: Element) -> list[Element]:
    inner = [child for child in element.children if isinstance(child, Element)]
    return inner + [one for child in inner for one in _all(child)]


def _numbers(element: Element) -> Iterator[tuple[str, str, str]]:
    """Label, kind and number of each metric in the part of a page."""
    for row in element.every("tr"):
        cells = row.every("td")
        if not row.every("th", scope="row"):
            continue
        label = row.one("th").text
        for kind, cell in zip(("value", "baseline"), cells, strict=False):
            if value := cell.attributes.get("data-value"):
                yield label, kind, value
        for cell in cells:
            for kind in ("at-least", "limit", "least"):
                if value := cell.attributes.get(f"data-{kind}"):
                    yield label, kind.replace("-", "_"), value
    for item in element.every("li"):
        if value := item.attributes.get("data-value"):
            yield item.one("b").text, "value", value


def assert_same_numbers(element: Element, metrics: dict[str, Any]) -> None:
    """Every number in the page is one of the report, and none is missing."""
    found = list(_numbers(element))
    for label, kind, number in found:
        known = metrics[label][kind]
        assert known is not None, (label, kind)
        assert json.loads(number) == known, (label, kind)
        assert type(json.loads(number)) is type(known)
    shown = {(label, kind) for label, kind, _ in found}
    for label, one in metrics.items():
        known = {k for k in ("value", "limit", "least", "at_least") if one.get(k) is not None}
        if one["value"] is not None:
            known -= {"at_least"}
        if one["baseline"] is not None and one["baseline"] != one["value"]:
            known.add("baseline")
        assert {kind for name, kind in shown if name == label} >= known, label
