"""What a live capture notes in its trace's metadata, beside the events."""

from __future__ import annotations

from msgspec import ValidationError, convert  # under names that no test replaces

from pytest_torchprof.core.reasons import Reason, Why, because


def reason_of(noted: object) -> Reason | None:
    """A reason that a capture noted; None where it noted none.

    Earlier versions noted text, and later ones may note reasons that this one does not know.
    """
    if isinstance(noted, str):
        return because(Why.SOMEBODY_SAID, text=noted) if noted else None
    if not isinstance(noted, dict):
        return None
    try:
        return convert(noted, Reason)
    except ValidationError:
        name = noted.get("why")
        return because(Why.UNKNOWN, name=name) if isinstance(name, str) else None
