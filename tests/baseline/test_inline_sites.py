"""Which literal of a file is rewritten: the one that was compiled, as it was compiled, or none."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytest_torchprof.baseline import inline
from pytest_torchprof.baseline.inline import CallSite, Edit, Sources, apply, located, refusal
from pytest_torchprof.core.errors import BaselineError

NEW = "ops   1\n"
#: Nothing is written after it.
NEVER_NS = time.time_ns() + 10**15


class Fixture:
    """Stands for ``torchprof``: takes note of each call, as the real one does while accepting."""

    def __init__(
        self, started_ns: int | None = None, text: Callable[[str], str] | None = None
    ) -> None:
        self.sources = Sources(NEVER_NS if started_ns is None else started_ns)
        self.text = text or (lambda expected: NEW)
        self.edits: list[Edit] = []
        self.refusals: list[str | None] = []

    def assert_expected_inline(self, expected: str) -> str:
        caller = sys._getframe(1)
        edit = located(caller, self.text(expected), expected, self.sources)
        self.edits.append(msgspec.convert(msgspec.to_builtins(edit), Edit))  # as under xdist
        self.refusals.append(refusal(caller, expected))
        return expected


def compiled(path: Path, data: bytes | str) -> dict[str, Any]:
    """What the file defines."""
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    names: dict[str, Any] = {}
    exec(compile(path.read_bytes(), str(path), "exec"), names)
    return names


def accepted(path: Path, data: bytes | str, *args: Any) -> tuple[bytes, list[str]]:
    """The file after its ``test`` was run and accepted, and what was said of it."""
    fixture = Fixture()
    compiled(path, data)["test"](fixture, *args)
    _, problems = apply(fixture.edits)
    return path.read_bytes(), [problem.what for problem in problems]


@pytest.fixture(params=["positions", "lines"])
def known(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the interpreter knows of a frame: where its call ends, or as Python 3.10 its line."""
    if request.param == "lines":
        monkeypatch.setattr(CallSite, "of", classmethod(lambda cls, frame: cls(frame.f_lineno)))
    elif sys.version_info < (3, 11):
        pytest.skip("this Python knows the line of a call only")
    return str(request.param)


#: A test, in which HERE is to be rewritten and nothing else.
CASES = {
    "alone": "def test(t):\n    t.assert_expected_inline(HERE)\n",
    "keyword": "def test(t):\n    t.assert_expected_inline(expected=HERE)\n",
    "another string before": 'def test(t):\n    """""", t.assert_expected_inline(HERE)\n',
    "another string in the call of it": (
        'def test(t):\n    print("""""", t.assert_expected_inline(HERE), """""")\n'
    ),
    "dict display": (
        'def test(t):\n    return {\n        """""": """""",\n'
        '        "b": t.assert_expected_inline(HERE),\n        "c": """""",\n    }\n'
    ),
    "dict display on a line": (
        'def test(t):\n    return {"""""": """""", 1: t.assert_expected_inline(HERE), 2: """"""}\n'
    ),
    "with header": (
        "from contextlib import nullcontext\ndef test(t):\n"
        '    with nullcontext(""""""), nullcontext(t.assert_expected_inline(HERE)) as a:\n'
        '        b = """"""\n'
    ),
    "docstring": 'def test(t):\n    """"""; t.assert_expected_inline(HERE); """"""\n',
    "docstring above": 'def test(t):\n    """"""\n    t.assert_expected_inline(HERE)\n',
    "else": (
        'def test(t):\n    if not t: t.assert_expected_inline("""""")\n'
        "    else: t.assert_expected_inline(HERE)\n"
    ),
    "one of two functions of a name": (
        'if 0:\n    def test(t):\n        t.assert_expected_inline("""""")\n'
        "else:\n    def test(t):\n        t.assert_expected_inline(HERE)\n"
    ),
    "conditional expression": (
        'def test(t):\n    "" if not t else t.assert_expected_inline(HERE)\n'
    ),
    "decorator": (
        "def same(text):\n    return lambda f: f\n"
        '@same("""""")\ndef test(t, a=""""""):\n    t.assert_expected_inline(HERE)\n'
    ),
    "method": (
        'class Test:\n    """"""\n    def test(self, t):\n        t.assert_expected_inline(HERE)\n'
        "test = Test().test\n"
    ),
    "nested function": (
        'def test(t):\n  def inner(a=""""""):\n    t.assert_expected_inline(HERE)\n  inner()\n'
    ),
    "lambda": "test = lambda t: t.assert_expected_inline(HERE)\n",
    "comprehension": "def test(t):\n    [t.assert_expected_inline(HERE) for _ in range(2)]\n",
    "another name of it": "def test(t):\n    check = t.assert_expected_inline\n    check(HERE)\n",
    "several lines": (
        'def test(t):\n    (\n        t\n        .assert_expected_inline(  # """"""\n'
        '            HERE\n        )\n    )\n    """"""\n'
    ),
    "form feed": 'def test(t):\n\f    """"""\n\x0c\n    t.assert_expected_inline(HERE)\n',
    "tabs": "def test(t):\n\t'\t'\n\tt.assert_expected_inline(HERE)\n",
    "other letters on the line": 'def test(t):\n    "äöü😀"; t.assert_expected_inline(HERE)\n',
    "other line ends within strings": (
        'def test(t):\n    "\u2028 \x85 \x1c"\n    t.assert_expected_inline(HERE)\n'
    ),
    "continuation": 'def test(t):\n    """""" \\\n    ; t.assert_expected_inline(\\\nHERE)\n',
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["lf", "crlf", "cr"])
@pytest.mark.parametrize("case", CASES)
def test_the_literal_of_the_call_is_rewritten_and_nothing_else(
    tmp_path: Path, known: str, case: str, end: str
) -> None:
    path = tmp_path / "test_it.py"
    text = CASES[case].replace("\n", end)
    before, after = ('""""""', f'"""\\{end}ops   1{end}"""')
    if known == "lines" and case == "another string in the call of it":
        pytest.skip("a line is distinguished from others by the name of what is called; see below")
    assert (text.replace("HERE", after).encode(), []) == accepted(
        path, text.replace("HERE", before)
    )
    again = Fixture(text=lambda expected: expected)
    compiled(path, path.read_bytes())["test"](again)
    assert {NEW} == {edit.old for edit in again.edits}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("''''''", "'''\\\nops   1\n'''"),
        ('r""""""', 'r"""ops   1\n"""'),
        ("R''''''", "R'''ops   1\n'''"),
        ('u""""""', 'u"""\\\nops   1\n"""'),
        ('("""""")', '("""\\\nops   1\n""")'),
        ('"""a \\""" b"""', '"""\\\nops   1\n"""'),
        ('"""a\\\\"""', '"""\\\nops   1\n"""'),
        ('"""""",', '"""\\\nops   1\n""",'),
    ],
)
def test_quotes_and_prefix_stay(tmp_path: Path, known: str, before: str, after: str) -> None:
    text = "def test(t):\n    t.assert_expected_inline(HERE)\n"
    found = accepted(tmp_path / "test_it.py", text.replace("HERE", before))
    assert (text.replace("HERE", after).encode(), []) == found


