"""What the rules found in a stored trace, with reasons in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_torchprof.core.structs import Frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_torchprof.core.results import Finding
    from pytest_torchprof.rules.engine.check import Checked


class Linted(Frozen, frozen=True):
    """What `Trace.lint` found.

    Attributes:
        counts: how often each rule matched, for rules with matches.
        unchecked: why a rule could not be checked, in words, for each of these rules.
        errors: what a rule raised, for each that did.
        found: the same as values of the rules' engine.
    """

    counts: Mapping[str, int]
    unchecked: Mapping[str, str]
    errors: Mapping[str, str]
    found: Checked

    def findings(self) -> tuple[Finding, ...]:
        """One for each rule, message and place, the costliest first."""
        return self.found.findings()
