"""Print precision and recall of each rule on the labelled examples; exit 1 unless both are 1."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import tabulate

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT / "tests")  # not this folder, where `labelled` is this script

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # before the profiler is used

from labelled import corpus  # noqa: E402

HEADERS = ("rule", "positives", "near misses", "right", "wrong", "missing", "precision", "recall")


def main() -> int:
    """Print the table, and what is wrong below it."""
    started = time.monotonic()
    named = {
        f"{theme}.{case.name}": corpus.evaluate(case)
        for theme, examples in corpus.themes().items()
        for case in examples
    }
    answers = list(named.values())
    scores = corpus.scores(answers)
    rows = [
        (s.code, s.positives, s.near_misses, s.true, s.false, s.missing, s.precision, s.recall)
        for s in scores.values()
    ]
    print(tabulate.tabulate(rows, HEADERS, missingval="–", floatfmt=".3f"))
    for name, answer in named.items():
        for problem in answer.problems:
            print(f"{name}: {problem}")
    wrong = [answer for answer in answers if answer.problems]
    clean = sum(answer.case.rule == "clean" for answer in answers)
    seconds = time.monotonic() - started
    summary = f"{len(wrong)} judged wrongly, in {seconds:.0f} s"
    print(f"{len(answers)} examples, {clean} of them clean code: {summary}")
    return int(bool(wrong) or any(s.precision != 1 or s.recall != 1 for s in scores.values()))


if __name__ == "__main__":
    raise SystemExit(main())
