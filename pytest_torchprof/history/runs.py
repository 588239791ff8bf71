"""The document of one run in a history, and the hash of each test's own source."""

from __future__ import annotations

import ast
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec

from pytest_torchprof.core.records import Frozen, in_json
from pytest_torchprof.core.values import MissingValue, Number, Record, Verdict
from pytest_torchprof.verdict.own import metric_of

# ---- The document of one run: what a session measured, at which commit, on which machine.
#
# Only numbers that are known are in it. It is written once and never changed.

RUN_SCHEMA = "torchprof-run/1"
#: With an integer of hundreds of digits no arithmetic goes well.
Known = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | float


class OwnKind(Frozen, frozen=True, rename={"klass": "class"}, gc=False):
    """What is declared of a user's own metric: its unit, class, and which change is better."""

    unit: str
    klass: str
    better: str = "lower"


class RunRegion(Frozen, frozen=True, gc=False):
    """A named region of a test: how often it was entered, and its known numbers by metric."""

    laps: int
    metrics: dict[str, Known]


class RunCause(Frozen, frozen=True, omit_defaults=True, gc=False):
    """What changed in the code of a test that regressed, in a line with its place; see `Cause`."""

    kind: str
    headline: str
    metrics: dict[str, Known] = msgspec.field(default_factory=dict)


class RunTest(Frozen, frozen=True, omit_defaults=True, gc=False):
    """One test: its known numbers by metric, in the metric's unit; times are medians of rounds.

    ``source`` is a hash of the test's own source, None if it is not known. ``own`` says what the
    user's own metrics are. ``causes``: what changed in the code, the most important first.
    """

    nodeid: str
    status: str
    outcome: str | None = None
    source: str | None = None
    metrics: dict[str, Known] = msgspec.field(default_factory=dict)
    regions: dict[str, RunRegion] = msgspec.field(default_factory=dict)
    own: dict[str, OwnKind] = msgspec.field(default_factory=dict)
    causes: list[RunCause] = msgspec.field(default_factory=list)


class Run(Frozen, frozen=True):
    """One run. Everything about git is None where it is not known.

    ``repository`` names the repository, and the folder of the tests in it. ``parents`` are those of
    the commit. ``merge_base`` is where its branch left the main branch. ``dirty``: tracked files
    differed from the commit. ``ci`` is the service and the address of the job. ``started`` is in
    UTC. ``workers``: the number of processes that ran tests at once.
    """

    schema: str
    repository: str | None
    commit: str | None
    parents: list[str] | None
    merge_base: str | None
    branch: str | None
    dirty: bool | None
    ci: dict[str, str | None] | None
    started: str
    environment: dict[str, Any]
    versions: dict[str, str]
    tests: list[RunTest]
    workers: int = 1
    interrupted: bool = False

    @property
    def machine(self) -> str:
        """What times depend on beside the environment: the host, and tests that run beside."""
        host = str(self.environment.get("host") or "")
        return host if self.workers == 1 else f"{host}, {self.workers} workers"


def run_tests(records: Iterable[Record], sources: Mapping[str, str]) -> list[RunTest]:
    """The tests of a session; ``sources`` maps node ids to hashes of sources."""
    tests = []
    for record in records:
        own: dict[str, OwnKind] = {}
        metrics = _known(record.metrics.values(), own)
        regions = {
            name: RunRegion(region.laps, _known(region.metrics.values(), own))
            for name, region in record.regions.items()
        }
        source = sources.get(record.nodeid)
        causes = [RunCause(c.kind, c.headline, dict(c.metrics)) for c in record.causes]
        head = record.nodeid, record.status, record.outcome, source
        tests.append(RunTest(*head, metrics, regions, own, causes))
    return tests


def _known(verdicts: Iterable[Verdict], own: dict[str, OwnKind]) -> dict[str, Number]:
    """The numbers that are known; a lower bound is none. Adds to ``own`` what is the user's."""
    found: dict[str, Number] = {}
    for verdict in verdicts:
        value = verdict.value
        if isinstance(value, MissingValue) or verdict.at_least or not math.isfinite(value):
            continue
        name = verdict.metric if verdict.region else verdict.label
        found[name] = value
        if verdict.own is not None:
            metric = metric_of(verdict)
            own[verdict.metric] = OwnKind(metric.unit, metric.klass, metric.better)
    return found


def encode(run: Run) -> bytes:
    """The document as JSON in UTF-8; lone surrogates are spelled out."""
    try:
        return msgspec.json.encode(run)
    except UnicodeEncodeError:
        return msgspec.json.encode(in_json(msgspec.to_builtins(run)))


