"""What a functional module is called with, and what it gives."""

import copy
import dataclasses
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch._dynamo
from torch import nn

import calque
from calque.device.memory.cell import cell_of, is_whole

X = jnp.arange(12.0).reshape(4, 3)


def test_parameters_and_buffers_are_given_whole():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).to("jax")
    apply, params = calque.functional(model)
    less = {name: value for name, value in params.items() if name != "0.bias"}
    with pytest.raises(RuntimeError, match=r"params lacks 0\.bias"):
        apply(less, X, buffers=apply.buffers)
    more = {**params, "other": X, "1.running_var": X}
    with pytest.raises(
        RuntimeError, match=r"no 1\.running_var, other among its parameters; .*`buffers=`"
    ):
        apply(more, X, buffers=apply.buffers)
    with pytest.raises(RuntimeError, match=r"buffers lacks 1\.running_mean, 1\.running_var"):
        apply(params, X, buffers={"1.num_batches_tracked": jnp.zeros((), int)})
    with pytest.raises(TypeError, match="params must be a dict"):
        apply(list(params.values()), X)
    function, _ = calque.functional(torch.sin)
    with pytest.raises(RuntimeError, match="a function has neither"):
        function(params, X)


def test_one_name_of_a_tied_parameter_is_enough():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    apply, params = calque.functional(model)
    assert sorted(params) == ["0.bias", "0.weight", "1.bias"]
    renamed = {name.replace("0.weight", "1.weight"): value for name, value in params.items()}
    np.testing.assert_array_equal(apply(renamed, X), apply(params, X))


def test_frozen_parameters_are_differentiated_as_any_argument():
    model = nn.Linear(3, 2).requires_grad_(False)
    apply, params = calque.functional(model)
    gradients = jax.grad(lambda params: apply(params, X).sum())(params)
    np.testing.assert_allclose(gradients["weight"], np.stack([X.sum(0)] * 2))


