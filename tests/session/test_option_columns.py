"""--torchprof-columns, -sort and -top: the table at the end, and how loud it is."""

from __future__ import annotations

import pytest
from support.sessions import ADD, accept, doctor, run

THREE = """
    import pytest
    import torch

    X = torch.ones(2, 2)

    def test_one(): X + X

    def test_many():
        for _ in range(20): X + X

    def test_flops(): X @ X
"""


def table(out: str) -> list[list[str]]:
    """The cells of the table's header and rows."""
    lines = out[out.index("= torchprof =") :].splitlines()[1:]
    end = next(i for i, line in enumerate(lines) if line.startswith(("rules not", "torchprof: ")))
    rows = [line.split() for line in lines[:end]]
    return [row for row in rows if row and not row[0].startswith("--")]


def first_cells(out: str) -> list[str]:
    return [row[0].removeprefix("test_it.py::") for row in table(out)[1:]]


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("ini", "args", "expected"),
    [
        (None, ("flops",), ["flops"]),
        (None, ("ops,flops",), ["ops", "flops"]),
        (None, (" ops , flops,",), ["ops", "flops"]),
        ("flops", (), ["flops"]),
        ("flops, ops", (), ["flops", "ops"]),
        ("flops", ("ops",), ["ops"]),
        (None, ("syncs",), ["syncs"]),
    ],
)
def test_columns_are_as_asked(
    pytester: pytest.Pytester, ini: str | None, args: tuple[str, ...], expected: list[str]
) -> None:
    pytester.makepyfile(test_it=THREE)
    if ini is not None:
        pytester.makeini(f"[pytest]\ntorchprof_columns = {ini}")
    out = run(pytester, "--torchprof", *(f"--torchprof-columns={text}" for text in args)).out
    assert ["test", "status", *expected] == table(out)[0]


def test_by_default_a_column_without_any_value_is_left_out(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=THREE)
    out = run(pytester, "--torchprof", "--torchprof-rounds=0").out
    assert "flops" in table(out)[0]
    assert "wall_ms" not in table(out)[0]


def test_a_row_shows_status_and_values_with_units(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=THREE)
    ran = run(pytester, "--torchprof", "--torchprof-columns=flops,ops,wall_ms", "-k", "many",
              "--torchprof-rounds=0")  # fmt: skip
    assert "test_it.py::test_many new 0 FLOP 20 –" == " ".join(table(ran.out)[1])


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("ini", "args", "expected"),
    [
        (None, (), ["test_one", "test_many", "test_flops"]),
        (None, ("--torchprof-sort=ops",), ["test_many", "test_flops", "test_one"]),
        (None, ("--torchprof-sort=flops",), ["test_flops", "test_many", "test_one"]),
        ("ops", (), ["test_many", "test_flops", "test_one"]),
        ("ops", ("--torchprof-sort=flops",), ["test_flops", "test_many", "test_one"]),
    ],
)
def test_rows_are_sorted_by_a_metric_largest_first(
    pytester: pytest.Pytester, ini: str | None, args: tuple[str, ...], expected: list[str]
) -> None:
    pytester.makepyfile(test_it=THREE)
    if ini is not None:
        pytester.makeini(f"[pytest]\ntorchprof_sort = {ini}")
    assert expected == first_cells(run(pytester, "--torchprof", *args).out)


def test_what_needs_attention_comes_first(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=THREE)
    accept(pytester)
    doctor(pytester, "test_flops", flops=1)
    out = run(pytester, "--torchprof", "--torchprof-time=off").out  # no runs that confirm a time
    assert ["test_flops", "test_one", "test_many"] == first_cells(out)
    assert "16 FLOP!" in out
    assert "3 tests profiled in 10 runs: 1 regressed, 2 ok" in out


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("ini", "args", "rows", "left"),
    [
        (None, ("--torchprof-top=1",), 1, "… and 2 more tests: --torchprof-top=0 shows all"),
        (None, ("--torchprof-top=2",), 2, "… and 1 more test: --torchprof-top=0 shows all"),
        (None, ("--torchprof-top=3",), 3, ""),
        (None, ("--torchprof-top=0",), 3, ""),
        ("1", (), 1, "… and 2 more tests"),
        ("1", ("--torchprof-top=0",), 3, ""),
    ],
)
def test_so_many_rows_are_shown(
    pytester: pytest.Pytester, ini: str | None, args: tuple[str, ...], rows: int, left: str
) -> None:
    pytester.makepyfile(test_it=THREE)
    if ini is not None:
        pytester.makeini(f"[pytest]\ntorchprof_top = {ini}")
    out = run(pytester, "--torchprof", *args).out
    assert rows == sum("new" in row[1] for row in table(out)[1:] if len(row) > 1)
    assert left in out
    assert ("more test" in out) is bool(left)


def test_with_q_one_line_of_totals_replaces_the_table(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=THREE)
    out = run(pytester, "--torchprof", "-q").out
    assert "= torchprof =" not in out
    assert "status" not in out
    (line,) = (line for line in out.splitlines() if "torchprof" in line)
    assert "torchprof: 3 tests profiled in 9 runs: 3 new" == line


def test_with_qq_nothing_is_printed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD)
    assert "torchprof" not in run(pytester, "--torchprof", "-qq").out


def test_a_regression_is_reported_even_in_quiet_mode(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD)
    accept(pytester)
    doctor(pytester, ops=0)
    assert "ops 0 → 1 (from 0)" in run(pytester, "--torchprof", "-q").out


def test_a_wide_name_is_cut_in_the_middle(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    pytester.makepyfile(
        test_it=f"""
        def test_short(): pass
        def test_{"long" * 40}_end(): pass
        """
    )
    out = run(pytester, "--torchprof").out
    short, cell = first_cells(out)
    assert "test_short" == short
    assert cell.startswith("test_")
    assert cell.endswith("long_end")
    assert 1 == cell.count("…")
    assert all(len(line) <= 100 for line in out.splitlines() if "…" in line)


@pytest.mark.thorough
def test_there_are_no_colour_codes_when_it_is_not_a_terminal(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=THREE)
    accept(pytester)
    doctor(pytester, "test_flops", flops=1)
    assert "\x1b" not in run(pytester, "--torchprof").out


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("columns", "flop", "no such metric: 'flop'. Did you mean flops"),
        ("columns", "flops,peak_cpu", "no such metric: 'peak_cpu'. Did you mean peak_cpu_bytes"),
        ("columns", "zzz", "no such metric: 'zzz'. Known are: wall_ms, cpu_ms, "),
        ("sort", "kernel", "no such metric: 'kernel'. Did you mean kernels?"),
        ("top", "-1", "'-1' is not a whole number of 0 or more"),
    ],
)
@pytest.mark.parametrize("where", ["command line", "ini"])
def test_an_unknown_metric_is_a_usage_error_with_the_near_matches(
    pytester: pytest.Pytester, option: str, text: str, message: str, where: str
) -> None:
    pytester.makepyfile(test_it=ADD)
    given, source = [f"--torchprof-{option}={text}"], f"--torchprof-{option}"
    if where == "ini":
        pytester.makeini(f"[pytest]\ntorchprof_{option} = {text}")
        given, source = [], f"ini option torchprof_{option}"
    assert f"ERROR: {source}: {message}" in run(pytester, "--torchprof", *given).usage_error()
