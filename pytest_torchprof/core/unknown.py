"""Why something is not known, not compared, only advises or is not profiled: a code, a sentence."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from pytest_torchprof.core.records import Sendable
from pytest_torchprof.core.units import SCALES, UNKNOWN, format_quantity


class Reason(Sendable, frozen=True, gc=False):
    """A code, for programs, and a sentence, for people; made where it is known."""

    code: str
    text: str


class Sentence(NamedTuple):
    """A code, and the sentence for it, with fields: see `because`."""

    code: str
    template: str


def because(
    code: str,
    template: str,
    /,
    **fields: str | float | Reason | tuple[str, ...] | tuple[Reason, ...],
) -> Reason:
    """A reason of this code, with the fields of its sentence filled in.

    A field's format is a unit, a separator for several values, what is counted, or what is said if
    it is not 0, with ``#`` for the number.

    >>> graphs = because("graphs", "{count: kernel} ran from graphs", count=1)
    >>> because("at_least", "at least {value:{unit}}: {why}", value=2048, unit="B", why=graphs).text
    'at least 2 KiB: 1 kernel ran from graphs'
    >>> because("of_rules", "{rules:, }{left:? and # more}", rules=("a", "b"), left=2).text
    'a, b and 2 more'
    """
    known = _Fields((name, _Field(value)) for name, value in fields.items())
    return Reason(code, template.format_map(known))


class _Fields(dict[str, "_Field"]):
    """Fields by name; one may be absent."""

    def __missing__(self, name: str) -> _Field:
        return _Field(UNKNOWN)


class _Field:
    """The value of a field, formatted for sentences."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __str__(self) -> str:
        return self._value.text if isinstance(self._value, Reason) else str(self._value)

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


