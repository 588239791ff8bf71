"""Labelled examples of the rules about torch.compile."""

from __future__ import annotations

import contextlib

import torch
from labelled.case import Examples
from support.live import Compiling
from support.trace_builder import TraceBuilder

EXAMPLES = Examples()
X = torch.ones(4)
FACTOR = 2


def _compiled(function, **options):
    return torch.compile(function, backend="eager", **options)


# ------------------------------------------------------------------------ graph-break


@EXAMPLES.positive("graph-break")
def a_print_between_two_operators():
    def step(x):
        y = x.sin()
        print(end="")  # noqa: T201  # <- here
        return y.cos()

    return Compiling(lambda: _compiled(step)(X))


@EXAMPLES.positive("graph-break")
def a_number_read_from_a_tensor():
    def step(x):
        number = x.sum().tolist()  # <- here
        return x * number

    return Compiling(lambda: _compiled(step)(X))


@EXAMPLES.positive("graph-break", unlike="2.6.")  # whose dynamo does not say it
def a_break_in_a_loop_of_which_nothing_is_compiled():
    def step(x):
        for _ in range(3):
            x = x.sin()
            print(end="")  # noqa: T201  # <- here
        return x

    return Compiling(lambda: _compiled(step)(X))


@EXAMPLES.positive("graph-break")
def a_break_in_a_try_of_which_nothing_is_compiled():
    def step(x):
        try:
            x = x.sin()
            print(end="")  # noqa: T201  # <- here
        finally:
            x = x.cos()
        return x

    return Compiling(lambda: _compiled(step)(X))


@EXAMPLES.positive("graph-break")
def a_disabled_function():
    @torch.compiler.disable
    def apart(x):
        return x + 1

    def step(x):
        return apart(x.sin()).cos()  # <- here

    return Compiling(lambda: _compiled(step)(X))


@EXAMPLES.positive("graph-break")
def a_break_in_the_forward_of_a_module():
    class Net(torch.nn.Module):
        def forward(self, x):
            x = x.sin()
            torch._dynamo.graph_break()  # <- here
            return x.cos()

    return Compiling(lambda: _compiled(Net())(X))


@EXAMPLES.positive("graph-break", 2)
def a_stored_trace_with_functions_that_resume():
    builder = TraceBuilder(region="")
    with builder.python("train.py(40): step"):
        with builder.op("Torch-Compiled Region: 0/0"):
            builder.op("aten::sin", [[4]], ["float"])
        for line, region in ((42, "1/0"), (44, "2/0")):
            for _ in range(2):
                with (
                    builder.python(f"train.py({line}): torch_dynamo_resume_in_step_at_{line}"),
                    builder.op(f"Torch-Compiled Region: {region}"),
                ):
                    builder.op("aten::cos", [[4]], ["float"])
    return builder


@EXAMPLES.positive("graph-break", unlike="2.6")
def a_break_in_a_loop_for_which_the_frame_is_skipped():
    def step(x):
        for _ in range(3):
            x = x.sin()
            torch._dynamo.graph_break()  # <- here
            x = x.cos()
        return x

    return Compiling(lambda: _compiled(step)(X))


@EXAMPLES.near_miss("graph-break")
def one_graph():
    def step(x):
        return x.sin().cos()

    return Compiling(lambda: _compiled(step, fullgraph=True)(X))


@EXAMPLES.near_miss("graph-break")
def a_branch_on_a_shape():
    def step(x):
        return x.sin() if x.shape[0] > 2 else x.cos()

    return Compiling(lambda: _compiled(step)(X))


@EXAMPLES.near_miss("graph-break")
def a_loop_that_is_unrolled():
    def step(x):
        for _ in range(3):
            x = x.sin()
        return x

    return Compiling(lambda: _compiled(step)(X))


@EXAMPLES.near_miss("graph-break")
def a_choice_by_where():
    def step(x):
        return torch.where(x.sum() > 0, x.cos(), x.tan())

    return Compiling(lambda: _compiled(step)(X))


@EXAMPLES.near_miss("graph-break")
def an_error_that_the_function_raises_anyway():
    def step(x):
        if x.shape[0] > 3:
            raise ValueError(x.shape)
        return x.sin()

    def block():
        with contextlib.suppress(ValueError):
            _compiled(step)(X)

    return Compiling(block)


@EXAMPLES.near_miss("graph-break")
def a_function_without_operators():
    return Compiling(lambda: _compiled(lambda _: 3)(X))


@EXAMPLES.near_miss("graph-break")
def a_break_in_a_function_that_is_not_compiled():
    def step(x):
        y = x.sin()
        torch._dynamo.graph_break()
        print(end="")  # noqa: T201
        return y.cos()

    return Compiling(lambda: step(X))


@EXAMPLES.near_miss("graph-break")
def a_function_that_inlines_another():
    def inner(x):
        return x + 1

    return Compiling(lambda: _compiled(lambda x: inner(x.sin()))(X))


