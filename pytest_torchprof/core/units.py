"""Read and print quantities: times, bytes, floating point operations, rates and plain counts.

A quantity is a number in its canonical unit, one of the keys of `SCALES`: an int if it is whole,
and a float otherwise. Arithmetic is exact until the last step, so `"2.5 GFLOP"` is 2,500,000,000,
and nothing non-zero is ever printed as zero.
"""

from __future__ import annotations

import bisect
import math
import numbers
import re
import reprlib
from collections.abc import Callable
from fractions import Fraction

from pytest_torchprof.core.errors import UnitError
from pytest_torchprof.core.process import late

# Canonical unit → accepted units and their size in canonical units, smallest first.
# Datasheets use powers of 1000 for rates, including those of memory.
SCALES: dict[str, dict[str, Fraction | int]] = {
    "ms": {"us": Fraction(1, 1000), "ms": 1, "s": 1000},
    "1": {"": 1},
    "FLOP": {"FLOP": 1, "kFLOP": 10**3, "MFLOP": 10**6, "GFLOP": 10**9, "TFLOP": 10**12},
    "B": {
        "B": 1, "kB": 10**3, "KiB": 2**10, "MB": 10**6, "MiB": 2**20, "GB": 10**9, "GiB": 2**30,
    },
    "FLOP/s": {
        "FLOP/s": 1, "GFLOP/s": 10**9, "GFLOPS": 10**9, "TFLOP/s": 10**12, "TFLOPS": 10**12,
        "PFLOP/s": 10**15, "PFLOPS": 10**15,
    },
    "OP/s": {
        "OP/s": 1, "GOP/s": 10**9, "GOPS": 10**9, "TOP/s": 10**12, "TOPS": 10**12,
        "POP/s": 10**15, "POPS": 10**15,
    },
    "B/s": {"B/s": 1, "MB/s": 10**6, "GB/s": 10**9, "TB/s": 10**12},
}  # fmt: skip
_NOUNS = {
    "ms": "a time",
    "1": "a count",
    "FLOP": "a number of FLOPs",
    "B": "an amount of memory",
    "FLOP/s": "a rate of FLOPs",
    "OP/s": "a rate of operations",
    "B/s": "a bandwidth",
}
#: Accepted but never printed: bytes are printed in powers of 1024, and rates as a quotient.
_READ_ONLY = {"kB", "MB", "GB", "GFLOPS", "TFLOPS", "PFLOPS", "GOPS", "TOPS", "POPS"}
_LARGEST = 2**63 - 1
_SMALLEST_SHOWN = Fraction(1, 1000)  # of the smallest unit of a scale
_MOST_DIGITS = 6  # beyond these, the exact value reads better

#: Unit → the printed units with their sizes, and these sizes as floats to choose by.
_PRINTED = {
    unit: (
        shown := [(name, size) for name, size in units.items() if name not in _READ_ONLY],
        [float(size) for _, size in shown],
    )
    for unit, units in SCALES.items()
}

UNKNOWN = "–"

_WRITTEN = late(
    r"""(?P<number> -? (?: [0-9]{1,3} (?:,[0-9]{3}){1,9} | [0-9]{1,30} | (?=\.[0-9]) )
                    (?: \.[0-9]{0,30} )?
                    (?: [eE][+-]?[0-9]{1,3} )? )
        \s* (?P<unit> [^\s0-9.,+-]* )""",
    re.VERBOSE,
)

#: A number, and a unit that may have digits: ``100 1/s``.
_SIGNED = late(
    r"(?P<number>-?(?:[0-9]{1,3}(?:,[0-9]{3}){1,9}|[0-9]{1,30})(?:\.[0-9]{0,30})?(?:[eE][+-]?[0-9]{1,3})?)"
    r"(?:\s+(?P<unit>\S{1,20})|(?P<close>[^\s0-9.,+-]\S{0,19}))?"
)


