"""FLOPs of a trace: which operators count, how many each has, and which are unknown."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from pytest_torchprof.core.process import late
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import OpArgs, alike, decode_part, int64_column
from pytest_torchprof.trace.facts import Graph
from pytest_torchprof.trace.names import Kind, once_of_whole, once_per_trace
from pytest_torchprof.trace.steps import holds_whole_operators
from pytest_torchprof.work.dispatch import has_kernel, may_compose
from pytest_torchprof.work.flops import FORMULAS, flops
from pytest_torchprof.work.operands import Operands

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints


# ---- Choose which of several nested operators with FLOPs actually ran.
#
# Usually the outermost covers everything, and the nested ones are its parts: a convolution and
# its library's kernel. But an operator may only redispatch its call, and then its operands are
# not those of the work that ran: a `DTensor` has the shape of all ranks, and under
# `torch.func.vmap` the shape is that of one sample. The call that did the work is nested, with
# the real shapes, so it counts instead:
#
# - what ran inside ``PythonSubclass``, the marker of ``__torch_dispatch__``. A mode that is entered
#   in there (``PythonDispatchMode``) works on fake tensors, to compute a shape;
# - inside an operator of the same name or family: a batching rule turns `mm` into `bmm`. Where both
#   have the same number, the outer one counts.
#
# In forward mode, an operator's derivatives run nested in it, after ``_fw_primal``: they are
# treated as its siblings.

#: Markers of torch's dispatcher. Source: aten/src/ATen/core/PythonFallbackKernel.cpp.
_SUBCLASS: Final = "PythonSubclass"
_MODE: Final = "PythonDispatchMode"
#: … and of dynamo, which compiles with fake tensors. Source: torch/_dynamo/utils.py.
_COMPILING: Final = "(dynamo_timed)"
#: What forward mode calls on each input after the operator itself is done.
#: Source: tools/autograd/gen_variable_type.py, ``FW_DERIVATIVE_TEMPLATE``.
_FORWARD_MODE: Final = "aten::_fw_primal"

#: Products may be made of one another (`addmm` of `mm`, `mv` of `addmv_`, `bmm` of many `addmm_`),
#: and so may convolutions.
_PRODUCTS: Final = frozenset(
    f"aten::{name}"
    for name in (
        *("mm", "addmm", "addmm_", "_addmm_activation", "bmm", "baddbmm", "baddbmm_"),
        *("mv", "addmv", "addmv_", "dot", "vdot", "_int_mm", "_grouped_mm"),
    )
)
_CONVOLUTIONS: Final = frozenset(
    name for name in FORMULAS if "conv" in name and "backward" not in name and "aten::" in name
)
#: Operator -> the operators it may redispatch to, besides its own name.
_HANDED_TO: Final = {
    **dict.fromkeys(_PRODUCTS, _PRODUCTS),
    **dict.fromkeys(_CONVOLUTIONS, _CONVOLUTIONS),
    # Batched, the gradient of a weight is a convolution with one group per sample.
    "aten::convolution_backward": {"aten::convolution"},
}


class Ran(NamedTuple):
    """``counts``: the events whose FLOPs count; of events nested by ``parent``, at most one.

    ``fake``: those that worked on fake tensors, for a tensor subclass or a compiler.
    """

    counts: Bools
    parent: Ints
    fake: Bools

    def part(self, selection: Bools) -> Ran:
        """The same for a part that cuts no operator."""
        return self._replace(counts=self.counts & selection)


class Dispatch(NamedTuple):
    """How torch's dispatcher handed calls on.

    ``parent``: the nesting that decides what counts; ``subclass``: the events in which a tensor
    subclass took over; ``fake``: as in `Ran`.
    """

    parent: Ints
    subclass: Ints
    fake: Bools

    @classmethod
    def of(cls, name: Ints, names: Sequence[str], parent: Ints) -> Dispatch:
        """``names[name[i]]`` is the name of event ``i``, ``parent[i]`` that around it, or -1."""
        parent = _beside(name, names, parent)
        subclass = _events(_SUBCLASS, name, names)
        compiling = [known for known in names if known.endswith(_COMPILING)]
        around = np.concatenate([subclass, *(_events(one, name, names) for one in compiling)])
        return cls(parent, subclass, _fake(around, _events(_MODE, name, names), parent))


def ran(flops: Ints, name: Ints, names: Sequence[str], dispatch: Dispatch) -> Ran:
    """Which events count, and the nesting used to decide that.

    ``flops[i]`` is the number of event ``i``, -1 for none; ``names[name[i]]`` its name.
    """
    parent, subclass, fake = dispatch
    real = (flops >= 0) & ~fake
    if not real.any():
        return Ran(real, parent, fake)
    if len(handed := _handed_on(real, subclass, name, names, parent)):
        trial = real.copy()
        trial[handed] = False
        inside = sums(handed, nesting.outermost(trial, parent), flops, parent)
        # If both have the same number, the outer one counts: its name says more.
        real[handed[inside != flops[handed]]] = False
    return Ran(nesting.outermost(real, parent), parent, fake)


#: What a checkpoint's hook calls on an operand that it saves.
_KEEPING: Final = frozenset({"aten::detach", "detach"})


def broken_off(
    rows: Ints, call: Ints, name: Ints, names: Sequence[str], parent: Ints, signs: Ints
) -> Bools:  # fmt: skip
    """Which of these events raised before they did any work, like the last one of a recomputation.

    A checkpoint recomputes until it has what the gradients need. Then it raises, out of the
    operator that was about to start. Such an event contains only the saving of its operands, and
    shows no sign of work where another event with the same ``call`` (a number for name and
    operands) does. ``signs`` are the events that called a device's runtime or allocated memory
    themselves.
    """
    works = nesting.above(signs, parent)
    works[signs] = True
    some = np.zeros(int(call.max(initial=0)) + 1, bool)
    some[call[works[rows]]] = True
    keeping = np.fromiter((n in _KEEPING for n in names), bool, len(names))
    works[parent[(parent >= 0) & ~keeping[name]]] = True
    idle: Bools = ~works[rows] & some[call]
    return idle


def sums(roots: Ints, counts: Bools, flops: Ints, parent: Ints) -> Ints:
    """FLOPs of the counted events within each root."""
    wanted = np.zeros(len(flops), bool)
    wanted[roots] = True
    total = np.zeros(len(flops), np.int64)
    rows = np.flatnonzero(counts)
    at = parent[rows]
    while len(rows := rows[at >= 0]):
        at = at[at >= 0]
        hit = wanted[at]
        np.add.at(total, at[hit], flops[rows[hit]])
        at = parent[at]
    sums: Ints = total[roots]
    return sums


def _events(wanted: str, name: Ints, names: Sequence[str]) -> Ints:
    if wanted not in names:
        return np.zeros(0, np.int64)
    numbers = [i for i, known in enumerate(names) if known == wanted]
    return np.flatnonzero(nesting.among(name, numbers))


def _beside(name: Ints, names: Sequence[str], parent: Ints) -> Ints:
    """Parents, with forward-mode derivatives as siblings of the operator they derive."""
    taken = _events(_FORWARD_MODE, name, names)
    if len(taken):
        taken = taken[parent[taken] >= 0]
    if not len(taken):
        return parent
    first = np.full(len(parent), len(parent), np.int64)
    np.minimum.at(first, parent[taken], taken)
    inside = np.flatnonzero(parent >= 0)
    later = inside[inside > first[parent[inside]]]
    out, of = parent.copy(), parent[later]
    while (moved := out[of] != out[later]).any():  # such operators can be nested
        out[later[moved]] = out[of[moved]]
    return out


def _fake(around: Ints, mode: Ints, parent: Ints) -> Bools:
    """What ran on fake tensors: in a mode entered by a subclass's handler or by dynamo."""
    fake = np.zeros(len(parent), bool)
    if not (len(around) and len(mode)):
        return fake
    handler = fake.copy()
    handler[around] = True
    inner = mode[nesting.below(handler, parent, mode)]
    fake[inner] = True
    above = parent[inner]  # the operator that the mode intercepted
    fake[above[~handler[above]]] = True
    every = np.flatnonzero(parent >= 0)
    fake[every[nesting.below(fake, parent, every)]] = True
    return fake