@EXAMPLES.near_miss("graph-break")
def a_module_in_training():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    compiled = _compiled(model)
    return Compiling(lambda: compiled(torch.ones(2, 4)).sum().backward())


@EXAMPLES.near_miss("graph-break")
def a_stored_trace_with_compiled_code_and_stacks():
    builder = TraceBuilder(region="")
    with builder.python("train.py(40): step"), builder.op("Torch-Compiled Region: 0/0"):
        builder.op("aten::sin", [[4]], ["float"])
    return builder


# ------------------------------------------------------------------------ recompile


@EXAMPLES.near_miss("recompile")
def training_and_evaluation_need_a_graph_each():
    weight = torch.ones(4, requires_grad=True)

    def step(x):
        return (x * weight).sin()

    def block():
        compiled = _compiled(step)
        for _ in range(2):
            compiled(X)
            with torch.no_grad():
                compiled(X)

    return Compiling(block)


@EXAMPLES.positive("recompile")
def three_sizes_of_which_the_second_makes_it_dynamic():
    def step(x):  # <- here
        return x.sin()

    def block():
        compiled = _compiled(step)
        for size in (3, 4, 5):
            compiled(torch.ones(size))

    return Compiling(block)


@EXAMPLES.positive("recompile", 2)
def three_sizes_without_dynamic_shapes():
    def step(x):  # <- here
        return x.sin()

    def block():
        compiled = _compiled(step, dynamic=False)
        for size in (3, 4, 5):
            compiled(torch.ones(size))

    return Compiling(block)


@EXAMPLES.positive("recompile")
def another_type():
    def step(x):  # <- here
        return x.sin()

    def block():
        compiled = _compiled(step)
        compiled(X)
        compiled(X.double())

    return Compiling(block)


@EXAMPLES.positive("recompile")
def another_number_of_dimensions():
    def step(x):  # <- here
        return x.sin()

    def block():
        compiled = _compiled(step)
        compiled(X)
        compiled(torch.ones(4, 4))

    return Compiling(block)


@EXAMPLES.positive("recompile")
def a_flag_that_changes():
    def step(x, flag):  # <- here
        return x.sin() if flag else x.cos()

    def block():
        compiled = _compiled(step)
        for flag in (True, False, True, False):
            compiled(X, flag)

    return Compiling(block)


@EXAMPLES.positive("recompile")
def a_string_that_changes():
    def step(x, mode):  # <- here
        return x.amax() if mode == "max" else x.sum()

    def block():
        compiled = _compiled(step)
        for mode in ("max", "mean"):
            compiled(X, mode)

    return Compiling(block)


@EXAMPLES.positive("recompile")
def a_global_that_changes():
    def step(x):  # <- here
        return x * FACTOR

    def block():
        global FACTOR
        compiled = _compiled(step)
        for FACTOR in (2.0, 3.0):
            compiled(X)

    return Compiling(block)


@EXAMPLES.near_miss("recompile")
def a_function_that_an_earlier_test_has_compiled():
    def step(x):
        return x.sin()

    compiled = _compiled(step)
    compiled(X)
    return Compiling(lambda: compiled(X.double()))


@EXAMPLES.positive("recompile")
def two_sizes_of_a_function_that_an_earlier_test_has_compiled():
    def step(x):  # <- here
        return x.sin()

    compiled = _compiled(step, dynamic=False)
    compiled(X)
    return Compiling(lambda: [compiled(torch.ones(size)) for size in (5, 6)])


@EXAMPLES.near_miss("recompile")
def a_stored_trace_in_which_variants_run():
    builder = TraceBuilder(region="")
    for _ in range(3):
        for region in ("0/0", "0/1", "1/0", "1/2"):
            with builder.op(f"Torch-Compiled Region: {region}"):
                builder.op("aten::sin", [[4]], ["float"])
    return builder


@EXAMPLES.near_miss("recompile")
def the_first_compilation():
    return Compiling(lambda: _compiled(lambda x: x.sin())(X))


@EXAMPLES.near_miss("recompile")
def dynamic_shapes_from_the_start():
    def step(x):
        return x.sin()

    def block():
        compiled = _compiled(step, dynamic=True)
        for size in (3, 4, 5):
            compiled(torch.ones(size))

    return Compiling(block)


@EXAMPLES.near_miss("recompile")
def two_functions():
    def block():
        _compiled(lambda x: x.sin())(X)
        _compiled(lambda x: x.cos())(X)

    return Compiling(block)


@EXAMPLES.near_miss("recompile")
def a_compiled_function_inside_another():
    inner = _compiled(lambda x: x + 1)
    outer = _compiled(lambda x: inner(x.sin()))
    return Compiling(lambda: outer(X))


@EXAMPLES.near_miss("recompile")
def a_stored_trace_with_first_attempts():
    builder = TraceBuilder(region="")
    for region in ("0/0", "1/0", "10/0"):
        with builder.op(f"Torch-Compiled Region: {region}"):
            builder.op("aten::sin", [[4]], ["float"])
    return builder
