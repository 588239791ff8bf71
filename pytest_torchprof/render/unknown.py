"""Sentences: why a number is unknown, and what lies behind one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pytest_torchprof.analysis.memory import LEAST_STEPS, Category
from pytest_torchprof.core import values as results
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.units import SCALES, UNKNOWN, format_quantity, plural
from pytest_torchprof.core.unknown import Reason, Why
from pytest_torchprof.places.place import Owner, frame_of, owner_of
from pytest_torchprof.render.table import Rows, cell, fields_of, heading
from pytest_torchprof.trace.tree import has_frames
from pytest_torchprof.verdict.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_torchprof.analysis.memory import DeviceMemory, LeakRow
    from pytest_torchprof.analysis.memory import StepMoments as Moments
    from pytest_torchprof.analysis.rank_waits import Mismatch, RankWaits, Signature
    from pytest_torchprof.core.values import Number, Value
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.ranks import RankSource
    from pytest_torchprof.verdict.parts import RankTable


# ---- The text for each reason about estimates of a device's work, as in `render.unknown`.

OF_ESTIMATES: Final[Mapping[Why, str]] = {
    Why.NO_LAUNCHES: "starts an unknown number of kernels",
    Why.COMPILED_FOR_HOST: "was compiled for the CPU, and for a device becomes other kernels",
    Why.NO_CHIP: "no chip to estimate for (--torchprof-device=CHIP names one)",
    Why.NO_PEAK: "no peak of {chip} is known for {dtypes}",
    Why.UNKNOWN_CHIP: "no chip {name} is known (docs/devices.md lists them)",
    Why.MAYBE_META: "may be on meta or fake tensors, which have no values",
    Why.KEPT_BY_PARTS: (
        "the CPU runs {names:, } by parts, and keeps tensors that a device does not make"
    ),
    Why.PLACES_UNKNOWN: "what a marker allows at its line or module is not known: {why}",
    Why.OTHER_CHIP: (
        "bound_ms only advises: the baseline's is of {accepted}, and this one of {here}"
    ),
    Why.CHIPS_DIFFER: "bound_ms not compared: A's is of {a}, and B's of {b}",
}


# ---- Sentences on what other processes of a test did, and on ranks of a job; see `reason_texts`.

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


# ---- The texts for the reasons of comparisons of two revisions, as by ``torchprof ab``.

OF_REVISIONS: Mapping[Why, str] = {
    Why.NOT_MEASURED_ON: "not measured on {side}",
    Why.ONLY_ON: "only in {side}",
    Why.SKIPPED_ON: "only in {side}: {why}",
    Why.OUTSIDE_RANGE: "accepted from {low:{unit}} to {high:{unit}}, as it varies",
    Why.FAILS_ON: "fails in {sides: and }: {why}",
    Why.FAILS_AGAIN_ON: "fails in {side} when run again: {why}",
    Why.NOT_COLLECTED_ON: "cannot be collected in {side}: {why}",
    Why.ON_SIDE: "in {side}: {why}",
    Why.ON_EACH_SIDE: "{whys:, }",
    Why.FAILED_IN_PHASE: "{why} ({phase})",
    Why.XFAILED_BECAUSE: "xfailed: {text}",
    Why.NO_REASON_GIVEN: "no reason given",
    Why.UNRAISED_FAILURE: "AssertionError: the test {why}",
    Why.FEW_PAIRS: "{pairs} of the {needed} pairs of turns that it takes at least to be sure",
    Why.FIXTURES_TOOK_TIME: "setting up its fixtures for each call took most of the time",
    Why.OTHER_CODE_TOOK_TIME: "code outside its measured region took most of the time",
    Why.PYTEST_EXITED: "pytest exited with code {code}",
    Why.WORKER_SILENT: "the worker no longer answers",
    Why.WORKER_KILLED: "the worker was killed by {signal}",
    Why.WORKER_EXITED: "the worker exited with code {code}",
    Why.BUILT_ELSEWHERE: (
        "{module} is compiled, but built only in {tree}: build it in both trees"
        " and pass them with --a and --b"
    ),
}


# ---- The text for each reason: one sentence each, with its fields.

HOW_TO_LEAVE_OUT = "@pytest.mark.torchprof(enabled=False) leaves the test out"
_KEEPS = "if an earlier run keeps the result, use warmup=0, rounds=0"
_ANEW = "--accept --torchprof-time=gate takes it anew"

#: Formats for numbers: any Python format, a unit, or `` noun`` to count by; ``?`` starts text that
#: is shown only for numbers above 0, with ``#`` for the number. For several things, the format is
#: their separator.
SENTENCES: Mapping[Why, str] = {
    # general
    Why.SOMEBODY_SAID: "{text}",
    Why.UNKNOWN: "for a reason that this version does not know ({name})",
    Why.ERROR: "{message}",
    Why.INTERNAL_ERROR: "internal error, please report it: {error}: {message}{where}",
    Why.WAS_NOT_MEASURED: "was not measured",
    Why.ONLY_LIVE: "only a live test measures it",
    Why.NO_REGION: "failed capture: the trace lacks the measured region",
    Why.NO_SHAPES: "recorded without shapes (record_shapes=True records them)",
    Why.NO_STACKS: "recorded without Python functions (with_stack=True records them)",
    Why.NO_STEPS: (
        "recorded without steps, so one-time work is not told apart (call the profiler's step())"
    ),
    Why.NO_MEMORY: "recorded without memory events (profile_memory=True records them)",
    Why.NO_MEMORY_TOTALS: (
        "no totals of device memory in this capture: torch records them with each allocation and "
        "free, and old versions not at all"
    ),
    Why.NO_DURATIONS: "the events of this trace have no durations",
    Why.SOME_UNTIMED: "no duration for {untimed} of {events: event} in this trace",
    Why.NO_COPY_SIZES: "the copies of this trace have no sizes",
    Why.NO_COMM_SIZES: (
        "the size of {unsized} of {calls} calls that communicate is unknown, such as {name}"
    ),
    Why.NO_COMM_TIMES: (
        "the trace does not say when {untimed} of {calls} calls that communicate were done"
    ),
    Why.FILE_BREAKS_OFF: "{why}, or the file breaks off before it",
    Why.FILE_ENDS: "the file breaks off among its events",
    Why.SEVERAL: "{gaps:; }",
    Why.AT_LEAST: "at least {value:{unit}}: {why}",
    Why.COMPARED_UNMEASURED: "{metrics:, } in the test's own comparisons not checked: {why}",
    Why.ON_ONE_RANK: "on one rank, {why}",
    Why.NOT_ONE_JOB: "not the ranks of one job: {apart}",
    # how a test went
    Why.FAILED: "failed",
    Why.SKIPPED: "skipped",
    Why.XFAILED: "xfailed",
    Why.SETUP_FAILED: "setup failed",
    Why.SUBTESTS_FAILED: "has failed subtests",
    Why.STRICT_XFAIL_PASSED: "passed against a strict xfail, which is a failure",
    Why.RERUN_RAISED: "cannot be run twice: {error}",
    Why.RERUN_OVERDUE: (
        "cannot be run twice: its {run} did not finish within {limit_s:.2g} s; " + HOW_TO_LEAVE_OUT
    ),
    Why.FAILS_WHEN_PROFILED: (
        "fails in the profiled run, which has {threads: intra-op thread} "
        "(--torchprof-threads=keep leaves yours): {error}"
    ),
    # why a test is not profiled
    Why.LEFT_OUT: HOW_TO_LEAVE_OUT,
    Why.LEFT_OUT_BY_MARKER: "its marker has enabled=False",
    Why.SAME_NAME: "another test has the same name, so one baseline cannot serve both",
    Why.TRACE_OPTION: "--trace stops in every run of a test",
    Why.TORCH_REPLACED: "a test file has put something else in the place of torch",
    Why.BENCHMARK_FIXTURE: "pytest-benchmark repeats it as often as time allows",
    Why.OWN_PROFILE_HOOK: "the test uses sys.setprofile itself, which times and stacks disturb",
    Why.DEBUGGER: "a debugger was entered",
    Why.OWN_PROFILER: "the test runs torch.profiler itself, and profiler sessions cannot be nested",
    Why.LIMIT_OF_EVENTS: (
        "it records more than about a million events, which torch's profiler cannot hold, or needs "
        "so much memory that this cannot be told"
    ),
    Why.READS_THREADS: (
        "the test reads torch's number of threads, so its first run cannot be the profiled one: "
        "give the test a warm-up run"
    ),
    Why.OTHER_PROFILER: "another profiler session is active while the test runs",
    Why.PROFILER_ENDED: "other code ended the profiler session of the test",
    Why.NOTHING_RECORDED: "the profiler recorded nothing, not even the measured region",
    Why.HAS_FORKED: "the test has forked, and this is the child",
    Why.FORKED_WHILE_PROFILED: "the test forked, and this is the child",
    Why.STARTS_THREADS: (
        "the test starts threads, and only another run can count what they do: give it a "
        "warm-up run"
    ),
    Why.THREADS_NOT_PROFILED: "the test starts threads, and this torch cannot profile them",
    Why.COMPARISON_FAILED: "an assertion failed once the test's numbers were measured",
    Why.TWO_REGIONS: "the test measures more than one region through the fixture",
    Why.REGION_NOT_REACHED: (
        "the test measures a part through the torchprof fixture, but never reached it"
    ),
    Why.REGION_OUTSIDE_CALL: (
        "a fixture measured a region before or after the test itself; measure in the test, or yield"
        " within the fixture's block"
    ),
    Why.BLOCK_RAISED: "the measured block raised {error}",
    Why.NOTHING_CAPTURED: "nothing was captured",
    Why.CALL_RAISED: "it raised {error} when run once more",
    Why.RUN_NOT_PROFILED: "this run is not profiled",
    Why.RUN_NOT_COMPARED: "callables are compared in one run of a test, under --torchprof",
    Why.NO_RUN_TO_COMPARE: (
        "torchprof.ab compares callables in a run of its own, and the profiled run is the only "
        "one: give the test a warm-up run"
    ),
    Why.COMPARISON_NOT_REACHED: (
        "torchprof.ab was called in other runs, but not in the run that compares"
    ),
    Why.COMPARISON_UNANSWERED: "torchprof.ab has no answer: {why}; give it a larger min_time",
    # what a trace lacks of the device
    Why.NO_DEVICE: "no accelerator in this capture",
    Why.NO_DEVICE_RECORDS: (
        "torch's profiler recorded nothing on this device; is another CUPTI client (nsys, "
        "compute-sanitizer) attached, or is a permission missing?"
    ),
    Why.DEVICE_RECORDS_END: "partial capture: records of the device end before the test does",
    Why.GRAPH_CAPTURE: "the measured block begins while a CUDA graph is captured",
    Why.WITHIN_BACKWARD: (
        "the measured block begins in a backward pass of the first run, which was profiled until "
        "then (a warm-up, --torchprof-warmup=1, avoids that)"
    ),
    Why.DEVICE_ERROR: "the device reports an error: {message}",
    Why.ALLOCATOR_UNSEEN: "torch's profiler does not see the allocator {name}",
    Why.ONLY_OTHER_EVENTS: "no accelerator in this capture: {events: and } in this trace",
    Why.UNKNOWN_EVENTS: "events of this device are not supported: {events: and } in this trace",
    Why.UNKNOWN_DEVICE: (
        "events of {device} devices are not supported ({events: and } in this trace)"
    ),
    Why.CATEGORY: "category {names:, }",
    Why.NO_CATEGORY: "events without a category",
    Why.KERNELS_LOST: (
        "partial capture: {lost} of {launches} launches have no kernel record; is another "
        "CUPTI client (nsys, compute-sanitizer) attached?"
    ),
    Why.NO_WAITS_ON_XPU: (
        "on XPU, torch's profiler records what the host submits, but not when it waits"
    ),
    Why.UNKNOWN_WAITS: (
        "it is not known which calls wait for this device ({call} is one of its calls)"
    ),
    Why.UNKNOWN_WAITS_OF: "it is not known which calls wait for {device} devices",
    Why.NO_CALLS: "the device's driver calls were not recorded",
    Why.KERNELS_FROM_GRAPHS: "{count: kernel} ran from graphs, without their operators",
    Why.KERNELS_ALONE: "kernels were recorded without their operators",
    # work elsewhere
    Why.FINALIZERS: (
        "finalizers (__del__) of garbage collected after the measured run called operators, "
        "and when that happens is not reproducible"
    ),
    Why.DATALOADER_WORKERS: (
        "operators in a DataLoader's workers are not counted, nor what receives their batches: the "
        "workers are separate processes, and how far ahead they are is chance"
    ),
    Why.WORKERS_PREFETCH: (
        "a DataLoader's workers prefetch at varying speed, so the peak is not reproducible"
    ),
    **OF_PROCESSES,
    Why.THREADS_WORK: "other threads did work too, and this torch cannot profile them",
    Why.POOL_WORK: (
        "other threads did work too, which only another run can count: give the test a warm-up run"
    ),
    Why.THREAD_LEFT: (
        "a thread that this or an earlier test started was still at work when the run ended"
    ),
    Why.MEMORY_OF_THREADS: (
        "torch records no memory while it profiles all threads, and this test works in several"
    ),
    # compiled code
    Why.DYNAMO_OFF: "torch.compile is switched off ({how}), so nothing was compiled",
    Why.COMPILED_EARLIER: "the test runs code that was compiled before the test started",
    Why.COMPILATIONS_LOST: "torch keeps at most {kept} compilations",
    Why.RAN_UNCOMPILED: "torch.compile was used, but no compiled code ran",
    Why.RAN_IN_PYTHON: (
        "{name} ran in Python, and this torch does not say whether because of a graph break"
    ),
    Why.NOT_NUMBERED: "this torch version does not number compilations",
    # FLOPs that are not counted
    Why.ONE_UNCOUNTED: "{part} {missing}",
    Why.MANY_UNCOUNTED: "{parts:, }{left:? and # more}: each {missing}",
    Why.UNCOUNTED_PART: "{name} ({calls: call})",
    Why.UNCOUNTED_SHARE: "{name} ({calls: call}, {percent:.0f} % of the time)",
    Why.NO_FORMULA: "has no formula",
    Why.NO_PARTS: "does not show the operators inside it",
    Why.REPLAYED: "was replayed from a graph",
    Why.LAUNCHED_ALONE: "was not launched by a known operator",
    Why.LOOPS: "was compiled to loops that the trace does not contain",
    Why.DYNAMIC_LOOPS: "was compiled to loops whose shapes the trace does not contain",
    Why.NO_OPERATORS: "no operators in this trace",
    Why.PACKED_WEIGHT: "has a packed weight of unknown shape in this trace",
    Why.NO_INPUT_DIMS: "lacks Input Dims in this trace",
    Why.NO_CONCRETE_INPUTS: "lacks Concrete Inputs in this trace",
    Why.SPARSE_OPERAND: "has a sparse operand, and only its shape is in this trace",
    Why.ODD_ARGUMENTS: "has arguments that its formula does not support in this trace",
    # bytes that are not counted
    Why.NO_BYTES: "moves an unknown number of bytes",
    # a device's work, estimated
    **OF_ESTIMATES,
    # rules
    Why.RULE_RAISED: "the rule failed: {error}",
    Why.RULE_IGNORED: "switched off by --torchprof-ignore",
    Why.OF_RULES: "{rules:, }: {why}",
    Why.WITHOUT_OPERATORS: "recorded without operators",
    Why.TRIFLES_GUESSED: (
        "recorded without memory events (profile_memory=True records them), so the size below "
        "which matches are ignored is a guess"
    ),
    Why.AUTOCAST_UNSEEN: (
        "autocast's casts of weights: recorded without memory events (profile_memory=True "
        "records them)"
    ),
    Why.ATTENTION_ON_UNKNOWN_CHIP: (
        "attention in its math form: the trace does not say which device it ran on"
    ),
    Why.MANUAL_ATTENTION_ON_UNKNOWN_CHIP: (
        "unfused attention: the trace does not say which device it ran on"
    ),
    Why.WEIGHTS_WITHOUT_MEMORY: (
        "without memory events, whether unfused attention returns its weights is unknown"
    ),
    Why.PRODUCTS_ON_UNKNOWN_CHIP: "products in fp32: the trace does not say which device it ran on",
    # metrics of users' own
    Why.METRIC_RAISED: "the function of the metric {name} raised {error}",
    Why.METRIC_IS_NONE: "the function of the metric {name} found no value",
    Why.NOT_RECORDED: "the test no longer records it",
    Why.NOT_RECORDED_IN: "{name} is not recorded in the region {region}",
    Why.NOT_RECORDED_BY_LAP: "what a test records in a region is of all its laps",
    Why.RECORDED_IN_NO_ROUND: (
        "recorded in no timed run, and other runs are slower (rounds=1 asks for one)"
    ),
    Why.RECORDED_BESIDE_CALLABLE: (
        "recorded outside the callable that is measured, and so in no timed call of it; record it "
        'within, or with compare="exact"'
    ),
    Why.RECORDED_OUTSIDE_CALL: "recorded in a fixture, outside the test's call phase",
    Why.ONLY_IN_REGIONS: "{name} is recorded in regions only (region={regions: or })",
    Why.NO_SUCH_METRIC: "no metric {name}: the test does not record it, and no hook defines it",
    Why.NO_SUCH_METRIC_NEAR: "no metric {name}; did you mean {near: or }?",
    Why.LIMIT_IN_OTHER_UNIT: "the limit is in {limit}, and the metric in {unit}",
    # parts of a test
    Why.MODULES_OF_ONE_THREAD: (
        "the test works in several threads, and which modules run is known of one"
    ),
    Why.MODULES_RUN_DIFFERS: (
        "the run in which modules are marked had {marked:,} operators, the profiled one "
        "{profiled:,}; if an earlier run keeps a result, make it anew in each"
    ),
    Why.NO_MODULES_RUN: "the test failed before the run in which modules are marked",
    Why.SCOPE_DID_NOT_RUN: "{scope} {name} did not run in the measured region",
    Why.SCOPE_UNKNOWN: (
        "{scope} {name} did not run, and nothing that could run here has this name (similar: "
        "{near:, })"
    ),
    Why.SCOPE_DID_NOT_RUN_NEAR: (
        "{scope} {name} did not run in the measured region; similar names that did: {near:, }"
    ),
    Why.REGION_NOT_TIMED: "measured for whole tests only",
    Why.LAPS_NOT_TIMED: "of region {name}, the first 1,000 laps are timed one by one",
    Why.LAPS_DIFFER: "region {name} was not entered equally often in each run",
    Why.LABEL_NOT_TIMED: (
        "{name} is a record_function label, and only regions named by the test are timed"
    ),
    Why.TIMES_OVERLAP: "regions {names:, } overlap, so their times do not add up; name one of them",
    Why.REGION_OPEN: "region {name} was still open when the run ended",
    Why.REGION_ON_DEVICE: (
        "a device may work on when a region ends; its time there is self_cuda_ms, or measure the "
        "part alone, using `with torchprof:`"
    ),
    Why.ONLY_OF_TEST: "known for whole tests only",
    Why.REGION_ELSEWHERE: "region {name} was entered in another thread",
    Why.REGION_RAISED: "region {name} was left with {error}",
    Why.MODULE_RAN_UNSEEN: (
        "module {name} may have run inside a scripted or compiled one, whose parts are not told "
        "apart"
    ),
    Why.NOTHING_RAN: ("no operator ran in the profiled run; " + _KEEPS),
    Why.NOTHING_ON_DEVICE: ("nothing ran on the device in the profiled run; " + _KEEPS),
    Why.NO_PRODUCT: ("no product ran in the profiled run; " + _KEEPS),
    # compared with the baseline
    Why.CHANGED: "{name} {before} → {now}",
    Why.CHANGED_BY: "{name} {before:{unit}} → {now:{unit}}",
    Why.SLOWER_WITH_LESS: (
        "less work, but slower, so not improved: wall_ms {before:ms} → {now:ms}"
    ),
    Why.ORDER_CHANGED: (
        "the same operators moved the same bytes and only the peak differs, so their order changed "
        "(that of a set of strings follows PYTHONHASHSEED): up to 10 %, that only advises"
    ),
    Why.OTHER_ENVIRONMENT: (
        "no baseline of {here} yet, only of {accepted}, so what differs is advice (pytest --accept "
        "accepts): {changes:, }"
    ),
    Why.MORE_MATCHES: "{rules:, }",
    Why.GRADIENTS_ADD_UP: (
        "gradients add up in aten::add_ {before} → {now} times: is a zero_grad missing?"
    ),
    Why.FEWER_ZERO_GRADS: "Optimizer.zero_grad was called {before} → {now} times in {steps} steps",
    Why.OPERATORS_SWAPPED: "as many operators as accepted, but others: {operators:, }{left:?, …}",
    Why.INLINE_EXPECTS: "the inline expectation is {expected}",
    Why.INLINE_MISMATCH: "the inline expectation does not match",
    # times
    Why.NO_ROUNDS: "no timed rounds (--torchprof-rounds=0)",
    Why.NO_COUNTER: "this machine has no hardware counter",
    Why.COUNTER_STOPPED: "the hardware counter stopped",
    Why.NO_REFERENCE: "the reference kernel did not run",
    Why.NO_REFERENCE_BEFORE: (
        "the baseline has no time relative to the reference kernel: " + _ANEW
    ),
    Why.OTHER_CONDITIONS: ("the baseline's times are of {before}, not {now}: " + _ANEW),
    Why.OTHER_PAGE_FAULTS: (
        "{before:,} → {now:,} page faults a round: whether memory is reused is the luck of a "
        "process, so time only advises"
    ),
    Why.FEW_ROUNDS: ("the baseline is of {before: round}, and this of {now}: " + _ANEW),
    Why.OTHER_MACHINE: "the baseline's times are of another machine ({machine})",
    Why.OTHER_CPU: (
        "the baseline is of a CPU with other instructions ({accepted}, here {here}), which decide "
        "how convolutions and 16-bit products run, so operators and CPU memory only advise: accept "
        "here too"
    ),
    Why.WORKERS_CONTEND: "xdist's workers contend for the CPU, so time only advises",
    Why.MACHINE_BUSY: "the machine was busy, so time only advises: {signs:, }",
    Why.OTHERS_BUSY: "other processes used about {share:.0%} of the CPUs",
    Why.HYPERVISOR_TOOK: "the hypervisor took about {share:.0%} of the CPUs",
    Why.THROTTLED: "a CPU was throttled because of heat",
    Why.QUOTA_USED_UP: "the container's CPU quota was used up",
    # where it happened
    Why.NOTHING_TOLD: (
        "the run that tells tensors and modules apart failed, or did something else"
    ),
    Why.ONLY_RUN: "the profiled run was the only one (--torchprof-warmup=0 --torchprof-rounds=0)",
    Why.TRACED_BY_DEBUGGER: "a debugger traces the test",
    Why.OWN_TRACER: "the test uses sys.settrace itself",
    Why.OTHER_THREAD: "the test starts and ends its region in different threads",
    Why.TRACER_RAISED: "tracking what runs failed, please report it: {error}",
    Why.TOO_MANY_LINES: "only the first {most:,} of your lines that run are located",
    Why.TOO_MANY_MODULES: "it runs more than {most:,} modules",
    **OF_REVISIONS,
}


def in_words(reason: Reason) -> str:
    """The reason in words.

    >>> from pytest_torchprof.core.unknown import because
    >>> kernels = because(Why.KERNELS_FROM_GRAPHS, count=1)
    >>> in_words(because(Why.AT_LEAST, value=2048, unit="B", why=kernels))
    'at least 2 KiB: 1 kernel ran from graphs, without their operators'
    >>> in_words(because(Why.OF_RULES, rules=("a", "b"), why=because(Why.RULE_IGNORED)))
    'a, b: switched off by --torchprof-ignore'
    """
    fields = _Fields((name, _Field(value)) for name, value in reason.data)
    return SENTENCES[reason.why].format_map(fields)


def said_once(reason: Reason) -> tuple[str, str]:
    """The words that several tests share, and those of this test alone, if any."""
    if reason.why is not Why.OTHER_ENVIRONMENT:
        return in_words(reason), ""
    shared, _, own = in_words(reason).partition(": ")
    return shared, own.removesuffix("nothing")


class _Fields(dict[str, "_Field"]):
    """Fields by name. A file may hold anything, so one may be absent."""

    def __missing__(self, name: str) -> _Field:
        return _Field(UNKNOWN)


class _Field:
    """The value of a field, formatted for sentences."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __str__(self) -> str:
        return in_words(self._value) if isinstance(self._value, Reason) else str(self._value)

    def __format__(self, wanted: str) -> str:
        value = self._value
        if isinstance(value, tuple | list):
            return wanted.join(str(_Field(one)) for one in value)
        if not wanted or not isinstance(value, int | float):
            return str(self)
        if wanted.startswith(" "):
            return f"{value:,}{wanted}{'s' * (value != 1)}"
        if wanted.startswith("?"):
            return wanted[1:].replace("#", str(value)) if value else ""
        if wanted in SCALES:
            return format_quantity(value, wanted)
        try:
            return format(value, wanted)
        except ValueError:  # not a unit, or a fraction of something counted
            return str(value)