def _handed_on(
    real: Bools, subclass: Ints, name: Ints, names: Sequence[str], parent: Ints
) -> Ints:  # fmt: skip
    """Events that were redispatched to another one, nested in them."""
    rows = real.nonzero()[0]
    rows = rows[nesting.below(real, parent, rows)]
    if not len(rows):
        return rows
    own, kind = _present(name[rows], len(names))
    others, kind_of = _present(name[real], len(names))
    name_of = names.__getitem__
    may = _may_hand_on(tuple(map(name_of, others.tolist())), tuple(map(name_of, own.tolist())))
    if not (len(subclass) or may.any()):
        return rows[:0]
    handler = np.zeros(len(real), bool)
    handler[subclass] = True
    handed = np.zeros(len(real), bool)
    crossed = np.zeros(len(rows), bool)
    at, todo = parent[rows], np.arange(len(rows))
    while len(todo):
        here = at[todo]
        crossed[todo] |= handler[here]
        known = real[here]
        inner, outer = todo[known], here[known]
        handed[outer[crossed[inner] | may[kind_of[name[outer]], kind[name[rows[inner]]]]]] = True
        at[todo] = parent[here]
        todo = todo[at[todo] >= 0]
    return np.flatnonzero(handed)


@lru_cache(maxsize=100)
def _may_hand_on(outermost: tuple[str, ...], inner: tuple[str, ...]) -> Bools:
    """For each outer name and each inner one, whether the first may be redispatched to the other.

    Cached, as runs of a test and similar tests call the same operators; not to be written to.
    """
    families = [{one, *_HANDED_TO.get(one, ())} for one in outermost]
    found = [[name in family for name in inner] for family in families]
    return np.array(found, bool).reshape(len(outermost), len(inner))


