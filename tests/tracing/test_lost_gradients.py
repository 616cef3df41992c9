"""What changes a gradient and is seen by no mode is refused: a graph would lose it in silence."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import (
    get_gradient_edge,
    register_multi_grad_hook,
    save_on_cpu,
    saved_tensors_hooks,
)
from torch.utils.checkpoint import checkpoint

import calque

X = torch.ones(3, requires_grad=True)


def with_packing(x: Tensor) -> Tensor:
    with saved_tensors_hooks(lambda tensor: tensor.half(), lambda kept: kept.float()):
        return x.tanh()


class Own(saved_tensors_hooks):
    def __init__(self) -> None:
        super().__init__(lambda tensor: tensor * 2, lambda kept: kept)


def with_a_class_of_its_own(x: Tensor) -> Tensor:
    with Own():
        return x.tanh()


def with_a_level(x: Tensor) -> Tensor:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones(3))
        return forward_ad.unpack_dual(dual.sin())[1]  # pyright: ignore[reportReturnType]


def with_a_hook_of_a_node(x: Tensor) -> Tensor:
    y: Any = x * 2
    y.grad_fn.register_hook(lambda given, _: (given[0] * 5, None))
    return y


def with_a_prehook(x: Tensor) -> Tensor:
    y = x * 2
    get_gradient_edge(y).node.register_prehook(lambda given: (given[0] * 5,))
    return y


def with_a_hook_of_several(x: Tensor) -> Tensor:
    y = x * 2
    register_multi_grad_hook((x, y), print)
    return y


PROGRAMS = [
    with_packing,
    with_a_class_of_its_own,
    with_a_level,
    with_a_hook_of_a_node,
    with_a_prehook,
    with_a_hook_of_several,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_whose_gradients_no_graph_would_have_is_refused(
    program: Callable[[Tensor], Tensor],
) -> None:
    recording = calque.record(program, X)
    torch.testing.assert_close(recording.result, program(X))
    with pytest.raises(calque.TraceError, match=program.__name__):
        recording.graph()
    with pytest.raises(calque.TraceError):
        calque.trace(program, X)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: checkpoint(torch.tanh, x, use_reentrant=False),
        lambda x: x * 2 if x.grad_fn is None else x * 3,
    ],
)
def test_what_changes_no_gradient_is_recorded(program: Callable[[Tensor], Tensor]) -> None:
    graph = calque.record(program, X).graph()
    torch.testing.assert_close(graph(X), program(X))


def test_pytorchs_own_hooks_of_saved_tensors_are_traced() -> None:
    def program(x: Tensor) -> Tensor:
        with save_on_cpu():
            return x.tanh()

    torch.testing.assert_close(calque.trace(program, X)(X), program(X))


def test_forward_mode_by_function_is_recorded_and_refused_in_a_trace() -> None:
    def program(x: Tensor) -> Tensor:
        return torch.func.jvp(torch.sin, (x,), (torch.ones(3),))[1]

    x = torch.zeros(3)
    assert calque.record(program, x).graph()(x).tolist() == [1, 1, 1]
    with pytest.raises(calque.TraceError, match="a PyTorch operator that takes functions"):
        calque.trace(program, x)


class _Outer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * 2


@pytest.mark.parametrize("register", ["full_backward_hook", "full_backward_pre_hook"])
def test_hooks_of_the_backward_pass_are_called_or_refused(register: str) -> None:
    x = torch.ones(1, 2, requires_grad=True)
    for path, is_kept in (("", False), ("inner", False), ("inner.0", True)):
        model, seen = _Outer(), []
        module = model.get_submodule(path)
        getattr(module, f"register_{register}")(lambda *given: seen.append(given))  # noqa: B023
        if not is_kept:
            with pytest.raises(calque.TraceError, match="hooks of the backward pass"):
                calque.trace(model, x)
            continue
        calque.trace(model, x)(x).sum().backward()
        assert len(seen) == 1
