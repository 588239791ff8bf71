"""Numbers of tests that take their data from a DataLoader."""

import pytest
from support.sessions import accept, run


@pytest.mark.thorough
@pytest.mark.parametrize("options", ["", "persistent_workers=True", "prefetch_factor=4"])
@pytest.mark.parametrize("slow", ["0", "1"])
def test_counts_do_not_depend_on_how_far_ahead_workers_are(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, options: str, slow: str
) -> None:
    """A loop that ends early has received other batches by then, if a worker was slow."""
    pytester.makepyfile(
        test_it=f"""
        import os, time, torch
        from torch.utils.data import DataLoader, get_worker_info

        class Data(torch.utils.data.Dataset):
            def __len__(self): return 32
            def __getitem__(self, index):
                time.sleep(0.05 * (str(get_worker_info().id) == os.environ["SLOW"]))
                return torch.full((4,), index)

        def loader():
            return DataLoader(Data(), batch_size=4, num_workers=2, {options})

        def test_ends_early():
            total = torch.zeros(4)
            for batch in (data := loader()):
                total += batch
                if batch[0, 0] == 4: break

        def test_second_epoch():
            data = loader()
            for _ in data: break
            for _ in data: break

        def test_raises(torchprof):
            with torchprof("part"):
                try:
                    for batch in loader(): raise ValueError
                except ValueError: pass
        """.replace("total += batch", "total += batch[0]")
    )
    monkeypatch.setenv("SLOW", slow)
    assert "with the values drawn" not in accept(pytester).out
    monkeypatch.setenv("SLOW", str(1 - int(slow)))
    ran = run(pytester, "--torchprof")
    assert set(ran.statuses.values()) == {"ok"}, ran.out
    assert {"ok"} == {ran.metric("dispatches", name)["status"] for name in ran.tests}
