"""The command line, and the file of results behind it."""

import json

import pytest

from calque.coverage import MODES, packed, statuses, unpacked
from calque_cli.main import main


def test_operators_are_listed(capsys):
    assert main(["ops", "svd"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["operator", "family", "served", "by", "eager", "jit", "grad"]
    assert lines[1].split()[0] == "svd"
    assert lines[-1] == "1 operator: 1 by rule"


def test_the_same_as_json(capsys):
    assert main(["ops", "svd", "trac*", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found] == ["svd", "trace"]
    assert found[1]["family"]
    assert "float32" in found[1]["passed"]["eager"]


def test_operators_can_be_chosen_by_how_they_are_served(capsys):
    assert main(["ops", "--served", "rule", "--json"]) == 0
    assert {row["served"] for row in json.loads(capsys.readouterr().out)} == {"rule"}


def test_what_matches_nothing_is_an_error(capsys):
    assert main(["ops", "nosuch"]) == 1
    assert "no operator" in capsys.readouterr().err
    assert main(["ops", "relu", "--served", "CPU"]) == 1
    said = capsys.readouterr().err
    assert "relu is of the kind asked for" in said and "near" not in said


@pytest.mark.parametrize("name", ["relu", "F.relu", "torch.nn.functional.relu", "aten::relu"])
def test_an_operator_is_found_however_it_is_written(name, capsys):
    assert main(["ops", name, "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["nn_functional_relu"]


def test_what_is_misspelt_has_near_names(capsys):
    assert main(["ops", "layernorm"]) == 1
    assert "nn_functional_layer_norm" in capsys.readouterr().err


def test_results_are_of_known_modes():
    assert {mode for s in statuses() for mode in (*s.passed, *s.failed)} <= set(MODES)


def test_what_was_found_is_the_same_when_it_was_packed():
    found = {
        "abs": {"family": "a", "decomposed": [], "cpu": [], "passed": {"eager": ["bool", "int32"]}},
        "svd": {
            "family": "",
            "decomposed": ["aten::t"],
            "cpu": ["aten::u"],
            "passed": {"eager": ["bool", "int32"], "jit": []},
            "failed": {"grad": {"float32": "because"}},
        },
    }
    assert unpacked(packed(found)) == found