class Why:
    """Reasons that are given, or asked for, at several places."""

    SOMEBODY_SAID: Final = Sentence("somebody_said", "{text}")
    ERROR: Final = Sentence("error", "{message}")
    WAS_NOT_MEASURED: Final = Sentence("was_not_measured", "was not measured")
    ONLY_LIVE: Final = Sentence("only_live", "only a live test measures it")
    NO_REGION: Final = Sentence("no_region", "failed capture: the trace lacks the measured region")
    NO_SHAPES: Final = Sentence(
        "no_shapes", "recorded without shapes (record_shapes=True records them)"
    )
    NO_DURATIONS: Final = Sentence("no_durations", "the events of this trace have no durations")
    NO_COPY_SIZES: Final = Sentence("no_copy_sizes", "the copies of this trace have no sizes")
    NO_COMM_SIZES: Final = Sentence(
        "no_comm_sizes",
        ("the size of {unsized} of {calls} calls that communicate is unknown, such as {name}"),
    )
    FILE_BREAKS_OFF: Final = Sentence("file_breaks_off", "{why}, or the file breaks off before it")
    SEVERAL: Final = Sentence("several", "{gaps:; }")
    AT_LEAST: Final = Sentence("at_least", "at least {value:{unit}}: {why}")
    FAILED: Final = Sentence("failed", "failed")
    SKIPPED: Final = Sentence("skipped", "skipped")
    XFAILED: Final = Sentence("xfailed", "xfailed")
    SETUP_FAILED: Final = Sentence("setup_failed", "setup failed")
    SUBTESTS_FAILED: Final = Sentence("subtests_failed", "has failed subtests")
    LEFT_OUT: Final = Sentence(
        "left_out", "@pytest.mark.torchprof(enabled=False) leaves the test out"
    )
    OTHER_PROFILER: Final = Sentence(
        "other_profiler", "another profiler session is active while the test runs"
    )
    PROFILER_ENDED: Final = Sentence(
        "profiler_ended", "other code ended the profiler session of the test"
    )
    NOTHING_RECORDED: Final = Sentence(
        "nothing_recorded", "the profiler recorded nothing, not even the measured region"
    )
    COMPARISON_FAILED: Final = Sentence(
        "comparison_failed", "an assertion failed once the test's numbers were measured"
    )
    RUN_NOT_PROFILED: Final = Sentence("run_not_profiled", "this run is not profiled")
    NO_RUN_TO_COMPARE: Final = Sentence(
        "no_run_to_compare",
        (
            "torchprof.ab compares callables in a run of its own, and the profiled run "
            "is the only one: give the test a warm-up run"
        ),
    )
    COMPARISON_NOT_REACHED: Final = Sentence(
        "comparison_not_reached",
        "torchprof.ab was called in other runs, but not in the run that compares",
    )
    NO_DEVICE: Final = Sentence("no_device", "no accelerator in this capture")
    NO_DEVICE_RECORDS: Final = Sentence(
        "no_device_records",
        (
            "torch's profiler recorded nothing on this device; is another CUPTI client "
            "(nsys, compute-sanitizer) attached, or is a permission missing?"
        ),
    )
    GRAPH_CAPTURE: Final = Sentence(
        "graph_capture", "the measured block begins while a CUDA graph is captured"
    )
    ONLY_OTHER_EVENTS: Final = Sentence(
        "only_other_events", "no accelerator in this capture: {events: and } in this trace"
    )
    UNKNOWN_EVENTS: Final = Sentence(
        "unknown_events", "events of this device are not supported: {events: and } in this trace"
    )
    WORKERS_PREFETCH: Final = Sentence(
        "workers_prefetch",
        ("a DataLoader's workers prefetch at varying speed, so the peak is not reproducible"),
    )
    PROGRAM_WORK: Final = Sentence(
        "program_work",
        ("another process did work for the test, and torch in it is not recorded: {programs:, }"),
    )
    CHILD_RUNS_ON: Final = Sentence(
        "child_runs_on", "{process} was still running when the measured run ended: wait for it"
    )
    CHILD_WAS_KILLED: Final = Sentence(
        "child_was_killed", "{process} was ended before it could say what it did"
    )
    OF_CHILD: Final = Sentence("of_child", "{process}: {why}")
    RANK_ENDED: Final = Sentence("rank_ended", "rank {rank} has ended")
    RANK_RUNS_IT_NOT: Final = Sentence("rank_runs_it_not", "rank {rank} does not run this test")
    NO_SUCH_RANK_HERE: Final = Sentence(
        "no_such_rank_here", "no process of the test had rank {rank}"
    )
    NOT_BY_PROCESS: Final = Sentence(
        "not_by_process",
        ("the test starts processes, and what they do is not known by module or named region"),
    )
    THREAD_LEFT: Final = Sentence(
        "thread_left",
        ("a thread that this or an earlier test started was still at work when the run ended"),
    )
    DYNAMO_OFF: Final = Sentence(
        "dynamo_off", "torch.compile is switched off ({how}), so nothing was compiled"
    )
    RAN_UNCOMPILED: Final = Sentence(
        "ran_uncompiled", "torch.compile was used, but no compiled code ran"
    )
    NO_FORMULA: Final = Sentence("no_formula", "has no formula")
    NO_PARTS: Final = Sentence("no_parts", "does not show the operators inside it")
    REPLAYED: Final = Sentence("replayed", "was replayed from a graph")
    LAUNCHED_ALONE: Final = Sentence("launched_alone", "was not launched by a known operator")
    LOOPS: Final = Sentence("loops", "was compiled to loops that the trace does not contain")
    DYNAMIC_LOOPS: Final = Sentence(
        "dynamic_loops", "was compiled to loops whose shapes the trace does not contain"
    )
    NO_OPERATORS: Final = Sentence("no_operators", "no operators in this trace")
    PACKED_WEIGHT: Final = Sentence(
        "packed_weight", "has a packed weight of unknown shape in this trace"
    )
    NO_INPUT_DIMS: Final = Sentence("no_input_dims", "lacks Input Dims in this trace")
    NO_CONCRETE_INPUTS: Final = Sentence(
        "no_concrete_inputs", "lacks Concrete Inputs in this trace"
    )
    SPARSE_OPERAND: Final = Sentence(
        "sparse_operand", "has a sparse operand, and only its shape is in this trace"
    )
    ODD_ARGUMENTS: Final = Sentence(
        "odd_arguments", "has arguments that its formula does not support in this trace"
    )
    NO_BYTES: Final = Sentence("no_bytes", "moves an unknown number of bytes")
    NO_LAUNCHES: Final = Sentence("no_launches", "starts an unknown number of kernels")
    COMPILED_FOR_HOST: Final = Sentence(
        "compiled_for_host", "was compiled for the CPU, and for a device becomes other kernels"
    )
    RULE_RAISED: Final = Sentence("rule_raised", "the rule failed: {error}")
    PRODUCTS_ON_UNKNOWN_CHIP: Final = Sentence(
        "products_on_unknown_chip",
        "products in fp32: the trace does not say which device it ran on",
    )
    NOT_RECORDED: Final = Sentence("not_recorded", "the test no longer records it")
    NOT_RECORDED_IN: Final = Sentence(
        "not_recorded_in", "{name} is not recorded in the region {region}"
    )
    NO_SUCH_METRIC: Final = Sentence(
        "no_such_metric", "no metric {name}: the test does not record it, and no hook defines it"
    )
    NO_SUCH_METRIC_NEAR: Final = Sentence(
        "no_such_metric_near", "no metric {name}; did you mean {near: or }?"
    )
    SCOPE_DID_NOT_RUN: Final = Sentence(
        "scope_did_not_run", "{scope} {name} did not run in the measured region"
    )
    SCOPE_UNKNOWN: Final = Sentence(
        "scope_unknown",
        (
            "{scope} {name} did not run, and nothing that could run here has this name "
            "(similar: {near:, })"
        ),
    )
    SCOPE_DID_NOT_RUN_NEAR: Final = Sentence(
        "scope_did_not_run_near",
        ("{scope} {name} did not run in the measured region; similar names that did: {near:, }"),
    )
    LAPS_DIFFER: Final = Sentence(
        "laps_differ", "region {name} was not entered equally often in each run"
    )
    ONLY_OF_TEST: Final = Sentence("only_of_test", "known for whole tests only")
    REGION_RAISED: Final = Sentence("region_raised", "region {name} was left with {error}")
    CHANGED: Final = Sentence("changed", "{name} {before} → {now}")
    INLINE_MISMATCH: Final = Sentence("inline_mismatch", "the inline expectation does not match")
    OTHER_MACHINE: Final = Sentence(
        "other_machine", "the baseline's times are of another machine ({machine})"
    )
    ORDER_CHANGED: Final = Sentence(
        "order_changed",
        (
            "the same operators moved the same bytes and only the peak differs, so "
            "their order changed (that of a set of strings follows PYTHONHASHSEED): up "
            "to 10 %, that only advises"
        ),
    )
    OTHERS_BUSY: Final = Sentence(
        "others_busy", "other processes used about {share:.0%} of the CPUs"
    )
    HYPERVISOR_TOOK: Final = Sentence(
        "hypervisor_took", "the hypervisor took about {share:.0%} of the CPUs"
    )
    ONLY_RUN: Final = Sentence(
        "only_run",
        ("the profiled run was the only one (--torchprof-warmup=0 --torchprof-rounds=0)"),
    )
    TRACER_RAISED: Final = Sentence(
        "tracer_raised", "tracking what runs failed, please report it: {error}"
    )
    TOO_MANY_LINES: Final = Sentence(
        "too_many_lines", "only the first {most:,} of your lines that run are located"
    )
    TOO_MANY_MODULES: Final = Sentence("too_many_modules", "it runs more than {most:,} modules")
    NOT_MEASURED_ON: Final = Sentence("not_measured_on", "not measured on {side}")
    ONLY_ON: Final = Sentence("only_on", "only in {side}")
    SKIPPED_ON: Final = Sentence("skipped_on", "only in {side}: {why}")
    NOT_COLLECTED_ON: Final = Sentence("not_collected_on", "cannot be collected in {side}: {why}")
    ON_SIDE: Final = Sentence("on_side", "in {side}: {why}")
