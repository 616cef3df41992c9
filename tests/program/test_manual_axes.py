"""Functions of `calque.functional` within `jax.shard_map`, whose types tell what varies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from torch import nn

import calque

MESH = Mesh(np.array(jax.devices()), ("clients",))


class Recurrent(nn.Module):
    """Has a loop of JAX's in it, and a branch."""

    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x):
        y, _ = self.lstm(x.unsqueeze(0))
        return self.head(torch.cummax(y[0], 1).values)


MODELS = {
    "layers": lambda: nn.Sequential(
        nn.Linear(3, 4), nn.GELU(), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 2), nn.Softmax(-1)
    ),
    "loops": Recurrent,
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("model", "gradient", "checked"),
    [("layers", "torch", True), ("layers", "jax", True), ("layers", "torch", False)]
    + [("loops", "torch", True)],
)
def test_a_model_is_trained_on_parts_of_a_batch(model, gradient, checked):
    torch.manual_seed(0)
    apply, params = calque.functional(MODELS[model](), gradient=gradient)
    devices = len(jax.devices())
    parts = jax.random.normal(jax.random.key(0), (devices, 4, 3))

    def loss(params, x):
        return (apply(params, x) ** 2).mean()

    def of_part(params, x):
        return lax.pmean(loss(params, x[0]), "clients")

    def over_all(params, x):
        return jnp.stack([loss(params, part) for part in x]).mean()

    specs = {"in_specs": (P(), P("clients")), "out_specs": P()}
    shared = jax.shard_map(of_part, mesh=MESH, check_vma=checked, **specs)
    np.testing.assert_allclose(shared(params, parts), over_all(params, parts), rtol=1e-5)
    found, expected = jax.jit(jax.grad(shared))(params, parts), jax.grad(over_all)(params, parts)
    for name in params:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("gradient", ["torch", "jax"])
def test_gradients_inside_are_sums_over_the_devices(gradient):
    apply, params = calque.functional(nn.Linear(3, 1), gradient=gradient)
    x = jnp.ones((2 * len(jax.devices()), 3))

    def gradients(params, x):
        return jax.grad(lambda params: apply(params, x).sum())(params)

    specs = {"in_specs": (P(), P("clients")), "out_specs": P()}
    found = jax.shard_map(gradients, mesh=MESH, **specs)(params, x)
    assert found["weight"].tolist() == [[len(x)] * 3]
    assert found["bias"].tolist() == [len(x)]


def test_a_module_that_was_traced_outside_before():
    apply, params = calque.functional(nn.Linear(3, 2))
    mesh = Mesh(np.array(jax.devices()[:1]), ("d",))
    x = jnp.arange(12.0).reshape(4, 3)
    expected = jax.jit(apply)(params, x)  # on one device, the part is the whole
    inside = jax.shard_map(apply, mesh=mesh, in_specs=(P(), P("d")), out_specs=P("d"))
    np.testing.assert_allclose(inside(params, x), expected, rtol=1e-6)
    gradients = jax.grad(lambda params: inside(params, x).sum())(params)
    np.testing.assert_allclose(gradients["bias"], [4, 4])
