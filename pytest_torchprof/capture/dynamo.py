"""What dynamo's records of compilations and graph breaks say, of any version, in our words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from pytest_torchprof.capture.frames import is_users

#: Failures after which dynamo leaves the frame to Python, without a word.
#: Source: torch/_dynamo/convert_frame.py, ``soft_fail``.
_SOFT_FAILURES = frozenset(
    {"Unsupported", "UserError", "AttributeMutationError", "ArgsMismatchError"}
)
#: Of these, what is no graph break: the code raises anyway, or was compiled too often.
_NO_BREAK = re.compile(
    r"observed exception|raised exception|dynamo recompile limit"
    r"|(accumulated_)?(cache_size|recompile)_limit",
    re.IGNORECASE,
)
#: Breaks of which dynamo notes how it goes on instead of why.
#: Source: torch/_dynamo/symbolic_convert.py, ``GraphCompileReason(…)``.
_SAID = {
    "generic_jump": "Data-dependent branching",
    "step_unsupported": "A statement that cannot be traced",
    "store_attr": "An attribute that cannot be set in a graph",
    "comprehension_graph_break": "A comprehension that cannot be traced",
}

_RESUMED = re.compile(r"torch_dynamo_resume_in_(.*)_at_\d+")
_FRAME = re.compile(r"Line: (\d+), Name: .*, Filename: (.*)")
_EXPLANATION = re.compile(r"^ *Explanation: (.*)$", re.MULTILINE)
#: What differs from run to run: addresses, and numbers that are addresses; and what says nothing.
_ADDRESS = re.compile(
    r" at 0x[0-9a-f]+| ?\(id=0x[0-9a-f]+\)|\. Message: None$|0x[0-9a-f]+|\b\d{9,}\b"
)
_MOST_SAID = 160


class Break(NamedTuple):
    """One graph break. ``text`` is dynamo's own, and ``root`` the frame that was being compiled."""

    text: str
    location: str | None
    root: tuple[str, str] | None = None


class Compilation(NamedTuple):
    """One attempt to compile a frame; ``reason``: the guard that failed, if it is a recompilation.

    ``location`` is the function, if it is of the ``users``, else where one of them called it. A
    ``forward`` is compiled by dynamo itself; other records are of what a backend does later.
    ``left``: dynamo has left the frame to Python, and is of a version that does not say why.
    """

    id: str
    name: str
    location: str | None
    reason: str | None
    ms: float
    forward: bool
    users: bool
    breaks: tuple[Break, ...]
    left: bool = False


def break_of(reason: Any) -> Break:
    """From dynamo's ``GraphCompileReason``."""
    stack = list(getattr(reason, "user_stack", None) or ())
    root = (stack[0].filename, stack[0].name) if stack else None
    frames = [(frame.filename, frame.lineno) for frame in stack]
    return Break(str(reason.reason), _innermost(frames), root)


def _field(record: Any, name: str) -> Any:
    """Of a record that may be of a version without it."""
    return getattr(record, name, None)


def own_breaks(record: Any, waiting: list[Break]) -> tuple[Break, ...]:
    """The graph break that ended this compilation, taken from those waiting; or what failed it."""
    failed = _field(record, "fail_type") in _SOFT_FAILURES
    text = str(_field(record, "fail_reason"))
    restarts = _field(record, "restart_reasons")
    root = (_field(record, "co_filename"), _bare(_field(record, "co_name")))
    for one in waiting:
        if one.root is None or (one.root[0], _bare(one.root[1])) != root:
            continue
        noted = restarts is None or one.text in restarts or one.text.startswith(tuple(_SAID))
        if failed or noted:
            waiting.remove(one)
            return (one._replace(location=one.location or _place_of(record)),)
    if failed and not _NO_BREAK.match(text):
        file, line = (_field(record, f"fail_user_frame_{what}") for what in ("filename", "lineno"))
        place = _innermost([(file, line)]) if file else None
        return (Break(text, place or _place_of(record)),)
    return ()


