"""calque.functional: modules as pure JAX functions."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import calque

X = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
Y = np.array([0, 1, 2, 0])


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.GELU(), nn.Linear(8, 3)
    )


def loss_of(apply):
    def loss(params, x):
        logits = jax.nn.log_softmax(apply(params, x))
        return -logits[jnp.arange(4), Y].mean()

    return loss


def test_parameters_are_keyed_as_the_state_dict():
    model = make_model()
    apply, params = calque.functional(model)
    assert params.keys() | apply.buffers.keys() == model.state_dict().keys()
    for name, array in {**params, **apply.buffers}.items():
        assert isinstance(array, jax.Array)
        np.testing.assert_array_equal(array, model.state_dict()[name].numpy())


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_value_and_gradient_agree_with_torch(device):
    model = make_model().eval()
    expected = F.cross_entropy(model(torch.from_numpy(X)), torch.from_numpy(Y))
    expected.backward()
    wanted = {name: p.grad.numpy() for name, p in model.named_parameters()}
    apply, params = calque.functional(model.to(device))
    value, gradient = jax.jit(jax.value_and_grad(loss_of(apply)))(params, X)
    np.testing.assert_allclose(value, expected.item(), rtol=1e-5)
    for name in wanted:
        np.testing.assert_allclose(gradient[name], wanted[name], atol=1e-6)


def test_vmap_and_scan():
    apply, params = calque.functional(make_model().eval())
    whole = apply(params, X)
    each = jax.vmap(lambda x: apply(params, x[None])[0])(X)
    np.testing.assert_allclose(each, whole, atol=1e-6)

    def body(carry, x):
        return carry + apply(params, x[None]).sum(), None

    total, _ = jax.lax.scan(body, jnp.float32(0), jnp.asarray(X))
    np.testing.assert_allclose(total, whole.sum(), rtol=1e-4)


def test_optax_trains_it():
    apply, params = calque.functional(make_model().eval())
    loss = loss_of(apply)
    optimizer = optax.adam(1e-2)

    @jax.jit
    def step(params, state):
        value, gradient = jax.value_and_grad(loss)(params, X)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state, value

    state = optimizer.init(params)
    values = []
    for _ in range(10):
        params, state, value = step(params, state)
        values.append(float(value))
    assert values[-1] < values[0] - 0.1


def test_tied_weights_come_once_and_get_both_gradients():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(7, 4)
            self.head = nn.Linear(4, 7, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x):
            return self.head(self.embed(x)).sum()

    torch.manual_seed(0)
    model = Tied()
    tokens = torch.tensor([1, 2, 2])
    model(tokens).backward()
    apply, params = calque.functional(model)
    assert list(params) == ["embed.weight"]
    gradient = jax.grad(lambda p: apply(p, tokens.numpy()))(params)
    np.testing.assert_allclose(
        gradient["embed.weight"], model.embed.weight.grad.numpy(), rtol=1e-5, atol=1e-6
    )


def test_buffers_are_explicit():
    model = make_model()
    apply, params = calque.functional(model)
    rng = jax.random.key(0)
    with pytest.raises(calque.TraceError, match=r"writes to the buffer '1.running_mean'"):
        apply(params, X, rng=rng)
    _, new = apply(params, X, buffers=apply.buffers, rng=rng)
    model(torch.from_numpy(X))
    for name, buffer in model.named_buffers():
        np.testing.assert_allclose(new[name], buffer.numpy(), rtol=1e-5, atol=1e-6)
    assert int(apply.buffers["1.num_batches_tracked"]) == 0


def test_random_operators_need_a_key_and_follow_it():
    apply, params = calque.functional(nn.Dropout(0.5))
    ones = np.ones(64, np.float32)
    with pytest.raises(calque.TraceError, match="rng"):
        apply(params, ones)
    first = apply(params, ones, rng=jax.random.key(1))
    np.testing.assert_array_equal(apply(params, ones, rng=jax.random.key(1)), first)
    assert (apply(params, ones, rng=jax.random.key(2)) != first).any()


def test_train_and_eval_are_told_apart():
    model = nn.Dropout(0.5)
    apply, params = calque.functional(model)
    ones = np.ones(64, np.float32)
    apply(params, ones, rng=jax.random.key(1))
    model.eval()
    np.testing.assert_array_equal(apply(params, ones), ones)


class TimesTen(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 10


def test_the_gradient_is_torchs_own():
    apply, params = calque.functional(lambda x: (TimesTen.apply(x) + x.detach()).sum())
    gradient = jax.grad(lambda x: apply(params, x))(jnp.ones(2))
    np.testing.assert_array_equal(gradient, [10.0, 10.0])


@pytest.mark.parametrize("detached", [False, True])
def test_what_torch_detaches_has_no_derivative(detached):
    def function(x):
        with torch.set_grad_enabled(not detached):
            return (x * x.detach()).sum()

    apply, params = calque.functional(function)
    x = jnp.array([1.0, 2.0])
    gradient = jax.grad(lambda x: apply(params, x))(x)
    np.testing.assert_array_equal(gradient, 0 * x if detached else x)


def test_a_graph_that_the_function_has_used_up_is_missed_only_by_its_derivative():
    def step(x):
        loss = (x * x).sum()
        (gradient,) = torch.autograd.grad(loss, x)
        return x - 0.1 * gradient, loss

    apply, params = calque.functional(step)
    x = jnp.array([1.0, 2.0])
    new, loss = apply(params, x)
    np.testing.assert_allclose(new, [0.8, 1.6], rtol=1e-6)
    assert float(loss) == 5.0
    gradient = jax.grad(lambda x: apply(params, x)[0].sum())(x)
    np.testing.assert_array_equal(gradient, [1.0, 1.0])
    with pytest.raises(calque.TraceError, match=r"detach\(\)"):
        jax.grad(lambda x: apply(params, x)[1])(x)


BRANCHING = {
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "median": lambda x: x.median(),
    "prod": lambda x: x.prod(),
    "prod_dim": lambda x: (x * x.new_tensor([1.0, 0.0, 1.0])).prod(0),
    "cumprod": lambda x: x.cumprod(0).sum(),
}
"""What PyTorch differentiates by formulas that branch on values."""


def test_derivatives_that_branch_on_values():
    x = np.array([0.5, -1.5, 0.5], np.float32)

    def inner(function, x):
        leaf = x.detach().clone().requires_grad_()
        function(leaf).backward()
        return leaf.grad

    for name, function in BRANCHING.items():
        leaf = torch.tensor(x, requires_grad=True)
        function(leaf).backward()
        apply, _ = calque.functional(function)
        found = jax.jit(jax.grad(lambda x, apply=apply: apply({}, x)))(x)
        np.testing.assert_allclose(found, leaf.grad, rtol=1e-6, err_msg=name)
        apply, _ = calque.functional(lambda x, function=function: inner(function, x))
        np.testing.assert_allclose(apply({}, x), leaf.grad, rtol=1e-6, err_msg=name)


def test_jaxs_gradient_allows_forward_mode():
    apply, params = calque.functional(lambda x: (x**3).sum(), gradient="jax")
    hessian = jax.hessian(lambda x: apply(params, x))(jnp.array([1.0, 2.0]))
    np.testing.assert_allclose(hessian, [[6.0, 0.0], [0.0, 12.0]])


def test_the_users_configuration_stays():
    apply, params = calque.functional(nn.Embedding(5, 3))
    apply(params, np.array([1, 2]))
    assert jnp.arange(3).dtype == jnp.int32


def slices(x):
    y = x.clone()
    y[1:3] = 0
    y[:, 0] += y[:, 1]
    y.t()[2] *= 2
    best = torch.nn.functional.one_hot(y.argmax(-1), 3)
    return y * torch.tensor([1.0, 2.0, 3.0], device=x.device) + best


@pytest.mark.parametrize("wide", [False, True], ids=["32 bits", "64 bits"])
def test_transformations_of_written_slices(wide):
    arrays = np.random.default_rng(0).standard_normal((2, 4, 3)).astype(np.float32)
    expected = np.stack([slices(torch.from_numpy(x)).numpy() for x in arrays])
    apply, _ = calque.functional(slices)
    forward, _ = calque.functional(slices, gradient="jax")
    with jax.enable_x64(wide):
        xs = jnp.asarray(arrays)
        for run in (apply, jax.jit(apply), jax.checkpoint(apply), forward):
            found = jax.vmap(lambda x, run=run: run({}, x))(xs)
            np.testing.assert_allclose(found, expected, rtol=1e-6)
        scanned = jax.vmap(lambda x: jax.lax.scan(lambda c, x: (c, apply({}, x)), 0, x)[1])(
            xs[None]
        )
        np.testing.assert_allclose(scanned[0], expected, rtol=1e-6)
        both = jax.vmap(jax.jacfwd(lambda x: forward({}, x)))(xs)
        np.testing.assert_allclose(both, jax.vmap(jax.jacrev(lambda x: apply({}, x)))(xs))


def test_tensors_that_are_no_arguments_are_constants_and_not_written():
    here, there = torch.ones(2), torch.ones(2, device="jax")
    apply, _ = calque.functional(lambda x: x + here.to(x.device) + there)
    np.testing.assert_array_equal(apply({}, np.zeros(2, np.float32)), [2, 2])
    apply, _ = calque.functional(lambda x: there.add_(x))
    with pytest.raises(calque.TraceError, match="not an argument"):
        apply({}, np.zeros(2, np.float32))


def _doubles(x):
    x.mul_(2)
    return (x * x).sum()


def _sets(x):
    x[0] = 5
    return (x * x).sum()


def _clips(x):
    return nn.ReLU(inplace=True)(x).square().sum()


@pytest.mark.parametrize(
    ("function", "value", "gradient"),
    [(_doubles, 56, [8, 16, 24]), (_sets, 38, [0, 4, 6]), (_clips, 14, [2, 4, 6])],
)
@pytest.mark.parametrize("kind", ["torch", "jax"])
def test_an_argument_may_be_written_in_place(function, value, gradient, kind):
    apply, params = calque.functional(function, gradient=kind)
    x = jnp.array([1.0, 2.0, 3.0])
    assert apply(params, x) == value
    assert jax.jit(apply)(params, x) == value
    assert jax.grad(lambda x: apply(params, x))(x).tolist() == gradient
    assert x.tolist() == [1, 2, 3]


def test_what_a_function_did_before_its_write_is_done_once():
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.shapes = []

        def forward(self, x):
            self.shapes = [*self.shapes, tuple(x.shape)]
            x += self.weight
            return x.sum()

    module = Writes()
    apply, params = calque.functional(module)
    gradients = jax.grad(apply)(params, jnp.ones(3))
    assert gradients["weight"].tolist() == [1, 1, 1]
    assert module.shapes == [(3,)]


def test_a_parameter_must_not_be_written_in_place():
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            self.weight.mul_(2)
            return (self.weight * x).sum()

    apply, params = calque.functional(Writes())
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        apply(params, jnp.ones(3))


@pytest.mark.parametrize("transform", [jax.grad, lambda loss: jax.jit(jax.grad(loss))])
def test_gradients_of_arrays_that_are_spread_over_an_explicit_mesh(transform):
    mesh = jax.make_mesh((1,), ("d",), devices=jax.devices()[:1])
    apply, params = calque.functional(nn.Sequential(nn.Linear(3, 4), nn.LSTM(4, 2)))
    x = jnp.arange(12.0).reshape(4, 3) / 10

    def loss(params, x):
        return jnp.square(apply(params, x)[0]).sum()

    expected = jax.grad(loss, (0, 1))(params, x)
    with jax.set_mesh(mesh):
        spread = jax.device_put(x, jax.NamedSharding(mesh, jax.P("d")))
        found = transform(lambda both: loss(*both))((params, spread))
        assert jax.typeof(found[1]) == jax.typeof(spread)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-4, atol=1e-6)
