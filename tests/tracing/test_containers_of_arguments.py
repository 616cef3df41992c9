"""Lists, dictionaries and objects among the arguments, as a program changes, keeps and returns
them.
"""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import calque


@dataclasses.dataclass
class State:
    a: Any
    b: Any = None


def swapped_values(d: dict[str, Any]) -> Any:
    d["a"], d["b"] = d["b"], d["a"]
    return d["a"][0] * 2


def reversed_and_nested(d: dict[str, Any]) -> Any:
    d["a"].append(d["b"])
    d["c"] = d
    return d["a"][0] * 2, d["a"]


def one_for_two(d: dict[str, Any]) -> Any:
    d["b"] = d["a"]
    d["a"].append(3)
    return len(d["b"]), d["b"]


def new_ones(d: dict[str, Any]) -> Any:
    d["new"] = made = [d["a"], {"inner": []}]
    d["again"] = (made, made[1])
    return made, made[1]["inner"]


def objects(d: dict[str, Any]) -> Any:
    d["state"] = made = State(d["a"], [d["b"]])
    return made, made.b


def deleted_attribute(d: dict[str, Any]) -> Any:
    d["s"].b = d["s"].a
    del d["s"].a
    return d["s"].b


def returned(d: dict[str, Any]) -> Any:
    return d, d["a"], [d["b"], d["s"]], (d["a"],)


def added(d: dict[str, Any]) -> Any:
    d["sum"] = d["a"][0] + d["b"][0]
    d["also"] = d["a"]
    return d


def arguments() -> dict[str, Any]:
    return {"a": [torch.ones(2)], "b": [torch.zeros(2)], "s": State([torch.ones(3)])}


def named(value: Any, names: dict[int, str], path: str = "") -> Any:
    """Returns the structure of a value, with the place of each container where it occurs again."""
    if isinstance(value, Tensor):
        return value.tolist()
    if value is None or isinstance(value, int):
        return value
    if not isinstance(value, tuple):
        if id(value) in names:
            return names[id(value)]
        names[id(value)] = path
    if isinstance(value, dict):
        return {key: named(part, names, f"{path}.{key}") for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [named(part, names, f"{path}.{i}") for i, part in enumerate(value)]
        return type(value).__name__, parts
    return {key: named(part, names, f"{path}.{key}") for key, part in vars(value).items()}


def after(program: Callable[..., Any]) -> Any:
    given = arguments()
    before = [given, *given.values()]
    result = program(given)
    return named([before, given, result], {})


def recorded(program: Any, *args: Any) -> Any:
    return calque.record(program, *args).graph()


ALL = (swapped_values, reversed_and_nested, one_for_two, new_ones, objects, deleted_attribute)


@pytest.mark.parametrize("program", [*ALL, returned, added])
def test_a_traced_graph_keeps_which_container_is_which(program: Callable[..., Any]) -> None:
    assert after(calque.trace(program, arguments())) == after(program)


@pytest.mark.parametrize("program", [swapped_values, returned, added])
def test_a_recorded_graph_keeps_which_container_is_which(program: Callable[..., Any]) -> None:
    assert after(recorded(program, arguments())) == after(program)


class Keeps(nn.Module):
    def forward(self, given: list[Tensor]) -> Any:
        self.given, self.made = given, [given[0] * 2]
        return self.made


@pytest.mark.parametrize("tracer", [calque.trace, recorded])
def test_an_attribute_holds_the_argument_itself(tracer: Callable[..., Any]) -> None:
    module, given = Keeps(), [torch.ones(2)]
    graph = tracer(module, [torch.ones(2)])
    result = graph(given)
    owner = module if "given" in vars(module) else graph
    assert owner.given is given
    assert result[0].tolist() == owner.made[0].tolist() == [2, 2]


def appends(a: list[Tensor], b: list[Tensor]) -> int:
    a.append(a[0] * 2)
    return len(b)


def test_one_list_for_two_changed_arguments_is_refused() -> None:
    given = [torch.ones(2)]
    with pytest.raises(calque.TraceError, match="a and b are one list"):
        calque.trace(appends, given, given)
    graph = calque.trace(appends, [torch.ones(2)], [torch.ones(2)])
    assert graph([torch.ones(2)], [torch.ones(2)]) == 1
    with pytest.raises(calque.TraceError, match="the same one for two of them"):
        graph(given, given)
    assert len(given) == 1  # refused before anything is changed


def test_one_list_for_two_arguments_that_are_only_read_is_fine() -> None:
    graph = calque.trace(lambda a, b: a[0] + b[0], [torch.ones(2)], [torch.ones(2)])
    given = [torch.ones(2)]
    assert graph(given, given).tolist() == [2, 2]


@pytest.mark.parametrize("tracer", [calque.trace, recorded])
def test_an_argument_that_contains_itself_is_refused(tracer: Callable[..., Any]) -> None:
    given: list[Any] = [torch.ones(2)]
    given.append({"again": given})
    with pytest.raises(calque.TraceError, match="contains itself"):
        tracer(lambda a: a[0], given)


@pytest.mark.parametrize("tracer", [calque.trace, recorded])
def test_numbers_that_are_equal_but_not_the_same_are_told_apart(
    tracer: Callable[..., Any],
) -> None:
    x = torch.ones(2)
    graph = tracer(lambda x, k: torch.copysign(x, torch.tensor(k)), x, 0.0)
    assert graph(x, 0.0).tolist() == [1, 1]
    with pytest.raises(calque.TraceError, match=r"called with k=-0\.0"):
        graph(x, -0.0)
    nan = tracer(lambda x, k: x + k, x, float("nan"))
    assert nan(x, float("nan")).isnan().all()


def test_arrays_among_the_arguments_of_a_recording_are_compared() -> None:
    def program(x: Tensor, array: Any) -> Tensor:
        return x * torch.from_numpy(array)

    x, array = torch.ones(2), np.ones(2, np.float32)
    graph = recorded(program, x, array)
    assert graph(x, copy.copy(array)).tolist() == [1, 1]
    for other in (array * 2, array.astype(np.float64), np.ones((1, 2), np.float32)):
        with pytest.raises(calque.TraceError, match="traced with array="):
            graph(x, other)
