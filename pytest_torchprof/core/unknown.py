"""Why something is not known, not compared, only advises or is not profiled: a code, a sentence."""

from __future__ import annotations

from typing import Any, NamedTuple

from pytest_torchprof.core.records import Sendable
from pytest_torchprof.core.units import SCALES, UNKNOWN, format_quantity


class Reason(Sendable, frozen=True, gc=False):
    """A code, for programs, and a sentence, for people; made where it is known."""

    code: str
    text: str


class Sentence(NamedTuple):
    """A code, and the sentence for it, with fields: see `because`.

    >>> list(Why.ONLY_ON)
    ['only_on', 'only in {side}']
    """

    code: str
    template: str

    def __set_name__(self, owner: type, name: str) -> None:
        if not self.code:  # else it is another class's
            setattr(owner, name, self._replace(code=name.lower()))


def _said(template: str) -> Sentence:
    """A sentence whose code is the name that it is given in a class."""
    return Sentence("", template)


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

    SOMEBODY_SAID = _said("{text}")
    ERROR = _said("{message}")
    BAD_BASELINE = _said("{message}")
    WAS_NOT_MEASURED = _said("was not measured")
    ONLY_LIVE = _said("only a live test measures it")
    NO_REGION = _said("failed capture: the trace lacks the measured region")
    NO_SHAPES = _said("recorded without shapes (record_shapes=True records them)")
    NO_DURATIONS = _said("the events of this trace have no durations")
    NO_COPY_SIZES = _said("the copies of this trace have no sizes")
    NO_COMM_SIZES = _said(
        "the size of {unsized} of {calls} calls that communicate is unknown, such as {name}"
    )
    FILE_BREAKS_OFF = _said("{why}, or the file breaks off before it")
    SEVERAL = _said("{gaps:; }")
    AT_LEAST = _said("at least {value:{unit}}: {why}")
    FAILED = _said("failed")
    SKIPPED = _said("skipped")
    XFAILED = _said("xfailed")
    SETUP_FAILED = _said("setup failed")
    SUBTESTS_FAILED = _said("has failed subtests")
    LEFT_OUT = _said("@pytest.mark.torchprof(enabled=False) leaves the test out")
    OTHER_PROFILER = _said("another profiler session is active while the test runs")
    PROFILER_ENDED = _said("other code ended the profiler session of the test")
    NOTHING_RECORDED = _said("the profiler recorded nothing, not even the measured region")
    COMPARISON_FAILED = _said("an assertion failed once the test's numbers were measured")
    RUN_NOT_PROFILED = _said("this run is not profiled")
    NO_RUN_TO_COMPARE = _said(
        "torchprof.ab compares callables in a run of its own, and the profiled run is the only "
        "one: give the test a warm-up run"
    )
    COMPARISON_NOT_REACHED = _said(
        "torchprof.ab was called in other runs, but not in the run that compares"
    )
    NO_DEVICE = _said("no accelerator in this capture")
    NO_DEVICE_RECORDS = _said(
        "torch's profiler recorded nothing on this device; is another CUPTI client (nsys, "
        "compute-sanitizer) attached, or is a permission missing?"
    )
    GRAPH_CAPTURE = _said("the measured block begins while a CUDA graph is captured")
    ONLY_OTHER_EVENTS = _said("no accelerator in this capture: {events: and } in this trace")
    UNKNOWN_EVENTS = _said("events of this device are not supported: {events: and } in this trace")
    WORKERS_PREFETCH = _said(
        "a DataLoader's workers prefetch at varying speed, so the peak is not reproducible"
    )
    PROGRAM_WORK = _said(
        "another process did work for the test, and torch in it is not recorded: {programs:, }"
    )
    CHILD_RUNS_ON = _said("{process} was still running when the measured run ended: wait for it")
    CHILD_WAS_KILLED = _said("{process} was ended before it could say what it did")
    OF_CHILD = _said("{process}: {why}")
    RANK_ENDED = _said("rank {rank} has ended")
    RANK_RUNS_IT_NOT = _said("rank {rank} does not run this test")
    NO_SUCH_RANK_HERE = _said("no process of the test had rank {rank}")
    NOT_BY_PROCESS = _said(
        "the test starts processes, and what they do is not known by module or named region"
    )
    THREAD_LEFT = _said(
        "a thread that this or an earlier test started was still at work when the run ended"
    )
    DYNAMO_OFF = _said("torch.compile is switched off ({how}), so nothing was compiled")
    RAN_UNCOMPILED = _said("torch.compile was used, but no compiled code ran")
    NO_FORMULA = _said("has no formula")
    NO_PARTS = _said("does not show the operators inside it")
    REPLAYED = _said("was replayed from a graph")
    LAUNCHED_ALONE = _said("was not launched by a known operator")
    LOOPS = _said("was compiled to loops that the trace does not contain")
    DYNAMIC_LOOPS = _said("was compiled to loops whose shapes the trace does not contain")
    NO_OPERATORS = _said("no operators in this trace")
    PACKED_WEIGHT = _said("has a packed weight of unknown shape in this trace")
    NO_INPUT_DIMS = _said("lacks Input Dims in this trace")
    NO_CONCRETE_INPUTS = _said("lacks Concrete Inputs in this trace")
    SPARSE_OPERAND = _said("has a sparse operand, and only its shape is in this trace")
    ODD_ARGUMENTS = _said("has arguments that its formula does not support in this trace")
    NO_BYTES = _said("moves an unknown number of bytes")
    NO_LAUNCHES = _said("starts an unknown number of kernels")
    COMPILED_FOR_HOST = _said("was compiled for the CPU, and for a device becomes other kernels")
    RULE_RAISED = _said("the rule failed: {error}")
    PRODUCTS_ON_UNKNOWN_CHIP = _said(
        "products in fp32: the trace does not say which device it ran on"
    )
    NOT_RECORDED = _said("the test no longer records it")
    NOT_RECORDED_IN = _said("{name} is not recorded in the region {region}")
    NO_SUCH_METRIC = _said("no metric {name}: the test does not record it, and no hook defines it")
    NO_SUCH_METRIC_NEAR = _said("no metric {name}; did you mean {near: or }?")
    SCOPE_DID_NOT_RUN = _said("{scope} {name} did not run in the measured region")
    SCOPE_UNKNOWN = _said(
        "{scope} {name} did not run, and nothing that could run here has this name (similar: "
        "{near:, })"
    )
    SCOPE_DID_NOT_RUN_NEAR = _said(
        "{scope} {name} did not run in the measured region; similar names that did: {near:, }"
    )
    LAPS_DIFFER = _said("region {name} was not entered equally often in each run")
    ONLY_OF_TEST = _said("known for whole tests only")
    REGION_RAISED = _said("region {name} was left with {error}")
    CHANGED = _said("{name} {before} → {now}")
    INLINE_MISMATCH = _said("the inline expectation does not match")
    OTHER_MACHINE = _said("the baseline's times are of another machine ({machine})")
    ORDER_CHANGED = _said(
        "the same operators moved the same bytes and only the peak differs, so their order "
        "changed (that of a set of strings follows PYTHONHASHSEED): up to 10 %, that only advises"
    )
    OTHERS_BUSY = _said("other processes used about {share:.0%} of the CPUs")
    HYPERVISOR_TOOK = _said("the hypervisor took about {share:.0%} of the CPUs")
    ONLY_RUN = _said(
        "the profiled run was the only one (--torchprof-warmup=0 --torchprof-rounds=0)"
    )
    TRACER_RAISED = _said("tracking what runs failed, please report it: {error}")
    TOO_MANY_LINES = _said("only the first {most:,} of your lines that run are located")
    TOO_MANY_MODULES = _said("it runs more than {most:,} modules")
    NOT_MEASURED_ON = _said("not measured on {side}")
    ONLY_ON = _said("only in {side}")
    SKIPPED_ON = _said("only in {side}: {why}")
    NOT_COLLECTED_ON = _said("cannot be collected in {side}: {why}")
    ON_SIDE = _said("in {side}: {why}")
