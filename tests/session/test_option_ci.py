"""--torchprof-markdown and --torchprof-ci: comments, summaries of steps, annotations."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.hostile import assert_terminal
from support.sessions import ADD, accept, doctor, run

FAILS = """
    import pytest
    import torch

    X = torch.ones(4)

    def test_regressed(): X + X + X

    @pytest.mark.max_ops(0)
    def test_over(): X + X

    def test_ok(): X + X

    def test_fails(): assert X is None
"""
REGRESSED = "::error file=test_it.py,line=6,title=torchprof%3A test_regressed"


@pytest.fixture
def failing(pytester: pytest.Pytester) -> pytest.Pytester:
    """A test that regressed, one over its limit, one that is fine, one that fails by itself."""
    pytester.makepyfile(test_it=FAILS)
    run(pytester, "--accept")
    doctor(pytester, "test_regressed", ops=1)
    return pytester


@pytest.fixture
def github(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the step's summary."""
    summary = pytester.path / "summary.md"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setenv("GITHUB_WORKSPACE", str(pytester.path))
    return summary


def annotated(out: str) -> list[str]:
    return [line for line in out.splitlines() if line.startswith("::")]


LIBRARY = """
    import torch

    def forward(x):
        x = x * 2
        return x + 1
"""
USES = """
    import pytest
    import torch
    from library import forward

    @pytest.mark.parametrize("rows", [2, 3, 4])
    def test_forward(rows):
        forward(torch.ones(rows, 4))
"""


@pytest.fixture
def slipped(pytester: pytest.Pytester) -> pytest.Pytester:
    """Three tests that a line of a library makes red."""
    pytester.makepyfile(test_it=USES, library=LIBRARY)
    run(pytester, "--accept")
    pytester.makepyfile(library=LIBRARY.replace("x * 2", "(x * 2).clone()"))
    return pytester


# -------------------------------------------------------------------- causes


@pytest.mark.parametrize("workers", [(), pytest.param(("-n2",), marks=pytest.mark.thorough)])
def test_a_cause_of_several_tests_is_one_error_at_its_line(
    slipped: pytest.Pytester, github: Path, workers: tuple[str, ...]
) -> None:
    if workers:
        pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    ran = run(slipped, "--torchprof", *workers, needs=["xdist"] if workers else ())
    (found,) = annotated(ran.out)
    assert found.startswith(
        "::error file=library.py,line=4,title=torchprof%3A 3 tests"
        "::library.py:4 (forward): clone is new — "
    )
    assert all(f"test_forward[{n}]" in found for n in (2, 3, 4))
    assert " (3 tests: test_forward[" in found
    text = github.read_text("utf-8")
    row = text.splitlines()[text.splitlines().index("**Causes**") + 4]
    assert row.startswith("| clone is new | `library.py:4` | `test_it.py::test_forward[")
    assert " and 2 more | " in row
    assert "ops +1" in row
    assert "Regressed" not in text


def test_the_issue_of_a_cause_stays_when_lines_move(slipped: pytest.Pytester, gitlab: Path) -> None:
    marks = []
    for _ in range(2):
        run(slipped, "--torchprof")
        issues = json.loads((gitlab / "torchprof-code-quality.json").read_text("utf-8"))
        marks.append([(one["fingerprint"], one["location"]["path"]) for one in issues])
        file = slipped.path / "library.py"
        file.write_text("# a comment\n" + file.read_text("utf-8"), "utf-8")
    assert marks[0] == marks[1]
    assert ["library.py"] == [path for _, path in marks[0]]


def test_a_finding_that_is_a_cause_is_annotated_once(
    pytester: pytest.Pytester, github: Path
) -> None:
    body = """
        import torch

        def rows():
            x = torch.ones(32, 8)
            torch.stack([{} for i in range(32)])
    """
    test = "import lib\n\ndef test_rows():\n    lib.rows()\n"
    pytester.makepyfile(lib=body.format("x[0] * 2"), test_it=test)
    run(pytester, "--accept")
    pytester.makepyfile(lib=body.format("x[i] * 2"))
    (found,) = annotated(run(pytester, "--torchprof").out)
    assert found.startswith("::error file=lib.py,line=5,title=torchprof%3A test_rows::")
    assert "for-loop-indexing" in found
    assert ". Fix: " in found


