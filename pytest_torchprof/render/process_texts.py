"""Sentences on what other processes of a test did, and on ranks of a job; see `reason_texts`."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_torchprof.core.reasons import Why

OF_PROCESSES: Mapping[Why, str] = {
    Why.FREED_BY_GLOO: (
        "gloo's threads free tensors, too, which torch's profiler does not always see"
    ),
    Why.FORKED_WORK: "a process that the test forked did work too, which is not recorded",
    Why.PROGRAM_RUNS_ON: (
        "another process still ran at the end of the test, and may load torch: {programs:, }"
    ),
    Why.PROGRAM_WORK: (
        "another process did work for the test, and torch in it is not recorded: {programs:, }"
    ),
    Why.UNNAMED_PROGRAM_WORK: (
        "another process did work for the test, and torch in it is not recorded: a program of"
        " unknown name"
    ),
    Why.CHILD_RUNS_ON: "{process} was still running when the measured run ended: wait for it",
    Why.CHILD_WAS_KILLED: "{process} was ended before it could say what it did",
    Why.CHILD_USES_THREADS: "threads did work too, which is not recorded in a started process",
    Why.CHILD_ENDED_IN_THREAD: "it ended in another thread than it began in",
    Why.CHILD_FORKED_IN_TORCH: "it could not be recorded: when it was forked, a thread held a lock "
    "of torch that the profiler needs",
    Why.CHILD_FORKED_WITH_DEVICE: "it was forked while {device} was in use, which a forked process "
    "cannot use, nor end a session that records it: start it with the method spawn",
    Why.OF_CHILD: "{process}: {why}",
    Why.NO_SUCH_RANK_HERE: "no process of the test had rank {rank}",
    Why.NOT_BY_PROCESS: (
        "the test starts processes, and what they do is not known by module or named region"
    ),
    Why.RANK_ENDED: "rank {rank} has ended",
    Why.RANK_RUNS_IT_NOT: "rank {rank} does not run this test",
    Why.RANK_SILENT: "rank {rank} did not come so far within {limit_s:.0f} s",
    Why.RANKS_NOT_LOCATED: "they are not located in a job of several ranks",
    Why.RANK_STARTS_PROCESSES: "a rank starts processes itself",
}