def _present(name: Ints, count: int) -> tuple[Ints, Ints]:
    """The distinct numbers among these, in order, and for each number its place among them."""
    there = np.zeros(count, bool)
    there[name] = True
    return there.nonzero()[0], np.cumsum(there) - 1


# ---- FLOPs of a graph that inductor compiled, from the text of the graph that torch keeps.
#
# Inductor calls a library for some products, which a trace shows as operators, and writes others
# as loops of its own, which a trace does not show: a `bmm` with one row, `mv`, `flex_attention`.
# The graph that it lowers, printed with shapes, still has them. The exceptions are the few that
# it decomposed into a multiplication and a sum: those are recognized by the names of the loops.

#: The annotation around each call of a compiled graph. Source: torch/_inductor/output_code.py.
CALL: Final = late(r"^## Call CompiledFxGraph (\w+) ##$")

_SHAPE: Final = late(r'(\w+): "\w+\[([^\]]*)\]')
_NODE: Final = late(r"^\w+(: \".*?\")? = torch\.ops\.(\w+)\.(\w+)(\.\w+)?\(")
#: Subgraphs follow the graph, such as the `score_mod` of `flex_attention`.
_INNER: Final = late(r"\n\s*class ")
_LOOP: Final = late(r"\b((?:cpp|triton_\w{3})_(?:\w+?_)?fused_(\w+?)_\d+)\b")
#: Operators that a loop with their name may implement as a whole.
_PRODUCT: Final = late(r"(?:^|_)(mm|bmm|addmm|baddbmm|mv|addmv|dot|vdot)(?=_|$)")
#: What else a loop's name may contain without the graph multiplying two tensors.
_PLAIN: Final = late(
    r"(?:(?:mm|bmm|addmm|baddbmm|mv|addmv|dot|vdot|add|sub|neg|sum|view|permute|transpose|t|expand"
    r"|unsqueeze|squeeze|clone|copy|select|slice|cat|relu|_unsafe_view|_to_copy)(?:_|$))+"
)
#: Calls to a library's products.
_LIBRARY: Final = late(r"\bextern_kernels\.(\w+)\(")
#: Views and casts between a product and an addition to it.
_SAME: Final = (
    "view",
    "reshape",
    "_unsafe_view",
    "convert_element_type",
    "_to_copy",
    "slice",
    "permute",
    "expand",
)
#: Operator -> the operator in the graph that does a part of it.
_MADE_OF: Final = {"addmm": "mm", "baddbmm": "bmm", "addmv": "mv", "vdot": "dot"}
#: By name: the operator with the same FLOPs in `FlopCounterMode`, and the position of its queries.
_FLEX: Final = {
    "higher_order::flex_attention": ("aten::_scaled_dot_product_flash_attention", 0),
    "higher_order::flex_attention_backward": (
        "aten::_scaled_dot_product_flash_attention_backward",
        1,
    ),
}


def key_of(name: str) -> str | None:
    """Inductor's key, from the annotation around the call of a compiled graph.

    >>> key_of("## Call CompiledFxGraph f2p2cq ##"), key_of("aten::mm")
    ('f2p2cq', None)
    """
    found = CALL.match(name) if name.startswith("## ") else None
    return found[1] if found else None


