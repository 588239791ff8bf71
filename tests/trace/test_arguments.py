"""Arguments as one text, and as objects."""

from __future__ import annotations

import pytest

from pytest_torchprof.trace.arguments import Arguments, AutogradArgs, decode, decode_texts


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
