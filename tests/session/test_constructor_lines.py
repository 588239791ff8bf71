"""A finding about an optimizer's or a loader's options names the line that constructed it."""

from __future__ import annotations

import pytest
from support.sessions import Ran, run

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


def marks(file: str) -> dict[str, set[str]]:
    """The marked lines, by their mark."""
    lines: dict[str, set[str]] = {}
    for number, line in enumerate(file.splitlines(), 1):
        if "# <- " in line:
            lines.setdefault(line.partition("# <- ")[2], set()).add(f"test_it.py:{number}")
    return lines


def locations(ran: Ran, rule: str) -> dict[str, set[str]]:
    """The places of a rule's findings, by test."""
    return {
        name.removeprefix("test_"): {
            one["location"] for one in test["findings"] if one["rule"] == rule
        }
        for name, test in ran.tests.items()
    }


def test_a_finding_names_the_constructor_that_the_test_runs(pytester: pytest.Pytester) -> None:
    (pytester.path / "test_it.py").write_text(FILE, "utf-8")
    ran = run(pytester, "--torchprof")
    lines, found = marks(FILE), locations(ran, "single-tensor-optimizer")
    assert {name: lines["step" if name in AT_STEP else name] for name in found} == found
    assert len(found) == FILE.count("def test_")


LOADERS = """
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

pytestmark = pytest.mark.no_antipatterns


class Slow(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, number):
        return torch.ones(2)

class Mine(DataLoader):
    pass

def epoch(loader):
    for batch in loader:  # <- fetch
        batch.sum()


def test_plain():
    epoch(DataLoader(Slow(), batch_size=4))  # <- plain

def test_two():
    data = Slow()
    loaders = (
        DataLoader(data, batch_size=4),  # <- two
        Mine(data, batch_size=4),  # <- two
    )
    for loader in loaders:
        epoch(loader)
        epoch(loader)

@pytest.fixture
def made():
    return DataLoader(Slow(), batch_size=4)

def test_fixture(made):
    epoch(made)
"""


def test_a_finding_names_the_loader_that_the_test_constructs(pytester: pytest.Pytester) -> None:
    (pytester.path / "test_it.py").write_text(LOADERS, "utf-8")
    found = locations(run(pytester, "--torchprof"), "sync-dataloader")
    lines = marks(LOADERS)
    wanted = {"plain": lines["plain"], "two": lines["two"], "fixture": lines["fetch"]}
    assert wanted == found


@pytest.mark.thorough
@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "mock",
    [
        "torch.optim.Optimizer = MagicMock()",
        "torch.optim.Optimizer.__init__ = MagicMock()",
        "torch.utils.data.dataloader.DataLoader = MagicMock()",
        "sys.modules['torch.utils.data'] = MagicMock()",
    ],
)
def test_what_a_conftest_has_replaced_is_not_looked_for(
    pytester: pytest.Pytester, mock: str
) -> None:
    pytester.makeconftest(f"import sys, torch\nfrom unittest.mock import MagicMock\n{mock}\n")
    pytester.makepyfile(
        test_it="""
        import pytest, torch

        @pytest.mark.no_antipatterns
        def test_it():
            x = torch.ones(20)
            for i in range(20):
                x[i] = x[i] * 2
        """
    )
    ran = run(pytester, "--torchprof", subprocess=True)
    (test,) = ran.report["tests"]
    assert "over_budget" == test["status"], ran.out
    assert {"test_it.py:7"} == {one["location"] for one in test["findings"]}
