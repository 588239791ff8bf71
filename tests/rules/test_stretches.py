"""The place of a match that is of many events: what is around them all, outside of any module."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from support.live import captured, placing
from support.sessions import replaced_rules, run
from support.trace_builder import TraceBuilder
from torch import nn

from pytest_torchprof.places.place import Place, PlacedEvents, by_frames
from pytest_torchprof.rules.check import check
from pytest_torchprof.rules.rule import Matches, Rule, rule
from pytest_torchprof.trace.names import selected_operators
from pytest_torchprof.trace.read import parse_trace

if TYPE_CHECKING:
    import pytest

    from pytest_torchprof.trace.events import Events

X = torch.rand(2, 4)


class Net(nn.Module):
    """Two layers, called on two lines."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        """Both."""
        hidden = self.first(x)
        return self.second(hidden)


def products(trace: Events) -> Matches:
    """All products are one match."""
    rows = selected_operators(trace, "aten::linear", "aten::mm")
    return Matches(rows[:1], "products", parts=[rows])


def at(
    block: Callable[[], Any], folder: Path, apart: tuple[int, ...] = ()
) -> tuple[str | None, str | None]:
    """The text of the line, and the module, of all products of a block, without those of these
    numbers, which it must not enclose.
    """
    trace = captured(block, folder)
    rows = selected_operators(trace, "aten::linear")
    others = rows[list(apart)]
    rows = np.delete(rows, list(apart))
    places, number = placing(block, trace, folder)(trace, rows[:1], {0: PlacedEvents(rows, others)})
    place = places[int(number[0])]
    lines = Path(__file__).read_text("utf-8").splitlines()
    file, _, line = (place.location or "").rpartition(":")
    assert file == __file__
    return lines[int(line) - 1].strip(), place.module


def test_a_model_is_named_where_it_is_called(tmp_path: Path) -> None:
    model = Net()

    def validate() -> None:
        for _ in range(3):
            model(X)

    assert ("model(X)", "model") == at(validate, tmp_path)


def test_two_models_are_where_the_function_is_called_that_calls_both(tmp_path: Path) -> None:
    encoder, decoder = Net(), Net()

    def encode() -> None:
        hidden = encoder(X)
        decoder(hidden)

    def block() -> None:
        encode()

    assert ("encode()", None) == at(block, tmp_path)


def test_of_lines_that_nothing_calls_the_first_is_named(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import torch

        def test_it():
            first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
            x = torch.rand(2, 2)
            hidden = first(x)
            second(hidden)
        """
    )
    with replaced_rules() as known:
        known["products"] = Rule("products", products, "")
        ran = run(pytester, "--torchprof")
    (finding,) = ran.tests["test_it"]["findings"]
    assert ("test_it.py:6", None) == (finding["location"], finding["module"])


def test_beside_what_it_must_not_enclose_it_is_the_line_around_most(tmp_path: Path) -> None:
    model, used, last = Net(), nn.Linear(4, 1), nn.Linear(4, 2)

    def train() -> None:
        used(X)
        last(X)

    def predict() -> None:
        for _ in range(2):
            model(X)

    def block() -> None:
        train()
        predict()

    assert ("predict()", None) == at(block, tmp_path, apart=(0,))
    assert ("last(X)", "last") == at(train, tmp_path, apart=(0,))


def stored(*stacks: tuple[str, ...], apart: tuple[int, ...] = ()) -> tuple[Events, list[Place]]:
    """A trace of a product below each of these stacks, and the place of all of them, without those
    of these numbers, which it must not enclose.
    """
    b = TraceBuilder()

    def nested(names: tuple[str, ...]) -> None:
        if not names:
            b.op("aten::mm")
            return
        with b.python(names[0]):
            nested(names[1:])

    for names in stacks:
        nested(names)
    trace = parse_trace(b.to_bytes())
    rows = selected_operators(trace, "aten::mm")
    others = rows[list(apart)]
    rows = np.delete(rows, list(apart))
    places, number = by_frames(trace, rows[:1], {0: PlacedEvents(rows, others)})
    return trace, [places[i] for i in number.tolist()]


