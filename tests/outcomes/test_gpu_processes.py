"""On a real GPU: compiled code, other processes, and devices chosen late, as without the plugin."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.gpu_sources import HEAD, counts, values
from support.outcomes import same
from support.seen import show

pytestmark = [pytest.mark.gpu, pytest.mark.thorough]

# -------------------------------------------------------------------- compiled code


COMPILED = f"""{HEAD}
    A = torch.ones(64, 64, device="cuda")

    # Each compiles a function of its own: dynamo keeps what it knows of one between tests.
    @pytest.mark.filterwarnings("ignore")
    def test_compiled():
        compiled = torch.compile(lambda x: torch.relu(x @ x + 1).sin())
        with torch.no_grad():
            for _ in range(3): compiled(A)
    @pytest.mark.filterwarnings("ignore")
    def test_recorded():
        compiled = torch.compile(lambda x: torch.relu(x @ x + 1).sin(), mode="reduce-overhead")
        with torch.no_grad():
            for _ in range(3): compiled(A)

    @pytest.fixture(scope="module")
    def fast():
        compiled = torch.compile(lambda x: torch.relu(x @ x + 1).sin(), mode="reduce-overhead")
        with torch.no_grad():
            for _ in range(4): compiled(A)
        return compiled
    @pytest.mark.filterwarnings("ignore")
    def test_replayed(fast):
        with torch.no_grad(): fast(A)
    @pytest.mark.filterwarnings("ignore")
    def test_trained():
        model = torch.compile(torch.nn.Linear(64, 64).cuda())
        model(A).sum().backward()
    def test_afterwards(): launch(3)
"""


def test_compiled_code(pytester: pytest.Pytester) -> None:
    # The compiler's log depends on what an earlier session has put into its cache.
    ran = same(pytester, COMPILED, "-pno:logging", subprocess=True)
    show(ran.statuses, values(ran, "kernels", *ran.records), values(ran, "flops", *ran.records))
    if ran.ret:
        pytest.skip("inductor compiles nothing for the device here")
    # A product and one fused kernel; the copy of an input that graphs need is a third.
    counts(ran, "kernels", test_compiled=3 * 2, test_recorded=3 * 3, test_replayed=3)
    counts(ran, "kernels", test_afterwards=3)
    counts(ran, "cudagraphs", test_compiled=0, test_recorded=1)
    counts(ran, "flops", test_compiled=3 * 2 * 64**3)
    for test in ("test_recorded", "test_replayed"):
        assert ran.metric(test, "flops") is None


# -------------------------------------------------------------------- other processes


PAYLOAD = """
    import torch

    def work(number=0):
        torch.cuda.set_device(0)
        x = torch.ones(64, device="cuda")
        for _ in range(3): x.mul_(1.0)
        torch.cuda.synchronize()
        assert x.sum().item() == 64

    class Data(torch.utils.data.Dataset):
        def __len__(self): return 8
        def __getitem__(self, number): return torch.full((16,), float(number))
"""
PROCESSES = f"""{HEAD}
    import payload
    import torch.multiprocessing as mp

    def test_spawns(): mp.spawn(payload.work, nprocs=1)
    def test_a_program():
        code = "import payload; payload.work()"
        subprocess.run([sys.executable, "-c", code], check=True)
    def test_forks_a_child_that_stays_on_the_host():
        launch(3)
        child = os.fork()
        if not child:
            torch.ones(2).neg()
            os._exit(3)
        assert 3 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    def test_forks_a_child_that_may_not_use_the_device():
        launch(3)
        child = os.fork()
        if not child:
            try: torch.ones(2, device="cuda")
            except RuntimeError: os._exit(4)
            os._exit(5)
        assert 4 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    @pytest.mark.parametrize("workers", [0, 2])
    def test_loads(workers):
        loader = torch.utils.data.DataLoader(
            payload.Data(), batch_size=4, num_workers=workers, pin_memory=True,
            multiprocessing_context="fork" if workers else None,
        )
        total = sum(batch.to("cuda", non_blocking=True).sum() for batch in loader)
        assert total.item() == 16 * 28
    def test_afterwards(): launch(3)
"""


def test_processes(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyfile(payload=PAYLOAD)
    monkeypatch.setenv("PYTHONPATH", _with(pytester.path))
    ran = same(pytester, PROCESSES, "--torchprof-rounds=0", subprocess=True)
    assert 0 == ran.ret
    show(ran.statuses, values(ran, "kernels", *ran.records), values(ran, "h2d_bytes", *ran.records))
    counts(ran, "kernels", test_afterwards=3)
    counts(ran, "h2d_bytes", **{"test_loads[0]": 8 * 16 * 4})


def _with(folder: Path) -> str:
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


def test_two_workers_on_one_device(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    source = f"""{HEAD}
    @pytest.mark.parametrize("number", range(12))
    def test_it(number):
        launch(number)
        torch.ones(1 << 18, device="cuda")
    """
    ran = same(pytester, source, "-n2", needs=("xdist",), subprocess=True, ordered=False)
    assert 0 == ran.ret
    tests = {f"test_it[{number}]": number + 1 for number in range(12)}
    counts(ran, "kernels", **tests)
    counts(ran, "peak_cuda_bytes", **dict.fromkeys(tests, 1 << 20))


def test_a_test_that_hides_the_device_while_it_is_collected(pytester: pytest.Pytester) -> None:
    source = """
    import os
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    def test_it(): assert not torch.cuda.is_available()
    """
    same(pytester, source, subprocess=True)


def test_an_allocator_that_a_conftest_chooses(pytester: pytest.Pytester) -> None:
    """A test file would be too late: torch reads the backend's name when it is imported."""
    conftest = """
    import os
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "backend:cudaMallocAsync"
    """
    source = f"""{HEAD}
    def test_it():
        launch(3)
        assert torch.cuda.get_allocator_backend() == "cudaMallocAsync"
    """
    same(pytester, source, conftest=conftest, subprocess=True)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_device_that_no_test_has_used_before(pytester: pytest.Pytester, device: str) -> None:
    source = f"""
    import torch

    def test_it():
        assert {device == "cpu"} or not torch.cuda.memory_allocated()
        x = torch.ones(64, device="{device}")
        for _ in range(3): x.mul_(1.0)
    """
    ran = same(pytester, source, subprocess=True)
    counts(ran, "kernels", test_it=4 if device == "cuda" else 0)
