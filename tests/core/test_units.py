"""Quantities are read exactly and printed honestly."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_torchprof.core.errors import UnitError
from pytest_torchprof.core.units import (
    SCALES,
    format_change,
    format_exact,
    format_pair,
    format_quantity,
    parse_quantity,
    parse_share,
)

UNITS = st.sampled_from(sorted(SCALES))
AMOUNTS = st.one_of(
    st.integers(0, 2**62),
    st.floats(0, 1e15, allow_nan=False, allow_infinity=False),
)


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (5, "ms", 5),
        (0.5, "ms", 0.5),
        (5.0, "FLOP", 5),
        (0, "1", 0),
        (-0.0, "1", 0),
        (2**63 - 1, "B", 2**63 - 1),
        (np.int64(7), "1", 7),
        (np.float32(0.5), "ms", 0.5),
        ("5 ms", "ms", 5),
        ("5us", "ms", 0.005),
        ("1.5 s", "ms", 1500),
        (" 3   ms ", "ms", 3),
        (".5 ms", "ms", 0.5),
        ("512 MiB", "B", 512 * 2**20),
        ("512 MB", "B", 512 * 10**6),
        ("0.1 kB", "B", 100),
        ("0.1 KiB", "B", 102.4),
        ("1 GiB", "B", 2**30),
        ("1 GB", "B", 10**9),
        ("12 B", "B", 12),
        ("2.5 GFLOP", "FLOP", 2_500_000_000),
        ("1 TFLOP", "FLOP", 10**12),
        ("1e3 kFLOP", "FLOP", 10**6),
        ("2,359,296 FLOP", "FLOP", 2_359_296),
        ("9.007199254740993 MFLOP", "FLOP", 9007199.254740993),
        ("9007199254.740993 MFLOP", "FLOP", 9007199254740993),
        ("40", "1", 40),
        ("12,345", "1", 12_345),
    ],
)
def test_a_quantity_is_read_exactly(value: object, unit: str, expected: float) -> None:
    read = parse_quantity(value, unit)
    assert (expected, type(expected)) == (read, type(read))


@pytest.mark.parametrize(
    ("value", "unit", "found"),
    [
        (True, "1", "bool is not a number or a string"),
        (None, "ms", "NoneType is not a number or a string"),
        ([5], "ms", "list is not a number or a string"),
        (Decimal(5), "ms", "Decimal is not a number or a string"),
        (1j, "ms", "complex is not a number or a string"),
        (b"5 ms", "ms", "bytes is not a number or a string"),
        (math.nan, "ms", "it is not a finite number"),
        (math.inf, "B", "it is not a finite number"),
        (-math.inf, "B", "it is not a finite number"),
        (-1, "1", "it is negative"),
        (-1e-9, "ms", "it is negative"),
        ("-5 ms", "ms", "it is negative"),
        (2**63, "B", "it is too large"),
        pytest.param(10**5000, "B", "it is too large", id="more digits than Python prints"),
        ("1e99 TFLOP", "FLOP", "it is too large"),
        ("5", "ms", "no unit"),
        ("5 ", "B", "no unit"),
        ("", "ms", "no text"),
        ("  ", "1", "no text"),
        ("5 MiB", "ms", 'the unit "MiB"'),
        ("5 ms", "B", 'the unit "ms"'),
        ("5 ms", "1", 'the unit "ms"'),
        ("5 mib", "B", 'the unit "mib"'),
        ("5 KB", "B", 'the unit "KB"'),
        ("5 GFLOPS", "FLOP", 'the unit "GFLOPS"'),
        ("5 GFLOP/s", "FLOP", 'the unit "GFLOP/s"'),
        ("5 ns", "ms", 'the unit "ns"'),
        ("ms", "ms", "it is not a number with a unit"),
        ("nan ms", "ms", "it is not a number with a unit"),
        ("inf", "1", "it is not a number with a unit"),
        ("5 ms 3 us", "ms", "it is not a number with a unit"),
        ("1,23 GFLOP", "FLOP", "it is not a number with a unit"),
        ("1.2.3 ms", "ms", "it is not a number with a unit"),
        ("0x10", "1", "it is not a number with a unit"),
        ("٥ ms", "ms", "it is not a number with a unit"),  # noqa: RUF001
        pytest.param("1" * 5000, "1", "it is not a number with a unit", id="many digits"),
    ],
)
def test_what_is_not_a_quantity_is_refused(value: object, unit: str, found: str) -> None:
    with pytest.raises(UnitError) as error:
        parse_quantity(value, unit)
    assert found == error.value.found


@pytest.mark.parametrize(
    ("value", "unit", "message"),
    [
        (
            "5 kg",
            "ms",
            '"5 kg" is not a time: the unit "kg"; write a number in ms, or a string in us ms s',
        ),
        ("5 B", "1", '"5 B" is not a count: the unit "B"; write a number'),
        (
            2**70,
            "FLOP",
            (
                "an integer of 71 bits is not a number of FLOPs: it is too large; "
                "write a number in FLOP, or a string in FLOP kFLOP MFLOP GFLOP TFLOP"
            ),
        ),
        (
            -1,
            "B",
            (
                "-1 is not an amount of memory: it is negative; "
                "write a number in B, or a string in B kB KiB MB MiB GB GiB"
            ),
        ),
    ],
)
def test_a_refusal_says_value_reason_and_way_out(value: object, unit: str, message: str) -> None:
    with pytest.raises(UnitError) as error:
        parse_quantity(value, unit)
    assert message == str(error.value)


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (None, "ms", "–"),
        (math.nan, "ms", "–"),
        (0, "B", "0 B"),
        (0.0, "ms", "0 ms"),
        (0, "1", "0"),
        (2_359_296_000, "FLOP", "2.36 GFLOP"),
        (999, "FLOP", "999 FLOP"),
        (1000, "FLOP", "1 kFLOP"),
        (999_499, "FLOP", "999 kFLOP"),
        (999_999.6, "FLOP", "1 MFLOP"),
        (5e16, "FLOP", "50,000 TFLOP"),
        (1023, "B", "1,023 B"),
        (1024, "B", "1 KiB"),
        (1536, "B", "1.5 KiB"),
        (2**20 - 1, "B", "1 MiB"),
        (2**29, "B", "512 MiB"),
        (2**43, "B", "8,192 GiB"),
        (0.5, "B", "0.5 B"),
        (3.2149, "ms", "3.21 ms"),
        (0.0123, "ms", "12.3 us"),
        (0.9999, "ms", "1 ms"),
        (0.00001, "ms", "0.01 us"),
        (1e-6, "ms", "0.001 us"),
        (9.99e-7, "ms", "<0.001 us"),
        (5e-324, "ms", "<0.001 us"),
        (-1e-9, "ms", ">-0.001 us"),
        (1234.5, "ms", "1.23 s"),
        (312, "1", "312"),
        (12_345, "1", "12,345"),
        (12.5, "1", "12.5"),
        (1e-9, "1", "<0.001"),
        (-2_500_000, "FLOP", "-2.5 MFLOP"),
        (np.int64(2048), "B", "2 KiB"),
    ],
)
def test_a_quantity_is_printed_in_the_unit_that_suits_it(
    value: float | None, unit: str, expected: str
) -> None:
    assert expected == format_quantity(value, unit)


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (None, "B", "–"),
        (0, "B", "0 B"),
        (2_359_296, "FLOP", "2,359,296 FLOP"),
        (2.0, "FLOP", "2 FLOP"),
        (-1024, "B", "-1,024 B"),
        (0.1, "ms", "0.1 ms"),
        (-1234.5678, "ms", "-1,234.5678 ms"),
        (1e-12, "ms", "1e-12 ms"),
        (12_345, "1", "12,345"),
    ],
)
def test_every_digit_is_printed_when_asked(value: float | None, unit: str, expected: str) -> None:
    assert expected == format_exact(value, unit)


@pytest.mark.parametrize(
    ("a", "b", "unit", "expected"),
    [
        (200, 240, "FLOP", ("200 FLOP", "240 FLOP")),
        (200, 200, "FLOP", ("200 FLOP", "200 FLOP")),
        (2_359_296, 2_359_000, "FLOP", ("2.3593 MFLOP", "2.359 MFLOP")),
        (2_359_296, 2_359_297, "FLOP", ("2,359,296 FLOP", "2,359,297 FLOP")),
        (2**20, 2**20 - 1, "B", ("1,048,576 B", "1,048,575 B")),
        (1e-12, 2e-12, "ms", ("1e-12 ms", "2e-12 ms")),
        (None, 3, "1", ("–", "3")),
        (None, None, "1", ("–", "–")),
    ],
)
def test_two_values_are_printed_apart(
    a: float | None, b: float | None, unit: str, expected: tuple[str, str]
) -> None:
    assert expected == format_pair(a, b, unit)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (200, 240, "+20.0 %"),
        (1000, 969, "-3.1 %"),
        (7, 7, "0 %"),
        (0, 0, "0 %"),
        (0, 3, "from 0"),
        (4, 0, "-100.0 %"),
        (1_000_000, 1, "-99.9 %"),
        (1_000_000, 1_000_001, "+<0.1 %"),
        (1_000_000, 999_999, "-<0.1 %"),
        (10_000, 10_005, "+<0.1 %"),
        (10_000, 10_006, "+0.1 %"),
        (10, 99, "+890.0 %"),
        (10, 100, "×10"),
        (5, 60, "×12"),
        (1, 12_345.6, "×12,346"),
        (-100, 50, "+150.0 %"),
        (100, -150, "-250.0 %"),
        (1, -2000, "-200,100.0 %"),
        (None, 3, "–"),
        (3, None, "–"),
        (math.nan, 3, "–"),
    ],
)
def test_a_change_is_worded_by_its_kind(
    old: float | None, new: float | None, expected: str
) -> None:
    assert expected == format_change(old, new)


@given(AMOUNTS, UNITS)
def test_what_is_printed_can_be_read_back_within_its_precision(amount: float, unit: str) -> None:
    text = format_quantity(amount, unit)
    if text.startswith("<"):
        assert 0 < amount < parse_quantity(text[1:], unit)
        return
    # Three digits are within half a percent of the value, binary steps (1,023.5 → 1,024) too.
    assert math.isclose(amount, parse_quantity(text, unit), rel_tol=0.005)


@given(AMOUNTS, UNITS)
def test_exact_text_reads_back_as_the_same_number(amount: float, unit: str) -> None:
    assert amount == parse_quantity(format_exact(amount, unit), unit)


@given(AMOUNTS, AMOUNTS, UNITS)
def test_a_larger_value_is_never_printed_as_a_smaller_one(a: float, b: float, unit: str) -> None:
    small, large = (
        parse_quantity(format_quantity(value, unit).removeprefix("<"), unit)
        for value in sorted((a, b))
    )
    assert small <= large


@given(AMOUNTS.filter(bool), UNITS, st.integers(1, 6))
def test_nothing_that_is_something_prints_as_zero(amount: float, unit: str, digits: int) -> None:
    number = format_quantity(amount, unit, digits).split(" ")[0]
    assert number.strip("0.") != ""


@given(AMOUNTS, UNITS)
def test_a_negative_value_is_the_positive_one_with_a_sign(amount: float, unit: str) -> None:
    text = format_quantity(amount, unit)
    expected = text if amount == 0 else f">-{text[1:]}" if text[0] == "<" else f"-{text}"
    assert expected == format_quantity(-amount, unit)


@given(AMOUNTS, AMOUNTS, UNITS)
def test_a_pair_looks_alike_only_when_it_is_alike(a: float, b: float, unit: str) -> None:
    text_a, text_b = format_pair(a, b, unit)
    assert (a == b) == (text_a == text_b)


@given(AMOUNTS, AMOUNTS)
def test_a_change_never_reads_as_none_and_a_rest_never_as_nothing(old: float, new: float) -> None:
    text = format_change(old, new)
    assert (old == new) == (text == "0 %")
    assert text.strip("+-") != "0.0 %"
    assert (text == "-100.0 %") == (new == 0 < old)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("5 %", 0.05),
        ("5%", 0.05),
        (" 2.5 % ", 0.025),
        ("0 %", 0.0),
        ("150 %", 1.5),
        (0.05, 0.05),
        (0, 0.0),
        (0.999, 0.999),
    ],
)
def test_a_share_is_in_percent_or_a_fraction(value: object, expected: float) -> None:
    assert expected == parse_share(value, "by")


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (5, "that would be 500 %"),
        (1.0, "that would be 100 %"),
        ("5", "it is not a number with %"),
        ("5 percent", "it is not a number with %"),
        ("", "it is not a number with %"),
        (-0.1, "it is negative"),
        ("-5 %", "it is negative"),
        (math.nan, "it is not a finite number"),
        (math.inf, "it is not a finite number"),
        (None, "NoneType is not a number or a string"),
        (True, "bool is not a number or a string"),
        ([5], "list is not a number or a string"),
    ],
)
def test_what_is_no_share_is_refused_in_one_line_with_a_way_out(value: object, found: str) -> None:
    with pytest.raises(UnitError) as caught:
        parse_share(value, "by")
    text = str(caught.value)
    assert text.startswith("by=")
    assert text.endswith(f'is not a share: {found}; write by="5 %" or by=0.05')
    assert "\n" not in text