def compilation_of(record: Any, utils: Any, breaks: tuple[Break, ...]) -> Compilation:
    """From dynamo's ``CompilationMetrics``, of any version."""
    name = str(_field(record, "compile_id"))
    forward = _field(record, "is_forward") is not False
    forward = forward and not _field(record, "is_runtime")
    seconds = _field(record, "entire_frame_compile_time_s") or 0
    reason: str | None = None
    if not forward:
        pass
    elif hasattr(record, "recompile_reason"):
        reason = record.recompile_reason
    elif not name.endswith(("/0", "None")):
        reason = _guard_failure(record, utils) or "a guard failed"
    return Compilation(
        id=name,
        name=_bare(_field(record, "co_name")) or "",
        location=_place_of(record),
        reason=reason,
        ms=round(float(seconds) * 1e3, 3),
        forward=forward,
        users=bool(_field(record, "co_filename")) and is_users(_field(record, "co_filename")),
        breaks=breaks if forward else (),
        left=forward and not breaks and _is_left(record),
    )


def _is_left(record: Any) -> bool:
    """Whether nothing was compiled, be it for a graph break in a loop or for want of operators."""
    if hasattr(record, "recompile_reason"):  # newer records have a failure for the former
        return False
    return _field(record, "has_guarded_code") is False and not _field(record, "fail_type")


def _guard_failure(record: Any, utils: Any) -> str | None:
    """The last guard of this code that failed, for versions whose records do not say it."""
    for code, reasons in getattr(utils, "guard_failures", {}).items():
        place = (getattr(code, "co_filename", None), getattr(code, "co_firstlineno", None))
        if reasons and place == (_field(record, "co_filename"), _field(record, "co_firstlineno")):
            return str(reasons[-1])
    return None


def _place_of(record: Any) -> str | None:
    """The compiled function where it is the user's, else the line of his that led to it."""
    file = _field(record, "co_filename")
    if file and is_users(file):
        return f"{file}:{_field(record, 'co_firstlineno')}"
    lines = list(_field(record, "stack_trace") or ())[:-1]  # the last one is the function
    frames = [(found[2], int(found[1])) for line in lines if (found := _FRAME.match(str(line)))]
    # Dynamo leaves out the innermost callers: they are torch's only where others of torch's lead
    # to them.
    return None if not frames or is_users(frames[-1][0]) else _innermost(frames)


def _innermost(frames: Sequence[tuple[str, int | None]]) -> str | None:
    """The innermost frame of the user's own code, as ``file:line``."""
    for file, line in reversed(frames):
        if is_users(file):
            return f"{file}:{line}"
    return None


def _bare(name: str | None) -> str | None:
    """The function's own name, also where a part of it resumes after a graph break."""
    found = _RESUMED.fullmatch(name) if name else None
    return _bare(found[1]) if found else name


def broke(text: str) -> str:
    r"""Why the graph broke, in a line: what dynamo calls it, and its explanation.

    >>> broke("Call to `f`\n  Explanation: It is skipped.\n  Hint: Do not.")
    'Call to `f`: It is skipped'
    """
    for known, said in _SAID.items():
        if text.startswith(known):
            return said
    head = text.strip().partition("\n")[0].strip()
    explained = _EXPLANATION.search(text)
    return _shortened(f"{head}: {explained[1]}" if explained else head)


def recompiled(one: Compilation) -> str:
    """Why a function was compiled again, in a line.

    >>> recompiled(Compilation("0/1", "f", None, "0/0: n == 4   # x * n", 0, True, True, ()))
    'f was compiled again: n == 4 does not hold'
    """
    line = (one.reason or "").strip().partition("\n")[0]
    guard = re.split(r"\s+# ", re.sub(r"^!?[\d/]+: ", "", line))[0].strip()
    # A condition is told by its code, a tensor by a sentence.
    code = "mismatch" not in guard and re.search(r" (==|!=|<|>|<=|>=|is|in) |^not |\)$", guard)
    said = f"{guard} does not hold" if code else guard
    return _shortened(f"{one.name or 'a function'} was compiled again: {said}")


def _shortened(text: str) -> str:
    text = _ADDRESS.sub("", " ".join(text.split())).rstrip(". ")
    return text if len(text) <= _MOST_SAID else f"{text[: _MOST_SAID - 2].rstrip()} …"
