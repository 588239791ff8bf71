import os
import re

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Hide the GPU from all tests but those marked ``gpu``, which need a run of their own.

    What the others expect is a CPU's, and a process cannot hide a device once it is initialized.
    """
    if not re.search(r"(?<!not )\bgpu\b", config.option.markexpr):
        os.environ.update(CUDA_VISIBLE_DEVICES="", HIP_VISIBLE_DEVICES="")


@pytest.fixture(autouse=True, scope="session")
def _no_news_of_the_profiler() -> None:
    """Torch 2.11 warns at the first profiler session of a process, whichever test has it."""
    import torch

    said = getattr(torch.profiler.profiler, "_WARNINGS_SHOWN", None)
    warns = torch.profiler.profiler.profile.prepare_trace.__code__.co_consts
    if said is not None:
        said.update(text for text in warns if isinstance(text, str))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU where torch sees none."""
    if item.get_closest_marker("gpu") is None:
        return
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a GPU that torch sees: `make test-gpu` runs this where there is one")
