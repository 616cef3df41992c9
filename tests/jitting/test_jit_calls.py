"""What can be jitted, what it takes and what it gives back."""

import collections
import dataclasses
import functools
import threading
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree

import calque

Pair = collections.namedtuple("Pair", "first second")


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    name: str


_pytree.register_dataclass(Batch)


class Output(collections.OrderedDict):
    """A container with attributes, as model libraries have them."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


_pytree.register_pytree_node(
    Output,
    lambda o: (list(o.values()), list(o.keys())),
    lambda values, keys: Output(zip(keys, values, strict=True)),
    serialized_type_name="tests.jitting.test_jit_calls.Output",
)


def ones(*shape):
    return torch.ones(*shape, device="jax")


def test_containers_go_in_and_come_out_as_they_are():
    @calque.jit
    def run(tree, *, scale=2, extra=None):
        assert extra is None
        return {
            "pair": Pair(tree["pair"].first * scale, [None, "text", 3]),
            "batch": Batch(tree["batch"].x + 1, tree["batch"].name),
            "output": Output(logits=tree["output"].logits * 3, loss=None),
        }

    tree = {
        "pair": Pair(ones(2), 1),
        "batch": Batch(ones(3), "b"),
        "output": Output(logits=ones(1)),
    }
    for _ in range(2):
        result = run(tree, scale=5)
        assert type(result["pair"]) is Pair
        assert result["pair"].first.tolist() == [5, 5]
        assert result["pair"].second == [None, "text", 3]
        assert type(result["batch"]) is Batch
        assert result["batch"].x.tolist() == [2, 2, 2]
        assert result["batch"].name == "b"
        assert type(result["output"]) is Output
        assert result["output"].logits.tolist() == [3]
        assert result["output"].loss is None
    assert len(run.history) == 1
    assert run(tree, scale=6)["pair"].first.tolist() == [6, 6]
    assert len(run.history) == 2


def test_an_unregistered_container_with_tensors_is_carried_through():
    class Box:
        def __init__(self, value):
            self.value = value

    run = calque.jit(lambda x: Box(x + 1))
    assert run(ones(2)).value.tolist() == [2, 2]
    assert run(ones(2) * 2).value.tolist() == [3, 3]


def test_keyword_order_is_no_new_program():
    run = calque.jit(lambda a, b: a - b)
    assert run(a=ones(1), b=ones(1) * 2).item() == -1
    assert run(b=ones(1) * 2, a=ones(1)).item() == -1
    assert len(run.history) == 1


def test_numpy_arguments_are_values():
    run = calque.jit(lambda x, n: x + torch.as_tensor(n, device="jax"))
    assert run(ones(2), np.array([1.0, 2.0], np.float32)).tolist() == [2, 3]
    assert run(ones(2), np.array([5.0, 2.0], np.float32)).tolist() == [6, 3]
    assert run(ones(2), np.float32(3)).tolist() == [4, 4]
    assert run(ones(2), np.float32(4)).tolist() == [5, 5]


def test_python_values_that_are_equal_but_differ_in_type_are_other_programs():
    run = calque.jit(lambda x, n: x * 2 if isinstance(n, bool) else x * n)
    x = torch.ones(2, dtype=torch.int64, device="jax")
    assert run(x, True).tolist() == [2, 2]
    assert run(x, 1).tolist() == [1, 1]
    assert run(x, 1.0).dtype == torch.float32
    assert run(x, 1).dtype == torch.int64


def test_zeros_of_either_sign_are_other_programs():
    run = calque.jit(lambda x, s: torch.copysign(x, torch.tensor(s, device="jax")))
    assert run(ones(1), 0.0).item() == 1
    assert run(ones(1), -0.0).item() == -1


def test_the_reason_names_the_gradient_of_an_argument():
    step = calque.jit(lambda x: (x * 2).sum())
    x = torch.ones(2, device="jax", requires_grad=True)
    step(x).backward()
    step(x)
    step(x * 1)
    given, computed = step.history[1:]
    assert given.endswith("requires_grad, with a .grad")
    assert computed.endswith("requires_grad, computed from others")


def test_nan_does_not_retrace_for_ever():
    run = calque.jit(lambda x, s: x * s)
    for _ in range(3):
        assert run(ones(1), float("nan")).isnan().item()
    assert len(run.history) == 1


class Counter:
    def __init__(self, start):
        self.total = ones(2) * start

    @calque.jit
    def add(self, x):
        self.total += x
        return self.total.sum()


def test_methods_of_two_instances_are_independent():
    a, b = Counter(0), Counter(10)
    assert a.add(ones(2)).item() == 2
    assert b.add(ones(2)).item() == 22
    assert a.add(ones(2)).item() == 4
    assert a.total.tolist() == [2, 2]
    assert b.total.tolist() == [11, 11]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)

    @calque.jit
    def forward(self, x):
        return self.linear(x)


def test_a_jitted_forward_in_a_class():
    one, two = Net().to("jax"), Net().to("jax")
    x = ones(1, 2)
    for net in (one, two, one):
        torch.testing.assert_close(net(x), net.linear(x))


def test_a_jitted_module_is_still_a_module():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).to("jax")
    run = calque.jit(model)
    assert len(list(run.parameters())) == 2
    assert list(run.state_dict()) == ["_orig_mod.0.weight", "_orig_mod.0.bias"]
    assert run.eval() is not None
    assert not model.training
    torch.testing.assert_close(run(ones(1, 2)), model[0](ones(1, 2)))
    run.train()
    assert model[1].training
    assert [name for name, _ in run.named_children()] == ["_orig_mod"]


def test_static_and_class_methods_and_partials():
    class Tools:
        @staticmethod
        @calque.jit
        def double(x):
            return x * 2

        @classmethod
        @calque.jit
        def name(cls, x):
            return x * len(cls.__name__)

    assert Tools.double(ones(1)).item() == 2
    assert Tools.name(ones(1)).item() == 5
    assert calque.jit(functools.partial(torch.add, ones(1)))(ones(1)).item() == 2


def test_nested_jit_is_one_program():
    inner = calque.jit(lambda x: x * 2)
    outer = calque.jit(lambda x: inner(x) + 1)
    assert outer(ones(1)).item() == 3
    assert inner.history == []
    assert inner(ones(1)).item() == 2


def test_decorating_twice():
    assert calque.jit(calque.jit(lambda x: x + 1))(ones(1)).item() == 2


def test_no_tensors_at_all():
    assert calque.jit(lambda a: a + 1)(2) == 3
    assert calque.jit(lambda: torch.zeros(2, device="jax"))().tolist() == [0, 0]


def test_a_function_without_results():
    total = ones(1)
    run = calque.jit(lambda x: total.add_(x) and None if False else [total.add_(x), None][1])
    assert run(ones(1)) is None
    assert total.item() == 2


def test_modes_around_a_call_are_part_of_the_signature():
    w = ones(2).requires_grad_()
    run = calque.jit(lambda x: x * w)
    assert run(ones(2)).requires_grad
    with torch.no_grad():
        assert not run(ones(2)).requires_grad
    with torch.inference_mode():
        assert run(ones(2)).is_inference()
    assert run(ones(2)).requires_grad
    assert len(run.history) == 3


def test_modes_inside_a_function():
    w = ones(2).requires_grad_()

    @calque.jit
    def run(x):
        with torch.no_grad():
            frozen = x * w
        return frozen, x * w

    for _ in range(2):
        frozen, free = run(ones(2))
        assert not frozen.requires_grad
        assert free.requires_grad


def test_autocast_outside_and_inside():
    model = nn.Linear(4, 4).to("jax")
    run = calque.jit(model)
    x = ones(2, 4)
    assert run(x).dtype == torch.float32
    with torch.autocast("jax", dtype=torch.bfloat16):
        assert run(x).dtype == torch.bfloat16
        assert run(x).dtype == torch.bfloat16
    assert run(x).dtype == torch.float32

    @calque.jit
    def inside(x):
        with torch.autocast("jax", dtype=torch.bfloat16):
            return model(x)

    assert inside(x).dtype == torch.bfloat16
    torch.testing.assert_close(inside(x).float(), model(x), rtol=2e-2, atol=2e-2)


def test_the_default_dtype_is_part_of_the_signature():
    run = calque.jit(lambda n: torch.zeros(n, device="jax"))
    assert run(1).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert run(1).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_dtypes_pass(dtype):
    x = torch.tensor([1, 0, 1], device="jax").to(dtype)
    result = calque.jit(lambda x: (x, x.clone(), x.reshape(3, 1)))(x)
    assert all(r.dtype == dtype for r in result)
    assert torch.equal(result[1], x)


def test_dicts_keep_their_order():
    seen = []

    @calque.jit
    def run(values):
        seen.append(list(values))
        return {name: value * 2 for name, value in values.items()}

    assert list(run({"b": ones(1), "a": ones(2)})) == ["b", "a"]
    assert list(run({"a": ones(1), "b": ones(2)})) == ["a", "b"]
    assert list(run({"b": ones(1), 1: ones(2)})) == ["b", 1]
    assert seen == [["b", "a"], ["a", "b"], ["b", 1]]


@pytest.mark.filterwarnings("ignore:calque_test..(above|below) has no rule")
def test_programs_that_call_back_with_other_values_are_other_programs():
    for name, kernel in (("above", torch.gt), ("below", torch.lt)):
        torch.library.define(f"calque_test::{name}", "(Tensor x, float y) -> Tensor")
        torch.library.impl(f"calque_test::{name}", "CPU", kernel)
        torch.library.register_fake(
            f"calque_test::{name}", lambda x, y: torch.empty_like(x, dtype=torch.bool)
        )

    def f(x, kind, y):
        return getattr(torch.ops.calque_test, kind)(x, y)

    jitted = calque.jit(f)
    x = torch.tensor([1.0, 2.0, 3.0])
    for _ in range(2):
        for kind, y in [("above", 0.5), ("above", 1.5), ("below", 1.5), ("below", 2.5)]:
            assert jitted(x.to("jax"), kind, y).tolist() == f(x, kind, y).tolist()
    assert jitted.compilations == len(jitted.history) == 4


def test_iterators_as_arguments_are_read_by_the_function():
    total = calque.jit(lambda xs, scale: sum(x * scale for x in xs))
    for i in range(3):
        xs = [torch.full((2,), float(j + i), device="jax") for j in range(3)]
        assert total((x for x in xs), 2.0).tolist() == [6.0 * (i + 1)] * 2
        assert total(scale=2.0, xs=iter(xs)).tolist() == [6.0 * (i + 1)] * 2


def test_a_step_while_another_thread_exports():
    """PyTorch says in all threads that code is compiled, and the step is compiled already."""
    begun, end = threading.Event(), threading.Event()

    class Slow(nn.Module):
        def forward(self, x):
            begun.set()
            end.wait(60)
            return x * 2

    one = torch.ones(2, device="jax")
    add = calque.jit(lambda: one.add_(1))

    def calls():
        return sum(program.calls for known in add.programs.values() for program in known)

    add()
    other = threading.Thread(
        target=lambda: torch.export.export(Slow(), (torch.ones(2),), strict=False)
    )
    other.start()
    try:
        begun.wait(60)
        assert torch.compiler.is_compiling()
        add()
        assert calls() == 2
    finally:
        end.set()
        other.join()


def test_a_step_while_another_thread_captures_a_backward():
    """PyTorch's compilers then detect anomalies, in all threads, but do not look for nan."""
    add = calque.jit(lambda x: x + 1)
    one = torch.ones(2, device="jax")
    add(one)
    (program,) = [program for known in add.programs.values() for program in known]
    before = program.calls
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly(check_nan=False):
            assert add(one).tolist() == [2, 2]
        assert program.calls == before + 1
        with torch.autograd.detect_anomaly():
            assert add(one).tolist() == [2, 2]
        assert program.calls == before + 1