# -------------------------------------------------------------------- the comment


@pytest.mark.thorough
def test_the_comment_begins_with_what_failed(failing: pytest.Pytester) -> None:
    run(failing, "--torchprof", "--torchprof-markdown=new/comment.md")
    text = (failing.path / "new" / "comment.md").read_text("utf-8")
    lines = text.splitlines()
    assert "<!-- torchprof -->" == lines[0]
    assert lines[1].startswith("### torchprof: 3 tests profiled in ")
    assert "1 over budget, 1 regressed, 1 not profiled, 1 ok" in lines[1]
    head = lines.index("**Regressed, or over a limit**")
    rows = [line for line in lines[head + 4 :] if line.startswith("|")]
    first = "| `test_it.py::test_regressed` | `ops` | **regressed** | 1 | 2 | +100.0 % |  |"
    assert first == rows[0]
    assert "| `test_it.py::test_over` | `ops` | **over budget** |" in rows[1]
    assert rows[1].endswith("| at most 0 |")
    assert "`test_it.py::test_fails` | failed | failed |" in text
    assert "test_ok" not in text


@pytest.mark.thorough
def test_the_comment_replaces_an_older_one_and_no_other_file(failing: pytest.Pytester) -> None:
    path = failing.path / "c.md"
    for _ in range(2):
        run(failing, "--torchprof", "--torchprof-markdown=c.md")
    assert 1 == path.read_text("utf-8").count("<!-- torchprof -->")
    path.write_text("# Mine\n", "utf-8")
    error = run(failing, "--torchprof", "--torchprof-markdown=c.md").usage_error()
    assert "c.md is not replaced: it exists and is not a comment of torchprof" in error
    assert "# Mine\n" == path.read_text("utf-8")


def test_a_comment_that_cannot_be_written_fails_the_session(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD)
    ran = run(pytester, "--torchprof", "--torchprof-markdown=test_it.py/c.md")
    assert 1 == ran.ret
    assert "cannot be written" in ran.out
    assert "name another with --torchprof-markdown" in ran.out


def test_it_does_nothing_without_profiling_which_is_said(pytester: pytest.Pytester) -> None:
    error = run(pytester, "--torchprof-markdown=c.md").usage_error()
    assert "--torchprof-markdown does nothing without --torchprof" in error


@pytest.mark.parametrize("option", ["--torchprof-ci=github", "--torchprof-ci gitlab"])
def test_a_service_needs_profiling(pytester: pytest.Pytester, option: str) -> None:
    error = run(pytester, *option.split()).usage_error()
    assert "--torchprof-ci does nothing without --torchprof; add --torchprof" in error


@pytest.mark.thorough
@pytest.mark.parametrize("option", ["--torchprof-ci=off", "--torchprof-ci=auto"])
def test_no_service_may_be_named_without_profiling(pytester: pytest.Pytester, option: str) -> None:
    pytester.makepyfile(test_it=ADD)
    assert {"passed": 1} == run(pytester, option).outcomes


# -------------------------------------------------------------------- the service


@pytest.mark.thorough
def test_without_a_service_nothing_is_added(failing: pytest.Pytester) -> None:
    ran = run(failing, "--torchprof")
    assert [] == annotated(ran.out)


@pytest.mark.thorough
def test_github_shows_what_failed_at_the_tests_and_in_the_summary(
    failing: pytest.Pytester, github: Path
) -> None:
    github.write_text("# Before\n", "utf-8")
    ran = run(failing, "--torchprof")
    assert [
        f"{REGRESSED}::ops 1 → 2 (+100.0 %25)",
        "::error file=test_it.py,line=8,title=torchprof%3A test_over::ops 1, limit: at most 0",
    ] == annotated(ran.out)
    text = github.read_text("utf-8")
    assert text.startswith("# Before\n\n<!-- torchprof -->\n")
    assert "`test_it.py::test_regressed` | `ops`" in text