def line_of_loop(block: Callable[[], Any], folder: Path) -> str:
    """The text of the line that is named for the loop from the first sum of a block to the last."""
    trace = captured(block, folder)
    rows = selected_operators(trace, "aten::add")
    ends = PlacedEvents(rows[[0, -1]], rows[:0], kind="loop")
    places, number = placing(block, trace, folder)(trace, rows[:1], {0: ends})
    place = places[int(number[0])]
    file, _, line = (place.location or "").rpartition(":")
    assert file == __file__
    return Path(__file__).read_text("utf-8").splitlines()[int(line) - 1].strip()


def test_a_loop_is_where_it_calls_the_function_that_does_the_work(tmp_path: Path) -> None:
    tensors = [torch.rand(n) for n in range(1, 9)]

    class Average:
        def of(self, old: torch.Tensor) -> torch.Tensor:
            scaled = old * 0.9
            return scaled + 1

    def update(average: Average) -> None:
        for index in range(len(tensors)):
            tensors[index] = average.of(tensors[index])

    def block() -> None:
        update(Average())

    assert line_of_loop(block, tmp_path) == "tensors[index] = average.of(tensors[index])"


def test_a_loop_that_does_the_work_itself_is_at_the_line_that_does_it(tmp_path: Path) -> None:
    tensors = [torch.rand(n) for n in range(1, 9)]

    def block() -> None:
        for one in tensors:
            scaled = one * 0.9
            scaled + 1

    def in_one_line() -> None:
        [one + 2 for one in tensors]

    assert line_of_loop(block, tmp_path) == "scaled + 1"
    assert line_of_loop(in_one_line, tmp_path) == "[one + 2 for one in tensors]"


def test_a_stored_loop_is_in_the_function_that_ran_once() -> None:
    b = TraceBuilder()
    with b.python("train.py(3): main"), b.python("ema.py(20): update"):
        for _ in range(4):
            with b.python("ema.py(9): average"):
                b.op("aten::mm")
    trace = parse_trace(b.to_bytes())
    rows = selected_operators(trace, "aten::mm")
    ends = PlacedEvents(rows[[0, -1]], rows[:0], kind="loop")
    places, number = by_frames(trace, rows[:1], {0: ends})
    assert Place("ema.py:20", "update()") == places[int(number[0])]


def test_of_a_stored_trace_it_is_the_function_around_all_that_no_module_calls() -> None:
    outer = ("train.py(3): main", "train.py(9): validate", "nn.Module: Net_0", "net.py(8): forward")
    _, found = stored((*outer, "nn.Module: Linear_0"), (*outer, "nn.Module: Linear_1"))
    assert [Place("train.py:9", "validate()", "Net_0")] == found


def test_of_two_functions_it_is_the_one_that_called_both() -> None:
    _, found = stored(
        ("train.py(3): main", "train.py(9): encode", "nn.Module: Net_0"),
        ("train.py(3): main", "train.py(20): decode", "nn.Module: Net_1"),
    )
    assert [Place("train.py:3", "main()", None)] == found


def test_beside_what_it_must_not_enclose_it_is_the_function_around_most() -> None:
    main, train, predict = (
        "train.py(30): main",
        "train.py(9): train",
        "train.py(20): predict",
    )
    used, last = (main, train, "net.py(3): step"), (main, train, "net.py(8): result")
    net = (main, predict, "net.py(5): scores", "nn.Module: Net_0")
    _, found = stored(used, last, net, net, apart=(0,))
    assert [Place("train.py:20", "predict()", None)] == found


def test_without_functions_it_is_the_path_of_operators() -> None:
    _, found = stored((), ())
    assert [Place(None, "aten::mm", None)] == found


def test_a_match_names_only_existing_events() -> None:
    @rule("far", fix="")
    def far(_: Events) -> Matches:
        """Far."""
        return Matches(np.array([0]), "far", parts=[np.array([10_000])])

    trace, _ = stored(())
    assert "it returned the event 10000" in check(trace, [far]).errors["far"]
