import pytest

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def _not_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inner sessions print the same everywhere: pytest cuts its summary lines, but not in CI."""
    for name in ("CI", "BUILD_NUMBER"):
        monkeypatch.delenv(name, raising=False)
