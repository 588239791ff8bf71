"""Describe the groups of torch.distributed in a trace, as torch.profiler does."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from pytest_torchprof.capture.torch_sessions import add_metadata
from pytest_torchprof.trace.facts import FACTS_KEY, Facts

_KEY = "distributedInfo"


def described_groups() -> str | None:
    """The groups that there are, as JSON; None without a default group.

    Source of the keys: torch/profiler/profiler.py, ``_KinetoProfile._get_distributed_info``.
    """
    room: Any = sys.modules.get("torch.distributed.distributed_c10d")
    with suppress(Exception):  # an older torch, or a group that is being destroyed
        if room is not None and room.is_initialized():
            return json.dumps(
                {
                    "backend": room.get_backend(),
                    "rank": room.get_rank(),
                    "world_size": room.get_world_size(),
                    "pg_count": room.get_pg_count(),
                    "pg_config": room._get_all_pg_configs(),
                },
                default=str,
            )
    return None


def add_facts(profiler: Any, facts: Facts, groups: Iterable[str | None]) -> None:
    """Add what a trace does not have by itself; ``groups``: those of earlier times, described.

    Groups are left out if they changed, as it is unknown which calls were those of which.
    """
    add_metadata(profiler, FACTS_KEY, facts.stored())
    found = {*groups}
    if (now := described_groups()) is not None or not found:
        found.add(now)
    if len(found) == 1 and (only := found.pop()) is not None:
        add_metadata(profiler, _KEY, only)
