"""Each reason has a sentence, and whoever gives it gives what the sentence names."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from string import Formatter

import pytest

import pytest_torchprof
from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.render.unknown import SENTENCES, in_words

ROOT = Path(pytest_torchprof.__file__).parent
#: Whose member is found out where it is made, and where that is so.
CHOSEN = {
    "UNKNOWN_EVENTS": "events",
    "ONLY_OTHER_EVENTS": "events",
    "OTHERS_BUSY": "share",
    "HYPERVISOR_TOOK": "share",
    "TOO_MANY_LINES": "most",
    "TOO_MANY_MODULES": "most",
}


def fields_of(why: Why) -> set[str]:
    return {name for _, name, *_ in Formatter().parse(SENTENCES[why]) if name} | {
        name
        for _, _, wanted, _ in Formatter().parse(SENTENCES[why])
        for _, name, *_ in Formatter().parse(wanted or "")
        if name
    }


def given() -> list[tuple[str, set[str], str]]:
    """(member, names of the data, where) of each reason that the package makes."""
    found = []
    for file in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "because":
                names = {str(keyword.arg) for keyword in node.keywords}
                where = f"{file.relative_to(ROOT)}:{node.lineno}"
                members = [
                    inner.attr
                    for inner in ast.walk(node.args[0])
                    if isinstance(inner, ast.Attribute) and getattr(inner.value, "id", "") == "Why"
                ]
                found += [(member, names, where) for member in members or [""]]
    return found


def test_every_reason_has_a_sentence() -> None:
    assert set(Why) == set(SENTENCES)


def test_no_two_reasons_have_the_same_sentence() -> None:
    assert [] == [text for text, n in Counter(SENTENCES.values()).items() if n > 1]


def test_every_reason_is_given_the_fields_of_its_sentence() -> None:
    wrong = [
        (member, names, where)
        for member, names, where in given()
        if member and names != fields_of(Why[member])
    ]
    assert [] == wrong
    assert CHOSEN == {name: "".join(fields_of(Why[name])) for name in CHOSEN}


@pytest.mark.thorough
def test_every_reason_is_given_somewhere() -> None:
    made = {member for member, *_ in given()} | CHOSEN.keys()
    code = "".join(
        file.read_text("utf-8") for file in ROOT.rglob("*.py") if file.name != "reasons.py"
    )
    assert [] == [why.name for why in Why if why.name not in made and f"Why.{why.name}" not in code]


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (because(Why.NO_DEVICE), "no accelerator in this capture"),
        (
            because(Why.FEW_ROUNDS, before=1, now=30),
            (
                "the baseline is of 1 round, and this of 30: "
                "--accept --torchprof-time=gate takes it anew"
            ),
        ),
        (
            because(Why.MANY_UNCOUNTED, parts=("a", "b"), left=2, missing=because(Why.NO_FORMULA)),
            "a, b and 2 more: each has no formula",
        ),
        (
            because(Why.MANY_UNCOUNTED, parts=("a", "b"), left=0, missing=because(Why.NO_FORMULA)),
            "a, b: each has no formula",
        ),
        (
            because(Why.AT_LEAST, value=2048, unit="B", why=because(Why.RULE_RAISED, error="{x}")),
            "at least 2 KiB: the rule failed: {x}",
        ),
        (
            because(Why.MACHINE_BUSY, signs=(because(Why.OTHERS_BUSY, share=0.3),)),
            (
                "the machine was busy, so time only advises: "
                "other processes used about 30% of the CPUs"
            ),
        ),
    ],
)
def test_sentences(reason: Reason, expected: str) -> None:
    assert expected == in_words(reason)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("why", Why)
@pytest.mark.parametrize("value", [None, "text", 0.5, -1, ("a",), because(Why.FAILED)])
def test_a_reason_from_a_file_may_have_any_data(why: Why, value: object) -> None:
    names = [*fields_of(why)]
    assert isinstance(in_words(Reason(why)), str)
    assert isinstance(in_words(Reason(why, tuple((name, value) for name in names))), str)  # type: ignore[misc]
