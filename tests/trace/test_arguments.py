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
