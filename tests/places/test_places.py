"""Where an event of a stored trace happened: the user's function, the modules, the operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.real_traces import CORPUS
from support.trace_builder import Scope, TraceBuilder

from pytest_torchprof.places.place import Owner, Place, by_frames, by_operator, frame_of, owner_of
from pytest_torchprof.trace.names import Kind
from pytest_torchprof.trace.read import read_trace
from pytest_torchprof.trace.tree import ENGINE, forward_of

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

FORWARD = "net.py(8): forward"


def trace_of(builder: TraceBuilder, folder: Path) -> Events:
    return read_trace(builder.save(folder / "x.json"))


def rows_of(trace: Events, name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.flatnonzero(trace.named(name))


def places(trace: Events, name: str) -> list[Place]:
    """The place of each event of this name."""
    found, at = by_frames(trace, rows_of(trace, name))
    return [found[number] for number in at.tolist()]


def place(trace: Events, name: str) -> Place:
    (found,) = places(trace, name)
    return found


# -------------------------------------------------------------------- whose code a file is


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        ("train.py", Owner.USER),
        ("test_model.py", Owner.USER),
        ("test.py", Owner.USER),
        ("net/blocks.py", Owner.USER),
        ("moca/library/profiling/profile.py", Owner.USER),
        ("/anywhere/code/train.py", Owner.USER),
        ("/anywhere/transformers/train.py", Owner.USER),
        ("C:\\work\\train.py", Owner.USER),
        ("<ipython-input-3-abc>", Owner.USER),
        ("/tmp/ipykernel_12/345.py", Owner.USER),
        ("transformers/models/bert/modeling_bert.py", Owner.LIBRARY),
        ("torchvision/models/resnet.py", Owner.LIBRARY),
        ("/usr/lib/python3/dist-packages/mine/net.py", Owner.LIBRARY),
        ("/venv/lib/python3.11/site-packages/timm/vit.py", Owner.LIBRARY),
        ("/venv/lib/python3.11/site-packages/torch/nn/functional.py", Owner.MACHINERY),
        ("torch/nn/functional.py", Owner.MACHINERY),
        ("torch\\nn\\functional.py", Owner.MACHINERY),
        ("_pytest/python.py", Owner.MACHINERY),
        ("pluggy/_callers.py", Owner.MACHINERY),
        ("contextlib.py", Owner.MACHINERY),
        ("multiprocessing/process.py", Owner.MACHINERY),
        ("/usr/lib/python3.12/runpy.py", Owner.MACHINERY),
        ("/tmp/torchinductor_me/ab/cabc.py", Owner.MACHINERY),
        ("<frozen os>", Owner.MACHINERY),
        ("<string>", Owner.MACHINERY),
        ("<eval_with_key>.3", Owner.MACHINERY),
    ],
)
def test_the_owner_of_a_file(file: str, owner: Owner) -> None:
    assert owner is owner_of(file)


@pytest.mark.parametrize(
    "name", ["<built-in function linear>", "nn.Module: Linear_0", "aten::mm", "x.py(a): f", ""]
)
def test_an_event_that_is_not_a_frame_has_none(name: str) -> None:
    assert frame_of(name) is None


def test_a_frame_may_have_brackets_in_its_file() -> None:
    frame = frame_of("a(1)/b.py(12): <lambda>")
    assert frame is not None
    assert ("a(1)/b.py:12", "<lambda>") == (frame.location, frame.called)


# -------------------------------------------------------------------- stacks


def nested(builder: TraceBuilder, *names: str, op: str = "aten::mm") -> None:
    """An operator below frames, modules, operators (``aten::…``) and annotations (``#…``)."""
    if not names:
        builder.op(op)
        return
    name, *inner = names
    kinds: dict[str, Callable[[str], Scope]] = {"a": builder.op, "#": builder.annotation}
    make = kinds.get(name[0], builder.python)
    with make(name):
        nested(builder, *inner, op=op)


def test_the_innermost_function_of_the_user_is_the_place(tmp_path: Path) -> None:
    b = TraceBuilder()
    torch = "torch/nn/modules/linear.py(130): forward"
    nested(b, "train.py(3): train", "nn.Module: Net_0", FORWARD, "nn.Module: Linear_1", torch,
           "<built-in function linear>", "aten::linear")  # fmt: skip
    found = place(trace_of(b, tmp_path), "aten::mm")
    path = "forward() > aten::linear > aten::mm"
    assert Place("net.py:8", path, "Net_0.Linear_1") == found


def test_what_the_function_was_called_from_is_not_in_the_path(tmp_path: Path) -> None:
    b = TraceBuilder()
    nested(b, "train.py(3): train", "#outer", FORWARD, "#inner")
    assert "forward() > #inner > aten::mm" == place(trace_of(b, tmp_path), "aten::mm").path


def test_library_code_is_the_place_where_no_function_of_the_user_is_around(tmp_path: Path) -> None:
    b = TraceBuilder()
    nested(b, "#step", "vllm/worker.py(9): execute", "vllm/parameter.py(122): __torch_function__")
    trace = trace_of(b, tmp_path)
    assert Place("vllm/worker.py:9", "execute() > aten::mm") == place(trace, "aten::mm")


def test_a_line_in_several_modules_of_one_class_is_one_place(tmp_path: Path) -> None:
    b = TraceBuilder()
    with b.python("train.py(3): train"), b.module("nn.Module: Net_0"):
        for number in range(3):
            nested(b, FORWARD, f"nn.Module: Linear_{number}")
        nested(b, FORWARD, "nn.Module: Conv2d_0")
    found = Counter(places(trace_of(b, tmp_path), "aten::mm"))
    assert {"Net_0.Linear_*": 3, "Net_0.Conv2d_0": 1} == {p.module: n for p, n in found.items()}


def test_a_trace_without_stacks_has_the_path_of_operators(tmp_path: Path) -> None:
    b = TraceBuilder()
    with b.annotation("ProfilerStep#3"), b.annotation("encode"):
        nested(b, "aten::linear")
    trace = trace_of(b, tmp_path)
    rows = rows_of(trace, "aten::mm")
    assert Place(path="encode > aten::linear > aten::mm") == place(trace, "aten::mm")
    assert by_operator(trace, rows)[0] == by_frames(trace, rows)[0]


def test_an_unknown_event_has_no_place(tmp_path: Path) -> None:
    b = TraceBuilder()
    nested(b, FORWARD)
    trace = trace_of(b, tmp_path)
    found, at = by_frames(trace, np.array([-1, int(rows_of(trace, "aten::mm")[0]), -1]))
    assert [None, "net.py:8", None] == [found[number].location for number in at]
    assert [Place()] == by_frames(trace, np.zeros(0, np.int64))[0]


# -------------------------------------------------------------------- backward


def training(*, numbers: bool = True, thread: int = 77) -> TraceBuilder:
    """A forward pass of two layers, and its backward pass on a thread of its own."""

    def number(n: int, forward_thread: int) -> dict[str, int]:
        return {"Sequence number": n, "Fwd thread id": forward_thread} if numbers else {}

    b = TraceBuilder()
    with b.python("train.py(3): train"):
        for n in (6, 7):
            with b.module("nn.Module: Net_0"), b.python(f"net.py({n}): layer{n}"):
                nested(b, op="aten::item") if n == 6 else b.op("aten::zeros", args=number(n, 0))
                with b.op("aten::linear", args=number(n, 0)):
                    b.op("aten::addmm", args=number(n, 0))
        b.advance(5)
        for n in (7, 6):
            node = "AddmmBackward0"
            with b.thread(thread), b.op(ENGINE + node, args=number(n, 1)), b.op(node):
                b.op("aten::mm")
        with b.thread(thread), b.op(f"{ENGINE}torch::autograd::AccumulateGrad"):
            b.op("aten::add_")
    return b


def test_a_gradient_is_placed_at_its_forward_operator(tmp_path: Path) -> None:
    trace = trace_of(training(), tmp_path)
    found = places(trace, "aten::mm")
    assert ["net.py:7", "net.py:6"] == [p.location for p in found]
    assert ["Net_0"] * 2 == [p.module for p in found]
    assert "layer7() > AddmmBackward0 > aten::mm" == found[0].path
    forward = forward_of(trace, rows_of(trace, "aten::mm"))
    assert ["aten::addmm"] * 2 == [trace.names[trace.name[row]] for row in forward]


def test_the_forward_operator_is_the_last_that_saw_the_number(tmp_path: Path) -> None:
    """One before it, on another line, may have seen the number and made no node."""
    b = TraceBuilder()
    args = {"Sequence number": 5, "Fwd thread id": 0}
    with b.python("train.py(3): train"):
        with b.python("log.py(9): log"):
            b.op("aten::item", args=args)
        with b.python(FORWARD):
            b.op("aten::addmm", args=args)
        with b.thread(9), b.op(f"{ENGINE}AddmmBackward0", args={**args, "Fwd thread id": 1}):
            b.op("aten::mm")
        with b.python("log.py(9): log"):  # the number comes again in a later step
            b.op("aten::item", args=args)
    assert "net.py:8" == place(trace_of(b, tmp_path), "aten::mm").location


def test_a_gradient_on_the_thread_of_the_forward_pass_is_placed_there_too(tmp_path: Path) -> None:
    trace = trace_of(training(thread=4242), tmp_path)
    assert ["net.py:7", "net.py:6"] == [p.location for p in places(trace, "aten::mm")]


def test_an_accumulated_gradient_has_the_place_of_the_call(tmp_path: Path) -> None:
    trace = trace_of(training(thread=4242), tmp_path)
    assert "train.py:3" == place(trace, "aten::add_").location
    assert [-1] == forward_of(trace, rows_of(trace, "aten::add_")).tolist()


def test_without_numbers_a_gradient_has_no_forward_operator(tmp_path: Path) -> None:
    trace = trace_of(training(numbers=False), tmp_path)
    assert [-1, -1] == forward_of(trace, rows_of(trace, "aten::mm")).tolist()
    assert [None, None] == [p.location for p in places(trace, "aten::mm")]


def test_python_frames_within_a_node_give_its_place(tmp_path: Path) -> None:
    """A user's own ``backward``, or a checkpoint that computes a part again."""
    b = TraceBuilder()
    args = {"Sequence number": 5, "Fwd thread id": 0}
    nested(b, FORWARD)
    with b.python(FORWARD):
        b.op("aten::relu", args=args)
    node = {**args, "Fwd thread id": 1}
    with b.thread(9), b.op(f"{ENGINE}FooBackward", args=node), b.python("ops.py(30): backward"):
        b.op("aten::mul")
    trace = trace_of(b, tmp_path)
    assert Place("ops.py:30", "backward() > aten::mul") == place(trace, "aten::mul")


def test_the_node_itself_is_placed_like_what_is_in_it(tmp_path: Path) -> None:
    trace = trace_of(training(thread=4242), tmp_path)
    found = [p.location for p in places(trace, f"{ENGINE}AddmmBackward0")]
    assert ["net.py:7", "net.py:6"] == found


# -------------------------------------------------------------------- real traces


@pytest.mark.parametrize("model", ["bert", "vit"])
def test_real_traces_with_stacks_name_the_users_function_and_the_module(model: str) -> None:
    path = CORPUS / f"h100_{model}_inference.pt.trace.json.gz"
    if not path.exists():
        pytest.skip(f"no {path.name} in {CORPUS}")
    trace = read_trace(path)
    found = places(trace, "aten::addmm")
    assert {f"moca/library/model_hub/huggingface/model/adapters/{model_file(model)}"} == {
        (p.location or "").partition(":")[0] for p in found
    }
    modules = Counter((p.module or "").split(".")[-1] for p in found)
    assert {"Linear_*", "Linear_24" if model == "bert" else "Linear_72"} <= modules.keys()
    assert len(found) == sum(modules.values()) > len(modules)


def model_file(model: str) -> str:
    return {"bert": "text_base_model.py", "vit": "image_model.py"}[model]


def test_places_of_many_events_take_no_time_each(tmp_path: Path) -> None:
    b = TraceBuilder()
    for number in range(300):
        with b.python(FORWARD), b.module(f"nn.Module: Linear_{number}"):
            nested(b, "aten::linear")
    trace = trace_of(b, tmp_path)
    found, at = by_frames(trace, np.repeat(np.flatnonzero(trace.is_kind(Kind.OP)), 50))
    assert (3, 30_000) == (len(found), len(at))