def read_graph(text: str, source: str) -> Graph:
    """Read a graph as `GraphModule.print_readable` writes it, and the code generated from it."""
    text = _INNER.split(text, maxsplit=1)[0]
    shapes = {name: _numbers(inner) for name, inner in _SHAPE.findall(text)}
    total, dynamic, held = 0, list[str](), Counter[str]()
    multiplied = list[int | None]()
    for name, line in _nodes(text):
        if name == "aten::mul":
            multiplied += _product_of_tensors(line, shapes)
        if name not in FORMULAS and name not in _FLEX:
            continue
        held[name.partition("::")[2]] += 1
        number = _flops(name, line, shapes)
        if number is None:
            dynamic.append(name)
        else:
            total += number
    count = held.total()
    lost = loops_of_products(source, _expected(text, source, held)) if multiplied else []
    if lost:
        every = [fused for _, fused in _LOOP.findall(source)]
        if None in multiplied or not all(map(_PLAIN.fullmatch, every)):
            return Graph(total, count, tuple(dynamic), tuple(lost))
        total += 2 * sum(size for size in multiplied if size is not None)
        count += len(multiplied)
    return Graph(total, count, tuple(dynamic))


def loops_of_products(source: str, expected: Mapping[str, int] | None = None) -> list[str]:
    r"""Loops in this code that are named after a product, if there are more than ``expected``.

    >>> loops_of_products("cpp_fused_mv_0(a, b)\ncpp_fused_addmm_relu_1(c)", {"addmm": 1})
    ['cpp_fused_mv_0']
    """
    bearing = dict[str, dict[str, None]]()
    for loop, fused in _LOOP.findall(source):
        for name in _PRODUCT.findall(fused):
            bearing.setdefault(name, {})[loop] = None
    found = dict[str, None]()
    for name, loops in bearing.items():
        if len(loops) > (expected or {}).get(name, 0):
            found |= loops
    return list(found)


def _expected(text: str, source: str, held: Counter[str]) -> Counter[str]:
    """How many loops may be named after each product without a product missing from the graph.

    These are the graph's products that no library computes, additions to a product (the bias of an
    ``addmm`` whose ``mm`` is in the graph), and padding for a product.
    """
    pads = sum(name == "aten::constant_pad_nd" for name, _ in _nodes(text))
    loops = held - Counter(_LIBRARY.findall(source))
    for name in held:
        loops[name] += pads
    for whole, part in _MADE_OF.items():
        loops[whole] += _additions(text, part) + held[part] * (whole == "vdot")
        loops[whole] += pads if held[part] else 0
    return loops


def _additions(text: str, product: str) -> int:
    """Additions to a result of this product, or to a multiple of it."""
    results, found = set[str](), 0
    for name, line in _nodes(text):
        own = name.partition("::")[2]
        operands = set(re.findall(r"\w+", line.partition("(")[2].partition(";")[0]))
        if own == product or (own in {"mul", *_SAME} and operands & results):
            results.add(line.partition(":")[0])
        found += own in {"add", "sub"} and bool(operands & results)
    return found


