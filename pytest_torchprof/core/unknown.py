"""Why something is not known, not compared, only advises or is not profiled: a code, a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pytest_torchprof.core.records import Sendable
from pytest_torchprof.core.units import SCALES, UNKNOWN, format_quantity


class Reason(Sendable, frozen=True, gc=False):
    """A code, for programs, and a sentence, for people; made where it is known."""

    code: str
    text: str


class Sentence:
    """The sentence of a reason, with fields, see `because`; its code is the name that it is given.

    >>> list(Why.ONLY_ON)
    ['only_on', 'only in {side}']
    """

    def __init__(self, template: str) -> None:
        self.template = template

    def __set_name__(self, _: type, name: str) -> None:
        self.code = name.lower()

    def __iter__(self) -> Iterator[str]:
        return iter((self.code, self.template))


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

    SOMEBODY_SAID = Sentence("{text}")
    ERROR = Sentence("{message}")
    WAS_NOT_MEASURED = Sentence("was not measured")
    ONLY_LIVE = Sentence("only a live test measures it")
    NO_REGION = Sentence("failed capture: the trace lacks the measured region")
    NO_SHAPES = Sentence("recorded without shapes (record_shapes=True records them)")
    NO_DURATIONS = Sentence("the events of this trace have no durations")
    NO_COPY_SIZES = Sentence("the copies of this trace have no sizes")
    NO_COMM_SIZES = Sentence(
        "the size of {unsized} of {calls} calls that communicate is unknown, such as {name}"
    )
    FILE_BREAKS_OFF = Sentence("{why}, or the file breaks off before it")
    SEVERAL = Sentence("{gaps:; }")
    AT_LEAST = Sentence("at least {value:{unit}}: {why}")
    FAILED = Sentence("failed")
    SKIPPED = Sentence("skipped")
    XFAILED = Sentence("xfailed")
    SETUP_FAILED = Sentence("setup failed")
    SUBTESTS_FAILED = Sentence("has failed subtests")
    LEFT_OUT = Sentence("@pytest.mark.torchprof(enabled=False) leaves the test out")
    OTHER_PROFILER = Sentence("another profiler session is active while the test runs")
    PROFILER_ENDED = Sentence("other code ended the profiler session of the test")
    NOTHING_RECORDED = Sentence("the profiler recorded nothing, not even the measured region")
    COMPARISON_FAILED = Sentence("an assertion failed once the test's numbers were measured")
    RUN_NOT_PROFILED = Sentence("this run is not profiled")
    NO_RUN_TO_COMPARE = Sentence(
        "torchprof.ab compares callables in a run of its own, and the profiled run is the only "
        "one: give the test a warm-up run"
    )
    COMPARISON_NOT_REACHED = Sentence(
        "torchprof.ab was called in other runs, but not in the run that compares"
    )
    NO_DEVICE = Sentence("no accelerator in this capture")
    NO_DEVICE_RECORDS = Sentence(
        "torch's profiler recorded nothing on this device; is another CUPTI client (nsys, "
        "compute-sanitizer) attached, or is a permission missing?"
    )
    GRAPH_CAPTURE = Sentence("the measured block begins while a CUDA graph is captured")
    ONLY_OTHER_EVENTS = Sentence("no accelerator in this capture: {events: and } in this trace")
    UNKNOWN_EVENTS = Sentence(
        "events of this device are not supported: {events: and } in this trace"
    )
    WORKERS_PREFETCH = Sentence(
        "a DataLoader's workers prefetch at varying speed, so the peak is not reproducible"
    )
    PROGRAM_WORK = Sentence(
        "another process did work for the test, and torch in it is not recorded: {programs:, }"
    )
    CHILD_RUNS_ON = Sentence("{process} was still running when the measured run ended: wait for it")
    CHILD_WAS_KILLED = Sentence("{process} was ended before it could say what it did")
    OF_CHILD = Sentence("{process}: {why}")
    RANK_ENDED = Sentence("rank {rank} has ended")
    RANK_RUNS_IT_NOT = Sentence("rank {rank} does not run this test")
    NO_SUCH_RANK_HERE = Sentence("no process of the test had rank {rank}")
    NOT_BY_PROCESS = Sentence(
        "the test starts processes, and what they do is not known by module or named region"
    )
    THREAD_LEFT = Sentence(
        "a thread that this or an earlier test started was still at work when the run ended"
    )
    DYNAMO_OFF = Sentence("torch.compile is switched off ({how}), so nothing was compiled")
    RAN_UNCOMPILED = Sentence("torch.compile was used, but no compiled code ran")
    NO_FORMULA = Sentence("has no formula")
    NO_PARTS = Sentence("does not show the operators inside it")
    REPLAYED = Sentence("was replayed from a graph")
    LAUNCHED_ALONE = Sentence("was not launched by a known operator")
    LOOPS = Sentence("was compiled to loops that the trace does not contain")
    DYNAMIC_LOOPS = Sentence("was compiled to loops whose shapes the trace does not contain")
    NO_OPERATORS = Sentence("no operators in this trace")
    PACKED_WEIGHT = Sentence("has a packed weight of unknown shape in this trace")
    NO_INPUT_DIMS = Sentence("lacks Input Dims in this trace")
    NO_CONCRETE_INPUTS = Sentence("lacks Concrete Inputs in this trace")
    SPARSE_OPERAND = Sentence("has a sparse operand, and only its shape is in this trace")
    ODD_ARGUMENTS = Sentence("has arguments that its formula does not support in this trace")
    NO_BYTES = Sentence("moves an unknown number of bytes")
    NO_LAUNCHES = Sentence("starts an unknown number of kernels")
    COMPILED_FOR_HOST = Sentence("was compiled for the CPU, and for a device becomes other kernels")
    MAYBE_META = Sentence("may be on meta or fake tensors, which have no values")
    RULE_RAISED = Sentence("the rule failed: {error}")
    PRODUCTS_ON_UNKNOWN_CHIP = Sentence(
        "products in fp32: the trace does not say which device it ran on"
    )
    NOT_RECORDED = Sentence("the test no longer records it")
    NOT_RECORDED_IN = Sentence("{name} is not recorded in the region {region}")
    NO_SUCH_METRIC = Sentence(
        "no metric {name}: the test does not record it, and no hook defines it"
    )
    NO_SUCH_METRIC_NEAR = Sentence("no metric {name}; did you mean {near: or }?")
    SCOPE_DID_NOT_RUN = Sentence("{scope} {name} did not run in the measured region")
    SCOPE_UNKNOWN = Sentence(
        "{scope} {name} did not run, and nothing that could run here has this name (similar: "
        "{near:, })"
    )
    SCOPE_DID_NOT_RUN_NEAR = Sentence(
        "{scope} {name} did not run in the measured region; similar names that did: {near:, }"
    )
    LAPS_DIFFER = Sentence("region {name} was not entered equally often in each run")
    ONLY_OF_TEST = Sentence("known for whole tests only")
    REGION_RAISED = Sentence("region {name} was left with {error}")
    CHANGED = Sentence("{name} {before} → {now}")
    INLINE_MISMATCH = Sentence("the inline expectation does not match")
    OTHER_MACHINE = Sentence("the baseline's times are of another machine ({machine})")
    ORDER_CHANGED = Sentence(
        "the same operators moved the same bytes and only the peak differs, so their order "
        "changed (that of a set of strings follows PYTHONHASHSEED): up to 10 %, that only advises"
    )
    OTHERS_BUSY = Sentence("other processes used about {share:.0%} of the CPUs")
    HYPERVISOR_TOOK = Sentence("the hypervisor took about {share:.0%} of the CPUs")
    ONLY_RUN = Sentence(
        "the profiled run was the only one (--torchprof-warmup=0 --torchprof-rounds=0)"
    )
    TRACER_RAISED = Sentence("tracking what runs failed, please report it: {error}")
    TOO_MANY_LINES = Sentence("only the first {most:,} of your lines that run are located")
    TOO_MANY_MODULES = Sentence("it runs more than {most:,} modules")
    NOT_MEASURED_ON = Sentence("not measured on {side}")
    ONLY_ON = Sentence("only in {side}")
    SKIPPED_ON = Sentence("only in {side}: {why}")
    NOT_COLLECTED_ON = Sentence("cannot be collected in {side}: {why}")
    ON_SIDE = Sentence("in {side}: {why}")