_DECODER = msgspec.json.Decoder(Run)
#: How a document of any version begins.
_BEGIN = b'{"schema":"torchprof-run/'

#: Why a file is skipped.
NEWER, DAMAGED, FOREIGN, UNREADABLE = "newer", "damaged", "foreign", "unreadable"


def decode(content: bytes) -> Run | str:
    """The document; or why it is none that this version reads."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        run = _DECODER.decode(content)
        if run.schema == RUN_SCHEMA:
            return run
    if not content.startswith(_BEGIN):
        return DAMAGED if _BEGIN.startswith(content) else FOREIGN
    version = content[len(_BEGIN) :].partition(b'"')[0]
    return NEWER if version.isdigit() and version != b"1" else DAMAGED


# ---- A hash of each test's own source, by which a history knows that the test itself was
# changed.
#
# It covers the function, not what it calls. Comments, blank lines, marks such as budgets, and
# inline expectations, which ``--accept`` rewrites, do not count: they change nothing of what is
# measured.

_Function = ast.FunctionDef | ast.AsyncFunctionDef
#: Characters of the hash: 64 bits.
_LENGTH = 16
_INLINE = "assert_expected_inline"


def source_hashes(lines: Mapping[str, tuple[str, int]], root: Path) -> dict[str, str]:
    """Node id → hash, of tests whose source is found.

    ``lines`` has each test's file, relative to ``root``, and its line, from 1.
    """
    by_file: dict[str, dict[str, int]] = {}
    for nodeid, (file, line) in lines.items():
        by_file.setdefault(file, {})[nodeid] = line
    found: dict[str, str] = {}
    for file, tests in by_file.items():
        try:
            text = (root / file).read_text("utf-8")
            functions = list(_functions(ast.parse(text)))
        except (OSError, ValueError, SyntaxError, RecursionError):
            continue
        known: dict[int, str] = {}
        for nodeid, line in tests.items():
            if line not in known and (node := _at(functions, line)) is not None:
                known[line] = source_hash(text, node)
            if line in known:
                found[nodeid] = known[line]
    return found


def _functions(tree: ast.AST) -> Iterator[_Function]:
    for node in ast.walk(tree):
        if isinstance(node, _Function):
            yield node


def _begin(node: _Function) -> int:
    return min([node.lineno, *(one.lineno for one in node.decorator_list)])


def _at(functions: list[_Function], line: int) -> _Function | None:
    """The innermost function with this line."""
    around = [node for node in functions if _begin(node) <= line <= (node.end_lineno or 0)]
    return max(around, key=_begin, default=None)


def source_hash(text: str, node: _Function) -> str:
    """The hash of what the function does."""
    lines = [line.encode() for line in text.split("\n")]
    marks = [one for one in node.decorator_list if _is_mark(one)]
    inline = [arg for call in ast.walk(node) if _is_inline(call) for arg in call.args]  # type: ignore[attr-defined]
    for part in sorted([*marks, *inline], key=lambda part: (-part.lineno, -part.col_offset)):
        _blank(lines, part)
    own = lines[_begin(node) - 1 : node.end_lineno]
    kept = [line.strip() if line.strip() == b"@" else line.rstrip() for line in own]
    kept = [line for line in kept if line.strip() not in {b"", b"@"} and line.strip()[:1] != b"#"]
    indent = min((len(line) - len(line.lstrip()) for line in kept), default=0)
    body = b"\n".join(line[indent:] for line in kept)
    return hashlib.sha256(body).hexdigest()[:_LENGTH]


def _blank(lines: list[bytes], part: ast.expr) -> None:
    """Remove a part; columns count bytes."""
    first, last = part.lineno - 1, (part.end_lineno or part.lineno) - 1
    rest = lines[last][part.end_col_offset :]
    for at in range(first + 1, last + 1):
        lines[at] = b""
    lines[first] = lines[first][: part.col_offset] + rest


def _is_mark(node: ast.expr) -> bool:
    """Whether it is ``pytest.mark.…`` or ``mark.…``."""
    names: list[str] = []
    while isinstance(node, ast.Call):
        node = node.func
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    names += [node.id] if isinstance(node, ast.Name) else []
    return "mark" in names[1:]


def _is_inline(node: ast.AST) -> bool:
    """Whether it is a call of the inline assertion."""
    if not isinstance(node, ast.Call):
        return False
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    return bool(name == _INLINE)
