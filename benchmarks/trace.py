"""Tracing a program to a graph: calque.trace against PyTorch's tracers and jax.make_jaxpr.

    python -m benchmarks.trace [--quick]

Without shapes, torch.fx does the same work; with shapes, make_fx (on FakeTensors), torch.export
and dynamo do, and jax.make_jaxpr on the same mathematics in JAX. What calque knows of calls on
shapes it keeps for later traces, as PyTorch's FakeTensors do; once it is made to forget. The time
of a node is the time of the program by the number of nodes in the tracer's own graph.
"""

from benchmarks import one_core  # noqa: F401  (first)

# isort: split
from benchmarks import common, handwritten

# isort: split
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import jax
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import calque
from benchmarks.models import Encoder, ResNet
from calque.tracing import lower
from calque.tracing.abstract import memory
from calque.tracing.proxies import node_creation


class Chain(nn.Module):
    """A thousand operators, one after the other."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(250):
            x = torch.relu(x + 1).sin() * 2
        return x


def _jax_chain(p: Any, b: Any, x: Any) -> Any:
    for _ in range(250):
        x = jax.numpy.sin(jax.nn.relu(x + 1)) * 2
    return x, b


PROGRAMS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], Callable[..., Any]]] = {
    "chain of 1000": (Chain, lambda: torch.randn(8), _jax_chain),
    "40 transformer blocks": (
        lambda: Encoder(width=32, heads=4, depth=40),
        lambda: torch.randn(2, 8, 32),
        handwritten.encoder,
    ),
    "ResNet-18": (
        lambda: ResNet((64, 128, 256, 512)),
        lambda: torch.randn(2, 3, 32, 32),
        handwritten.resnet,
    ),
}
WITHOUT_SHAPES = ("calque, no shapes", "no origins", "torch.fx")


def _dynamo(model: nn.Module, x: Tensor) -> int:
    found: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        found.append(len(graph.graph.nodes))
        return lambda *args: (torch.zeros(()),) * 1

    torch._dynamo.reset()
    try:
        torch.compile(model, backend=backend, fullgraph=True)(x)
    finally:
        torch._dynamo.reset()
    return sum(found)


def _equations(jaxpr: Any) -> int:
    return len(jaxpr.jaxpr.eqns)


@contextmanager
def _without_origins() -> Any:
    kept, node_creation.origin_here = node_creation.origin_here, lambda module, call: None
    try:
        yield
    finally:
        node_creation.origin_here = kept


def _no_origins(model: nn.Module) -> int:
    with _without_origins():
        return len(calque.symbolic_trace(model).graph.nodes)


def _with_nothing_remembered(model: nn.Module, x: Tensor) -> int:
    memory.forget()
    return len(calque.trace(model, x).graph.nodes)


def tracers(name: str) -> dict[str, Callable[[], int]]:
    """For each tracer what traces the program once and gives the number of nodes."""
    make, example, twin = PROGRAMS[name]
    torch.manual_seed(0)
    model, x = make().eval(), example()
    state = handwritten.initial_state(model, "SGD")
    p, b, array = state[0], state[1], handwritten.array(x)

    def run(x: Tensor) -> Tensor:
        return model(x)

    graph = calque.trace(model, x)
    return {
        "calque, no shapes": lambda: len(calque.symbolic_trace(model).graph.nodes),
        "no origins": lambda: _no_origins(model),
        "torch.fx": lambda: len(torch.fx.symbolic_trace(model).graph.nodes),
        "calque": lambda: len(calque.trace(model, x).graph.nodes),
        "calque, nothing remembered": lambda: _with_nothing_remembered(model, x),
        "calque.lower": lambda: len(lower(graph).graph.nodes),
        "make_fx": lambda: len(
            make_fx(run, tracing_mode="fake", _allow_non_fake_inputs=True)(x).graph.nodes
        ),
        "torch.export": lambda: len(torch.export.export(model, (x,)).graph.nodes),
        "dynamo": lambda: _dynamo(model, x),
        # A new function object each time, because JAX caches traces by function.
        "jax.make_jaxpr": lambda: _equations(
            jax.make_jaxpr(lambda *args: twin(*args))(p, b, array)
        ),
    }


def main() -> None:
    quick = common.quick(__doc__)
    rows = []
    for name in PROGRAMS:
        candidates = tracers(name)
        light = {key: call for key, call in candidates.items() if key in WITHOUT_SHAPES}
        heavy = {key: call for key, call in candidates.items() if key not in WITHOUT_SHAPES}
        times = common.interleave(light, 5 if quick else 15, calls=1)
        times |= common.interleave(heavy, 2 if quick else 5, calls=1)
        for key, call in candidates.items():
            nodes = call()
            against = "torch.fx" if key in WITHOUT_SHAPES else "torch.export"
            rows.append(
                [
                    f"{name}, {key}",
                    common.milliseconds(times[key]),
                    f"{nodes}",
                    common.microseconds(times[key] / nodes),
                    f"{times[key] / times[against]:.2f} {against}",
                ]
            )
            print(" ".join(rows[-1]), flush=True)
    common.table("Tracing", ["program, tracer", "ms", "nodes", "µs per node", "ratio"], rows)


if __name__ == "__main__":
    main()