@pytest.mark.parametrize(
    "argument",
    [
        "'ops'", '"" """"""', '"""""" """"""', 'f"""{""}"""', '"""""".strip()', "str()",
        "*['']", "**{'expected': ''}",
    ],
)  # fmt: skip
def test_an_expectation_that_is_not_a_plain_literal_is_left_and_reported(
    tmp_path: Path, known: str, argument: str
) -> None:
    text = f"def test(t):\n    t.assert_expected_inline({argument})\n"
    path = tmp_path / "test_it.py"
    found, (message,) = accepted(path, text)
    assert text.encode() == found
    if known == "positions":
        assert message.startswith("has no triple-quoted string to rewrite. Write torchprof.")


@pytest.mark.parametrize(
    ("start", "encoding"),
    [("", "utf-8"), ("", "utf-8-sig"), ("# coding: latin-1\n", "latin-1"),
     ("\n# vim: set fileencoding=cp1252 :\n", "cp1252"), ("# coding: shift-jis\n", "shift-jis")],
)  # fmt: skip
def test_encodings_stay(tmp_path: Path, start: str, encoding: str) -> None:
    letters = "日本" if "jis" in encoding else "äöü"
    text = f'{start}def test(t):\n    "{letters}", t.assert_expected_inline(HERE)  # {letters}\n'
    before, after = ('""""""', '"""\\\nops   1\n"""')
    found = accepted(tmp_path / "test_it.py", text.replace("HERE", before).encode(encoding))
    assert (text.replace("HERE", after).encode(encoding), []) == found


def test_equal_calls_on_one_line_are_distinguished_or_left_alone(
    tmp_path: Path, known: str
) -> None:
    path = tmp_path / "test_it.py"
    text = (
        'def test(t):\n    a = b = t\n    a.assert_expected_inline("""x"""); '
        'b.assert_expected_inline("""x""")\n'
    )
    fixture = Fixture()
    numbers = iter("ab")
    fixture.text = lambda expected: next(numbers)
    compiled(path, text)["test"](fixture)
    _, problems = apply(fixture.edits)
    if known == "positions":
        expected = text.replace('"x"', '"a"', 1).replace('"x"', '"b"', 1)
        assert (expected, []) == (path.read_text("utf-8"), problems)
    else:
        assert text == path.read_text("utf-8")
        assert {"cannot be rewritten: several calls on its line look the same"} == {
            problem.what for problem in problems
        }


