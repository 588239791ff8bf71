"""Dynamo's records of compilations, graph breaks and graphs, for any version of torch."""

from __future__ import annotations

import gc
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, TypeAlias

from pytest_torchprof.capture.patches import REAL
from pytest_torchprof.core.process import late
from pytest_torchprof.trace.facts import Facts, Graph
from pytest_torchprof.work.counting import loops_of_products, read_graph

# ---- Tell the user's code from libraries, and find the frames of the test.

_PACKAGE = str(Path(__file__).parents[1])
_FRAMEWORK = ("pytest", "_pytest", "pluggy")


def is_users(file: str) -> bool:
    """Whether code of this file is the user's: not a library's, not ours, not generated."""
    if file.startswith("<") or not file:
        return file.startswith("<ipython")  # a notebook cell
    folders = file.replace("\\", "/").split("/")
    if "site-packages" in folders or "dist-packages" in folders:
        return False
    if any(folder.startswith("torchinductor_") for folder in folders):
        return False
    return not file.startswith(foreign())


@cache
def foreign() -> tuple[str, ...]:
    """Folders without user code, wherever they are installed."""
    paths = ("stdlib", "platstdlib", "purelib", "platlib")
    folders: set[str | None] = {sysconfig.get_path(name) for name in paths}
    folders |= {_PACKAGE, os.environ.get("TORCHINDUCTOR_CACHE_DIR")}
    folders |= {_folder_of(name) for name in ("torch", *_FRAMEWORK)}
    return tuple(os.path.join(folder, "") for folder in folders if folder)  # noqa: PTH118 - a prefix


def _folder_of(package: str) -> str | None:
    file = getattr(sys.modules.get(package), "__file__", None)
    return os.path.dirname(file) if file else None  # noqa: PTH120 - a prefix of code's file names


@cache
def _framework() -> tuple[str, ...]:
    folders = [folder for name in _FRAMEWORK if (folder := _folder_of(name))]
    return tuple(os.path.join(folder, "") for folder in folders)  # noqa: PTH118 - a prefix


def frames_of_test(frame: FrameType | None) -> Iterator[FrameType]:
    """From a frame outwards to where pytest calls the test."""
    while frame is not None and not frame.f_code.co_filename.startswith(_framework()):
        yield frame
        frame = frame.f_back


# ---- Interpret dynamo's records of compilations and graph breaks, for any version of torch.

#: Failures after which dynamo silently leaves the frame to Python.
#: Source: torch/_dynamo/convert_frame.py, ``soft_fail``.
_SOFT_FAILURES = frozenset(
    {"Unsupported", "UserError", "AttributeMutationError", "ArgsMismatchError"}
)
#: Those of them that are not graph breaks: the code raises anyway, or was compiled too often.
_NO_BREAK = late(
    r"observed exception|raised exception|dynamo recompile limit"
    r"|(accumulated_)?(cache_size|recompile)_limit",
    re.IGNORECASE,
)
#: Breaks for which dynamo records how it continues instead of why it broke.
#: Source: torch/_dynamo/symbolic_convert.py, ``GraphCompileReason(…)``.
_CONTINUATIONS = {
    "generic_jump": "Data-dependent branching",
    "step_unsupported": "A statement that cannot be traced",
    "store_attr": "An attribute that cannot be set in a graph",
    "comprehension_graph_break": "A comprehension that cannot be traced",
}
_CONTINUING = tuple(_CONTINUATIONS)

_RESUMED = late(r"torch_dynamo_resume_in_(.*)_at_(\d+)")
#: The attempt after the last one that dynamo allows. Source: torch/_dynamo/exc.py
_TOO_OFTEN = late(r"(cache_size|recompile)[_ ]limit|RecompileLimit|CacheSizeLimit", re.IGNORECASE)
#: What dynamo compiles for a module of torch's own, one function for all of them.
#: Source: torch/_dynamo/external_utils.py, ``wrap_inline``.
_WRAPPER = late(r"[/\\]torch[/\\]_dynamo[/\\]external_utils\.py$")
#: A guard on the size of a tensor that a module holds.
_OF_MODULE = late(r"_(parameters|buffers)\[|guard failed on a parameter", re.IGNORECASE)
_OLDER = late(r"!?\d+/(\d+)(?:_\d+)?: ")
#: Ends the subject of a guard; the rest is the expected value.
_WANTED = late(r" mismatch| (==|!=|<|>|<=|>=|is|in) |\(")
_TYPE = late(r"___check_type_id\(([^,]+),.*type=<class '(?:.*\.)?(\w+)'>.*")
_FRAME = late(r"Line: (\d+), Name: .*, Filename: (.*)")
_EXPLANATION = late(r"^ *Explanation: (.*)$", re.MULTILINE)
#: What differs from run to run (addresses, and numbers that are addresses), or means nothing.
_ADDRESS = late(r" at 0x[0-9a-f]+| ?\(id=0x[0-9a-f]+\)|\. Message: None$|0x[0-9a-f]+|\b\d{9,}\b")
_LONGEST = 160


