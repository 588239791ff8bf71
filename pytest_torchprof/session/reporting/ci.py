"""Which service of CI a session runs in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_torchprof.core.settings import Settings


def service_of(asked: str, environ: Mapping[str, str]) -> str:
    """``github``, ``gitlab`` or ``off``: as asked, or where ``auto`` finds itself.

    The variables are those that the services document for their jobs.

    >>> service_of("auto", {"GITHUB_ACTIONS": "true"}), service_of("auto", {})
    ('github', 'off')
    """
    if asked != "auto":
        return asked
    if environ.get("GITHUB_ACTIONS") == "true":
        return "github"
    return "gitlab" if environ.get("GITLAB_CI") else "off"


def wanted(settings: Settings) -> bool:
    """Whether there is anything to do."""
    return settings.markdown is not None or service_of(settings.ci, os.environ) != "off"
