"""Positions and indices of lowered graphs as JAX functions, where 64-bit types are off."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import calque
from calque.graph import JaxInterpreter

X = torch.tensor([[1.0, 3.0, 2.0, 3.0], [float("nan"), 0.0, 1.0, 5.0]])
PROGRAMS: list[Callable[[Tensor], Any]] = [
    lambda x: x.argmax(1),
    lambda x: x.argmin(),
    lambda x: x.argmax(-1, keepdim=True),
    lambda x: x.max(0).indices,
    lambda x: x[:, :1].expand(2, 40).argmax(1),
    lambda x: tuple(x.nan_to_num().mode(1)),
    lambda x: torch.linalg.lu_factor_ex(x.nan_to_num()[:, :2]).info,
    lambda x: torch.linalg.inv_ex(torch.zeros(2, 2) * x.nan_to_num()[:, :2]).info,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_positions_are_those_of_pytorch_under_jit_and_vmap(program: Callable[..., Any]) -> None:
    function = JaxInterpreter(calque.lower(calque.trace(program, X)))
    array = jnp.asarray(X.numpy())
    expected = [part.numpy() for part in jax.tree.leaves(program(X))]
    once = jax.tree.leaves(jax.jit(function)(array))
    mapped = jax.tree.leaves(jax.jit(jax.vmap(function))(array[None]))
    for found, several, wanted in zip(once, mapped, expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(several[0], wanted)


def looked_up(layer: nn.Module) -> Callable[..., Any]:
    def program(batch: dict[str, Any]) -> Any:
        ids, more = batch["ids"]
        return layer(ids) * batch["scale"], more * 2**33

    return program


def test_indices_may_be_arrays_whose_64_bits_jax_has_cut_off() -> None:
    ids = torch.tensor([[1, 2], [3, 4]])
    batch = {"scale": torch.ones(3), "ids": (ids, ids)}
    program = looked_up(nn.Embedding(10, 3))
    function = JaxInterpreter(calque.lower(calque.trace(program, batch)))
    arrays = jax.tree.map(lambda tensor: jnp.asarray(tensor.numpy()), batch)
    assert arrays["ids"][0].dtype == jnp.int32
    found, wide = jax.jit(function)(arrays)
    np.testing.assert_allclose(found, program(batch)[0].detach().numpy())
    assert wide.dtype == jnp.int64
    assert wide.tolist() == (ids * 2**33).tolist()
    with pytest.raises(calque.TraceError, match="dtype"):
        function({**arrays, "scale": arrays["scale"].astype(jnp.float16)})
