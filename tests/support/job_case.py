"""A job of `jobs` as a test of torch's own, which starts its ranks by itself."""

from __future__ import annotations

import os

from support import jobs
from torch.testing._internal.common_distributed import MultiProcessTestCase

#: The variables that name the job, and the number of its ranks.
JOB, RANKS = "JOB_OF_CASE", "RANKS_OF_CASE"


class JobCase(MultiProcessTestCase):
    """Each rank is a process that torch spawns."""

    @property
    def world_size(self) -> int:
        """As the variable says."""
        return int(os.environ[RANKS])

    def setUp(self) -> None:
        """Start the ranks."""
        super().setUp()
        self._spawn_processes()

    def test_job(self) -> None:
        """One rank."""
        jobs.rank_of_job(self.rank, os.environ[JOB], self.world_size, self.file_name)