def test_an_argument_that_is_returned_has_a_gradient():
    def total(apply, *arrays):
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(apply({}, *arrays)))

    def doubled(x):
        x.mul_(2)
        return x

    cases = [
        (lambda x: x, 1),
        (lambda x: {"a": x, "b": [x, x * 2]}, 4),
        (lambda x: (x, x.t(), x * 3), 5),
        (doubled, 2),
    ]
    for function, expected in cases:
        for kind in ("torch", "jax"):
            apply, _ = calque.functional(function, gradient=kind)
            gradient = jax.grad(lambda x, apply=apply: total(apply, x))(X)
            assert (gradient == expected).all()
    apply, _ = calque.functional(lambda x: (x, x.detach()))
    assert (jax.grad(lambda x: total(apply, x))(X) == 1).all()

    class Gives(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return self.weight, x

    apply, params = calque.functional(Gives())
    gradients = jax.grad(lambda params: (apply(params, X)[0] * 5).sum())(params)
    assert gradients["weight"].tolist() == [5, 5, 5]


def test_values_that_compare_equal_are_told_apart():
    apply, params = calque.functional(lambda x, s: x * s)
    one = jnp.ones(1)
    signs = [np.signbit(apply(params, one, zero))[0] for zero in (0.0, -0.0)]
    assert signs == [False, True]
    with pytest.raises(TypeError, match="of type set cannot be hashed"):
        apply(params, one, {1})


def test_tensors_among_the_arguments_are_taken_by_value():
    apply, params = calque.functional(nn.Linear(3, 2))
    x = torch.ones(1, 3, device="jax")
    first = apply(params, x)
    x.mul_(2)
    np.testing.assert_allclose(apply(params, x), apply(params, np.full((1, 3), 2, np.float32)))
    assert not np.allclose(apply(params, x), first)


@dataclasses.dataclass
class Output:
    loss: object
    parts: list
    name: str = "loss"


def test_objects_that_hold_tensors_are_taken_apart():
    apply, _ = calque.functional(lambda x: {"all": Output(x.sum(), [x * 2, None])})
    found = apply({}, X)["all"]
    assert isinstance(found, Output)
    assert isinstance(found.loss, jax.Array)
    np.testing.assert_array_equal(found.parts[0], 2 * X)
    gradient = jax.jit(jax.grad(lambda x: apply({}, x)["all"].parts[0].sum()))(X)
    np.testing.assert_array_equal(gradient, jnp.full((4, 3), 2))


def test_a_key_is_a_key():
    apply, params = calque.functional(nn.Dropout(0.5))
    same = [apply(params, X, rng=key) for key in (0, jax.random.key(0), jax.random.PRNGKey(0))]
    assert (same[0] == same[1]).all() and (same[0] == same[2]).all()
    for wrong in ("0", 0.5, True, jnp.ones(2), jax.random.split(jax.random.key(0))):
        with pytest.raises(TypeError, match="rng must be one JAX key"):
            apply(params, X, rng=wrong)


def test_what_cannot_be_a_functional_module_is_refused():
    with pytest.raises(TypeError, match="a module or a function, not int"):
        calque.functional(3)
    with pytest.raises(ValueError, match="'tensorflow'"):
        calque.functional(nn.Linear(1, 1), gradient="tensorflow")


def test_compiled_modules_are_part_of_the_function():
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    apply, params = calque.functional(model)
    inner, _ = calque.functional(torch.compile(model, backend="calque"))
    own = {f"_orig_mod.{name}": value for name, value in params.items()}
    buffers = {f"_orig_mod.{name}": value for name, value in apply.buffers.items()}
    expected, new = apply(params, X, buffers=apply.buffers)
    found, written = inner(own, X, buffers=buffers)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(written["_orig_mod.1.running_var"], new["1.running_var"], rtol=1e-6)
    wanted = jax.grad(lambda p: (apply(p, X, buffers=apply.buffers)[0] ** 3).sum())(params)
    gradients = jax.grad(lambda p: (inner(p, X, buffers=buffers)[0] ** 3).sum())(own)
    for name, gradient in wanted.items():
        np.testing.assert_allclose(gradients[f"_orig_mod.{name}"], gradient, rtol=1e-3, atol=1e-3)


class Caches(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.cache = nn.Linear(3, 3), None

    def forward(self, x):
        if self.cache is None:
            self.cache = torch.arange(3.0, device=x.device)
        self.last = [self.linear(x)]
        return self.last[0] * self.cache


def test_tensors_that_a_module_keeps_of_a_trace_are_taken_back():
    module = Caches()
    apply, params = calque.functional(module)
    first = apply(params, X)
    assert module.cache is None
    assert not hasattr(module, "last")
    np.testing.assert_allclose(apply(params, X[:2]), first[:2], rtol=1e-6)
    np.testing.assert_allclose(jax.jit(apply)(params, X), first, rtol=1e-6)
    assert module(torch.ones(1, 3)).shape == (1, 3)


def test_what_a_functional_module_counts_is_counted_at_each_call():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.calls = nn.Parameter(torch.ones(2)), 0

        def forward(self, x):
            self.calls += 1
            return x * self.weight

    module = Counting().to("jax")
    apply, params = calque.functional(module)
    for count in (1, 2, 3):
        apply(params, jnp.ones(2))
        assert module.calls == count


def test_a_function_is_pickled_with_its_module():
    apply, params = calque.functional(nn.BatchNorm1d(3).eval())
    x = np.ones((2, 3), np.float32)
    expected = apply(params, x)
    again, params = pickle.loads(pickle.dumps((apply, params)))
    assert np.array_equal(again(params, x), expected)
    assert copy.deepcopy(again).buffers.keys() == apply.buffers.keys()


def test_a_dtype_may_be_another_object_of_numpys():
    wholes = []

    def look(array):
        tensor = calque.to_torch(array)
        wholes.append(is_whole(cell_of(tensor), tensor))
        return array

    other = np.dtype("float32").newbyteorder("=")
    assert other is not np.dtype("float32")
    jax.eval_shape(look, jax.ShapeDtypeStruct((2, 7, 9), other))
    assert wholes == [True]
