"""`calque federated`."""

import json

import pytest
from click.testing import CliRunner

from calque_cli.main import command

AVERAGE = "tests.cli.programs:average"
TYPE = "(<values={float32[2]}@CLIENTS,scale=float32@SERVER> -> float32[2]@SERVER)"


def run(*arguments):
    return CliRunner().invoke(command, ["federated", *arguments], catch_exceptions=False)


def test_show_prints_the_type_and_the_ast():
    shown = run("show", AVERAGE)
    assert shown.exit_code == 0
    first, _, *rest = shown.output.splitlines()
    assert first == f"average: {TYPE}"
    assert any("federated_mean(" in line for line in rest)


def test_the_tree_has_the_type_of_every_part():
    shown = run("show", AVERAGE, "--tree", "--normal")
    assert shown.exit_code == 0
    assert "Intrinsic federated_mean: ({float32[2]}@CLIENTS -> float32[2]@SERVER)" in shown.output


def test_json_is_one_value():
    found = json.loads(run("show", AVERAGE, "--json").stdout)
    assert found["name"] == "average"
    assert found["type"] == TYPE
    assert "federated_mean" in found["ast"]


def test_the_program_is_for_a_number_of_clients():
    shown = run("show", AVERAGE, "--stablehlo", "--clients", "6", "--chunk", "3")
    assert shown.exit_code == 0
    assert "tensor<6x2xf32>" in shown.output
    assert "stablehlo.while" in shown.output


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([AVERAGE, "--stablehlo"], 1, "the number of clients of"),
        ([AVERAGE, "--stablehlo", "--tree"], 2, "cannot be combined with --tree"),
        (["tests.cli.programs:net"], 2, "must be a federated computation, not Net"),
        (["tests.cli.programs:open_average"], 2, "is polymorphic"),
        (["tests.cli.programs:nothing"], 2, "has no 'nothing'"),
    ],
)
def test_what_cannot_be_shown_is_an_error(arguments, status, message):
    shown = run("show", *arguments)
    assert shown.exit_code == status
    assert message in shown.output


@pytest.mark.conformance
def test_demo_trains_by_three_algorithms():
    shown = run("demo", "--rounds", "3", "--clients", "8", "--json")
    assert shown.exit_code == 0
    rows = json.loads(shown.stdout)
    assert [row["algorithm"] for row in rows] == ["FedAvg", "FedProx", "SCAFFOLD"]
    assert all(0.2 < row["accuracy"] <= 1 for row in rows)