class Break(NamedTuple):
    """One graph break. ``text`` is dynamo's own, and ``root`` the frame that was being compiled.

    ``line``: where in that frame, by which the rest of it is known.
    """

    text: str
    location: str | None
    root: tuple[str, str] | None = None
    line: int | None = None


#: The first lines of functions, by file and name.
_Begins: TypeAlias = Mapping[tuple[Any, Any], set[int]]


class Compilation(NamedTuple):
    """One attempt to compile a frame; ``reason``: the guard that failed, for a recompilation.

    ``location`` is the function if it is one of the ``users``, else where such a function called
    it. A ``forward`` is compiled by dynamo itself; other records are of later work by a backend.
    ``others``: failed guards of earlier compilations. ``line``: where the rest of a function begins
    that resumes after a graph break. ``gave_up``: dynamo has compiled nothing, because it had
    compiled too often. ``wrapper``: torch's wrapper around a module of its own. ``left``: dynamo
    has left the frame to Python, in a version that does not record why. ``whole_ms``: like ``ms``,
    but also of backends' later work. Both are None if unknown. ``at_run_time``: compiled code has
    recorded a CUDA graph or tuned a kernel, which dynamo notes like a compilation.
    """

    id: str
    name: str
    location: str | None
    reason: str | None
    ms: float | None
    forward: bool
    users: bool
    breaks: tuple[Break, ...]
    left: bool = False
    others: tuple[str, ...] = ()
    line: int | None = None
    gave_up: bool = False
    wrapper: bool = False
    whole_ms: float | None = None
    at_run_time: bool = False


def break_of(reason: Any) -> Break:
    """From dynamo's ``GraphCompileReason``."""
    stack = list(getattr(reason, "user_stack", None) or ())
    root = (stack[0].filename, stack[0].name) if stack else None
    frames = [(frame.filename, frame.lineno) for frame in stack]
    line = stack[0].lineno if stack else None
    return Break(str(reason.reason), _innermost(frames), root, line)


def _field(record: Any, name: str) -> Any:
    """A field of a record, whose version may lack it."""
    return getattr(record, name, None)


def own_breaks(records: Sequence[Any], waiting: list[Break]) -> list[tuple[Break, ...]]:
    """The graph break that ended each compilation, taken from those waiting; else its failure.

    Functions of one name are told apart by where they begin, and by the reasons in their records,
    where these have any. A failure has none, so it comes last.
    """
    begins: dict[tuple[Any, Any], set[int]] = {}
    for record in records:
        if not _RESUMED.fullmatch(_field(record, "co_name") or ""):
            begins.setdefault(_root_of(record), set()).add(_field(record, "co_firstlineno") or 0)
    told = list[tuple[Break, ...]]()
    for record in records:
        restarts = _field(record, "restart_reasons")
        told.append(() if restarts is None else _taken(record, begins, waiting, restarts))
    return [
        own or _ended(record, begins, waiting) or _failure(record)
        for own, record in zip(told, records, strict=True)
    ]


def _root_of(record: Any) -> tuple[Any, Any]:
    return _field(record, "co_filename"), _bare(_field(record, "co_name"))


def _ended(record: Any, begins: _Begins, waiting: list[Break]) -> tuple[Break, ...]:
    """Any break in its function, of a record that has failed or is too old for reasons."""
    tells = _field(record, "restart_reasons") is not None
    failed = _field(record, "fail_type") in _SOFT_FAILURES
    return () if tells and not failed else _taken(record, begins, waiting)


def _taken(
    record: Any, begins: _Begins, waiting: list[Break], reasons: Container[str] | None = None
) -> tuple[Break, ...]:
    """The first waiting break in this function, of these reasons or of any."""
    root = _root_of(record)
    begin = _begin(begins.get(root, ()), _field(record, "co_firstlineno"))
    for one in waiting:
        if one.root is None or (one.root[0], _bare(one.root[1])) != root:
            continue
        if _begin(begins.get(root, ()), one.line) != begin:
            continue
        if reasons is None or one.text in reasons or one.text.startswith(_CONTINUING):
            waiting.remove(one)
            return (one._replace(location=one.location or _place_of(record)),)
    return ()


