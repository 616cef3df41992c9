"""List operators and the optimizers built on them, against CPU PyTorch."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
import torch

import calque  # noqa: F401  (registers the device)
from calque.ops.optim.foreach import UNARY, _each

LISTS = [torch.tensor([[0.5, 0.25], [0.75, 0.1]]), torch.tensor([0.3, 0.9, 0.6])]


def _lists(device: str, scale: float = 1.0) -> list[torch.Tensor]:
    return [(t * scale).to(device) for t in LISTS]


PROGRAMS = {
    "add.List": lambda x, y: torch._foreach_add(x, y, alpha=2),
    "add.Scalar": lambda x, y: torch._foreach_add(x, 1.5),
    "add.ScalarList": lambda x, y: torch._foreach_add(x, [1.5, 2.5]),
    "sub.List": lambda x, y: torch._foreach_sub(x, y),
    "mul.Tensor": lambda x, y: torch._foreach_mul(x, y[1][0]),
    "div.List": lambda x, y: torch._foreach_div(x, y),
    "pow.Scalar": lambda x, y: torch._foreach_pow(x, 3),
    "pow.ScalarAndTensor": lambda x, y: torch._foreach_pow(0.9, x),
    "maximum.List": lambda x, y: torch._foreach_maximum(x, y),
    "clamp_min.Scalar": lambda x, y: torch._foreach_clamp_min(x, 0.5),
    "lerp.Scalar": lambda x, y: torch._foreach_lerp(x, y, 0.3),
    "lerp.List": lambda x, y: torch._foreach_lerp(x, y, y),
    "addcmul.Scalar": lambda x, y: torch._foreach_addcmul(x, y, y, 0.5),
    "addcdiv.ScalarList": lambda x, y: torch._foreach_addcdiv(x, y, x, [0.5, 2.0]),
    "addcmul.Tensor": lambda x, y: torch._foreach_addcmul(x, y, y, torch.tensor([0.5, 2.0])),
    "norm": lambda x, y: torch._foreach_norm(x, 2),
    "norm.inf": lambda x, y: torch._foreach_norm(x, float("inf")),
    "max": lambda x, y: torch._foreach_max(x),
}
IN_PLACE = {
    "add_": lambda x, y: torch._foreach_add_(x, y),
    "mul_": lambda x, y: torch._foreach_mul_(x, 0.5),
    "sqrt_": lambda x, y: torch._foreach_sqrt_(x),
    "zero_": lambda x, y: torch._foreach_zero_(x),
    "copy_": lambda x, y: torch._foreach_copy_(x, y),
    "lerp_": lambda x, y: torch._foreach_lerp_(x, y, 0.3),
    "addcdiv_": lambda x, y: torch._foreach_addcdiv_(x, y, y, [0.5, 2.0]),
    "addcdiv_.Tensor": lambda x, y: torch._foreach_addcdiv_(x, y, y, torch.tensor([0.5, 2.0])),
    "addcmul_.Tensor twice": lambda x, y: torch._foreach_addcmul_(
        [x[0], x[0]], [y[0], y[0]], [y[0], x[0]], torch.tensor([0.5, 2.0])
    ),
}


def _same(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.cpu(), b)


@pytest.mark.parametrize("name", PROGRAMS)
def test_functional_form(name: str) -> None:
    expected, actual = [PROGRAMS[name](_lists(d), _lists(d, 1.5)) for d in ("cpu", "jax")]
    _same(actual, expected)


@pytest.mark.parametrize("name", [n for n in UNARY if n not in ("zero", "max")])
def test_unary(name: str) -> None:
    expected, actual = [getattr(torch, f"_foreach_{name}")(_lists(d)) for d in ("cpu", "jax")]
    _same(actual, expected)


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_form(name: str) -> None:
    lists = {}
    for device in ("cpu", "jax"):
        lists[device] = _lists(device)
        IN_PLACE[name](lists[device], _lists(device, 1.5))
    _same(lists["jax"], lists["cpu"])


def test_lists_of_other_lengths_are_refused() -> None:
    with pytest.raises(RuntimeError, match="same number of tensors"):
        torch._foreach_add(_lists("jax"), _lists("jax")[:1])


OPTIMIZERS = {
    "SGD": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "SGD-fused": partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=True),
    "Adam": partial(torch.optim.Adam, lr=0.1, amsgrad=True),
    "Adam-fused": partial(torch.optim.Adam, lr=0.1, amsgrad=True, weight_decay=0.1, fused=True),
    "AdamW": partial(torch.optim.AdamW, lr=0.1),
    "AdamW-fused": partial(torch.optim.AdamW, lr=torch.tensor(0.1), fused=True, maximize=True),
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "RMSprop": partial(torch.optim.RMSprop, centered=True, momentum=0.9),
    "Rprop": torch.optim.Rprop,
    "Adagrad": torch.optim.Adagrad,
    "Adagrad-fused": partial(torch.optim.Adagrad, fused=True),
    "Adadelta": torch.optim.Adadelta,
    "Adamax": torch.optim.Adamax,
    "ASGD": torch.optim.ASGD,
}


def _trained(optimizer: object, device: str) -> list[torch.Tensor]:
    parameters = [t.requires_grad_() for t in _lists(device)]
    steps = optimizer(parameters)
    for _ in range(4):
        steps.zero_grad()
        (parameters[0].sin().sum() * parameters[1].square().sum()).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        steps.step()
    return [p.detach() for p in parameters]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_takes_the_same_steps(name: str) -> None:
    expected, actual = [_trained(OPTIMIZERS[name], d) for d in ("cpu", "jax")]
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-5, atol=1e-5)


def test_unscaling_finds_what_is_not_finite() -> None:
    for value, flag in ((4.0, 0.0), (torch.inf, 1.0)):
        grads = [torch.tensor([2.0, value]).to("jax")]
        found, inverse = torch.zeros(1, device="jax"), torch.full((1,), 0.5, device="jax")
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found, inverse)
        assert found.item() == flag
        assert grads[0][0].item() == 1.0


def test_loss_scale_shrinks_and_grows() -> None:
    for found, steps, scale, left in ((1.0, 5, 4.0, 0), (0.0, 1, 8.0, 2), (0.0, 2, 16.0, 0)):
        current = torch.full((1,), 8.0, device="jax")
        tracker = torch.full((1,), steps, dtype=torch.int32, device="jax")
        flag = torch.full((1,), found, device="jax")
        assert torch._amp_update_scale_(current, tracker, flag, 2.0, 0.5, 3) is current
        assert (current.item(), tracker.item()) == (scale, left)


def test_lerp_takes_a_truth_value_as_a_number():
    x, y = torch.zeros(2), torch.ones(2)
    found = torch._foreach_lerp([x.to("jax")], [y.to("jax")], True)
    assert torch.equal(found[0].cpu(), torch._foreach_lerp([x], [y], True)[0])
    assert torch.equal(torch.lerp(x.to("jax"), y.to("jax"), True).cpu(), torch.lerp(x, y, True))
    with pytest.raises(RuntimeError, match="expected dtype Float for `weight` but got dtype Bool"):
        torch.lerp(x.to("jax"), y.to("jax"), torch.tensor([True, False], device="jax"))


def test_results_lie_as_the_tensors_at_their_place() -> None:
    found = []
    for device in ("cpu", "jax"):
        x, y = torch.ones(3, 4, device=device).t(), torch.ones(2, 2, device=device)
        lists = torch._foreach_exp([x, y]), torch._foreach_addcmul([x, y], [x, y], [x, y.t()])
        lists += torch._foreach_pow(2, [x, y]), torch._foreach_add([x, y], 1), [2**x]
        found.append([one.stride() for tensors in lists for one in tensors])
    assert found[1] == found[0]


def test_a_list_is_refused_as_its_tensors_are() -> None:
    once = torch.ones(1, device="jax").expand(3)
    torch._foreach_zero_([once])
    assert once.tolist() == [0, 0, 0]
    with pytest.raises(NotImplementedError, match="frac_cpu"):
        torch._foreach_frac([torch.ones(2, device="jax"), torch.ones(2, device="jax").long()])


def test_booleans_are_not_clamped_by_numbers() -> None:
    x = [torch.tensor([True, False], device="jax")]
    for clamp in (torch._foreach_clamp_min, torch._foreach_maximum):
        with pytest.raises(RuntimeError, match="clamp_min_scalar_cpu"):
            clamp(x, True)
        assert clamp(x, [~x[0]])[0].tolist() == [True, True]


@pytest.mark.parametrize("name", ["maximum", "minimum", "clamp_min", "clamp_max"])
@pytest.mark.parametrize(("dtype", "number"), [(torch.int8, -300), (torch.float16, 1e6)])
def test_limits_that_do_not_fit_a_dtype_raise(name: str, dtype: torch.dtype, number: float) -> None:
    for form in (name, f"{name}_"):
        for given in (number, [1, number]):
            lists = [
                [torch.ones(2, device=d), torch.tensor([1, 2], dtype=dtype, device=d)]
                for d in ("cpu", "jax")
            ]
            for tensors in lists:
                with pytest.raises(
                    RuntimeError, match=r"without overflow|outside the representable"
                ):
                    getattr(torch, f"_foreach_{form}")(tensors, given)
            assert [t.tolist() for t in lists[1]] == [[1, 1], [1, 2]]


@pytest.mark.parametrize("name", ["add", "mul", "div"])
def test_one_tensor_for_all_has_no_axes(name: str) -> None:
    for device in ("cpu", "jax"):
        x = [torch.ones(2, device=device)]
        for form in (f"_foreach_{name}", f"_foreach_{name}_"):
            for shape in ((2,), (1,)):
                with pytest.raises(RuntimeError, match="scalar tensor expected to be 0 dim"):
                    getattr(torch, form)(x, torch.ones(shape, device=device))
            getattr(torch, form)(x, torch.ones((), device=device))
        assert x[0].tolist() == ([2.0, 2.0] if name == "add" else [1.0, 1.0])


def test_a_rule_is_traced_once_for_each_kind_of_row() -> None:
    seen: list[object] = []

    def rule(x: jax.Array, number: float) -> jax.Array:
        seen.append((x.shape, repr(number)))
        return jnp.where(x > 0, x, number) if number else x * number

    arrays = [jnp.ones(n) for n in (2, 3, 2, 2, 2, 2, 3)]
    numbers = [2, 2, 2, 2.0, 0.0, -0.0, 2]

    def each(*given: jax.Array) -> list[jax.Array]:
        return _each(rule, [[x, n] for x, n in zip(given, numbers, strict=True)])

    traced = jax.make_jaxpr(each)(*arrays)
    assert seen == [
        ((2,), "2"), ((3,), "2"), ((2,), "2.0"), ((2,), "0.0"), ((2,), "-0.0"),
    ]  # fmt: skip
    one_by_one = jax.make_jaxpr(lambda *given: list(map(rule, given, numbers)))(*arrays)
    assert str(traced) == str(one_by_one)
    assert [str(x) for x in each(*arrays)] == [str(x) for x in map(rule, arrays, numbers)]
