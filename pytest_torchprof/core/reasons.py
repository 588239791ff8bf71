"""Why something is not known, not compared, only advises or is not profiled, as values.

`render.reason_texts` has the text for each.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

from pytest_torchprof.core.structs import Sendable


class Why(Enum):
    """A reason. Its fields are those of its sentence in `render.reason_texts`."""

    # general
    SOMEBODY_SAID = "somebody_said"
    UNKNOWN = "unknown"
    ERROR = "error"
    INTERNAL_ERROR = "internal_error"
    WAS_NOT_MEASURED = "was_not_measured"
    ONLY_LIVE = "only_live"
    NO_REGION = "no_region"
    NO_SHAPES = "no_shapes"
    NO_MEMORY = "no_memory"
    NO_MEMORY_TOTALS = "no_memory_totals"
    NO_DURATIONS = "no_durations"
    SOME_UNTIMED = "some_untimed"
    NO_COPY_SIZES = "no_copy_sizes"
    FILE_BREAKS_OFF = "file_breaks_off"
    FILE_ENDS = "file_ends"
    SEVERAL = "several"
    AT_LEAST = "at_least"
    COMPARED_UNMEASURED = "compared_unmeasured"
    ON_ONE_RANK = "on_one_rank"
    NOT_ONE_JOB = "not_one_job"
    # how a test went
    FAILED = "failed"
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    SETUP_FAILED = "setup_failed"
    SUBTESTS_FAILED = "subtests_failed"
    STRICT_XFAIL_PASSED = "strict_xfail_passed"
    RERUN_RAISED = "rerun_raised"
    RERUN_OVERDUE = "rerun_overdue"
    FAILS_WHEN_PROFILED = "fails_when_profiled"
    # why a test is not profiled
    LEFT_OUT = "left_out"
    LEFT_OUT_BY_MARKER = "left_out_by_marker"
    SAME_NAME = "same_name"
    TRACE_OPTION = "trace_option"
    BENCHMARK_FIXTURE = "benchmark_fixture"
    OWN_PROFILE_HOOK = "own_profile_hook"
    DEBUGGER = "debugger"
    OWN_PROFILER = "own_profiler"
    LIMIT_OF_EVENTS = "limit_of_events"
    READS_THREADS = "reads_threads"
    OTHER_PROFILER = "other_profiler"
    PROFILER_ENDED = "profiler_ended"
    NOTHING_RECORDED = "nothing_recorded"
    HAS_FORKED = "has_forked"
    FORKED_WHILE_PROFILED = "forked_while_profiled"
    STARTS_THREADS = "starts_threads"
    THREADS_NOT_PROFILED = "threads_not_profiled"
    TWO_REGIONS = "two_regions"
    REGION_NOT_REACHED = "region_not_reached"
    REGION_OUTSIDE_CALL = "region_outside_call"
    BLOCK_RAISED = "block_raised"
    NOTHING_CAPTURED = "nothing_captured"
    CALL_RAISED = "call_raised"
    RUN_NOT_PROFILED = "run_not_profiled"
    RUN_NOT_COMPARED = "run_not_compared"
    NO_RUN_TO_COMPARE = "no_run_to_compare"
    COMPARISON_NOT_REACHED = "comparison_not_reached"
    # what a trace lacks of the device
    NO_DEVICE = "no_device"
    NO_DEVICE_RECORDS = "no_device_records"
    ONLY_OTHER_EVENTS = "only_other_events"
    UNKNOWN_EVENTS = "unknown_events"
    UNKNOWN_DEVICE = "unknown_device"
    CATEGORY = "category"
    NO_CATEGORY = "no_category"
    KERNELS_LOST = "kernels_lost"
    NO_WAITS_ON_XPU = "no_waits_on_xpu"
    UNKNOWN_WAITS = "unknown_waits"
    UNKNOWN_WAITS_OF = "unknown_waits_of"
    NO_CALLS = "no_calls"
    KERNELS_FROM_GRAPHS = "kernels_from_graphs"
    KERNELS_ALONE = "kernels_alone"
    # work elsewhere
    FINALIZERS = "finalizers"
    DATALOADER_WORKERS = "dataloader_workers"
    WORKERS_PREFETCH = "workers_prefetch"
    FORKED_WORK = "forked_work"
    PROGRAM_WORK = "program_work"
    UNNAMED_PROGRAM_WORK = "unnamed_program_work"
    THREADS_WORK = "threads_work"
    POOL_WORK = "pool_work"
    THREAD_LEFT = "thread_left"
    MEMORY_OF_THREADS = "memory_of_threads"
    # compiled code
    DYNAMO_OFF = "dynamo_off"
    COMPILED_EARLIER = "compiled_earlier"
    COMPILATIONS_LOST = "compilations_lost"
    RAN_IN_PYTHON = "ran_in_python"
    RAN_UNCOMPILED = "ran_uncompiled"
    NOT_NUMBERED = "not_numbered"
    # FLOPs that are not counted
    ONE_UNCOUNTED = "one_uncounted"
    MANY_UNCOUNTED = "many_uncounted"
    UNCOUNTED_PART = "uncounted_part"
    UNCOUNTED_SHARE = "uncounted_share"
    NO_FORMULA = "no_formula"
    NO_PARTS = "no_parts"
    REPLAYED = "replayed"
    LAUNCHED_ALONE = "launched_alone"
    LOOPS = "loops"
    DYNAMIC_LOOPS = "dynamic_loops"
    NO_OPERATORS = "no_operators"
    PACKED_WEIGHT = "packed_weight"
    NO_INPUT_DIMS = "no_input_dims"
    NO_CONCRETE_INPUTS = "no_concrete_inputs"
    SPARSE_OPERAND = "sparse_operand"
    ODD_ARGUMENTS = "odd_arguments"
    # bytes that are not counted
    NO_BYTES = "no_bytes"
    # rules
    RULE_RAISED = "rule_raised"
    RULE_IGNORED = "rule_ignored"
    OF_RULES = "of_rules"
    WITHOUT_OPERATORS = "without_operators"
    TRIFLES_GUESSED = "trifles_guessed"
    AUTOCAST_UNSEEN = "autocast_unseen"
    ATTENTION_ON_UNKNOWN_CHIP = "attention_on_unknown_chip"
    PRODUCTS_ON_UNKNOWN_CHIP = "products_on_unknown_chip"
    # metrics of users' own
    METRIC_RAISED = "metric_raised"
    METRIC_IS_NONE = "metric_is_none"
    NOT_RECORDED = "not_recorded"
    NOT_RECORDED_IN = "not_recorded_in"
    NOT_RECORDED_BY_LAP = "not_recorded_by_lap"
    RECORDED_IN_NO_ROUND = "recorded_in_no_round"
    RECORDED_BESIDE_CALLABLE = "recorded_beside_callable"
    RECORDED_OUTSIDE_CALL = "recorded_outside_call"
    ONLY_IN_REGIONS = "only_in_regions"
    NO_SUCH_METRIC = "no_such_metric"
    NO_SUCH_METRIC_NEAR = "no_such_metric_near"
    LIMIT_IN_OTHER_UNIT = "limit_in_other_unit"
    # parts of a test
    MODULES_OF_ONE_THREAD = "modules_of_one_thread"
    MODULES_RUN_DIFFERS = "modules_run_differs"
    NO_MODULES_RUN = "no_modules_run"
    SCOPE_DID_NOT_RUN = "scope_did_not_run"
    SCOPE_DID_NOT_RUN_NEAR = "scope_did_not_run_near"
    REGION_NOT_TIMED = "region_not_timed"
    LAPS_NOT_TIMED = "laps_not_timed"
    ONLY_OF_TEST = "only_of_test"
    REGION_ELSEWHERE = "region_elsewhere"
    REGION_RAISED = "region_raised"
    RELATIONS_NEED_A_RUN = "relations_need_a_run"
    MODULE_RAN_UNSEEN = "module_ran_unseen"
    NOTHING_RAN = "nothing_ran"
    NOTHING_ON_DEVICE = "nothing_on_device"
    NO_PRODUCT = "no_product"
    # compared with the baseline
    CHANGED = "changed"
    MORE_MATCHES = "more_matches"
    GRADIENTS_ADD_UP = "gradients_add_up"
    FEWER_ZERO_GRADS = "fewer_zero_grads"
    OPERATORS_SWAPPED = "operators_swapped"
    INLINE_EXPECTS = "inline_expects"
    INLINE_MISMATCH = "inline_mismatch"
    # times
    NO_ROUNDS = "no_rounds"
    NO_COUNTER = "no_counter"
    COUNTER_STOPPED = "counter_stopped"
    NO_REFERENCE = "no_reference"
    NO_REFERENCE_BEFORE = "no_reference_before"
    OTHER_CONDITIONS = "other_conditions"
    OTHER_PAGE_FAULTS = "other_page_faults"
    FEW_ROUNDS = "few_rounds"
    OTHER_MACHINE = "other_machine"
    OTHER_CPU = "other_cpu"
    WORKERS_CONTEND = "workers_contend"
    MACHINE_BUSY = "machine_busy"
    OTHERS_BUSY = "others_busy"
    HYPERVISOR_TOOK = "hypervisor_took"
    THROTTLED = "throttled"
    QUOTA_USED_UP = "quota_used_up"
    # where it happened
    ONLY_RUN = "only_run"
    TRACED_BY_DEBUGGER = "traced_by_debugger"
    OWN_TRACER = "own_tracer"
    OTHER_THREAD = "other_thread"
    TRACER_RAISED = "tracer_raised"
    TOO_MANY_LINES = "too_many_lines"
    TOO_MANY_MODULES = "too_many_modules"
    # two revisions
    NOT_MEASURED_ON = "not_measured_on"
    ONLY_ON = "only_on"
    SKIPPED_ON = "skipped_on"
    FAILS_ON = "fails_on"
    FAILS_AGAIN_ON = "fails_again_on"
    NOT_COLLECTED_ON = "not_collected_on"
    ON_SIDE = "on_side"
    ON_EACH_SIDE = "on_each_side"
    FAILED_IN_PHASE = "failed_in_phase"
    XFAILED_BECAUSE = "xfailed_because"
    NO_REASON_GIVEN = "no_reason_given"
    UNRAISED_FAILURE = "unraised_failure"
    FEW_PAIRS = "few_pairs"
    FIXTURES_TOOK_TIME = "fixtures_took_time"
    OTHER_CODE_TOOK_TIME = "other_code_took_time"
    PYTEST_EXITED = "pytest_exited"
    WORKER_SILENT = "worker_silent"
    WORKER_KILLED = "worker_killed"
    WORKER_EXITED = "worker_exited"
    BUILT_ELSEWHERE = "built_elsewhere"


#: int and float are both listed, so that an int stays an int in another process.
_Datum: TypeAlias = "str | int | float | Reason | tuple[str | Reason, ...]"


class Reason(Sendable, frozen=True):
    """A reason with its data: (name, value) of each field of the sentence, in order."""

    why: Why
    data: tuple[tuple[str, _Datum], ...] = ()


def because(
    why: Why, /, **data: str | float | Reason | tuple[str, ...] | tuple[Reason, ...]
) -> Reason:
    """A reason with these fields.

    >>> because(Why.MODULE_RAN_UNSEEN, name="Head").data
    (('name', 'Head'),)
    """
    return Reason(why, tuple(data.items()))
