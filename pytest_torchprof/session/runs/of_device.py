"""What the runs of a test have shown of the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_torchprof.session.runs.captures import Captures

#: Launched beyond those that were lost: the next session may lose a few more.
_MORE = 16


class OfDevice:
    """The part of a `Gatherer` that is about the device."""

    _captures: Captures

    @property
    def idle_kernels(self) -> int:
        """How many kernels to launch at the start of a session, so that none of the test's is lost.

        After an idle time, CUPTI misdates the first kernels of a session, as many as sessions have
        begun, and torch drops them: https://github.com/pytorch/pytorch/issues/192021.
        """
        lost = self._captures.lost_kernels
        return lost + _MORE if lost else 0
