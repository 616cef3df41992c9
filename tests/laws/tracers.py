"""The tracers that the laws are about: `TRACERS`, one row each."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import calque
from calque.tracing import fx, lower

Traced = Callable[..., Any]


class Wrapped(nn.Module):
    """A function as a module, for tracers that take nothing else."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def _export(program: Any, *args: Any) -> Traced:
    module = program if isinstance(program, nn.Module) else Wrapped(program)
    return torch.export.export(module, args).module()


def _compiled(program: Any) -> Traced:
    """What dynamo captures, as one graph, run by PyTorch itself."""
    torch._dynamo.reset()
    return torch.compile(program, fullgraph=True, backend="eager")


def _make_fx(program: Any, *args: Any) -> Traced:
    fakes = torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True)
    inputs = [fakes.from_tensor(arg) for arg in args]
    # Under no_grad, because it would otherwise save values for the backward pass.
    with torch.no_grad():
        return make_fx(program, _allow_non_fake_inputs=True)(*inputs)


TRACERS: dict[str, Callable[..., Traced]] = {
    "calque.trace": lambda program, *args: calque.trace(program, *args),
    "calque.symbolic_trace": lambda program, *args: calque.symbolic_trace(program),
    "calque.tracing.fx": lambda program, *args: fx.symbolic_trace(program),
    "calque.lower": lambda program, *args: lower(calque.trace(program, *args)),
    "calque.lower, with writes": lambda program, *args: lower(
        calque.trace(program, *args), functional=False
    ),
    "calque.record": lambda program, *args: calque.record(program, *args).graph(),
    "calque.record, modules": lambda program, *args: calque.record(program, *args).graph("module"),
    "calque.record, operators": lambda program, *args: calque.record(program, *args).graph("aten"),
    "torch.export": _export,
    "torch.compile": lambda program, *args: _compiled(program),
    "make_fx": _make_fx,
}
