"""`JaxInterpreter`: graphs of `torch.fx` and `torch.export` as JAX functions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import calque
from calque.errors import UnsupportedOpError
from calque.graph import JaxInterpreter
from calque.graph.node_location import located


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.norm = nn.LayerNorm(3)
        self.register_buffer("offset", torch.arange(3.0))

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> dict[str, torch.Tensor]:
        y = self.norm(self.linear(x)) * scale + self.offset
        return {"rows": y, "total": y.sum()}


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_an_exported_program_is_a_jax_function(device):
    model = Model()
    x = torch.randn(2, 4)
    want = model(x, scale=2.0)
    program = torch.export.export(model.to(device), (x.to(device),), {"scale": 2.0})
    run = jax.jit(lambda x: JaxInterpreter(program)(x, scale=2.0))
    got = run(x.numpy())
    assert set(got) == {"rows", "total"}
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_jax_transforms_apply():
    graph = make_fx(lambda x, y: (x.sin() * y).sum())(torch.zeros(3), torch.zeros(3))
    run = JaxInterpreter(graph)
    x, y = jnp.arange(3.0), jnp.ones(3)
    np.testing.assert_allclose(jax.grad(run)(x, y), jnp.cos(x), rtol=1e-6)
    assert jax.vmap(run)(jnp.stack([x, x]), jnp.stack([y, y])).shape == (2,)


def test_random_graphs_take_a_key():
    graph = make_fx(lambda x: torch.rand_like(x) + x)(torch.zeros(5))
    run = JaxInterpreter(graph)
    first, again = (run(jnp.zeros(5), rng=jax.random.key(0)) for _ in range(2))
    other = run(jnp.zeros(5), rng=jax.random.key(1))
    assert jnp.array_equal(first, again)
    assert not jnp.array_equal(first, other)
    with pytest.raises(ValueError, match="rng"):
        run(jnp.zeros(5))


def test_inputs_are_not_written():
    graph = make_fx(lambda x: x.add_(1))(torch.zeros(2))
    x = jnp.zeros(2)
    assert JaxInterpreter(graph)(x).tolist() == [1, 1]
    assert x.tolist() == [0, 0]


def test_several_results():
    graph = make_fx(lambda x: [x + 1, x.sum(), None])(torch.zeros(2))
    rows, total, nothing = JaxInterpreter(graph)(jnp.ones(2))
    assert rows.tolist() == [2, 2]
    assert total == 2
    assert nothing is None


def test_control_flow_of_torch_becomes_control_flow_of_jax():
    class Branch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))

    run = JaxInterpreter(torch.export.export(Branch(), (torch.ones(2),)))
    assert "cond" in str(jax.make_jaxpr(run)(jnp.ones(2)))
    assert jax.jit(run)(jnp.ones(2)).tolist() == [2, 2]
    assert jax.jit(run)(-jnp.ones(2)).tolist() == [-2, -2]


class Scaled(nn.Module):
    def forward(self, x, *others, **named):
        return sum(others, x) * named.get("scale", 1)


def test_inputs_that_are_left_over():
    x = torch.arange(3.0)
    graph = calque.lower(calque.trace(Scaled(), x, x))
    found = JaxInterpreter(graph)(jnp.arange(3.0), jnp.ones(3))
    assert found.tolist() == [1, 2, 3]


def test_an_error_that_names_a_line_already_gets_the_nodes_line_instead():
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    node.stack_trace = 'File "model.py", line 7, in forward'
    for said in ("/path of/main.py:3 in <module>: aten::f has no rule", "aten::f has no rule"):
        found = located(UnsupportedOpError(said), node)
        assert str(found) == "model.py:7 in forward: aten::f has no rule"
        assert located(found, node) is found