# ---- Metrics of a trace as a table: values, or the reasons why there are none, in words.


class NotMeasured(Frozen, frozen=True):
    """A metric without a value, and why.

    Attributes:
        reason: in words.
        at_hand: a number that is not reproducible, if there is one.
        at_least: the true value is ``at_hand`` or more.
    """

    reason: str
    at_hand: int | None = None
    at_least: bool = False


@dataclasses.dataclass(frozen=True)
class MetricRow:
    """One metric of a trace: its value in ``unit``, or None and the reason."""

    metric: str
    value: float | None
    unit: str
    klass: str
    reason: str | None = None


def metric_rows(metrics: Mapping[str, Value]) -> Rows[MetricRow]:
    """Metrics as a table, with the reason of each that was not measured."""
    rows = []
    for name, value in metrics.items():
        metric = METRICS[name]
        shown = shown_value(value)
        known, reason = (None, shown.reason) if isinstance(shown, NotMeasured) else (shown, None)
        rows.append(MetricRow(name, known, metric.unit, metric.klass, reason))
    return Rows(rows, fields_of(MetricRow))


def shown_value(value: Value) -> Number | NotMeasured:
    """The value, or the reason in words."""
    if not isinstance(value, results.MissingValue):
        return value
    return NotMeasured(in_words(value.reason), value.at_hand, value.at_least)