@pytest.mark.thorough
def test_lines_are_those_of_the_repository(
    failing: pytest.Pytester, github: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_WORKSPACE", str(failing.path.parent))
    assert f"file={failing.path.name}/test_it.py,line=6" in run(failing, "--torchprof").out
    monkeypatch.setenv("GITHUB_WORKSPACE", str(failing.path / "elsewhere"))
    (first, *_) = annotated(run(failing, "--torchprof").out)
    assert first.startswith("::error title=torchprof%3A test_regressed::ops")


def test_a_finding_is_a_warning_at_its_line(pytester: pytest.Pytester, github: Path) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest
        import torch

        @pytest.mark.no_antipatterns
        def test_rows():
            x = torch.ones(32, 8)
            torch.stack([x[i] * 2 for i in range(32)])
    """
    )
    found = annotated(run(pytester, "--torchprof").out)
    assert re.match("::error file=test_it.py,line=4,title=torchprof%3A test_rows::", found[0])
    assert re.match(
        "::warning file=test_it.py,line=7,title=torchprof%3A for-loop-indexing::", found[1]
    )


@pytest.mark.parametrize(
    ("option", "shown"), [("github", True), ("gitlab", False), ("off", False), ("auto", False)]
)
def test_the_option_decides(failing: pytest.Pytester, option: str, shown: bool) -> None:
    ran = run(failing, "--torchprof", f"--torchprof-ci={option}")
    assert shown == bool(annotated(ran.out))


def test_the_ini_option_turns_it_off(failing: pytest.Pytester, github: Path) -> None:
    failing.makeini("[pytest]\ntorchprof_ci = off\n")
    assert [] == annotated(run(failing, "--torchprof").out)
    assert not github.exists()


@pytest.fixture
def gitlab(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the job."""
    monkeypatch.setenv("GITLAB_CI", "true")
    monkeypatch.setenv("CI_PROJECT_DIR", str(pytester.path))
    return pytester.path


@pytest.mark.thorough
def test_gitlab_gets_its_two_reports(failing: pytest.Pytester, gitlab: Path) -> None:
    families = pytest.importorskip(
        "prometheus_client.openmetrics.parser", reason="prometheus_client is not installed"
    ).text_string_to_metric_families
    ran = run(failing, "--torchprof")
    assert [] == annotated(ran.out)
    issues = json.loads((gitlab / "torchprof-code-quality.json").read_text("utf-8"))
    found = {(i["check_name"], i["severity"], i["location"]["path"]) for i in issues}
    assert ("torchprof: test_regressed", "major", "test_it.py") in found
    assert ("torchprof: test_over", "major", "test_it.py") in found
    assert {6, 8} <= {issue["location"]["lines"]["begin"] for issue in issues}
    assert len(issues) == len({issue["fingerprint"] for issue in issues})
    assert all(issue["description"] for issue in issues)
    text = (gitlab / "torchprof-metrics.txt").read_text("utf-8")
    ops = next(family for family in families(text) if family.name == "torchprof_ops")
    values = {sample.labels["test"]: sample.value for sample in ops.samples}
    assert 2 == values["test_it.py::test_regressed"]


@pytest.mark.thorough
def test_fingerprints_for_gitlab_stay_when_lines_move(
    failing: pytest.Pytester, gitlab: Path
) -> None:
    def marks() -> set[str]:
        run(failing, "--torchprof")
        issues = json.loads((gitlab / "torchprof-code-quality.json").read_text("utf-8"))
        return {issue["fingerprint"] for issue in issues}

    before = marks()
    file = failing.path / "test_it.py"
    file.write_text("# a comment\n" + file.read_text("utf-8"), "utf-8")
    assert before == marks()
    assert before


def test_what_gitlab_cannot_show_is_said(
    failing: pytest.Pytester, gitlab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (gitlab / "job").mkdir()
    monkeypatch.setenv("CI_PROJECT_DIR", str(gitlab / "job"))
    ran = run(failing, "--torchprof")
    assert [] == json.loads((gitlab / "job" / "torchprof-code-quality.json").read_text("utf-8"))
    assert "torchprof-code-quality.json leaves out 2 whose line is unknown or not in" in ran.out


def test_reports_for_gitlab_that_cannot_be_written_are_said(
    pytester: pytest.Pytester, gitlab: Path
) -> None:
    pytester.makepyfile(test_it=ADD)
    names = ("torchprof-code-quality.json", "torchprof-metrics.txt")
    for name in names:
        (gitlab / name).mkdir()
    ran = run(pytester, "--torchprof")
    assert 0 == ran.ret
    for name in names:
        assert f"{name} cannot be written" in ran.out


def test_a_wrong_service_is_a_usage_error(pytester: pytest.Pytester) -> None:
    error = run(pytester, "--torchprof", "--torchprof-ci=gitea").usage_error()
    assert "--torchprof-ci: 'gitea' is not one of auto, github, gitlab, off" in error


def test_failures_are_not_annotated_twice(failing: pytest.Pytester, github: Path) -> None:
    failing.makeconftest("""
        def pytest_configure(config):
            config.pluginmanager.register(object(), "pytest_github_actions_annotate_failures")
    """)
    assert [] == annotated(run(failing, "--torchprof").out)
    assert "test_regressed" in github.read_text("utf-8")


def test_a_summary_that_cannot_be_written_is_said_and_fails_nothing(
    pytester: pytest.Pytester, github: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_it=ADD)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path / "none" / "summary.md"))
    ran = run(pytester, "--torchprof")
    assert 0 == ran.ret
    assert "the step's summary cannot be written" in ran.out


