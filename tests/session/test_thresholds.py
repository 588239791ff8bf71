"""Thresholds of rules, as text: on the command line of both commands, and in the ini file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sessions import ADD, run

from pytest_torchprof.core.errors import SettingsError
from pytest_torchprof.rules.rule import Rule, Threshold, codes, parse_thresholds, rule
from pytest_torchprof.session.options import OPTIONS, build_settings


@rule(
    "large-copy",
    fix="",
    bytes=Threshold(4096, "B", ""),
    min_calls=Threshold(3, "1", ""),
    share=Threshold(0.5, "1", ""),
    time=Threshold(1, "ms", ""),
)
def large_copy(_: object, **_thresholds: float) -> list[int]:
    """A rule with thresholds of every kind."""
    return []


@rule("plain", fix="")
def plain(_: object) -> list[int]:
    """A rule without."""
    return []


KNOWN: list[Rule] = [large_copy, plain]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        (" \n ", {}),
        ("large-copy.bytes=1 MiB", {"large-copy": {"bytes": 2**20}}),
        ("large-copy.bytes = 1MiB", {"large-copy": {"bytes": 2**20}}),
        ("large-copy.bytes=512", {"large-copy": {"bytes": 512}}),
        ("large-copy.share=0.25", {"large-copy": {"share": 0.25}}),
        ("large-copy.share=1e-3", {"large-copy": {"share": 0.001}}),
        ("large-copy.time=20 us", {"large-copy": {"time": 0.02}}),
        ("large-copy.time=2", {"large-copy": {"time": 2}}),
        ("large-copy.min_calls=0", {"large-copy": {"min_calls": 0}}),
        (
            "large-copy.min_calls=5,\nlarge-copy.bytes=1 kB",
            {"large-copy": {"min_calls": 5, "bytes": 1000}},
        ),
    ],
)
def test_thresholds_are_read(text: str, expected: dict[str, dict[str, float]]) -> None:
    assert expected == parse_thresholds(text, KNOWN)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("large-copi.bytes=1", "no anti-pattern rule 'large-copi'. Did you mean large-copy?"),
        ("x.bytes=1", "Known are: large-copy, plain."),
        ("large-copy.byte=1", "no threshold 'byte'. Did you mean bytes?"),
        ("large-copy.x=1", "Known are: bytes, min_calls, share, time."),
        ("plain.bytes=1", "plain has no thresholds"),
        ("large-copy", "write RULE.NAME=VALUE"),
        ("large-copy.bytes", "write RULE.NAME=VALUE"),
        ("large-copy.bytes=", "write RULE.NAME=VALUE"),
        ("large-copy=1", "write RULE.NAME=VALUE"),
        ("=", "write RULE.NAME=VALUE"),
        ("large-copy.bytes=1 ms", 'large-copy.bytes: "1 ms" is not an amount of memory'),
        ("large-copy.min_calls=3 MiB", "is not a count"),
        ("large-copy.bytes=-1", "it is negative"),
        ("large-copy.bytes=nan", "not a finite number"),
        ("large-copy.bytes=inf", "not a finite number"),
        ("large-copy.bytes=much", "large-copy.bytes"),
        ("large-copy.bytes=1,large-copy.bytes=2", "given twice"),
        ("large-copy.bytes=1,000", "'000' is not a threshold"),
    ],
)
def test_invalid_thresholds_are_refused_with_a_hint(text: str, message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse_thresholds(text, KNOWN)
    assert message in str(refused.value)


@given(st.text(alphabet="largecopy-.bytes=1 MiB,\n", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = parse_thresholds(text, KNOWN)
    except SettingsError:
        return
    assert all(value >= 0 for values in found.values() for value in values.values())


def test_codes_are_read_or_refused() -> None:
    assert frozenset({"a", "b"}) == codes("a, b\na", ["a", "b", "c"])
    with pytest.raises(SettingsError, match="Known are: a"):
        codes("x", ["a"])


def test_a_threshold_has_a_unit_that_can_be_written() -> None:
    with pytest.raises(ValueError, match="threshold in 's': its unit must be one of ms, 1, FLOP"):
        Threshold(1, "s", "")


# -------------------------------------------------------------------- the option


def test_the_option_sets_them(pytestconfig: pytest.Config) -> None:
    (option,) = (option for option in OPTIONS if option.name == "thresholds")
    assert ("--torchprof-thresholds", "torchprof_thresholds") == (option.flag, option.dest)
    assert {} == build_settings(pytestconfig).thresholds


@pytest.mark.parametrize("where", ["command line", "ini"])
def test_an_unknown_threshold_is_a_usage_error_with_its_source(
    pytester: pytest.Pytester, where: str
) -> None:
    pytester.makepyfile(test_it=ADD)
    text = "sync-dataloder.x=1"
    given, source = [f"--torchprof-thresholds={text}"], "--torchprof-thresholds"
    if where == "ini":
        pytester.makeini(f"[pytest]\ntorchprof_thresholds = {text}")
        given, source = [], "ini option torchprof_thresholds"
    message = "there is no anti-pattern rule 'sync-dataloder'. Did you mean sync-dataloader?"
    assert f"ERROR: {source}: {message}" in run(pytester, "--torchprof", *given).usage_error()