# ---- Sentences about the ranks of a job, for the notes of tables.

#: How many ranks, or pairs of ranks, a note names.
_SHOWN: Final = 8
#: Less is no imbalance worth a line.
_LEAST: Final = 0.005


def compared(found: RankWaits) -> Iterator[str]:
    """What was compared between ranks, on which clocks, and what was not."""
    if found.collectives:
        shift = int(abs(found.shift_ns).max())
        apart = 0 if found.apart_ns is None else found.apart_ns
        clocks = "one clock" if not shift else f"clocks shifted by up to {_ns(shift)}"
        yield (
            f"wait: {plural(found.collectives, 'collective')} of several ranks compared, on "
            f"{clocks}; their ends are within {_ns(apart)}, in the median"
        )
    else:
        yield "no wait: no collective of several ranks with known times to compare"
    for one in found.mismatches[:_SHOWN]:
        yield _mismatch(one)
    if (more := len(found.mismatches) - _SHOWN) > 0:
        yield f"… and {plural(more, 'more rank')} whose collectives do not match"


def stragglers(table: RankTable) -> Iterator[str]:
    """For whom the others wait, and who waits for whom, the longest first."""
    found = table.found
    if found is None or not found.collectives:
        return
    column = {rank: i for i, rank in enumerate(found.ranks)}
    late = [rank for rank, ms in table.waited_for_ms.items() if ms > 0]
    late.sort(key=lambda rank: -table.waited_for_ms[rank])
    for rank in late[:_SHOWN]:
        at = column[rank]
        yield (
            f"the others wait {cell('_ms', table.waited_for_ms[rank])} for rank {rank}, the last at"
            f" {found.last[at]} of {plural(int(found.met[at]), 'collective')}"
        )
    for row in table.waits[:_SHOWN] if len(found.ranks) > 2 else ():
        yield f"rank {row.rank} waits {cell('_ms', row.wait_ms)} for rank {row.for_rank}"
    if (more := len(table.waits) - _SHOWN) > 0 and len(found.ranks) > 2:
        yield f"… and {plural(more, 'more pair')}, in --format json"