def parse_quantity(value: object, unit: str) -> float:
    """Return `value` as a number in `unit`, or raise a UnitError that says what is accepted.

    A number is already in `unit`. A string has its own: `"512 MiB"`, `"2.5 GFLOP"`, `"3us"`;
    a count has no unit, so it is just a number, `"40"`. Commas may group digits, as in the output
    of this module.

    >>> parse_quantity("2.5 GFLOP", "FLOP"), parse_quantity("20 us", "ms"), parse_quantity(3, "1")
    (2500000000, 0.02, 3)
    """

    def refuse(found: str) -> UnitError:
        names = [name for name in SCALES[unit] if name]
        accepted = f"a number in {unit}, or a string in {' '.join(names)}" if names else "a number"
        return UnitError(f"{_shown(value)} is not {_NOUNS[unit]}", found, f"write {accepted}")

    if isinstance(value, str):
        match = _WRITTEN.fullmatch(value.strip())
        if match is None:
            raise refuse("it is not a number with a unit" if value.strip() else "no text")
        name = match["unit"]
        if name not in SCALES[unit]:
            raise refuse(f'the unit "{name}"' if name else "no unit")
        quantity = _number_in(match) * SCALES[unit][name]
    else:
        quantity = _real(value, refuse)
    return _plain(_positive(quantity, refuse))


def parse_signed(value: object) -> tuple[float, str]:
    """Return a number and its unit, for a quantity whose unit is not known yet.

    A unit of `SCALES` becomes the canonical one, so that numbers of one scale compare; others stay,
    and a plain number has an empty one. Unlike quantities of `SCALES`, it may be negative.

    Raises:
        UnitError: it is no finite number, or a text that is none with a unit behind it.

    >>> parse_signed("100 tokens/s"), parse_signed("1 MiB"), parse_signed(-0.5)
    ((100, 'tokens/s'), (1048576, 'B'), (-0.5, ''))
    """

    def refuse(found: str) -> UnitError:
        what = f"{_shown(value)} is not a limit"
        return UnitError(what, found, 'write a number, or a text such as "100 1/s"')

    unit = ""
    if isinstance(value, str):
        match = _SIGNED.fullmatch(value.strip())
        if match is None:
            raise refuse("it is not a number with a unit")
        number, unit = _number_in(match), match["unit"] or match["close"] or ""
        for canonical, units in SCALES.items():
            if unit and unit in units:
                number, unit = number * units[unit], canonical
                break
    else:
        number = _real(value, refuse)
    if abs(number) > _LARGEST:
        raise refuse("it is too large")
    return _plain(number), unit


def converted(value: float, unit: str, wanted: str) -> float | None:
    """A number in another unit, exactly; None if the two units measure different things.

    >>> converted(9, "ms", "s"), converted(2, "KiB", "B"), converted(1, "ms", "1/s")
    (0.009, 2048, None)
    """
    if unit == wanted:
        return value
    for scale in SCALES.values():
        if unit in scale and wanted in scale:
            return _plain(_exact(value) * scale[unit] / scale[wanted])
    return None


def parse_share(value: object, name: str) -> float:
    """Return a share of something, ``"5 %"`` or ``0.05``; ``name`` is the argument's, for errors.

    Raises:
        UnitError: it is none, or negative, or a number of 1 or more, which may be meant in percent.

    >>> parse_share("5 %", "by"), parse_share(0.02, "by"), parse_share("150%", "by")
    (0.05, 0.02, 1.5)
    """
    __tracebackhide__ = True  # of a test, which passes the value
    if type(value) is float and 0 <= value < 1:  # the usual case
        return value

    def refuse(found: str) -> UnitError:
        what = f"{name}={_shown(value)} is not a share"
        return UnitError(what, found, f'write {name}="5 %" or {name}=0.05')

    if isinstance(value, str):
        match = _WRITTEN.fullmatch(value.strip())
        if match is None or match["unit"] != "%":
            raise refuse("it is not a number with %")
        share = _number_in(match) / 100
    else:
        share = _real(value, refuse)
        if share >= 1:
            raise refuse(f"that would be {format_quantity(float(100 * share), '1')} %")
    return float(_positive(share, refuse))


def says(text: str, value: float, unit: str) -> bool:
    """Whether a text is this number, rounded to the text's digits after the point, if any.

    >>> says("2.36 GFLOP", 2_359_296_000, "FLOP"), says("2 kFLOP", 2_001, "FLOP")
    (True, False)
    """
    match = _WRITTEN.fullmatch(text.strip())
    if match is None or match["unit"] not in SCALES[unit]:
        return False
    size, number = SCALES[unit][match["unit"]], match["number"].replace(",", "")
    off = abs(Fraction(number) * size - _exact(value))
    digits = 0 if "e" in number.lower() else len(number.partition(".")[2])
    return off * 2 * 10**digits <= size if digits else not off


