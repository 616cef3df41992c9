"""A user's file that uses every public name; `make lint` checks its types, a test runs it.

Each annotation is what a type checker has to find by itself.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import jax
import jax.numpy as jnp
import torch
from torch.fx import GraphModule

import calque


class Model(torch.nn.Module):
    """A layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Applies the layer."""
        return torch.relu(self.linear(x))


def jitted(x: torch.Tensor) -> float:
    """`calque.jit` keeps the types of a function, and makes a module of a module."""

    @calque.jit
    def step(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor

    @calque.jit(checks=True, specialize=None, verify=False, max_programs=8, scan_layers=False)
    def total(x: torch.Tensor) -> torch.Tensor:
        return x.sum()

    made: torch.Tensor = step(x, 2.0)
    module: torch.nn.Module = calque.jit(Model().to("jax"), verify=False)
    many: int = step.compilations
    assert many == 1 and module(made).shape == (4, 2)
    return total(made).item()


def graphs(x: torch.Tensor) -> None:
    """Every tracer gives a graph module; recordings are objects of their own."""
    model = Model()
    traced: GraphModule = calque.trace(model, x, max_paths=8, tracer="symbolic")
    symbolic: GraphModule = calque.symbolic_trace(model)
    lowered: GraphModule = calque.lower(traced, x)
    recording: calque.Recording = calque.record(model, x)
    assert bool(calque.diff(recording, traced, x)) is False
    report: calque.Report = calque.explain(model, x, compare=False)
    assert str(report) and str(calque.show(symbolic)) and lowered.code
    rows: list[calque.convert.Layer] = calque.convert.layer_table(recording).rows
    assert rows


def arrays(x: torch.Tensor) -> None:
    """What goes between PyTorch and JAX."""
    array: jax.Array = calque.to_jax(x)
    tensor: torch.Tensor = calque.to_torch(array)
    sine: Callable[..., object] = calque.from_jax(jnp.sin)
    apply, params = calque.functional(Model())
    weights: dict[str, jax.Array] = params
    assert apply(weights, array).shape == (4, 2) and sine(tensor) is not None
    exported: calque.Exported = calque.export(Model(), (torch.zeros(4, 3),))
    assert exported is not None and calque.load_exported is not None


def sharded() -> None:
    """Sub-packages are imported when they are asked for, and are typed."""
    mesh: jax.sharding.Mesh = calque.sharding.mesh(data=1)
    x = calque.sharding.shard(torch.ones(4, device="jax"), calque.sharding.P("data"), mesh=mesh)
    placed: calque.sharding.Placement | None = calque.sharding.placement(x)
    assert placed is not None
    server: calque.federated.FederatedType = calque.federated.at_server("float32")
    assert str(server)


def own_operator() -> None:
    """A rule for an operator."""

    @torch.library.custom_op("calque_typing::double", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @calque.op("calque_typing::double")
    def rule(x: jax.Array) -> jax.Array:
        return x * 2

    assert rule is not None
    assert double(torch.ones(1, device="jax")).item() == 2


def errors() -> None:
    """Exceptions are in one tree, and warnings are warnings."""
    tree: list[type[calque.CalqueError]] = [
        calque.ClientError,
        calque.FederatedTypeError,
        calque.InternalError,
        calque.TraceError,
        calque.UnsupportedOpError,
    ]
    told: list[type[Warning]] = [
        calque.CacheWarning,
        calque.EagerWarning,
        calque.FallbackWarning,
        calque.RetraceWarning,
        calque.ShapeWarning,
        calque.UntestedVersionWarning,
    ]
    for one in told:
        warnings.filterwarnings("error", category=one)
    try:
        calque.jit(Model.forward, specialize=False)
    except calque.TraceError as error:
        line: TracebackType | None = error.__traceback__
        raise RuntimeError(str(line)) from error
    assert calque.TraceError in tree


def main() -> None:
    """Uses them all."""
    x = torch.ones(4, 3, device="jax")
    assert jitted(x) == 24.0
    graphs(torch.ones(4, 3))
    arrays(x)
    sharded()
    own_operator()
    errors()
    folder: Path | None = calque.compilation_cache()
    keep: Callable[[], None] = calque.keep_host_memory
    assert callable(keep) and (folder is None or folder.name)


if __name__ == "__main__":
    main()