def imbalances(table: RankTable) -> Iterator[str]:
    """What one rank has more of than the mean."""
    for row in table.imbalance:
        name = heading(row.field)
        if row.over_mean < _LEAST:
            yield f"{name}: the same on all ranks, within 0.5 %"
        else:
            over = cell("share", row.over_mean)
            yield (
                f"{name}: rank {row.rank} has the most, {cell(row.field, row.largest)}, {over} "
                "above the mean"
            )


def sources(of_rank: Mapping[int, RankSource]) -> str:
    """What the ranks are from."""
    by_source: dict[str, list[int]] = {}
    for rank, source in of_rank.items():
        by_source.setdefault(source, []).append(rank)
    words = {"order": "the order of the files", "metadata": "the metadata"}
    words |= {"file name": "the names of the files", "folder name": "the names of the folders"}
    parts = [
        words[source] + (f" (of {_listed(ranks)})" if len(by_source) > 1 else "")
        for source, ranks in by_source.items()
    ]
    return f"ranks are from {', '.join(parts)}"


def missing(ranks: Sequence[int], world_size: int) -> str:
    """Which ranks of the job have no trace; empty if all have one."""
    left = sorted({*range(world_size)} - {*ranks})
    if not left:
        return ""
    return f"no trace of {len(left)} of {world_size} ranks: {_listed(left)}"


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:_SHOWN]))
    more = len(ranks) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _mismatch(one: Mismatch) -> str:
    group = f" of the group {one.group}" if one.group else ""
    own, others = _call(one.own), _call(one.others)
    return (
        f"rank {one.rank} is not compared with the others{group}: its collective {one.number} is "
        f"{own}, theirs is {others}"
    )


