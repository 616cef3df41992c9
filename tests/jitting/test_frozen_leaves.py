"""Leaves that require no gradient when a call begins and ends, and have one or take part in one."""

import torch
from torch import nn

import calque


def ones(*shape):
    return torch.ones(*shape, device="jax")


def test_a_result_of_leaves_that_are_frozen_again_requires_grad():
    layer = nn.Linear(2, 1).to("jax").requires_grad_(False)

    @calque.jit
    def f(x):
        layer.requires_grad_(True)
        y = layer(x).sum()
        layer.requires_grad_(False)
        return y

    for _ in range(3):
        y = f(ones(2))
        assert y.requires_grad
        y.backward()
        assert layer.weight.grad is None
        assert not layer.weight.requires_grad


def test_whether_a_frozen_leaf_has_a_gradient_is_compared():
    layer, shift = nn.Linear(2, 1).to("jax").requires_grad_(False), ones(2)

    def backward(x):
        layer.requires_grad_(True)
        layer(x).sum().backward()
        layer.requires_grad_(False)

    def read(x):
        return x if shift.grad is None else x + shift.grad

    backward, read = (calque.jit(fn, verify=False) for fn in (backward, read))
    for _ in range(2):
        layer.zero_grad()
        backward(ones(2))
        assert layer.weight.grad[0].tolist() == [1, 1]
        assert read(ones(2)).tolist() == [1, 1]
    shift.grad = 2 * ones(2)
    assert read(ones(2)).tolist() == [3, 3]
    backward(ones(2))
    assert layer.weight.grad[0].tolist() == [2, 2]
