"""What a graph of a recording checks of its inputs beside their looks."""

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import calque

LEVELS: Any = ["function", "module", "aten"]


def masked(x: Tensor, mask: Tensor | None = None) -> Tensor:
    return x * 2 if mask is None else x * mask


def asked(x: Tensor, mask: Tensor | None) -> Tensor:
    if mask is not None:
        x = x + 1
    return x * 2


def by_class(x: Tensor) -> Tensor:
    return x * 2 if isinstance(x, nn.Parameter) else x + 5


x = torch.ones(2)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("left", [(), (None,)])
def test_a_tensor_that_was_given_is_given_again(level: Any, left: tuple[Any, ...]) -> None:
    graph = calque.record(masked, x, 3 * x).graph(level)
    assert torch.equal(graph(x, 4 * x), 4 * x)
    with pytest.raises(
        calque.TraceError, match=r"test_inputs.py:\d+ in masked: .* for mask, called"
    ):
        graph(x, *left)


@pytest.mark.parametrize("level", LEVELS)
def test_a_tensor_that_only_decides_is_given_again(level: Any) -> None:
    graph = calque.record(asked, x, 2 * x).graph(level)
    with pytest.raises(calque.TraceError, match="traced with a tensor for mask, called with None"):
        graph(x, None)


@pytest.mark.parametrize("level", LEVELS)
def test_what_was_left_out_is_left_out_again(level: Any) -> None:
    graph = calque.record(masked, x).graph(level)
    assert torch.equal(graph(x), 2 * x)
    with pytest.raises(calque.TraceError, match="mask"):
        graph(x, x)


@pytest.mark.parametrize("level", LEVELS)
def test_a_program_that_asks_for_parameters_is_given_the_same_class(level: Any) -> None:
    parameter = nn.Parameter(x.clone())
    of_parameter = calque.record(by_class, parameter).graph(level)
    of_tensor = calque.record(by_class, x).graph(level)
    assert torch.equal(of_parameter(nn.Parameter(3 * x)), 6 * x)
    assert torch.equal(of_tensor(3 * x), 8 * x)
    with pytest.raises(calque.TraceError, match="a torch.nn.parameter.Parameter for x, called"):
        of_parameter(x)
    with pytest.raises(calque.TraceError, match="a torch.Tensor for x, called with"):
        of_tensor(parameter)


def test_a_program_that_does_not_ask_takes_both() -> None:
    graph = calque.record(lambda x: x * 2, nn.Parameter(x.clone())).graph()
    assert torch.equal(graph(3 * x), 6 * x)


def test_a_tensor_in_a_container_that_may_be_left_out() -> None:
    def program(x: Tensor, past: tuple[Tensor, Tensor] | None = None) -> Tensor:
        return x if past is None else x + past[0] * past[1]

    graph = calque.record(program, x, (2 * x, 3 * x)).graph()
    assert torch.equal(graph(x, (2 * x, 4 * x)), 9 * x)
    with pytest.raises(calque.TraceError, match="past"):
        graph(x, (None, 2 * x))


@dataclasses.dataclass
class Cache:
    keys: Tensor


def fills_a_dictionary(x: Tensor, cache: dict[str, Any]) -> Tensor:
    cache["new"]["k"] = x * 2
    cache["keys"] = torch.cat([cache["keys"], x])
    return cache["keys"].sum()


def fills_an_object(x: Tensor, cache: Cache) -> Tensor:
    cache.keys = torch.cat([cache.keys, x])
    return cache.keys.sum()


@pytest.mark.parametrize("level", ["function", "module"])
@pytest.mark.parametrize(
    ("program", "make"),
    [
        (fills_a_dictionary, lambda: {"keys": torch.randn(2), "new": {}}),
        (fills_an_object, lambda: Cache(torch.randn(2))),
    ],
)
def test_what_is_assigned_to_an_argument_is_assigned_to_what_is_given_later(
    program: Any, make: Any, level: Any
) -> None:
    recording = calque.record(program, torch.randn(3), make())
    graph, x, cache = recording.graph(level), torch.randn(3), make()
    same = copy.deepcopy(cache)
    assert torch.equal(graph(x, cache), program(x, same))
    if isinstance(cache, Cache):
        cache, same = vars(cache), vars(same)
    torch.testing.assert_close(cache, same)
    with pytest.raises(calque.TraceError, match="changes a container or an object"):
        recording.graph("aten")


LAYER = nn.Linear(2, 2)


def with_objects(x: Tensor, layer: Any = LAYER, layers: Any = (LAYER,), power: int = 2) -> Tensor:
    return layers[0](layer(x)) ** power


@pytest.mark.parametrize("level", LEVELS)
def test_defaults_may_be_modules(level: Any) -> None:
    graph = calque.record(with_objects, x).graph(level)
    torch.testing.assert_close(graph(2 * x), with_objects(2 * x))
    with pytest.raises(calque.TraceError, match="layer"):
        graph(x, nn.Linear(2, 2))