def _call(signature: Signature | None) -> str:
    if signature is None:
        return "missing"
    operation, dtype, size = signature
    parts = [operation]
    if size is not None:
        parts.append("of unknown size" if size < 0 else f"of {cell('bytes', size)}")
    if dtype:
        parts.append(f"({dtype})")
    return " ".join(parts)


def _ns(ns: int) -> str:
    return cell("_ms", ns / 1e6)


# ---- Memory in words: categories at the peak, the allocator's totals, and what grows.


def _size(number: float) -> str:
    return format_quantity(number, "B")


def device_lines(device: DeviceMemory) -> Iterator[str]:
    """What was live at the peak, largest first, and what the allocator recorded."""
    parts = [(getattr(device, f"{one.name.lower()}_bytes"), one) for one in Category]
    some = sorted((-size, one) for size, one in parts if size)
    shown = ", ".join(f"{one.label} {_size(-size)}" for size, one in some)
    if shown:
        yield f"{device.device} at the peak: {shown}"
    allocated, reserved = device.max_allocated_bytes, device.max_reserved_bytes
    if allocated is None:
        return
    line = f"{device.device} allocator: at most {_size(allocated)} allocated"
    line += f", {_size(reserved)} reserved" if reserved is not None else ""
    free, most = device.fragmentation_bytes, device.max_fragmentation_bytes
    if free is not None and most is not None:
        line += f"; fragmentation {_size(free)} at the peak, at most {_size(most)}"
    yield line


