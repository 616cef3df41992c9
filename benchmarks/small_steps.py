"""Calls so small that the host decides: a linear layer, tiny training steps, chains of layers.

    python -m benchmarks.small_steps [--quick]

Against hand-written JAX with optax, one `jax.jit` with donated state. A step is timed twice: until
the call returns, and until its loss is a Python float. Times are of the processor, for the machine
may be busy with other things.
"""

from benchmarks import one_core  # noqa: F401  (first)

# isort: split
from benchmarks import common

# isort: split
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import torch
from jax import Array
from torch import Tensor, nn
from torch.nn import functional as F

import calque
from benchmarks.handwritten import Arrays, array, linear

Call = Callable[[], Any]
DEPTHS = (10, 100, 300, 1_000)
TOLERANCE = 1e-5
OPTIMIZERS: dict[str, tuple[Callable[..., Any], optax.GradientTransformation]] = {
    "SGD": (lambda p: torch.optim.SGD(p, lr=0.01), optax.sgd(0.01)),
    "Adam": (lambda p: torch.optim.Adam(p, lr=0.01), optax.adam(0.01)),
}


def layer() -> tuple[Call, Call]:
    """A call of Linear(8, 8), ours and JAX's."""
    model, x = nn.Linear(8, 8), torch.randn(8, 8)
    weight, bias, held = array(model.weight), array(model.bias), array(x)
    run: Any = calque.jit(model.to("jax"))
    x = x.to("jax")
    run_jax = jax.jit(lambda w, b, x: x @ w.T + b)

    return lambda: run(x), lambda: run_jax(weight, bias, held)


def plain() -> tuple[Call, Call]:
    """A call of `x + 1`."""
    x = torch.randn(8, 8)
    held = array(x)
    run: Any = calque.jit(lambda x: x + 1)
    run_jax = jax.jit(lambda x: x + 1)
    x = x.to("jax")
    return lambda: run(x), lambda: run_jax(held)


def step(
    layers: int, width: int, activation: bool, optimizer: str, keeps: bool = False
) -> tuple[Call, Call]:
    """A training step of a chain of linear layers, ours and JAX's.

    Args:
        layers, width, activation: of the chain.
        optimizer: a key of `OPTIMIZERS`.
        keeps: whether ours leaves the gradients in the parameters, which JAX's never does.
    """
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    for index in range(layers):
        parts.append(nn.Linear(width, width))
        if activation and index < layers - 1:
            parts.append(nn.ReLU())
    if not activation:  # keeps values from vanishing with depth
        for part in parts:
            nn.init.orthogonal_(part.weight)  # type: ignore[arg-type]
    model, x, y = nn.Sequential(*parts), torch.randn(8, width), torch.randn(8, width)
    make, update = OPTIMIZERS[optimizer]
    theirs = _step_of_jax(model, activation, update, array(x), array(y))
    model, x, y = model.to("jax"), x.to("jax"), y.to("jax")
    stepping = make(model.parameters())

    @calque.jit
    def ours(x: Tensor, y: Tensor) -> Tensor:
        if keeps:
            stepping.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        stepping.step()
        if not keeps:
            stepping.zero_grad()
        return loss

    return lambda: ours(x, y), theirs


def _step_of_jax(
    model: nn.Module, activation: bool, update: optax.GradientTransformation, x: Array, y: Array
) -> Call:
    parameters: Arrays = {name: array(p) for name, p in model.named_parameters()}
    names = [name.removesuffix(".weight") for name in parameters if name.endswith(".weight")]

    def loss_of(p: Arrays, x: Array, y: Array) -> Array:
        for name in names:
            x = linear(p, name, x)
            if activation and name != names[-1]:
                x = jax.nn.relu(x)
        return jnp.square(x - y).mean()

    def one(state: Any, x: Array, y: Array) -> Any:
        p, moments = state
        loss, gradients = jax.value_and_grad(loss_of)(p, x, y)
        updates, moments = update.update(gradients, moments, p)
        return (optax.apply_updates(p, updates), moments), loss

    jitted = jax.jit(one, donate_argnums=0)
    held: Any = [(parameters, update.init(parameters))]

    def theirs() -> Array:
        held[0], loss = jitted(held[0], x, y)
        return loss

    return theirs


def agree(ours: Call, theirs: Call) -> None:
    """Check that the first losses are those of JAX; in deep chains, later ones amplify rounding."""
    for _ in range(2):
        expected = float(theirs())
        difference = abs(ours().item() - expected)
        if difference > TOLERANCE * max(1.0, abs(expected)):
            raise AssertionError(f"the losses differ by {difference}")


def row(name: str, ours: Call, theirs: Call, rounds: int, calls: int) -> list[str]:
    """A row of the table."""
    for _ in range(4):  # the second call traces again for verification
        ours()
    times = common.interleave({"ours": ours, "JAX": theirs}, rounds, calls, time.process_time)
    spoken = [common.microseconds(times[n]) for n in ("ours", "JAX")]
    return [name, *spoken, f"{times['ours'] / times['JAX']:.2f}"]


def main() -> None:
    quick = common.quick(__doc__)
    sizes = (5, 200) if quick else (41, 400)
    with torch.no_grad():
        rows = [row("x + 1", *plain(), *sizes), row("Linear(8, 8), no_grad", *layer(), *sizes)]
    rows.append(row("Linear(8, 8), with its graph / forward", *layer(), *sizes))
    for optimizer in OPTIMIZERS:
        ours, theirs = step(4, 8, True, optimizer)
        agree(ours, theirs)
        rows.append(row(f"4 layers of 8, {optimizer}", ours, theirs, *sizes))
        waited = lambda ours=ours: ours().item(), lambda theirs=theirs: float(theirs())
        rows.append(row(f"4 layers of 8, {optimizer}, loss read", *waited, *sizes))
        kept = step(4, 8, True, optimizer, keeps=True)
        rows.append(row(f"4 layers of 8, {optimizer}, gradients kept", *kept, *sizes))
    for depth in DEPTHS[:2] if quick else DEPTHS:
        ours, theirs = step(depth, 16, False, "SGD")
        agree(ours, theirs)
        calls = max(4, 2_000 // depth)
        rows.append(row(f"{depth:,} layers of 16, SGD", ours, theirs, 5 if quick else 21, calls))
        print(f"{depth} layers done", flush=True)
    common.table("Small calls and steps", ["call", "calque.jit, µs", "JAX, µs", "ratio"], rows)


if __name__ == "__main__":
    main()