def test_a_summary_that_is_full_is_left_as_it_is(pytester: pytest.Pytester, github: Path) -> None:
    pytester.makepyfile(test_it=ADD)
    github.write_text("x" * 999_000, "utf-8")
    ran = run(pytester, "--torchprof")
    assert "the step's summary is full" in ran.out
    assert 999_000 == github.stat().st_size


@pytest.mark.thorough
def test_under_xdist_the_controller_alone_writes(failing: pytest.Pytester, github: Path) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    ran = run(failing, "--torchprof", "-n1", "--torchprof-markdown=c.md", needs=["xdist"])
    assert 2 == len(annotated(ran.out))
    assert 1 == github.read_text("utf-8").count("<!-- torchprof -->")
    assert (failing.path / "c.md").exists()


def test_a_session_without_tests_adds_nothing(pytester: pytest.Pytester, github: Path) -> None:
    pytester.makepyfile(test_it=ADD)
    run(pytester, "--torchprof", "-k", "nothing")
    assert not github.exists()


@pytest.mark.thorough
def test_hostile_ids_stay_names(pytester: pytest.Pytester, github: Path) -> None:
    pytester.makepyfile(
        test_it=r"""
        import pytest
        import torch

        IDS = ["<script>alert(1)</script>", "]]>", "\x1b[31m", "a\nb", "x" * 10_000, "::error::"]

        @pytest.mark.max_ops(0)
        @pytest.mark.parametrize("name", [1] * len(IDS), ids=IDS)
        def test_it(name): torch.ones(4) + 1
    """
    )
    ran = run(pytester, "--torchprof", "--torchprof-markdown=c.md")
    found = annotated(ran.out)
    text = (pytester.path / "c.md").read_text("utf-8")
    assert 6 == len(found)
    assert all(line.startswith("::error file=test_it.py,line=6,title=") for line in found)
    assert max(map(len, found)) < 3000
    assert_terminal("\n".join(found) + text)
    assert all("<script>" not in re.sub("`+[^`]*`+", "", line) for line in text.splitlines())


def test_accept_and_the_comment_go_together(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD)
    accept(pytester, "--torchprof-markdown=c.md")
    assert "New, without a baseline" in (pytester.path / "c.md").read_text("utf-8")