def format_quantity(value: float | None, unit: str, digits: int = 3) -> str:
    """Print with about `digits` significant digits, in a unit that suits the size.

    A unit that is no key of `SCALES`, as metrics of users' own have, is printed as it is.

    >>> format_quantity(2_359_296_000, "FLOP"), format_quantity(2**29, "B")
    ('2.36 GFLOP', '512 MiB')
    >>> format_quantity(0.0123, "ms"), format_quantity(12345, "1"), format_quantity(None, "ms")
    ('12.3 us', '12,345', '–')
    >>> format_quantity(1234.567, "tokens/s"), format_quantity(0.00001234, "loss")
    ('1,235 tokens/s', '0.0000123 loss')
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if unit == "1" and isinstance(value, int):
        return f"{value:,}"
    if value == 0:
        return f"0 {unit}".rstrip() if unit != "1" else "0"
    sign = "-" if value < 0 else ""
    amount = abs(_exact(value))
    if unit not in _PRINTED:
        return f"{sign}{_decimal(_round(amount, digits))} {unit}".rstrip()
    scale, floors = _PRINTED[unit]
    smallest_name, smallest_size = scale[0]
    if amount < _SMALLEST_SHOWN * smallest_size:
        return f"{'>' if sign else '<'}{sign}0.001 {smallest_name}".rstrip()
    index = max(bisect.bisect_right(floors, float(amount)) - 1, 0)
    name, size = scale[index]
    rounded = _round(amount / size, digits)
    if index + 1 < len(scale) and rounded * size >= scale[index + 1][1]:  # 999.9996 k is 1 M
        name, size = scale[index + 1]
        rounded = _round(rounded * scale[index][1] / size, digits)
    return f"{sign}{_decimal(rounded)} {name}".rstrip()


def format_exact(value: float | None, unit: str) -> str:
    """Print every digit, in the canonical unit.

    >>> format_exact(2_359_296, "FLOP"), format_exact(3.0625, "ms"), format_exact(7, "1")
    ('2,359,296 FLOP', '3.0625 ms', '7')
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN
    exact = _exact(value)
    sign = "-" if value < 0 else ""
    tiny = 0 < abs(exact) < Fraction(1, 10**9)
    text = repr(float(value)) if tiny else f"{sign}{_decimal(abs(exact))}"
    return text if unit in ("1", "") else f"{text} {unit}"


def format_pair(a: float | None, b: float | None, unit: str) -> tuple[str, str]:
    """Print two values with enough digits to tell them apart.

    >>> format_pair(200, 240, "FLOP"), format_pair(2**29, 2**29 + 1, "B")
    (('200 FLOP', '240 FLOP'), ('536,870,912 B', '536,870,913 B'))
    """
    for digits in range(3, _MOST_DIGITS + 1):
        pair = format_quantity(a, unit, digits), format_quantity(b, unit, digits)
        if pair[0] != pair[1] or a == b:
            return pair
    return format_exact(a, unit), format_exact(b, unit)


def change_of_count(old: float | None, new: float | None) -> str:
    """The change of a regressed count; if there are no more, they are not the ones accepted.

    >>> change_of_count(2, 3), change_of_count(1, 1)
    ('+50.0 %', 'not the accepted ones')
    """
    more = old is None or new is None or new > old
    return format_change(old, new) if more else "not the accepted ones"


