"""What a table needs of each trace: asked where the trace is read, shown where all are together.

A table command is two functions. The first makes a part of one trace: `part_of` takes what the
command computes, and everything in it can be pickled. It runs in this process, in a worker of
``--jobs``, or in one of ``--dask``. `ask` brings all parts, by rank, and the second function prints
them.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from pytest_torchprof.commands.inputs import described, reading_bar, warn
from pytest_torchprof.commands.parquet import check_target
from pytest_torchprof.commands.several import SHOWN, Several, heading_of_several, merge_lines
from pytest_torchprof.core.errors import BAD_USAGE, SettingsError, TraceError
from pytest_torchprof.core.step_range import ALL_STEPS
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.core.units import plural
from pytest_torchprof.fleet.cache import default_folder, remove_old
from pytest_torchprof.fleet.mapping import Answer, Question, answer
from pytest_torchprof.fleet.sources import find_sources, is_many
from pytest_torchprof.render import escape
from pytest_torchprof.trace.jobs import not_one_job
from pytest_torchprof.trace.ranks import LeftOut, chosen_ranks, nothing_found, rank_in_name

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pytest_torchprof.api import Trace
    from pytest_torchprof.fleet.sources import Source
    from pytest_torchprof.trace.stream import ReadProgress


class Body(NamedTuple):
    """What a command's question brings of one trace.

    Attributes:
        described: device and size, in words.
        selected_steps: the numbers of the steps that count; None for a whole trace.
        lines: the same notes for each trace, in the same order; empty where there is none.
        said: warnings for stderr.
        values: what the command prints, by name.
    """

    described: str
    selected_steps: list[int] | None
    lines: tuple[str, ...]
    said: tuple[str, ...]
    values: dict[str, Any]


class Part(Frozen, frozen=True):
    """The same, with the address of its trace, and what was wrong with the file."""

    path: str
    warnings: tuple[str, ...]
    selected_steps: list[int] | None
    body: Body

    def __getitem__(self, name: str) -> Any:
        """A value of the body."""
        return self.body.values[name]


class Parts(Several[Part]):
    """Parts by rank.

    ``unread_named``: a file that the user named could not be read, while others were.
    ``is_fleet``: such files do not end the command.
    """

    unread_named: bool = False
    is_fleet: bool = False

    def status(self, status: int) -> int:
        """The exit status: that of bad input if a named file could not be read."""
        return BAD_USAGE if self.unread_named else status

    def each(self, name: str) -> dict[int, Any]:
        """One value of the body of each part."""
        return {rank: part[name] for rank, part in self.items()}

    @property
    def notes(self) -> list[str]:
        """The notes on each trace: once if they agree, otherwise with the trace's name."""
        return self.some_notes(0, None)

    def some_notes(self, start: int, stop: int | None) -> list[str]:
        """The notes from one place in `Body.lines` to another."""
        return merge_lines(self, {rank: p.body.lines[start:stop] for rank, p in self.items()})

    @property
    def heading(self) -> str:
        """What was read: file, device, size; of a fleet, what could not be read, too."""
        lines = [heading_of_several(self, lambda part: part.body.described)]
        left_out = self.left_out if self.is_fleet else ()
        lines += [escape.line(f"not read: {file.error}") for file in left_out[:SHOWN]]
        if (more := len(left_out) - SHOWN) > 0:
            lines.append(f"… and {plural(more, 'more file')} not read")
        return "\n".join(lines)


def part_of(
    trace: Trace,
    lines: Sequence[str | None] = (),
    said: Sequence[str] = (),
    **values: Any,
) -> Body:
    """A part of this trace."""
    notes = tuple(line or "" for line in lines)
    return Body(described(trace), trace.selected_steps, notes, tuple(filter(None, said)), values)


def at_steps(trace: Trace, settings: Mapping[str, Any]) -> Trace:
    """The trace, counting only the steps that are asked for, if any.

    Raises:
        SettingsError: it has no steps, or not these.
    """
    step, name = settings["step"], settings["step_name"]
    if step is None and name is None:
        return trace
    return trace.step(step or ALL_STEPS, name or "")


def ask(options: Namespace, function: str, *, is_kept: bool = True, **settings: Any) -> Parts:
    """Ask the command's question of each trace, and report what was wrong with them.

    ``function`` is ``module:function`` below the package: from a `Trace` and the settings, which
    have ``step``, ``step_name``, and ``format`` beside these, it makes a `Body`. ``is_kept``: the
    settings and our code alone decide what it makes, so that it may come from the cache.

    Raises:
        TraceError: no trace; or, of files that are read in this process, a named one is none.
        SettingsError: the workers are not there; or the question does not fit the trace.
    """
    check_target(options)
    for name in ("step", "step_name", "format"):
        settings.setdefault(name, getattr(options, name, None))
    is_fleet = options.jobs is not None or bool(options.dask) or is_many(options.traces)
    sources = find_sources(options.traces)
    cache = default_folder() if is_kept and is_fleet and not options.no_cache else None
    question = Question(function, settings, options.rank, cache)
    answers: list[Answer | None] = [None] * len(sources)
    size = sum(source.size for source in sources)
    with reading_bar(size) as progress, _answers(options, question, sources, progress) as found:
        for at, one in found:
            if one.error is not None and not is_fleet and _ends(one, sources[at]):
                raise one.error
            answers[at] = one
    if cache is not None:
        remove_old(cache)
    parts = _parts(options, sources, [one for one in answers if one is not None], is_fleet=is_fleet)
    _report(parts, is_merged=getattr(options, "merge", False))
    return parts


