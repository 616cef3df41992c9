"""A PyTorch model converted to a format of one's own, and run by an interpreter of its own.

The format here is a list of instructions for a machine that knows three of them. A converter says
what a layer or a function becomes; what nobody converts is listed with its line, never left out.

    python examples/own_ir.py
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

import calque
from calque.convert import Converters


@dataclass(frozen=True)
class Instruction:
    """`result = op(*inputs)`, with constants."""

    op: str
    result: str
    inputs: tuple[str, ...]
    constants: dict[str, Any]

    def __str__(self) -> str:
        shapes = {name: getattr(value, "shape", value) for name, value in self.constants.items()}
        return f"{self.result} = {self.op}({', '.join(self.inputs)})  {shapes or ''}"


converters = Converters()


def instruction(call: Any, op: str, **constants: Any) -> Instruction:
    inputs = tuple(tensor.name for tensor in call.inputs)
    return Instruction(op, call.outputs[0].name, inputs, constants)


@converters.module(nn.Linear)
def linear(call: Any) -> Instruction:
    weights = {name.rpartition(".")[2]: array for name, array in call.weights.items()}
    return instruction(call, "affine", **weights)


@converters.function(torch.relu, nn.functional.relu, "Tensor.relu")
def relu(call: Any) -> Instruction:
    return instruction(call, "max0")


@converters.function("Tensor.add", torch.add)
def add(call: Any) -> Instruction:
    return instruction(call, "add")


MACHINE = {
    "affine": lambda x, weight, bias: x @ weight.T + bias,
    "max0": lambda x: np.maximum(x, 0),
    "add": lambda x, y: x + y,
}


def run(program: list[Instruction], values: dict[str, np.ndarray]) -> np.ndarray:
    """The result of the last instruction."""
    for line in program:
        arguments = [values[name] for name in line.inputs]
        values[line.result] = MACHINE[line.op](*arguments, **line.constants)
    return values[program[-1].result]


class Residual(nn.Module):
    """(batch, width) to the same shape."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Residual(4), Residual(4), nn.Linear(4, 2))
    x = torch.randn(3, 4)
    recording = calque.record(model, x)
    print(converters.coverage(recording))
    converted = converters.convert(recording)
    assert not converted.placeholders
    print(*converted.nodes, sep="\n")
    first = converted.nodes[0].inputs[0]
    result = run(converted.nodes, {first: x.numpy()})
    np.testing.assert_allclose(result, model(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    print("the machine computes what the model does")


if __name__ == "__main__":
    main()