def format_change(old: float | None, new: float | None) -> str:
    """Print the change from `old` to `new`; only no change is 0 %, and only 0 is -100 %.

    >>> format_change(200, 240), format_change(100_000, 100_001), format_change(5, 60)
    ('+20.0 %', '+<0.1 %', '×12')
    >>> format_change(0, 3), format_change(7, 7), format_change(4, 0), format_change(None, 4)
    ('from 0', '0 %', '-100.0 %', '–')
    """
    if old is None or new is None or not (math.isfinite(old) and math.isfinite(new)):
        return UNKNOWN
    if old == new:
        return "0 %"
    if old == 0:
        return "from 0"
    before, after = _exact(old), _exact(new)
    if before > 0 and after >= 10 * before:
        return f"×{_decimal(_round(after / before, 3))}"
    percent = (after - before) / abs(before) * 100
    sign = "-" if percent < 0 else "+"
    tenths = round(abs(percent) * 10)
    if tenths == 0:
        return f"{sign}<0.1 %"
    if tenths == 1000 and -100 < percent < 0:  # not quite to zero
        tenths = 999
    return f"{sign}{tenths // 10:,}.{tenths % 10} %"


def format_spread(spread: float | None) -> str:
    """Print the spread of measured values, relative to their median; empty for a single value.

    >>> format_spread(0.04), format_spread(0.001), format_spread(0), format_spread(None)
    ('±4 %', '±<1 %', '±0 %', '')
    """
    if spread is None or not math.isfinite(spread):
        return ""
    percent = round(spread * 100)
    return f"±{percent:,} %" if percent or not spread else "±<1 %"


def alike(before: float, now: float, share: float, margin: float = 0) -> bool:
    """Whether they differ by at most this share of the first, or by at most this amount.

    As fractions, because 1.1 * 100 is more than 110 in floats, and large counts are rounded.

    >>> alike(100, 110, 0.1), alike(100, 111, 0.1), alike(100, 612, 0.1, 512)
    (True, False, True)
    """
    if before == now:
        return True
    accepted = _exact(before)
    return abs(_exact(now) - accepted) <= max(abs(accepted) * _exact(share), _exact(margin))


def format_tolerance(share: float, margin: float, unit: str) -> str:
    """Print both parts of a tolerance, without those of 0.

    >>> format_tolerance(0.001, 512, "B"), format_tolerance(0.25, 0, "ms")
    ('0.1 % and 512 B', '25 %')
    """
    parts = [f"{share * 100:g} %"] * (share > 0) + [format_quantity(margin, unit)] * (margin > 0)
    return " and ".join(parts)


def plural(count: int, noun: str) -> str:
    """``1 test``, ``2 tests``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _number_in(match: re.Match[str]) -> Fraction:
    return Fraction(match["number"].replace(",", ""))


def _real(value: object, refuse: Callable[[str], UnitError]) -> Fraction:
    """A number that is no text, exactly."""
    __tracebackhide__ = True
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise refuse(f"{type(value).__name__} is not a number or a string")
    if not isinstance(value, numbers.Rational) and not math.isfinite(value):
        raise refuse("it is not a finite number")
    return _exact(value)


def _positive(quantity: Fraction, refuse: Callable[[str], UnitError]) -> Fraction:
    __tracebackhide__ = True
    if quantity < 0:
        raise refuse("it is negative")
    if quantity > _LARGEST:
        raise refuse("it is too large")
    return quantity


def _shown(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _LARGEST:
        return f"an integer of {value.bit_length()} bits"  # Python refuses to print the largest
    return f'"{value}"' if isinstance(value, str) and len(value) < 40 else reprlib.repr(value)


def _exact(value: numbers.Real | float) -> Fraction:
    """A finite number, including numpy's, exactly as printed: 0.1 is a tenth."""
    if isinstance(value, numbers.Rational):
        return Fraction(int(value.numerator), int(value.denominator))
    return Fraction(repr(float(value)))


def _plain(quantity: Fraction) -> float:
    return quantity.numerator if quantity.denominator == 1 else float(quantity)


def _round(amount: Fraction, digits: int) -> Fraction:
    """Round to this many significant digits, but never within the integer part."""
    if amount >= 1:
        return round(amount, max(0, digits - len(str(int(amount)))))
    zeros = 0  # after the point
    while amount * 10 ** (zeros + 1) < 1:
        zeros += 1
    return round(amount, zeros + digits)


def _decimal(amount: Fraction) -> str:
    """Every digit of a non-negative, terminating decimal, in groups of three."""
    places = 0
    while (amount * 10**places).denominator != 1:
        places += 1
    whole, rest = divmod(int(amount * 10**places), 10**places)
    return f"{whole:,}.{rest:0{places}d}" if places else f"{whole:,}"