def _ends(one: Answer, source: Source) -> bool:
    """Whether this error ends the command: a named file, or a question that is wrong."""
    return source.named or not isinstance(one.error, TraceError)


@contextmanager
def _answers(
    options: Namespace,
    question: Question,
    sources: Sequence[Source],
    progress: Callable[[int, int], None] | None,
) -> Iterator[Iterator[tuple[int, Answer]]]:
    """The answers as they come, from where they were asked for."""
    if options.dask and options.jobs is not None:
        raise SettingsError("--jobs and --dask", "both say where traces are read", "give one")
    if options.dask:
        from pytest_torchprof.fleet.dask_workers import dask_answers

        yield _counted(dask_answers(options.dask, question, sources), sources, progress)
        return
    jobs = min(_processors() if options.jobs == 0 else options.jobs or 1, len(sources))
    if jobs == 1:
        yield _one_after_another(question, sources, progress)
        return
    import tempfile

    from pytest_torchprof.fleet.workers import Workers

    # For copies, which a worker that is killed leaves there.
    copies = any(source.remote for source in sources)
    with tempfile.TemporaryDirectory(prefix="torchprof-") if copies else nullcontext() as room:
        workers = Workers(question._replace(room=room), sources, jobs)
        yield _counted(workers.answers(), sources, progress)


def _one_after_another(
    question: Question, sources: Sequence[Source], progress: ReadProgress | None
) -> Iterator[tuple[int, Answer]]:
    total, before = sum(source.size for source in sources), 0

    def step(done: int, _: int) -> None:
        if progress is not None:
            progress(before + done, max(total, before + done))

    for at, source in sorted(enumerate(sources), key=lambda pair: not _is_missing(pair[1])):
        yield at, answer(question, source, None if progress is None else step)
        before += source.size


def _is_missing(source: Source) -> bool:
    """Whether the answer is known at once."""
    return source.named and not source.remote and not os.path.lexists(source.address)


def _counted(
    answers: Iterator[tuple[int, Answer]],
    sources: Sequence[Source],
    progress: Callable[[int, int], None] | None,
) -> Iterator[tuple[int, Answer]]:
    total, done = sum(source.size for source in sources), 0
    try:
        for at, one in answers:
            done += sources[at].size
            if progress is not None:
                progress(done, total)
            yield at, one
    finally:
        answers.close()  # type: ignore[attr-defined]  # generators end their workers


def _processors() -> int:
    """The processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _parts(
    options: Namespace, sources: Sequence[Source], answers: Sequence[Answer], *, is_fleet: bool
) -> Parts:
    """The parts by number, and the files that are none."""
    good = [at for at, one in enumerate(answers) if one.error is None]
    left_out = [
        LeftOut(sources[at].shown, one.error, not one.foreign)
        for at, one in enumerate(answers)
        if one.error is not None
    ]
    if not good:
        if len(left_out) == 1:
            raise left_out[0].error
        raise nothing_found(options.traces, [file.error for file in left_out])
    parts = Parts()
    parts.are_for_machines = options.format == "parquet"
    jobs = []
    for number, place, notes in chosen_ranks(
        [sources[at].shown for at in good],
        [answers[at].claim for at in good],
        [answers[at].part is not None for at in good],
        options.rank,
    ):
        source, found = sources[good[place]], answers[good[place]].part
        assert found is not None  # noqa: S101 - only those that were read are chosen
        body: Body = found.body
        warnings = (*found.warnings, *notes)
        parts[number] = Part(source.shown, warnings, body.selected_steps, body)
        rank = rank_in_name(source.path) if found.own_rank is None else found.own_rank
        jobs.append(replace(found.job, source=source.shown, rank=rank))
    parts.left_out = tuple(left_out)
    parts.apart = not_one_job(jobs)
    parts.is_fleet = is_fleet
    parts.unread_named = is_fleet and any(
        one.error is not None and source.named for one, source in zip(answers, sources, strict=True)
    )
    return parts


def _report(parts: Parts, *, is_merged: bool) -> None:
    for part in parts.values():
        for warning in part.warnings:
            warn(f"{part.path}: {warning}")
    for text in dict.fromkeys(text for part in parts.values() for text in part.body.said):
        warn(text)
    for file in parts.left_out:
        warn(f"left out: {file.error}")
    if parts.left_out and parts.unread_named:
        unread = plural(len(parts.left_out), "file")
        warn(f"not read: {unread}; the table is of {plural(len(parts), 'trace')}")
    if parts.apart:
        then = "the sums are of all" if is_merged else "each stands alone, and there is no total"
        warn(f"not the ranks of one job: {parts.apart}; {then}")