def _begin(begins: Iterable[int], line: int | None) -> int | None:
    """Where the function begins that this line is in, among those of its name."""
    return max((begin for begin in begins if begin <= (line or 0)), default=None)


def _failure(record: Any) -> tuple[Break, ...]:
    failed = _field(record, "fail_type") in _SOFT_FAILURES
    text = str(_field(record, "fail_reason"))
    if failed and not _NO_BREAK.match(text):
        file, line = (_field(record, f"fail_user_frame_{what}") for what in ("filename", "lineno"))
        place = _innermost([(file, line)]) if file else None
        return (Break(text, place or _place_of(record)),)
    return ()


def compilation_of(record: Any, utils: Any, breaks: tuple[Break, ...]) -> Compilation:
    """From dynamo's ``CompilationMetrics``, of any version."""
    name = str(_field(record, "compile_id"))
    forward = _field(record, "is_forward") is not False
    at_run_time = bool(_field(record, "is_runtime"))
    forward = forward and not at_run_time
    seconds = _field(record, "entire_frame_compile_time_s")
    reason: str | None = None
    if not forward:
        pass
    elif hasattr(record, "recompile_reason"):
        reason = record.recompile_reason
    elif not name.endswith(("/0", "None")):
        reason = _guard_failure(record, utils) or "a guard failed"
    whole = _field(record, "co_name") or ""
    resumed, file = _RESUMED.fullmatch(whole), str(_field(record, "co_filename"))
    failed = f"{_field(record, 'fail_type')} {_field(record, 'fail_reason')}"
    return Compilation(
        id=name,
        name=_bare(whole) or "",
        location=_place_of(record),
        reason=reason,
        ms=None if seconds is None else round(float(seconds) * 1e3, 3),
        forward=forward,
        users=bool(_field(record, "co_filename")) and is_users(_field(record, "co_filename")),
        breaks=breaks if forward else (),
        left=forward and not breaks and _is_left(record),
        others=_other_failures(name, reason, utils) if reason else (),
        line=int(resumed[2]) if resumed else None,
        gave_up=bool(_TOO_OFTEN.search(failed)),
        wrapper=whole == "inner" and bool(_WRAPPER.search(file)),
        whole_ms=_whole_ms(record),
        at_run_time=at_run_time,
    )


def _whole_ms(record: Any) -> float | None:
    """The duration of everything recorded; before torch 2.6, records of a backend have none."""
    if (whole_us := _field(record, "duration_us")) is not None:
        return float(whole_us) / 1e3
    seconds = _field(record, "entire_frame_compile_time_s")
    return None if seconds is None else float(seconds) * 1e3


def _is_left(record: Any) -> bool:
    """Whether nothing was compiled, because of a graph break in a loop or for lack of operators."""
    if hasattr(record, "recompile_reason"):  # newer records have a failure for a graph break
        return False
    return _field(record, "has_guarded_code") is False and not _field(record, "fail_type")


def _guard_failure(record: Any, utils: Any) -> str | None:
    """The last guard of this code that failed, for versions whose records lack it."""
    for code, reasons in getattr(utils, "guard_failures", {}).items():
        place = (getattr(code, "co_filename", None), getattr(code, "co_firstlineno", None))
        if reasons and place == (_field(record, "co_filename"), _field(record, "co_firstlineno")):
            return str(reasons[-1])
    return None


def _other_failures(name: str, reason: str, utils: Any) -> tuple[str, ...]:
    """The failed guards of older code of the same function, the most recently used first.

    Dynamo's record has only the first one. It logs all guards of an attempt in sequence.
    """
    attempt = int(name.rpartition("/")[2]) if name.rpartition("/")[2].isdecimal() else 0
    found: list[str] = []
    for noted in getattr(utils, "guard_failures", {}).values():
        for start, one in enumerate(noted):
            if one != reason:
                continue
            group: dict[int, str] = {}
            for other in noted[start : start + attempt]:
                number = _OLDER.match(str(other))
                if number is None or int(number[1]) in group or int(number[1]) >= attempt:
                    break
                group[int(number[1])] = str(other)
            found = max(found, list(group.values())[1:], key=len)
    return tuple(found)


def _place_of(record: Any) -> str | None:
    """The compiled function if it is the user's, else the user's line that led to it."""
    file = _field(record, "co_filename")
    if file and is_users(file):
        return f"{file}:{_field(record, 'co_firstlineno')}"
    lines = list(_field(record, "stack_trace") or ())[:-1]  # the last one is the function
    frames = [(found[2], int(found[1])) for line in lines if (found := _FRAME.match(str(line)))]
    # Dynamo leaves out the innermost callers: they are torch's only if called by other code of
    # torch's.
    return None if not frames or is_users(frames[-1][0]) else _innermost(frames)


