import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester"]

# A busy machine draws and runs examples slowly, and that is no fault.
settings.register_profile(
    "any machine",
    parent=settings(),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("any machine")


@pytest.fixture(autouse=True)
def _not_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inner sessions print the same everywhere: pytest cuts its summary lines, but not in CI."""
    for name in ("CI", "BUILD_NUMBER"):
        monkeypatch.delenv(name, raising=False)
