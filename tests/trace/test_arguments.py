"""Arguments as one text, and as objects."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_torchprof.trace import arguments
from pytest_torchprof.trace.arguments import (
    Arguments,
    AutogradArgs,
    alike,
    decode,
    decode_texts,
    starts,
)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], []),
        ([b'{"Sequence number": 3}', None, b'{"Sequence number": "4"}'], [3, -1, 4]),
        ([b'{"Sequence number": 3}', b"{broken", b"7"], [3, -1, -1]),
    ],
)
def test_both_decode_alike(texts: list[bytes | None], expected: list[int]) -> None:
    assert expected == [args.sequence for args in decode_texts(AutogradArgs, texts)]
    assert expected == [args.sequence for args in decode(AutogradArgs, Arguments.of(texts))]


def test_a_word_is_found_in_the_part_that_has_all_of_it() -> None:
    parts = Arguments.of([b'["double"]', None, b'["float", "doub', b'le"]'])
    assert [True, False, False, False] == parts.containing(b'"double"')
    assert [False, True] == parts[[1, 2]].containing(b"float")


@pytest.mark.parametrize("block", [1, 2, 100])
def test_any_block_decodes_alike(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [b'{"Sequence number": %d}' % number for number in range(5)]
    texts[3] = b"{broken"
    monkeypatch.setattr(arguments, "_BLOCK", block)
    found = decode(AutogradArgs, Arguments.of(texts))
    assert [0, 1, 2, -1, 4] == [args.sequence for args in found]
    kinds, firsts, _ = alike(np.zeros(5, np.int64), Arguments.of([*texts[:2], *texts[:2], b""]))
    assert ([0, 1, 0, 1, 2], [0, 1, 4]) == (kinds.tolist(), firsts)


@pytest.mark.parametrize(("last", "width"), [(2**10, np.int32), (2**31 - 1, np.int64)])
def test_parts_begin_where_those_before_end(last: int, width: type) -> None:
    begin = starts(np.array([5, 0, last], np.int32))
    assert (width, [0, 5, 5]) == (begin.dtype.type, begin.tolist())
    further = starts(np.array([last, last, 1], np.int32))
    assert [0, last, 2 * last] == further.tolist()
