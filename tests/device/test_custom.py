"""`calque.op`: rules that users give, for operators of their own and of ATen."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F
from jax.experimental import pallas as pl

import calque
from calque.device.kernels import binding
from calque.ops.table.registry import RULES

LIBRARY = torch.library.Library("calquetest", "FRAGMENT")
LIBRARY.define("scaled(Tensor x, Scalar factor=2, *, bool negate=False) -> Tensor")
LIBRARY.define("undifferentiable(Tensor x) -> Tensor")
LIBRARY.define("noise(Tensor x) -> Tensor")


@torch.library.custom_op("calquetest::soft_sign", mutates_args=())
def soft_sign(x: torch.Tensor, scale: float) -> torch.Tensor:
    return x / (scale + x.abs())


@calque.op("calquetest::soft_sign")
def soft_sign_rule(x, scale):
    return x / (scale + jnp.abs(x))


@torch.library.custom_op("calquetest::blend", mutates_args=())
def blend(
    xs: Sequence[torch.Tensor], weight: torch.Tensor | None, power: int
) -> tuple[torch.Tensor, torch.Tensor]:
    total = sum(xs) if weight is None else sum(xs) * weight
    return total**power, total.argmax()


@calque.op("calquetest::blend")
def blend_rule(xs, weight, power):
    total = sum(xs) if weight is None else sum(xs) * weight
    return total**power, total.argmax()


@torch.library.custom_op("calquetest::push", mutates_args=("buffer",))
def push(buffer: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    buffer.copy_(torch.cat([buffer[1:], row[None]]))
    return buffer.sum()


@calque.op("calquetest::push")
def push_rule(buffer, row):
    new = jnp.concatenate([buffer[1:], row[None]])
    return new.sum(), new


@torch.library.custom_op("calquetest::straight_through", mutates_args=())
def straight_through(x: torch.Tensor) -> torch.Tensor:
    return x.round()


straight_through.register_autograd(lambda ctx, gradient: gradient * 10)
calque.op("calquetest::straight_through")(lambda x: jnp.round(x))


@calque.op("calquetest::scaled")
def scaled_rule(x, factor=2, negate=False):
    return (-x if negate else x) * jnp.asarray(factor, x.dtype)


@calque.op("calquetest::noise", random=True)
def noise_rule(key, x):
    return jax.random.uniform(key, x.shape, x.dtype)


def leaf(*values: float, device: str = "jax") -> torch.Tensor:
    return torch.tensor(values, device=device, requires_grad=True)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return soft_sign(self.linear(x), 1.5).sum()


def test_the_gradient_is_that_of_the_rule():
    x = leaf(0.5, -2.0)
    soft_sign(x, 1.0).sum().backward()
    assert torch.allclose(x.grad.cpu(), 1 / (1 + x.detach().cpu().abs()) ** 2)


def test_the_gradient_of_complex_numbers_is_pytorchs():
    LIBRARY.define("turned(Tensor x) -> Tensor")
    calque.op("calquetest::turned")(lambda x: x * x * (1 + 2j))
    numbers = torch.tensor([1 + 2j, 0.5 - 1j])
    found = []
    for x, turn in (
        (numbers.clone().requires_grad_(), lambda x: x * x * (1 + 2j)),
        (numbers.to("jax").requires_grad_(), torch.ops.calquetest.turned),
    ):
        (first,) = torch.autograd.grad((turn(x) * (2 - 1j)).sum().real, x, create_graph=True)
        (second,) = torch.autograd.grad((first * (1 - 3j)).sum().imag, x)
        found.append([first.detach().cpu().resolve_conj(), second.cpu().resolve_conj()])
    torch.testing.assert_close(found[1], found[0])


def test_the_gradient_can_be_differentiated():
    x = leaf(0.5, 2.0)
    (first,) = torch.autograd.grad(soft_sign(x, 1.0).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
    (third,) = torch.autograd.grad(second.sum(), x)
    assert torch.allclose(second.cpu(), -2 / (1 + x.detach().cpu()) ** 3)
    assert torch.allclose(third.cpu(), 6 / (1 + x.detach().cpu()) ** 4)


@pytest.mark.parametrize("how", ["eager", "jit", "compile"])
def test_a_module_with_an_operator_of_its_own_trains(how):
    torch.manual_seed(0)
    model = Model()
    x = torch.randn(3, 4)

    def train(model: torch.nn.Module, forward: object, x: torch.Tensor) -> list[float]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

        def step(x):
            loss = forward(x)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        step = calque.jit(step) if how == "jit" and x.device.type == "jax" else step
        return [step(x).item() for _ in range(4)]

    def expected(x):
        y = model.linear(x)
        return (y / (1.5 + y.abs())).sum()

    state = {name: value.clone() for name, value in model.state_dict().items()}
    want = train(model, expected, x)
    model.load_state_dict(state)
    model.to("jax")
    forward = torch.compile(model, backend="aot_eager", fullgraph=True)
    got = train(model, forward if how == "compile" else model, x.to("jax"))
    assert got == pytest.approx(want, rel=1e-5)


def test_lists_of_tensors_several_results_and_missing_tensors():
    a, b, w = leaf(1.0, 2.0), leaf(3.0, 4.0), leaf(0.5, 2.0)
    power, index = blend([a, b], w, 2)
    assert power.tolist() == [4.0, 144.0]
    assert (index.item(), index.dtype) == (1, torch.int64)
    power.sum().backward()
    assert a.grad.tolist() == b.grad.tolist() == [2 * 4 * 0.25, 2 * 6 * 4.0]
    assert w.grad.tolist() == [2 * 4 * 4 * 0.5, 2 * 6 * 6 * 2.0]
    c = leaf(1.0, 2.0)
    blend([c, b], None, 1)[0].sum().backward()
    assert c.grad.tolist() == [1.0, 1.0]


def test_an_operator_that_writes_to_its_argument():
    buffer = torch.zeros(2, 2, device="jax")
    view = buffer[0]

    def call(row):
        return push(buffer, row)

    assert call(torch.ones(2, device="jax")).item() == 2
    assert calque.jit(call)(torch.full((2,), 3.0, device="jax")).item() == 8
    assert buffer.tolist() == [[1, 1], [3, 3]]
    assert view.tolist() == [1, 1]


@pytest.mark.parametrize("shape", [(2, 3), (1,), ()])
@pytest.mark.parametrize(
    "wrap", [lambda value: value, lambda value: (value,)], ids=["one", "tuple"]
)
def test_an_operator_that_only_writes(shape, wrap):
    name = f"only_writes_{len(shape)}_{wrap(0) == 0}".lower()
    LIBRARY.define(f"{name}(Tensor(a!) buffer, Tensor x) -> ()")
    calque.op(f"calquetest::{name}")(lambda buffer, x: wrap(buffer + x))
    operator, x = getattr(torch.ops.calquetest, name), torch.full(shape, 3.0, device="jax")
    buffer = torch.ones(shape, device="jax")
    operator(buffer, x)
    assert (buffer == 4).all()
    assert buffer.shape == shape
    calque.jit(lambda: operator(buffer, x))()
    assert (buffer == 7).all()


def test_an_operator_without_results_has_no_gradient():
    LIBRARY.define("looks(Tensor x) -> ()")
    calque.op("calquetest::looks")(lambda x: None)
    assert torch.ops.calquetest.looks(leaf(1.0)) is None


def test_a_formula_of_the_users_is_kept():
    x = leaf(0.4)
    straight_through(x).backward()
    assert x.grad.tolist() == [10.0]


def test_operators_of_a_library_with_defaults_and_keywords():
    x = leaf(1.0, 2.0)
    assert torch.ops.calquetest.scaled(x).tolist() == [2.0, 4.0]
    y = torch.ops.calquetest.scaled(x, 5, negate=True)
    y.sum().backward()
    assert y.tolist() == [-5.0, -10.0]
    assert x.grad.tolist() == [-5.0, -5.0]


def test_random_rules_follow_the_seed():
    x = torch.zeros(3, device="jax")
    torch.manual_seed(3)
    first, second = (torch.ops.calquetest.noise(x) for _ in range(2))
    torch.manual_seed(3)
    assert torch.equal(torch.ops.calquetest.noise(x), first)
    assert not torch.equal(first, second)


def test_shapes_come_from_the_rule():
    with torch._subclasses.FakeTensorMode():
        x = torch.empty(3, 2, dtype=torch.bfloat16, device="jax")
        y = soft_sign(x, 1.0)
    assert (y.shape, y.dtype, y.device.type) == (x.shape, x.dtype, "jax")


def test_pallas_kernels():
    LIBRARY.define("twice(Tensor x) -> Tensor")

    def double(x_ref, out_ref):
        out_ref[...] = x_ref[...] * 2

    @calque.op("calquetest::twice")
    def twice(x):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(double, out_shape=shape, interpret=True)(x)

    x = torch.arange(3.0, device="jax")
    assert torch.ops.calquetest.twice(x).tolist() == [0, 2, 4]
    assert calque.jit(torch.ops.calquetest.twice)(x).tolist() == [0, 2, 4]


@pytest.fixture
def restored():
    """Puts replaced rules of ATen back."""
    before = dict(RULES)
    yield
    for name in [n for n, rule in before.items() if RULES[n] is not rule]:
        rule = before[name]
        calque.op(name, static=tuple(rule.static), random=rule.random)(rule.function)


@pytest.mark.usefixtures("restored")
def test_a_rule_of_aten_can_be_replaced():
    calque.op("aten::mish")(lambda self: jnp.full_like(self, 7))
    x = leaf(0.0)
    assert F.mish(x).tolist() == [7.0]
    assert torch.nn.Mish()(x).tolist() == [7.0]
    assert torch.ops.aten.mish.out(x.detach(), out=torch.empty(1, device="jax")).item() == 7.0
    F.mish(x).backward()
    assert x.grad.tolist() == pytest.approx([0.6])  # PyTorch's own formula


@pytest.mark.usefixtures("restored")
def test_a_replaced_rule_serves_the_in_place_form():
    calque.op("aten::neg")(lambda self: self + 100)
    x = torch.zeros(2, device="jax")
    assert x.neg_() is x
    assert x.tolist() == [100.0, 100.0]


def test_an_operator_that_pytorch_composes_can_be_given_a_rule():
    calque.op("aten::linalg_vecdot")(lambda x, y, dim=-1: jnp.abs(x - y).sum(dim) * 3)
    x, y = leaf(1.0, 5.0), leaf(2.0, 2.0)
    distance = torch.linalg.vecdot(x, y)
    distance.backward()
    assert distance.item() == 12
    assert x.grad.tolist() == [-3.0, 3.0]


def test_mistakes_are_named():
    with pytest.raises(LookupError, match="torch.library"):
        calque.op("calquetest::nothing")(lambda x: x)
    with pytest.raises(TypeError, match=r"takes \(y\), but calquetest::undifferentiable takes \(x"):
        calque.op("calquetest::undifferentiable")(lambda y: y)
    assert "calquetest::undifferentiable" not in RULES
    assert binding.schema_of("calquetest::scaled").name == "calquetest::scaled"


def test_an_error_of_the_rule_is_left_as_it_is():
    torch.library.define("calque_tests::broken", "(Tensor x) -> Tensor")
    torch.library.register_fake("calque_tests::broken", torch.empty_like)

    @calque.op("calque_tests::broken")
    def broken(x):
        raise ValueError("the rule's own words")

    with pytest.raises(ValueError, match="^the rule's own words"):
        torch.ops.calque_tests.broken(torch.ones(2, device="jax"))


def test_another_rule_brings_another_gradient():
    torch.library.define("calque_tests::renewed", "(Tensor x) -> Tensor")
    for factor in (2.0, 5.0):
        calque.op("calque_tests::renewed")((lambda by: lambda x: by * x**3)(factor))
        x = leaf(1.0, 2.0)
        y = torch.ops.calque_tests.renewed(x)
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        assert first.tolist() == [3 * factor, 12 * factor]
        assert second.tolist() == [6 * factor, 12 * factor]
        inside = calque.jit(lambda x: torch.autograd.grad(y_of(x).sum(), x)[0])
        assert inside(leaf(1.0, 2.0)).tolist() == first.tolist()


def y_of(x):
    return torch.ops.calque_tests.renewed(x)


@pytest.mark.parametrize("wrapped", [lambda f: f, calque.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
    ("name", "schema", "rule", "given"),
    [
        ("none", "(Tensor x) -> Tensor", lambda x: None, "a NoneType, but .* returns Tensor"),
        ("text", "(Tensor x) -> Tensor", lambda x: "y", "a str, but .* returns Tensor"),
        ("one", "(Tensor x) -> (Tensor, Tensor)", lambda x: x, "an array, but .* Tensor, Tensor"),
        (
            "some",
            "(Tensor x) -> (Tensor, Tensor)",
            lambda x: (x, None),
            r"\(an array, a NoneType\), but .* Tensor, Tensor",
        ),
        ("list", "(Tensor x) -> Tensor[]", lambda x: x, r"an array, but .* List\[Tensor\]"),
        ("written", "(Tensor(a!) x) -> ()", lambda x: None, "a NoneType, but .* returns Tensor"),
    ],
)
def test_a_rule_gives_what_the_operator_gives(name, schema, rule, given, wrapped):
    full = f"calque_tests::gives_{name}"
    if full not in RULES:
        torch.library.define(full, schema)
        calque.op(full)(rule)
    operator = getattr(torch.ops.calque_tests, f"gives_{name}")
    x = torch.ones(2, device="jax")
    with pytest.raises(TypeError, match=f"the rule of {full} returns {given}"):
        wrapped(operator)(x)
    assert x.tolist() == [1, 1]


def test_an_operator_that_is_defined_anew_has_its_gradient():
    def define(factor):
        @torch.library.custom_op("calquetest::anew", mutates_args=())
        def anew(x: torch.Tensor) -> torch.Tensor:
            return x * factor

        @calque.op("calquetest::anew")
        def rule(x):
            return x * factor

        return anew

    for factor in (2.0, 3.0):  # as a cell of a notebook that runs twice
        anew = define(factor)
        x = torch.ones(2, device="jax", requires_grad=True)
        anew(x).sum().backward()
        assert x.grad.tolist() == [factor] * 2
        compiled = torch.compile(anew, backend="calque")
        assert compiled(x).tolist() == [factor] * 2
