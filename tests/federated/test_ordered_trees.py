"""Local functions take and give data classes, in both frameworks."""

import dataclasses
from typing import Any, ClassVar

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


@dataclasses.dataclass
class Reading:
    name: ClassVar[str] = "reading"
    value: float
    unit: dataclasses.InitVar[str] = "m"
    error: float = dataclasses.field(init=False, default=0.5)


@dataclasses.dataclass
class Readings:
    values: "float32*"  # noqa: F722
    offset: float


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_only_fields_of_data_classes_count(framework: Any) -> None:
    @fed.local(Reading, framework=framework)
    def doubled(reading: Any) -> Any:
        made = Reading(reading.value * 2)
        made.error = reading.error * 2
        return made

    @fed.computation(fed.at_clients(Reading))
    def total(readings: Any) -> Any:
        return fed.federated_sum(fed.federated_map(doubled, readings))

    assert str(doubled.type_signature.result) == "<value=float32,error=float32>"
    found = total([Reading(1.0), Reading(2.0)])
    assert isinstance(found, Reading)
    assert (float(found.value), float(found.error)) == (6.0, 2.0)


def test_a_data_class_holds_sequences() -> None:
    @fed.local(Readings, framework="jax")
    def moved(readings: Any) -> Any:
        values = readings.values
        return Readings(fed.Sequence(values.elements + readings.offset, values.length), 0.0)

    @fed.computation(fed.at_clients(Readings))
    def total(readings: Any) -> Any:
        return fed.federated_sum(fed.sequence_sum(fed.federated_map(moved, readings).values))

    assert float(total([Readings([1.0, 2.0], 1.0), Readings([], 9.0)])) == 5.0
