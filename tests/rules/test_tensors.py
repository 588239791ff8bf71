"""Which tensor is which, in a live capture that was asked to know."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from support.live import captured

from pytest_torchprof.trace.names import operators_named
from pytest_torchprof.trace.tensors import ListedTensors, addresses, listed

if TYPE_CHECKING:
    from pathlib import Path


def test_views_have_their_tensors_number_and_later_tensors_have_others(tmp_path: Path) -> None:
    x = torch.randn(12, 8)

    def block() -> None:
        carried = torch.zeros(8)
        for i in range(12):
            carried = torch.mul(carried, x[i])

    trace = captured(block, tmp_path, tensors=True)
    products = operators_named(trace, "aten::mul")
    arguments = trace.taken(products)
    outputs = trace.made(products)
    assert arguments is not None
    assert outputs is not None
    assert len(products) == 12
    assert {row[1] for row in arguments} == {
        row[0] for row in trace.taken(operators_named(trace, "aten::select")) or ()
    }
    carried = [row[0] for row in arguments]
    assert len(set(carried)) == 12
    # What each repetition has made, the next takes; what the last has made, nothing takes.
    assert [set(made) for made in outputs[:-1]] == [{number} for number in carried[1:]]
    assert outputs[-1] == frozenset()


def test_a_tensor_that_takes_anothers_place_in_memory_has_its_own_number(tmp_path: Path) -> None:
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.Conv2d(4, 4, 1, bias=False),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.Conv2d(4, 3, 1),
        torch.nn.BatchNorm2d(3),
    )
    x = torch.rand(2, 3, 6, 6)
    with torch.no_grad():
        trace = captured(lambda: layers(x), tmp_path, tensors=True)
    norms = trace.taken(operators_named(trace, "aten::batch_norm"))
    assert norms is not None
    assert len({row[0] for row in norms}) == 3


def test_lists_of_tensors_are_known_one_by_one_and_others_are_none(tmp_path: Path) -> None:
    parts = [torch.ones(3), torch.ones(3)]
    parts.append(parts[0])
    trace = captured(lambda: torch.stack(parts, 0), tmp_path, tensors=True)
    stack = operators_named(trace, "aten::stack")
    arguments = trace.taken(stack)
    assert arguments is not None
    listed, dim = arguments[0]
    assert isinstance(listed, tuple)
    assert listed[0] == listed[2] != listed[1]
    assert dim == -1


def test_a_tensors_address_is_that_of_its_allocation_and_of_no_tensor_there_is_none(
    tmp_path: Path,
) -> None:
    def block() -> None:
        x = torch.zeros(3, 500)
        torch.exp(x[1:])
        torch.arange(7)

    trace = captured(block, tmp_path, tensors=True)
    memory = trace.memory
    assert memory.addr is not None
    (made,) = memory.addr[memory.bytes == 3 * 500 * 4].tolist()[:1]
    assert addresses(trace, operators_named(trace, "aten::exp")) == [made]
    assert set(addresses(trace, operators_named(trace, "aten::arange")) or ()) <= {-1}


def test_a_list_that_is_too_long_for_the_trace_is_known_with_its_shapes(tmp_path: Path) -> None:
    parts = [torch.ones(n, dtype=torch.bfloat16) for n in range(40)]
    trace = captured(lambda: torch.cat(parts).add(1), tmp_path, tensors=True)
    cat = operators_named(trace, "aten::cat")
    assert trace.input_shapes(cat)[0][0] == []
    assert listed(trace, cat) == [ListedTensors(tuple((n,) for n in range(40)), 2)]
    assert listed(trace, operators_named(trace, "aten::add")) == [None]


def test_the_backward_pass_on_its_own_thread_is_known_too(tmp_path: Path) -> None:
    weight = torch.ones(4, 4, requires_grad=True)
    x = torch.ones(4, 4)

    def block() -> None:
        torch.mm(x, weight).sum().backward()  # type: ignore[no-untyped-call]

    trace = captured(block, tmp_path, tensors=True)
    products = operators_named(trace, "aten::mm")
    arguments = trace.taken(products)
    assert arguments is not None
    assert len(products) == 2
    forward, backward = arguments
    assert forward[0] == backward[0]  # x, transposed


def test_no_other_capture_knows(tmp_path: Path) -> None:
    trace = captured(lambda: torch.ones(3).add(1), tmp_path)
    assert trace.taken(operators_named(trace, "aten::add")) is None
    assert trace.made(np.zeros(0, np.int64)) is None
    assert listed(trace, np.zeros(0, np.int64)) is None
    assert trace.could_know_tensors
