"""What a worker of xdist knows at its end, beside its tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import field

from pytest_torchprof.core.structs import Sendable

if TYPE_CHECKING:
    import pytest

_KEY = "torchprof"


class WorkerOutput(Sendable, frozen=True):
    """The worker's machine, its errors, and the tests it collected.

    ``names`` are the tests of each file; ``partial`` names the files of which only a part runs;
    ``drawn`` are the generators from which a file or fixture drew, by its name.
    """

    environment: dict[str, Any]
    errors: list[str]
    names: dict[str, list[str]]
    partial: list[str]
    drawn: dict[str, list[str]] = field(default_factory=dict)

    def leave_with(self, config: pytest.Config) -> None:
        """Have xdist send it to the controller."""
        config.workeroutput[_KEY] = self.sent()  # type: ignore[attr-defined]

    @classmethod
    def of(cls, node: Any) -> WorkerOutput | None:
        """That of a worker of xdist; None if it did not come to its end."""
        sent = getattr(node, "workeroutput", {}).get(_KEY)
        return None if sent is None else cls.read(sent)
