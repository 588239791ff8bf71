"""A finding about an optimizer's options names the line that constructed the optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.sessions import run

if TYPE_CHECKING:
    import pytest

FILE = """
import copy
import functools
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch.optim import Adam, Optimizer


pytestmark = pytest.mark.no_antipatterns


def model():
    return nn.Sequential(*[nn.Linear(8, 8) for _ in range(6)])

def train(net, optimizer, step=None, steps=2):
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.ones(4, 8)).sum().backward()
        (step or optimizer.step)()  # <- step

class Mine(Adam):
    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)  # <- derived

class Trainer:
    def __init__(self):
        self.nets = model(), model()
        self.optimizers = [
            Adam(self.nets[0].parameters()),  # <- two
            Adam(self.nets[1].parameters()),  # <- two
        ]

    def run(self):
        for net, optimizer in zip(self.nets, self.optimizers):
            train(net, optimizer)


def test_helper():
    net = model()
    make = functools.partial(Adam, lr=0.1)
    train(net, make(net.parameters()))  # <- helper

def test_derived():
    net = model()
    train(net, Mine(net.parameters()))

def test_two():
    Trainer().run()

def test_schedule():
    net = model()
    optimizer = Adam(net.parameters())  # <- schedule
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    train(net, optimizer, lambda: (optimizer.step(), schedule.step()))

def test_closure():
    net = model()
    optimizer = Adam(net.parameters())  # <- closure
    train(net, optimizer, lambda: optimizer.step(lambda: net(torch.ones(4, 8)).sum()))

def test_refused():
    net = model()
    with pytest.raises(ValueError):
        Adam([])
    train(net, Adam(net.parameters()))  # <- refused

def test_hooked():
    net = model()
    optimizer = Adam(net.parameters())  # <- hooked
    optimizer.register_step_pre_hook(lambda *_: None)
    train(net, optimizer)

@pytest.fixture
def made():
    net = model()
    return net, Adam(net.parameters())

def test_fixture(made):
    train(*made)

def test_copied():
    net = model()
    train(net, copy.copy(Adam(net.parameters())))

def test_patched():
    real = Optimizer.__init__
    net = model()
    with patch.object(Optimizer, "__init__", lambda self, *args: real(self, *args)):  # <- patched
        optimizer = Adam(net.parameters())
    train(net, optimizer)
"""
#: Nobody has constructed a copy, and a fixture runs before what is marked.
AT_STEP = {"copied", "fixture"}


def test_a_finding_names_the_constructor_that_the_test_runs(pytester: pytest.Pytester) -> None:
    (pytester.path / "test_it.py").write_text(FILE, "utf-8")
    ran = run(pytester, "--torchprof")
    lines: dict[str, set[str]] = {}
    for number, line in enumerate(FILE.splitlines(), 1):
        if "# <- " in line:
            lines.setdefault(line.partition("# <- ")[2], set()).add(f"test_it.py:{number}")
    found = {
        name.removeprefix("test_"): {
            one["location"] for one in test["findings"] if one["rule"] == "single-tensor-optimizer"
        }
        for name, test in ran.tests.items()
    }
    assert {name: lines["step" if name in AT_STEP else name] for name in found} == found
    assert len(found) == FILE.count("def test_")
