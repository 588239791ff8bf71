"""Calls that are taken for alike have the same operands, however their arguments are written."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pytest_torchprof.trace.arguments import Arguments, OpArgs, alike, decode

OPERANDS = ("Concrete Inputs", "Input type", "Input Strides", "Input Dims")
NUMBERS = ("External id", "Record function id", "Ev Idx", "Sequence number")
SMALL = st.lists(st.lists(st.integers(0, 2), max_size=2), max_size=2)


@st.composite
def calls(draw: st.DrawFn) -> list[bytes]:
    """Calls of one file, which all have their keys in one order."""
    order = draw(st.permutations([*OPERANDS, *NUMBERS]))
    keys = order[: draw(st.integers(0, len(order)))]
    return [
        json.dumps(
            {key: draw(SMALL if key in OPERANDS else st.integers(0, 99)) for key in keys}
        ).encode()
        for _ in range(draw(st.integers(1, 5)))
    ]


@given(calls(), st.data())
def test_alike_calls_have_the_same_name_and_operands(
    texts: list[bytes], data: st.DataObject
) -> None:
    names = data.draw(st.lists(st.integers(0, 1), min_size=len(texts), max_size=len(texts)))
    raws = Arguments.of(texts)
    kinds, firsts, keys = alike(np.array(names, np.int64), raws)
    args = decode(OpArgs, raws)
    for i, kind in enumerate(kinds.tolist()):
        first = firsts[kind]
        assert names[i] == names[first] == keys[kind][0]
        assert args[i] == args[first]


def test_calls_as_torch_writes_them_are_alike_whatever_their_numbers() -> None:
    def call(number: int, dims: str) -> bytes:
        return (
            f'{{"External id": {number},"Record function id": {number}, "Concrete Inputs": [""], '
            f'"Input type": ["float"], "Input Strides": [[1]], "Input Dims": [[{dims}]], '
            f'"Ev Idx": {number}}}'
        ).encode()

    raws = Arguments.of([call(1, "3"), call(2, "3"), call(3, "4")])
    kinds, firsts, _ = alike(np.zeros(3, np.int64), raws)
    assert ([0, 0, 1], [0, 2]) == (kinds.tolist(), firsts)


def test_many_calls_at_once_have_the_kinds_that_they_have_one_by_one() -> None:
    texts = [
        f'{{"External id": {number},"Concrete Inputs": ["{number % 2}"], "Input Dims": '
        f'[[{dims}]], "Ev Idx": {number}{tail}}}'.encode()
        for number in range(400)
        for dims, tail in (("3", ""), ("4", ""), ("4", ', "Input type": []'))
    ]
    names = np.arange(len(texts), dtype=np.int64) // 600
    kinds, firsts, keys = alike(names, Arguments.of(texts))
    assert len(texts) >= 1000
    for start in range(0, len(texts), 400):
        some = slice(start, start + 400)
        one_by_one, _, few = alike(names[some], Arguments.of(texts[some]))
        of_many = [keys[kind] for kind in kinds[some].tolist()]
        assert of_many == [few[kind] for kind in one_by_one.tolist()]
    assert firsts == [kinds.tolist().index(kind) for kind in range(len(keys))]
