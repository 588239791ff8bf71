"""FLOPs of a graph that inductor compiled, from the text of the graph that torch keeps.

Inductor calls a library for some products, which a trace shows as operators, and writes others as
loops of its own, which a trace does not show: a `bmm` with one row, `mv`, `flex_attention`. The
graph that it lowers, printed with shapes, still has them. The exceptions are the few that it
decomposed into a multiplication and a sum: those are recognized by the names of the loops.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, Final

from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.trace.facts import Graph
from pytest_torchprof.work.flops import FORMULAS, flops

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
