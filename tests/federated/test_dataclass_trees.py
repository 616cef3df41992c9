"""Local functions take and give data classes, in both frameworks."""

import dataclasses
from typing import Any

import pytest

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
