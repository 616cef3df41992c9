"""`--json` of every verb: one value on standard output, whatever happens."""

import json
import sys

import click
import pytest
from click.testing import CliRunner

from calque_cli.main import VERBS, command

PROGRAMS = "tests.cli.programs"
NET = f"{PROGRAMS}:net"


def found(*arguments):
    shown = CliRunner().invoke(command, [*arguments, "--json"], catch_exceptions=False)
    return shown.exit_code, json.loads(shown.stdout)


def commands():
    for verb in VERBS:
        one = command.get_command(click.Context(command), verb)
        yield from one.commands.values() if isinstance(one, click.Group) else (one,)


def test_every_verb_takes_it():
    assert all(any("--json" in p.opts for p in one.params) for one in commands())


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["trace", NET], list),
        (["record", NET], list),
        (["show", NET], dict),
        (["ops", "relu"], list),
        (["completion", "bash"], dict),
        (["federated", "show", f"{PROGRAMS}:average"], dict),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_a_verb_finds_is_one_value(arguments, kind):
    status, value = found(*arguments)
    assert status == 0
    assert isinstance(value, kind) and value


def test_a_page_is_one_value_with_its_name(tmp_path):
    page = str(tmp_path / "net.html")
    assert found("show", f"{PROGRAMS}:net", "--html", page) == (0, {"page": page})


def test_a_program_that_cannot_be_traced_is_one_value_with_the_error():
    status, value = found("trace", f"{PROGRAMS}:loop", "-i", "3")
    assert status == 1
    assert "programs.py" in value["error"]


def test_no_operator_is_an_empty_list():
    assert found("ops", "no_such_operator") == (1, [])


@pytest.mark.parametrize(
    ("end", "status"),
    [("", 0), ("sys.exit(3)", 3), ("sys.exit('no data')", 1), ("raise ValueError", 1)],
)
def test_a_script_prints_to_standard_error_and_its_status_is_kept(
    tmp_path, monkeypatch, end, status
):
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    script = tmp_path / "script.py"
    script.write_text(f"import sys\nprint('printed')\n{end}\n")
    shown = CliRunner().invoke(command, ["run", "--json", str(script)], catch_exceptions=False)
    value = json.loads(shown.stdout)
    assert shown.exit_code == value["status"] == status
    assert "printed" in shown.stderr


@pytest.mark.conformance
def test_launched_processes_have_standard_error(tmp_path, capfd):
    script = tmp_path / "script.py"
    script.write_text("print('printed')\n")
    with pytest.raises(SystemExit) as end:
        command.main(["launch", "--json", str(script)])
    shown = capfd.readouterr()
    assert end.value.code == json.loads(shown.out)["status"] == 0
    assert "printed" in shown.err


@pytest.mark.parametrize(("variable", "coloured"), [("", True), ("1", False)])
def test_no_color_switches_colours_off(variable, coloured):
    runner = CliRunner(env={"NO_COLOR": variable})
    arguments = ["trace", f"{PROGRAMS}:loop", "-i", "3"]
    shown = runner.invoke(command, arguments, catch_exceptions=False, color=True)
    assert ("\x1b[" in shown.stderr) == coloured