def unknown_hint(trace: Events, devices: Sequence[DeviceMemory]) -> str:
    """What would tell more, if most of what a trace has allocated is unknown; else empty."""
    told = [(device.unknown_bytes, device.live_bytes - device.before_bytes) for device in devices]
    if not any(2 * unknown > whole > 0 for unknown, whole in told):
        return ""
    if trace.memory.addr is None:
        return "unknown: the trace has no addresses, so a free does not identify its block"
    more = "record_shapes" if not trace.records_shapes else ""
    more = more or ("with_stack" if not has_frames(trace) else "")
    return f"unknown: a trace with {more}=True may tell more" if more else ""


def leak_lines(leaks: Sequence[LeakRow] | None, moments: Moments) -> Iterator[str]:
    """What grows from step to step, or that nothing does, or why that is unknown."""
    count = len(moments.ends)
    if leaks is None:
        yield f"growth between steps: not checked: {_why_unchecked(moments)}"
        return
    where = f"{plural(count - 1, 'step')} after the first {moments.name}"
    if not leaks:
        yield f"nothing grows from step to step in {where}"
    for leak in leaks:
        blocks = f"{plural(leak.blocks, 'block')} more" if leak.blocks else "in larger blocks"
        place = _place(leak.stack)
        at = f", {place}" if place else ""
        yield (
            f"grows from step to step: {leak.operator} on {leak.device}: "
            f"{_size(leak.bytes_per_step)} a step, {_size(leak.bytes)} ({blocks}) in {where}{at}"
        )


def _why_unchecked(moments: Moments) -> str:
    """Why leaks are unknown.

    >>> from pytest_torchprof.analysis.memory import Moments
    >>> import numpy as np
    >>> _why_unchecked(Moments("ProfilerStep*", np.zeros(3)))
    '3 steps (ProfilerStep*), at least 5 are needed'
    """
    if not moments.name:
        return "no steps (annotate them with record_function, or give the profiler a schedule)"
    if len(moments.ends) < LEAST_STEPS:
        count = plural(len(moments.ends), "step")
        return f"{count} ({moments.name}), at least {LEAST_STEPS} are needed"
    return "the trace has no addresses, so a free does not identify its block"


def _place(stack: str | None) -> str:
    """The innermost function of the user's, and where it begins."""
    for name in reversed((stack or "").split(";")):
        frame = frame_of(name)
        if frame is not None and owner_of(frame.file) == Owner.USER:
            return f"in {frame.called} of {frame.location}"
    return ""