def _innermost(frames: Sequence[tuple[str, int | None]]) -> str | None:
    """The innermost frame of the user's own code, as ``file:line``."""
    for file, line in reversed(frames):
        if is_users(file):
            return f"{file}:{line}"
    return None


def _bare(name: str | None) -> str | None:
    """The function's own name, also for a part of it that resumes after a graph break."""
    found = _RESUMED.fullmatch(name) if name else None
    return _bare(found[1]) if found else name


def broke(text: str) -> str:
    r"""Why the graph broke, in one line: dynamo's title and explanation.

    >>> broke("Call to `f`\n  Explanation: It is skipped.\n  Hint: Do not.")
    'Call to `f`: It is skipped'
    """
    for known, reason in _CONTINUATIONS.items():
        if text.startswith(known):
            return reason
    head = text.strip().partition("\n")[0].strip()
    explained = _EXPLANATION.search(text)
    return _shortened(f"{head}: {explained[1]}" if explained else head)


def recompiled(one: Compilation) -> str:
    """Why a function was recompiled, in one line.

    >>> recompiled(Compilation("0/1", "f", None, "0/0: n == 4   # x * n", 0, True, True, ()))
    'f was recompiled: n == 4 does not hold'
    """
    kinds: dict[str, str] = {}
    for guard in map(_failed, _guards(one)):
        kinds.setdefault(_WANTED.split(guard)[0], guard)
    why = _shortened("; or ".join(kinds.values()))
    who = one.name or "a function"
    if one.wrapper:
        who = "torch's own wrapper around a compiled built-in module"
    elif one.line is not None:
        who = f"the rest of {who} after a graph break (line {one.line})"
    if one.gave_up:
        times = one.id.rpartition("/")[2]
        return f"dynamo gave up on {who} after {times} compilations and runs it uncompiled: {why}"
    return f"{who} was recompiled: {why}"


def _guards(one: Compilation) -> Sequence[str]:
    """The failed guards, without those of code compiled in a profiled run with fewer threads."""
    every = [guard for guard in (one.reason, *one.others) if guard]
    return [guard for guard in every if not _THREADS.search(guard)] or every


#: This guard fails if the number of threads has changed since the code was compiled.
_THREADS = late(r"GLOBAL_STATE changed: .*\bnum_threads\b")
#: This guard fails if code runs with and without gradients: each mode has one graph of its own.
_OTHER_MODE = "GLOBAL_STATE changed: grad_mode"


#: What the first failed guard says about the recompilation, in the order in which it is asked. A
#: guard that compares a value with a number, or a tensor's size with a fixed one, has no name.
_KINDS = {
    "tensor": late(r"tensor .* (dtype|device|requires_grad|rank|dispatch key set) mismatch"),
    # Dynamo takes sizes that were equal for one, and says so behind the guard.
    "equal sizes": late(r".*# duck sizing added"),
    "size 0 or 1": late(r"2 <= [^ ]*\.size\(\)\[\d+\]"),
    # Only of sizes that are dynamic is there anything else than the number.
    "condition": late(r"[^#]*\.(size|stride)\(\)\["),
    "value": late(
        r"(not )?___|len\(|expected type of |[^#]* (is|is not|in|not in) "
        r"|[^#]* [=!]= (?![-+]?(\d|\.\d|inf\b|nan\b))"
    ),
}
_NUMBERED = late(r"!?[\d/_]+: ")


def cause(one: Compilation) -> str | None:
    """The kind of a recompilation, if its fix differs from the usual one."""
    reason = next(iter(_guards(one)), "")
    if reason.strip().endswith(_OTHER_MODE):
        return "grad mode"
    if one.line is not None:
        return "rest"
    if one.wrapper:
        return "wrapper"
    if _OF_MODULE.search(reason):
        return "model"
    guard = _NUMBERED.sub("", reason.strip().partition("\n")[0], count=1)
    return next((kind for kind, pattern in _KINDS.items() if pattern.match(guard)), None)


def _failed(reason: str | None) -> str:
    """Dynamo's description of a failed guard, in one line."""
    line = (reason or "").strip().partition("\n")[0]
    numbered = _NUMBERED.match(line)
    guard = re.split(r"\s+# ", line[numbered.end() if numbered else 0 :])[0].strip()
    guard = guard.partition(". Guard failed on a parameter")[0]  # its advice rarely applies
    # A condition is reported as code, a tensor as a sentence.
    if typed := _TYPE.fullmatch(guard):
        return f"{typed[1]} is not a {typed[2]}"
    code = "mismatch" not in guard and re.search(r" (==|!=|<|>|<=|>=|is|in) |^not |\)$", guard)
    return f"{guard} does not hold" if code else guard