def _nodes(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        if found := _NODE.match(line.strip()):
            yield f"{found[2]}::{found[3]}", line.strip()


def _numbers(inner: str) -> list[Any]:
    """Parse a shape; symbolic sizes stay text, which no formula accepts."""
    parts = [part.strip() for part in inner.split(",") if part.strip()]
    return [int(part) if part.isdigit() else part for part in parts]


def _arguments(line: str) -> list[ast.expr]:
    statement = ast.parse(line).body[0]
    value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
    return value.args if isinstance(value, ast.Call) else []


def _flops(name: str, line: str, shapes: Mapping[str, list[Any]]) -> int | None:
    """By the operator's formula, from what a trace would record about the call."""
    try:
        arguments = _arguments(line)
    except SyntaxError:
        return None
    dims = [_dims(argument, shapes) for argument in arguments]
    concrete = [_concrete(argument) for argument in arguments]
    like, queries = _FLEX.get(name, (name, 0))
    return flops(like, [*[[]] * queries, *dims], None, concrete)


def _dims(argument: ast.expr, shapes: Mapping[str, list[Any]]) -> list[Any]:
    if isinstance(argument, ast.Name):
        return shapes.get(argument.id, [])
    if isinstance(argument, ast.List) and any(isinstance(e, ast.Name) for e in argument.elts):
        return [_dims(element, shapes) for element in argument.elts]
    return []


def _concrete(argument: ast.expr) -> str:
    try:
        value = ast.literal_eval(argument)
    except ValueError:
        return ""
    return "" if value is None else str(value)


def _product_of_tensors(line: str, shapes: Mapping[str, list[Any]]) -> list[int | None]:
    """The size of the product of two tensors; empty if a factor is a number."""
    try:
        arguments = _arguments(line)
    except SyntaxError:
        return [None]
    if not all(isinstance(argument, ast.Name) for argument in arguments):
        return []
    out = shapes.get(line.partition(":")[0], ["?"])
    return [prod(out) if all(isinstance(n, int) for n in out) else None]


# ---- FLOPs of a trace: which operators count, how many FLOPs each has, and which are unknown.

_NONE: Ints = np.zeros(0, np.int64)
_NONE.setflags(write=False)

#: Of fewer calls, decoding each takes less time than finding those with the same text.
_MANY: Final = 1000

#: A call: the number of its name; dimensions, types, values and strides of its operands as JSON.
Call: TypeAlias = tuple[int, bytes, bytes, bytes, bytes]


def has_shapes(trace: Events) -> bool:
    """Whether operators that have a formula carry ``Input Dims``; true if there are none."""
    rows, _, distinct = formula_calls(trace)
    return not len(rows) or any(dims for _, dims, *_ in distinct)


@once_of_whole
def dispatched(trace: Events) -> Dispatch:
    """How the calls of the whole trace were dispatched."""
    return Dispatch.of(trace.name, trace.names, trace.parent)


@once_per_trace
def _ran(trace: Events) -> Ran:
    if holds_whole_operators(trace):
        return _ran(trace.whole).part(trace.selection)
    rows, counts = _formulas(trace)
    flops = np.full(len(trace), -1, np.int64)
    flops[rows] = np.where(trace.selection[rows], counts, -1)
    return ran(flops, trace.name, trace.names, dispatched(trace))


def counts_flops(trace: Events) -> Bools:
    """Selected operators whose FLOPs count: of nested ones, the one that ran."""
    return _ran(trace).counts


def work_parent(trace: Events) -> Ints:
    """Like `parent`, but forward-mode derivatives are siblings of the operator they derive."""
    return _ran(trace).parent


@once_of_whole
def all_computing(trace: Events) -> Bools:
    """Calls that read or write the data of tensors themselves, selected or not; see below."""
    ran = trace.is_kind(Kind.OP) & ~_ran(trace).fake
    own, composed = (ran & trace.names_where(one) for one in (has_kernel, may_compose))
    # What only calls others counts by them, if the trace has them.
    composed &= ~nesting.above((own | composed).nonzero()[0], trace.parent)
    return nesting.outermost(own | composed, trace.parent)


def computing(trace: Events) -> Bools:
    """Selected calls that read or write the data of tensors themselves; of nested ones, one."""
    return all_computing(trace) & trace.selection


def only_shapes(trace: Events) -> Bools:
    """Events in which a tensor subclass computes a shape with fake tensors."""
    return _ran(trace).fake


def op_flops(trace: Events) -> Ints:
    """FLOPs of the operators whose FLOPs count; 0 elsewhere."""
    if holds_whole_operators(trace):
        return op_flops(trace.whole) * trace.selection
    # A column that is made soon again is not kept.
    return trace.once(_with_graphs) if graph_calls(trace) else _of_operators(trace)


@once_per_trace
def total_flops(trace: Events) -> int:
    """FLOPs of all selected operators."""
    if not (trace.has(Kind.OP) or graphs(trace)):
        return 0
    return int(op_flops(trace)[trace.selection].sum())


def _of_operators(trace: Events) -> Ints:
    out = np.zeros(len(trace), np.int64)
    rows, counts = _formulas(trace)
    if len(rows):
        out[rows] = np.where(counts_flops(trace)[rows], counts, 0)
    return out


def _with_graphs(trace: Events) -> Ints:
    out = _of_operators(trace)
    for graph, events in graph_calls(trace).items():
        # Library calls are nested and counted; the rest are inductor's own loops.
        inside = sums(events, counts_flops(trace), out, work_parent(trace))
        out[events] = np.maximum(graphs(trace)[graph].flops - inside, 0)
    return out


@once_per_trace
def graphs(trace: Events) -> Mapping[str, Graph]:
    """Compiled graphs with products, as a live capture recorded them, by inductor's key."""
    return trace.facts.graphs or {}


@once_per_trace
def graph_calls(trace: Events) -> dict[str, Ints]:
    """The selected calls of these graphs."""
    if not graphs(trace):
        return {}
    names = enumerate(trace.names)
    called = {key: i for i, name in names if (key := key_of(name))}
    calls = called_graphs(trace)
    return {
        key: np.flatnonzero((trace.name == called[key]) & calls)
        for key in graphs(trace)
        if key in called
    }


def called_graphs(trace: Events) -> Bools:
    """The selected calls of graphs that inductor compiled, each once.

    The range of its kernels on the device has the same name.
    """
    named = trace.names_where(lambda name: key_of(name) is not None)
    return trace.selection & named & ~trace.is_kind(Kind.GPU_ANNOTATION)


@once_per_trace
def unknown_flops(trace: Events) -> Bools:
    """Selected operators with unknown FLOPs: they have a formula, but no number.

    Excluded are operators with a counted one above them, which covers them, or below them, whose
    parts count instead. Of nested operators without a number, only the outermost is included.
    """
    rows, counts = _formulas(trace)
    unknown = np.zeros(len(trace), bool)
    if not (counts < 0).any():
        return unknown
    known, parent = counts_flops(trace), work_parent(trace)
    found = rows[(counts < 0) & (trace.selection & ~only_shapes(trace))[rows]]
    if len(found):
        found = found[~nesting.below(known, parent, found)]
        found = found[~nesting.above(np.flatnonzero(known), parent)[found]]
        unknown[found] = True
        unknown[found] = ~nesting.below(unknown, parent, found)
    return unknown


@once_of_whole
def formula_calls(trace: Events) -> tuple[Ints, Ints, list[Call]]:
    """The calls of operators that have a formula, as in `distinct_calls`."""
    return distinct_calls(trace, trace.names_where(FORMULAS.__contains__))


def distinct_calls(trace: Events, named: Bools) -> tuple[Ints, Ints, list[Call]]:
    """Operators among these events, for each the number of its call, and the distinct calls."""
    rows = (trace.is_kind(Kind.OP) & named).nonzero()[0]
    if not len(rows):
        return rows, rows, []
    kinds, one = None, rows
    if len(rows) >= _MANY:
        kinds, firsts, _ = alike(trace.name[rows], trace.args[rows])
        one = rows[firsts]
    known: dict[Call, int] = {}
    found = [
        known.setdefault(
            (name, bytes(a.dims), bytes(a.types), bytes(a.concrete), bytes(a.strides)), len(known)
        )
        for name, a in zip(trace.name[one].tolist(), trace.operands(one), strict=True)
    ]
    number = np.array(found, np.int64)
    return rows, number if kinds is None else number[kinds], list(known)


@once_of_whole
def _formulas(trace: Events) -> tuple[Ints, Ints]:
    """Events that have a formula, and their FLOPs (nested or not), or -1."""
    rows, call, known = formula_calls(trace)
    if not known:
        return rows, _NONE
    found = [_flops_of(trace.names[name], *parts) for name, *parts in known]
    counts = int64_column([-1 if n is None else n for n in found])
    # In an old trace, different calls can look alike; do not share numbers between them then.
    if len(known) == len(call) or not any(key[-1] for key in known):
        return rows, counts[call]
    allocating = trace.enclosing(trace.memory.event[trace.memory.bytes > 0])
    signs = np.concatenate([allocating, trace.parent[trace.is_kind(Kind.RUNTIME)]])
    broken = broken_off(rows, call, trace.name, trace.names, trace.parent, signs[signs >= 0])
    return rows, np.where(broken & (counts[call] > 0), 0, counts[call])


@lru_cache(maxsize=10_000)
def _flops_of(name: str, *parts: bytes) -> int | None:
    """FLOPs of a call from its recorded operands; cached, as tests repeat calls."""
    return flops(name, *map(decode_part, parts))


# ---- What is asked of the calls of a trace, once for those that are alike.


def operands_of(args: OpArgs) -> Operands:
    """The operands of a call, decoded."""
    parts = (args.dims, args.types, args.concrete, args.strides)
    return Operands(*[decode_part(bytes(part)) for part in parts])


def by_call(
    trace: Events, rows: Ints, ask: Callable[[str, Operands], float], of: type = int
) -> npt.NDArray[Any]:
    """What ``ask`` says of each of these calls, by name and operands; ``of``: numbers or truths."""
    kinds, firsts, _ = alike(trace.name[rows], trace.args[rows])
    first = rows[firsts]
    names = [trace.names[name] for name in trace.name[first].tolist()]
    found = [ask(*one) for one in zip(names, map(operands_of, trace.operands(first)), strict=True)]
    return np.array(found, of)[kinds]
