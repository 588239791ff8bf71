"""A session whose ids, reasons and baselines are hostile says and writes nothing raw."""

from __future__ import annotations

import json
import re

import pytest
from support.hostile import EVERY, HOSTILE, assert_json, assert_terminal, in_utf8
from support.sessions import NO_OTHER_PLUGINS

from pytest_torchprof.baseline.store import Details
from pytest_torchprof.core.values import Baseline, Detail, DetailRow, HeldRow

#: All that is said in the place of a traceback.
_FAILURE = r"^(?:ops|same cause as|test_it\.py:\d+) .*\n(?:  .*\n)*accept: .*"
_RAW_IDS = "disable_test_id_escaping_and_forfeit_all_rights_to_community_support"


def explained_by(text: str) -> Baseline:
    """Accepted numbers whose operators and functions all have this name."""
    function = f"{text}::{text}"
    return Baseline(
        operators={text: {"calls": 2, "ops": 2}},
        kernels={text: 1},
        detail=Detail(
            (
                DetailRow(function, text, "float32", 2, 8, 8, 0.5, {text: 2}),
                DetailRow("test_it.py::test_a", text, "float32", 2, 8, 8, 0.5, {text: 2}),
            ),
            {function: 1},
            {function: {function: 1}},
            (HeldRow(function, text, 8, 8, 8),),
        ),
    )


@pytest.mark.thorough
def test_a_session_says_and_writes_nothing_raw(pytester: pytest.Pytester) -> None:
    """Ids, reasons, a baseline's operators, functions, and machine: none of it as it is."""
    texts = list(map(in_utf8, [*HOSTILE, EVERY]))
    pytester.makeini(f"[pytest]\n{_RAW_IDS} = True\n")
    pytester.makepyfile(hostile=f"TEXTS = {texts!r}")
    pytester.makepyfile(
        test_it="""
        import pytest, torch
        from hostile import TEXTS
        seen = []

        @pytest.mark.parametrize("number", range(len(TEXTS)), ids=TEXTS)
        def test_a(number, torchprof):
            if number % 3 == 1:  # cannot be run twice
                seen.append(number)
                assert seen.count(number) == 1, TEXTS[number]
            with torch.profiler.record_function(TEXTS[number]):
                torch.ones(number + 2, 2) @ torch.ones(2, 2)

        @pytest.mark.parametrize("number", range(3))
        def test_inline(number, torchprof):
            with torchprof:
                torch.ones(2, 2)
            torchprof.assert_expected_inline('''ops 77''')
        """
    )
    accepted = pytester.runpytest(*NO_OTHER_PLUGINS, "--torchprof", "--accept", "-q")
    assert "new test" in accepted.stdout.str()
    path = next(pytester.path.glob("__torchprof__/*.json"))
    document, details = json.loads(path.read_text()), Details(path)
    for number, (test, entries) in enumerate(document["tests"].items()):
        for environment, entry in entries.items():
            text = texts[number % len(texts)]
            entry["metrics"]["ops"] += 1 if number % 4 else -1  # it improves, or is worse
            entry["findings"] = {text: 1}
            entry.setdefault("times", {})["machine"] = text
            details.put(test, environment, entry, explained_by(text))
    path.write_text(json.dumps(document))
    details.write(document["tests"])
    words: tuple[str, ...] = (
        "--torchprof",
        "--torchprof-json=r.json",
        "--torchprof-traces=t",
        "--tb=short",
    )
    words += (*NO_OTHER_PLUGINS, "--torchprof-strict")
    result = pytester.runpytest(*words)
    out = result.stdout.str()
    assert result.parseoutcomes()["failed"] > len(texts) // 2
    ours = out[out.index("= torchprof =") : out.index("short test summary")]
    assert_terminal(ours)
    failures = re.findall(_FAILURE, out, re.MULTILINE)
    assert len(failures) == result.parseoutcomes()["failed"]
    for failure in failures:
        assert_terminal(failure)
    named = [one for one in failures if "  vanished  " in one or "  gone: " in one]
    assert len(named) > len(texts) // 2  # others are of the same cause as an earlier test
    assert any("  gone: " in one for one in named)
    report = assert_json((pytester.path / "r.json").read_text("utf-8"))
    nodeids = [test["nodeid"] for test in report["tests"]]
    assert f"test_it.py::test_a[{texts[0]}]" in nodeids
    assert_terminal("".join(path.name for path in (pytester.path / "t").iterdir()))
