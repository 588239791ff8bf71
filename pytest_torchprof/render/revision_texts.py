"""The texts for the reasons of comparisons of two revisions, as by ``torchprof ab``."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_torchprof.core.reasons import Why

OF_REVISIONS: Mapping[Why, str] = {
    Why.NOT_MEASURED_ON: "not measured on {side}",
    Why.ONLY_ON: "only in {side}",
    Why.SKIPPED_ON: "only in {side}: {why}",
    Why.OUTSIDE_RANGE: "accepted from {low:{unit}} to {high:{unit}}, as it varies",
    Why.FAILS_ON: "fails in {sides: and }: {why}",
    Why.FAILS_AGAIN_ON: "fails in {side} when run again: {why}",
    Why.NOT_COLLECTED_ON: "cannot be collected in {side}: {why}",
    Why.ON_SIDE: "in {side}: {why}",
    Why.ON_EACH_SIDE: "{whys:, }",
    Why.FAILED_IN_PHASE: "{why} ({phase})",
    Why.XFAILED_BECAUSE: "xfailed: {text}",
    Why.NO_REASON_GIVEN: "no reason given",
    Why.UNRAISED_FAILURE: "AssertionError: the test {why}",
    Why.FEW_PAIRS: "{pairs} of the {needed} pairs of turns that it takes at least to be sure",
    Why.FIXTURES_TOOK_TIME: "setting up its fixtures for each call took most of the time",
    Why.OTHER_CODE_TOOK_TIME: "code outside its measured region took most of the time",
    Why.PYTEST_EXITED: "pytest exited with code {code}",
    Why.WORKER_SILENT: "the worker no longer answers",
    Why.WORKER_KILLED: "the worker was killed by {signal}",
    Why.WORKER_EXITED: "the worker exited with code {code}",
    Why.BUILT_ELSEWHERE: (
        "{module} is compiled, but built only in {tree}: build it in both trees"
        " and pass them with --a and --b"
    ),
}
