"""The command's manners: help, version and complaints."""

import subprocess
import sys
from pkgutil import resolve_name

import pytest

from pytest_torchprof import __version__
from pytest_torchprof.cli import COMMANDS, main
from pytest_torchprof.commands.arguments import Command


def outcome(
    capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[str | int | None, str, str]:
    """The exit status, what went to stdout, what went to stderr."""
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    return exit_.value.code, *capsys.readouterr()


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert (0, f"torchprof {__version__}\n", "") == outcome(capsys, "--version")


def test_help_names_the_command_and_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = outcome(capsys, "--help")
    assert (0, "usage: torchprof", "") == (status, out[:16], err)


def test_without_arguments_help_is_printed_and_the_status_is_bad_usage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, out, err = outcome(capsys)
    expected = "torchprof: no command given; see torchprof --help\n"
    assert (2, "usage: torchprof", expected) == (status, out[:16], err)


def test_an_unknown_argument_is_one_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = outcome(capsys, "--nonsense")
    assert (2, "", 1) == (status, out, err.count("\n"))
    assert "--nonsense" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("ab --rounds 0", "argument --rounds: '0' is not a whole number of 1 or more"),
        ("ab --rounds -1", "argument --rounds: '-1' is not a whole number of 1 or more"),
        ("ab --rounds 1.5", "argument --rounds: '1.5' is not a whole number of 1 or more"),
        ("ab --min-time 0", "argument --min-time: '0' is not a number of seconds above 0"),
        ("ab --min-time inf", "argument --min-time: 'inf' is not a number of seconds above 0"),
        ("ab --min-time 5m", "argument --min-time: '5m' is not a number of seconds above 0"),
        ("ab --threshold nan", "argument --threshold: 'nan' is not a percentage of 0 or more"),
        (
            "diff a b --fail-over=-1%",
            "argument --fail-over: '-1%' is not a percentage of 0 or more",
        ),
        ("ops t --limit -1", "argument --limit: '-1' is not a whole number of 0 or more"),
        ("ops t --rank x", "argument --rank: 'x' is not a whole number of 0 or more"),
        ("ab --a=", "argument --a: the name is empty; give a file or folder"),
        (
            "diff a b --html -",
            "argument --html: - is standard output, which has the table; name a file",
        ),
        (
            "history --html=-",
            "argument --html: - is standard output, which has the table; name a file",
        ),
        ("augment t -", "argument OUT: - is standard output, which has the table; name a file"),
        ("ab --python-b=", "argument --python-b: the name is empty; give a file or folder"),
    ],
)
def test_a_wrong_value_is_shown_with_what_is_allowed(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"torchprof {words.split(None, 1)[0]}"
    expected = f"{command}: {message}; see {command} --help\n"
    assert (2, "", expected) == outcome(capsys, *words.split())


def test_the_package_runs_as_the_command() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "pytest_torchprof", "--version"],
        capture_output=True,
        check=True,
        text=True,
    )
    assert f"torchprof {__version__}\n" == ran.stdout


def test_help_loads_neither_torch_nor_numpy() -> None:
    code = (
        "import sys\n"
        "from pytest_torchprof.cli import COMMANDS, main\n"
        "try: main(['--version'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'numpy', 'pytest'} & sys.modules.keys()))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert f"torchprof {__version__}\n[]\n" == ran.stdout


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_command_names_its_function(command: Command) -> None:
    assert callable(resolve_name(f"pytest_torchprof.{command.run}"))
