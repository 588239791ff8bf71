import pytest
import torch

from minilm import Config, MiniLM


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def config():
    return Config()


@pytest.fixture
def model(config):
    return MiniLM(config)


@pytest.fixture
def ids(config):
    return torch.randint(config.vocabulary, (8, 33))
