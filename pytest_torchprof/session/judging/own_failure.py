"""The exception that the plugin fails a test with, recognizable by its type."""

from __future__ import annotations

from _pytest.outcomes import Failed


class OwnFailure(Failed):
    """As `pytest.fail` raises it without a traceback."""

    __module__ = Failed.__module__

    def __init__(self, message: str) -> None:
        super().__init__(message, pytrace=False)


#: Reports and other plugins recognize a failure by this name.
OwnFailure.__name__ = OwnFailure.__qualname__ = Failed.__name__
