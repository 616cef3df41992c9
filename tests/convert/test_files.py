"""Programs of JSON and safetensors compute what they were saved from, or are refused."""

import contextlib
import dataclasses
import hashlib
import json
import random
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import calque
from calque.convert import ConversionError, load, save
from calque.convert.saving import PROGRAM, WEIGHTS
from tests.convert.models import MODELS, others

pytest.importorskip("safetensors")


def leaves(value: Any) -> list[Any]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(value)]


def tensors(value: Any) -> list[Any]:
    detached = jax.tree.map(lambda t: t.detach().numpy(), value)
    return jax.tree.leaves(detached)


@pytest.mark.parametrize("name", MODELS)
def test_a_round_trip_computes_the_same(name: str, tmp_path: Path) -> None:
    model, args = MODELS[name]()
    save(calque.record(model, *args), tmp_path / "made" / "here")
    loaded = load(tmp_path / "made" / "here")
    other = others(args)
    found = loaded(*(arg.numpy() for arg in other))
    expected = model(*other)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(leaves(found), tensors(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_a_loaded_program_can_be_jitted_and_differentiated(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    save(calque.record(model, torch.ones(2, 3)), tmp_path)
    loaded = load(tmp_path)
    x = torch.randn(2, 3, requires_grad=True)
    model(x).sum().backward()
    gradient = jax.jit(jax.grad(lambda a: loaded(a).sum()))(x.detach().numpy())
    np.testing.assert_allclose(gradient, x.grad, rtol=1e-5, atol=1e-6)


def test_bfloat16_and_infinities_survive(tmp_path: Path) -> None:
    weight = torch.randn(3).bfloat16()
    program = lambda x: (x * weight).masked_fill(x > 0, float("-inf"))
    save(calque.record(program, torch.ones(3).bfloat16()), tmp_path)
    found = load(tmp_path)(calque.to_jax(torch.tensor([1.0, -2.0, 3.0]).bfloat16()))
    assert found[0] == found[2] == -np.inf
    assert float(found[1]) == float(-2 * weight[1])


def test_arrays_of_other_shapes_are_refused(tmp_path: Path) -> None:
    save(calque.record(torch.relu, torch.ones(2)), tmp_path)
    loaded = load(tmp_path)
    with pytest.raises(TypeError, match=r"float32\[2\].*float32\[3\]"):
        loaded(np.ones(3, np.float32))
    with pytest.raises(TypeError, match="expected 1 arrays, got 2"):
        loaded(1, 2)


class Nested(nn.Module):
    def forward(self, given: dict[str, Any], scale: tuple[Tensor, float], flag: bool = True) -> Any:
        y = given["x"][0] * scale[0] * scale[1] + given["b"]
        return {"y": y if flag else -y}


def test_a_program_of_containers_is_called_as_it_was(tmp_path: Path) -> None:
    def arguments() -> tuple[Any, Any]:
        return {"x": [torch.randn(2)], "b": torch.randn(2)}, (torch.randn(2), 0.5)

    model = Nested()
    save(calque.record(model, *arguments()), tmp_path)
    loaded = load(tmp_path)
    args = arguments()
    given, scale = jax.tree.map(lambda t: t.numpy() if isinstance(t, Tensor) else t, args)
    swapped = {"b": given["b"], "x": given["x"]}
    expected = model(*args)["y"].numpy()
    for found in (
        loaded(given, scale),
        loaded(swapped, scale=scale, flag=True),
        loaded(scale=scale, given=given),
        loaded(given["x"][0], given["b"], scale[0]),
    ):
        np.testing.assert_allclose(found["y"], expected, rtol=1e-6)
    with pytest.raises(TypeError, match=r"given must be a dict with the keys \['x', 'b'\]"):
        loaded({"x": given["x"]}, scale)
    with pytest.raises(TypeError, match=r"given\['x'\] must be a list of 1 parts"):
        loaded({**given, "x": []}, scale)
    with pytest.raises(TypeError, match=r"saved with scale\[1\]=0.5, called with scale\[1\]=2.0"):
        loaded(given, (scale[0], 2.0))
    with pytest.raises(TypeError, match="saved with flag=True, called with flag=False"):
        loaded(given, scale, False)
    with pytest.raises(TypeError, match="missing argument scale"):
        loaded(given)
    with pytest.raises(TypeError, match=r"unexpected or repeated arguments \['other'\]"):
        loaded(given, scale, other=1)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_of_the_cpu_run_on_jax(kind: Any, tmp_path: Path) -> None:
    model, x = kind(4, 6, num_layers=2, bidirectional=True).eval(), torch.randn(3, 2, 4)
    save(calque.record(model, torch.randn(3, 2, 4)), tmp_path)
    found, expected = load(tmp_path)(x.numpy()), model(x)
    for a, b in zip(leaves(found), tensors(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_programs_that_write_are_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="writes to a tensor"):
        save(calque.record(nn.BatchNorm1d(3), torch.randn(4, 3)), tmp_path)
    assert not list(tmp_path.iterdir())


@torch.library.custom_op("calque_tests::thrice", mutates_args=())
def thrice(x: Tensor) -> Tensor:
    return x * 3


thrice.register_fake(torch.empty_like)


def test_operators_of_other_libraries_are_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="thrice.default, which is not a PyTorch op"):
        save(calque.record(lambda x: thrice(x) + 1, torch.ones(2)), tmp_path)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("saved")
    model, args = MODELS["pointwise"]()

    def program(x: Tensor, y: Tensor) -> Any:
        return model(x, y), x @ weight

    weight = torch.randn(4, 2)
    save(calque.record(program, *args), directory)
    return directory


def copied(saved: Path, to: Path, program: str | bytes, weights: bytes | None = None) -> Path:
    to.mkdir(exist_ok=True)
    data = program.encode() if isinstance(program, str) else program
    (to / PROGRAM).write_bytes(data)
    (to / WEIGHTS).write_bytes((saved / WEIGHTS).read_bytes() if weights is None else weights)
    return to


DAMAGES: dict[str, tuple[Any, str]] = {
    "another format": (lambda p: p.update(format="x"), "not a program that calque saved"),
    "another version": (lambda p: p.update(version=2), "version 2"),
    "no operators": (lambda p: p.pop("operators"), "operators is missing"),
    "no outputs": (lambda p: p.pop("outputs"), "outputs is missing"),
    "an unknown operator": (
        lambda p: p["operators"][0].update(op="aten.no.default"),
        "no operator",
    ),
    "code": (lambda p: p["operators"][0].update(op="os.system"), "os.system"),
    "an attribute": (lambda p: p["operators"][0].update(op="aten.__class__.default"), "operator"),
    "an operator that writes": (
        lambda p: p["operators"][0].update(op="aten.add_.Tensor"),
        "writes",
    ),
    "a value of the future": (
        lambda p: p["operators"][0].update(args=[{"value": p["operators"][-1]["name"]}]),
        "does not describe a value",
    ),
    "a name twice": (
        lambda p: p["operators"][1].update(name=p["operators"][0]["name"]),
        "which is taken already",
    ),
    "a name that is code": (
        lambda p: p["inputs"][0].update(name="x): import os #"),
        "has no valid name",
    ),
    "no shape": (lambda p: p["inputs"][0].update(shape=[-1]), "no valid shape and dtype"),
    "another dtype": (lambda p: p["inputs"][0].update(dtype="float33"), "no valid shape and dtype"),
    "too few arguments": (lambda p: p["operators"][0].update(args=[]), "cannot be run"),
    "another weight": (lambda p: p["weights"].update(more={"shape": [1], "dtype": "bool"}), "more"),
    "arguments of another input": (
        lambda p: p.update(arguments=[["x", {"value": "z"}]]),
        "must contain the inputs",
    ),
    "arguments that are none": (
        lambda p: p.update(arguments=[["x", {"a": 1}]]),
        "does not describe a value",
    ),
    "another digest": (lambda p: p.update(weights_sha256="0"), "not the file"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_program_is_refused_with_what_is_wrong(
    damage: str, saved: Path, tmp_path: Path
) -> None:
    change, message = DAMAGES[damage]
    program = json.loads((saved / PROGRAM).read_text())
    change(program)
    with pytest.raises(ConversionError, match=message):
        load(copied(saved, tmp_path, json.dumps(program)))


def test_missing_and_truncated_files_are_refused(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=r"program\.json cannot be read"):
        load(tmp_path)
    whole = (saved / PROGRAM).read_bytes()
    for length in range(0, len(whole) - 2, max(1, len(whole) // 40)):
        with pytest.raises(ConversionError):
            load(copied(saved, tmp_path, whole[:length]))
    weights = (saved / WEIGHTS).read_bytes()
    for length in (0, 4, len(weights) // 2, len(weights) - 1):
        with pytest.raises(ConversionError, match="not the file"):
            load(copied(saved, tmp_path, whole, weights[:length]))
        told = json.loads(whole)
        told["weights_sha256"] = hashlib.sha256(weights[:length]).hexdigest()
        with pytest.raises(ConversionError, match="cannot be read"):
            load(copied(saved, tmp_path, json.dumps(told), weights[:length]))


@pytest.mark.parametrize(
    ("values", "bytes_", "seed"),
    [
        (120, 60, 0),
        *(pytest.param(400, 200, seed, marks=pytest.mark.conformance) for seed in range(1, 5)),
    ],
)
def test_no_damage_gives_another_error(
    values: int, bytes_: int, seed: int, saved: Path, tmp_path: Path
) -> None:
    """Values anywhere in the program are replaced, and bytes anywhere in the text."""
    text = (saved / PROGRAM).read_text()
    rng = random.Random(seed)
    strange = [
        None,
        -1,
        1e300,
        "",
        "x",
        [],
        {},
        {"value": "x"},
        {"number": "1j"},
        [[]],
        True,
        2**70,
    ]
    for _ in range(values):
        told = json.loads(text)
        place: Any = told
        while True:
            key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
            inner = place[key]
            if not isinstance(inner, (dict, list)) or not inner or rng.random() < 0.15:
                break
            place = inner
        place[key] = rng.choice(strange)
        refused_or_fine(copied(saved, tmp_path, json.dumps(told)))
    for _ in range(bytes_):
        data = bytearray(text.encode())
        data[rng.randrange(len(data))] = rng.randrange(256)
        refused_or_fine(copied(saved, tmp_path, bytes(data)))


def test_a_digit_that_was_changed_is_noticed(tmp_path: Path) -> None:
    save(calque.record(lambda x: x * 2.5, torch.ones(2)), tmp_path)
    text = (tmp_path / PROGRAM).read_text()
    assert text.count("2.5") == 1
    (tmp_path / PROGRAM).write_text(text.replace("2.5", "3.5"))
    with pytest.raises(
        ConversionError, match="has changed since it was saved.*remove program_sha256"
    ):
        load(tmp_path)
    by_hand = json.loads(text.replace("2.5", "3.5"))
    del by_hand["program_sha256"]
    for told, expected in ((json.loads(text), 2.5), (by_hand, 3.5)):
        (tmp_path / PROGRAM).write_text(json.dumps(told, indent=4))
        assert load(tmp_path)(np.ones(2, np.float32)).tolist() == [expected] * 2


def refused_or_fine(directory: Path) -> None:
    with contextlib.suppress(ConversionError):
        load(directory)


def test_a_result_may_have_strings_beside_its_tensors(tmp_path: Path) -> None:
    recording = calque.record(lambda x: {"a": x * 2, "name": "b"}, torch.ones(2))
    save(recording, tmp_path / "program")
    found = load(tmp_path / "program")(np.full(2, 3.0, np.float32))
    assert found["name"] == "b"
    assert found["a"].tolist() == [6.0, 6.0]


def reads(x: Tensor) -> Tensor:
    if (x > 10).any() or x[0].tolist() != 1.5:
        return x
    return x * int(x[1]) + x.max().item()


def test_values_that_were_read_are_compared_by_what_is_loaded(tmp_path: Path) -> None:
    x = torch.tensor([1.5, 2.5])
    save(calque.record(reads, x), tmp_path)
    loaded = load(tmp_path)
    np.testing.assert_allclose(np.asarray(loaded(x.numpy())), reads(x).numpy())
    with pytest.raises(calque.TraceError, match=r"test_files.py:\d+.*was False .* is True now"):
        loaded(np.float32([1.5, 20.0]))
    with pytest.raises(calque.TraceError, match=r"(?s)test_files.py:\d+.*outside jax.jit"):
        jax.jit(loaded)(x.numpy())


def test_a_read_that_json_has_no_form_of_is_refused_at_its_line(tmp_path: Path) -> None:
    recording = calque.record(lambda x: x * len(repr(x)), torch.ones(2))
    with pytest.raises(ConversionError, match=r"test_files.py:\d+.*reads a value"):
        save(recording, tmp_path)


def test_a_read_without_its_value_is_refused(tmp_path: Path) -> None:
    save(calque.record(reads, torch.tensor([1.5, 2.5])), tmp_path)
    told = json.loads((tmp_path / PROGRAM).read_text())
    for operator in told["operators"]:
        operator.pop("gave", None)
    (tmp_path / PROGRAM).write_text(json.dumps(told))
    with pytest.raises(ConversionError, match="must check the value of one tensor"):
        load(tmp_path)


def test_what_an_operator_gives_is_what_the_file_says(tmp_path: Path) -> None:
    program = lambda x: torch.relu(x.max(1)[0]).to(torch.int32)
    save(calque.record(program, torch.ones(2, 3)), tmp_path)
    told = json.loads((tmp_path / PROGRAM).read_text())
    assert load(tmp_path)(np.ones((2, 3), np.float32)).tolist() == [1, 1]
    lies = {
        "getitem": ({"shape": [3]}, r"getitem returned float32\[2\], .* says float32\[3\]"),
        "relu": ({"dtype": "float64"}, r"aten.relu.default returned float32\[2\], .* float64\[2\]"),
        "_to_copy": ({"dtype": "int64"}, r"returned int32\[2\], but the file says int64\[2\]"),
        "max_1": ({"shape": [2], "dtype": "float32"}, r"aten.max.dim returned a \w+, but the file"),
    }
    for name, (lie, message) in lies.items():
        operators = [{**e, **(lie if e["name"] == name else {})} for e in told["operators"]]
        assert operators != told["operators"]
        (tmp_path / PROGRAM).write_text(json.dumps({**told, "operators": operators}))
        with pytest.raises(ConversionError, match=message):
            load(tmp_path)


@dataclasses.dataclass
class Batch:
    x: Tensor
    rest: list[Tensor]


def test_fields_of_data_classes_are_inputs(tmp_path: Path) -> None:
    batch = Batch(torch.randn(2), [torch.randn(2)])
    save(calque.record(lambda batch: batch.x * batch.rest[0], batch), tmp_path)
    x, y = np.float32([1, 2]), np.float32([3, 4])
    assert load(tmp_path)(x, y).tolist() == [3, 8]


@pytest.mark.parametrize(
    "name", ["a b", 'x"', "x=1, y", "alpha)\n    raise SystemExit\n    (", "if"]
)
def test_names_of_arguments_are_no_code(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model"
    save(calque.record(lambda x: x + 1, torch.ones(2)), path)
    content = json.loads((path / PROGRAM).read_text())
    del content["program_sha256"]
    content["operators"][-1].setdefault("kwargs", {})[name] = 1
    (path / PROGRAM).write_text(json.dumps(content))
    with pytest.raises(
        ConversionError, match="the program cannot be run: Unknown keyword argument"
    ):
        load(path)