def test_a_site_with_different_values_is_left_alone_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    text = 'def test(t):\n    for _ in range(2): t.assert_expected_inline("""""")\n'
    fixture = Fixture()
    numbers = iter("ab")
    fixture.text = lambda expected: next(numbers)
    compiled(path, text)["test"](fixture)
    _, (problem,) = apply(fixture.edits)
    assert problem.what.startswith("was measured with different values.")
    assert text == path.read_text("utf-8")


# -------------------------------------------------------------------- saved during the run

TWO = '''\
def test(t):
    t.assert_expected_inline("""""")

def other(t):
    t.assert_expected_inline("""""")
'''
WRITTEN = TWO.replace('""""""', '"""\\\nops   1\n"""', 1)
CHANGED = "cannot be rewritten: the file was changed while the tests ran; accept again"


@pytest.mark.parametrize(
    ("saved", "expected"),
    [
        (TWO, WRITTEN),
        (f"# more\n\n{TWO}", f"# more\n\n{WRITTEN}"),
        (TWO.replace("other", "another"), WRITTEN.replace("other", "another")),
        # What stands there now is another test's, or was written for another program.
        (TWO.replace("test", "new", 1), None),
        (TWO.replace("(t):", "(t, a=1):", 1), None),
        (TWO.replace('""""""', '"""ops   7"""', 1), None),
        (TWO.replace('""""""', '"ops"', 1), None),
        (TWO.partition("\n\n")[2], None),
        (TWO + TWO, None),
        ("def test(", None),
        ("", None),
    ],
)
def test_a_file_that_was_saved_during_the_run_is_left_unless_the_function_is_as_it_was(
    tmp_path: Path, known: str, saved: str, expected: str | None
) -> None:
    path, fixture = tmp_path / "test_it.py", Fixture()
    compiled(path, TWO)["test"](fixture)
    path.write_text(saved, "utf-8")
    done, problems = apply(fixture.edits)
    assert (expected or saved) == path.read_text("utf-8")
    assert (1, 0) == ((len(done), len(problems)) if expected else (len(problems), len(done)))
    if expected is None and saved != "def test(":
        assert CHANGED == problems[0].what


@pytest.mark.parametrize("saved", [f"\n{TWO}", TWO.replace("test", "new", 1), TWO])
def test_a_file_that_was_saved_before_its_expectation_was_reached_is_left(
    tmp_path: Path, saved: str
) -> None:
    path = tmp_path / "test_it.py"
    names = compiled(path, TWO)
    fixture = Fixture(started_ns=path.stat().st_mtime_ns)
    time.sleep(0.02)  # more than the clock of a file system is apart
    path.write_text(saved, "utf-8")
    names["test"](fixture)
    _, (problem,) = apply(fixture.edits)
    assert problem.what.endswith("the file was changed since pytest was started; accept again")
    assert saved == path.read_text("utf-8")


def test_what_was_read_before_it_was_saved_is_as_it_was_compiled(tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    names, fixture = compiled(path, TWO), Fixture()
    fixture.sources.of(str(path))  # as at collection
    path.write_text(f"\n{TWO}", "utf-8")
    names["test"](fixture)
    apply(fixture.edits)
    assert f"\n{WRITTEN}" == path.read_text("utf-8")


def test_two_accepts_of_one_file_at_once_lose_neither(tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    names = compiled(path, TWO)
    fixtures = Fixture(), Fixture(text=lambda expected: "ops   2\n")
    names["test"](fixtures[0])
    names["other"](fixtures[1])
    for fixture in fixtures:
        assert [] == apply(fixture.edits)[1]
    expected = WRITTEN.replace('""""""', '"""\\\nops   2\n"""')
    assert expected == path.read_text("utf-8")


def test_a_file_without_the_running_code_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(f"\n{TWO}", "utf-8")
    names: dict[str, Any] = {}
    exec(compile(TWO, str(path), "exec"), names)
    fixture = Fixture()
    names["test"](fixture)
    _, (problem,) = apply(fixture.edits)
    assert "the file was changed since it was imported" in problem.what
    assert [None] == fixture.refusals


@pytest.mark.parametrize("name", ["<string>", "gone.py", "a\0b"])
def test_code_without_a_file_is_left_alone_and_reported(name: str) -> None:
    names: dict[str, Any] = {}
    if "\0" in name:
        pytest.skip("no code has such a file name")
    exec(compile(TWO, name, "exec"), names)
    fixture = Fixture()
    names["test"](fixture)
    _, (problem,) = apply(fixture.edits)
    assert problem.what.startswith("cannot be rewritten: cannot read the file: ")
    assert [problem.what] == fixture.refusals


def test_unusable_files_are_reported_in_one_line(tmp_path: Path) -> None:
    for data in (b"\xff", b"# coding: nothing\n", b"x = (", b"\0", b"(" * 9999):
        with pytest.raises(BaselineError, match=r"^cannot be rewritten: [^\n]+$"):
            inline.SourceFile(data)
