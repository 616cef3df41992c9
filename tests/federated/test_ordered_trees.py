"""Local functions take and give data classes, in both frameworks."""

import dataclasses
from typing import Any

import pytest
import torch

from calque import federated as fed


@dataclasses.dataclass
class Point:
    x: int
    y: float


@dataclasses.dataclass
class Line:
    start: "Point"
    weight: float


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_data_classes_go_in_and_out(framework: Any) -> None:
    @fed.local(Line, "float32", framework=framework)
    def moved(line: Any, by: Any) -> Any:
        start = Point(line.start.x * 2, line.start.y + by)
        return Line(start, line.weight), [start]

    line, (start,) = moved(Line(Point(1, 2.0), 3.0), 0.5)
    assert isinstance(line, Line)
    assert (int(line.start.x), float(line.start.y), float(line.weight)) == (2, 2.5, 3.0)
    assert (type(start), float(start.y)) == (Point, 2.5)
    assert str(moved.type_signature.result) == (
        "<<start=<x=int32,y=float32>,weight=float32>,<<x=int32,y=float32>>>"
    )


class Swapped(torch.nn.Module):
    def forward(self, pair: Any) -> Any:
        first, second = pair.values()
        return {"z": second, "a": [{"y": first, "b": second}]}


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_dicts_keep_the_order_of_their_keys(framework: Any) -> None:
    function: Any = Swapped() if framework == "torch" else Swapped().forward
    swapped = fed.local("<w=float32,b=float32>", framework=framework)(function)
    assert str(swapped.type_signature.result) == "<z=float32,a=<<y=float32,b=float32>>>"
    found = swapped({"w": 5.0, "b": 1.0})
    assert (float(found["z"]), float(found["a"][0]["y"])) == (1.0, 5.0)

    @fed.local("<w=float32,b=float32>*", framework=framework)
    def difference(sequence: Any) -> Any:
        w, b = sequence.elements.values()
        return (w - b).sum()

    assert float(difference([{"w": 5.0, "b": 1.0}])) == 4.0