def _shortened(text: str) -> str:
    text = _ADDRESS.sub("", " ".join(text.split())).rstrip(". ")
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 2].rstrip()} …"


# ---- Collect the graphs with matrix products that inductor has compiled in this process.
#
# Torch keeps the text of each graph with the compiled code, even if that came from a disk cache.
# The objects are found through the garbage collector, after something was compiled: nothing of
# torch's is replaced, and if inductor is not imported there is nothing to search.

_objects = gc.get_objects
#: Longer texts would take more than a second to read.
_LONGEST_GRAPH = 20_000_000
#: Counters that dynamo increases whenever something is compiled, or loaded from a cache.
_COUNTERS = ("inductor", "aot_autograd", "stats")
#: Modules with the class of a package, by version.
_PACKAGE_ROOMS = ("torch.export.pt2_archive._package", "torch._inductor.package.package")


class _Graphs:
    """Everything found so far; one per process."""

    def __init__(self) -> None:
        self.known: dict[str, Graph] = {}
        #: By the key of the code: its loops of products, if there is no graph of it.
        self.lost: dict[str, list[str]] = {}
        self._seen: set[str] = set()
        self._modules = 0
        self._counted: Any = None

    def look(self) -> None:
        """Add what is new."""
        codecache = sys.modules.get("torch._inductor.codecache")
        room = sys.modules.get("torch._inductor.output_code")
        modules = getattr(getattr(codecache, "PyCodeCache", None), "modules", [])
        kind = getattr(room, "CompiledFxGraph", None)
        counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
        counted = len(modules), *(dict(counters.get(name, {})) for name in _COUNTERS)
        if kind is None or counted == self._counted:
            return
        self._counted = counted
        new = modules[self._modules :] if len(modules) > self._modules else modules[:]
        self._modules = len(modules)
        for found in _objects():
            if type(found) is kind:
                self._add(vars(found))
        for module in new:
            if (key := str(getattr(module, "key", None))) not in self._seen:
                self._add_lost(key, module)

    def _add(self, graph: Mapping[str, Any]) -> None:
        key, name = graph.get("cache_key"), graph.get("_fx_graph_cache_key")
        text, source = graph.get("inductor_post_grad_graph_str"), graph.get("source_code")
        if not (isinstance(name, str) and isinstance(text, str) and isinstance(source, str)):
            return
        self._seen.add(str(key))
        self.lost.pop(str(key), None)
        if name not in self.known and len(text) <= _LONGEST_GRAPH:
            self.known[name] = read_graph(text, source)

    def _add_lost(self, key: str, module: Any) -> None:
        with suppress(OSError, UnicodeError), REAL.open(module.__file__, encoding="utf-8") as file:
            if loops := loops_of_products(file.read()):
                self.lost[key] = loops


_GRAPHS = _Graphs()


def look_for_graphs() -> None:
    """Find what was compiled since the last call, before objects are hidden from collections."""
    _GRAPHS.look()


def graph_facts() -> Facts:
    """The facts on compiled graphs for a trace; none if none was compiled."""
    _GRAPHS.look()
    if not (_GRAPHS.known or _GRAPHS.lost):
        return Facts()
    some = {
        name: graph for name, graph in _GRAPHS.known.items() if _GRAPHS.lost or not graph.is_plain
    }
    return Facts(
        graphs=some,
        lost_loops=tuple(sorted(set().union(*_GRAPHS.lost.values()))),
        marks_graphs=_marks_graphs(),
    )


def _marks_graphs() -> bool:
    """Whether this torch annotates calls of graphs, see `work.counting.CALL`."""
    kind = getattr(sys.modules.get("torch._inductor.output_code"), "CompiledFxGraph", None)
    code = getattr(getattr(kind, "__dict__", {}).get("__call__"), "__code__", None)
    return any("## Call CompiledFxGraph" in str(const) for const in getattr(code, "co_consts", ()))


class Packages:
    """Notices calls of AOTInductor packages, which leave no operators in a trace."""

    def __init__(self) -> None:
        self.calls = 0

    def watch(self, replace: Callable[..., None], undo: ExitStack) -> None:
        """Watch until ``undo``, if there can be a package at all."""
        rooms = map(sys.modules.get, _PACKAGE_ROOMS)
        kinds = {kind for room in rooms if (kind := getattr(room, "AOTICompiledModel", None))}
        for kind in kinds:
            replace(kind, "__call__", self._noted, undo)

    def _noted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return original(*args, **kwargs)

        return call
