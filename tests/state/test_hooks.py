"""What a dict of a module's hooks has as an object is seen where code may get at it."""

import pytest
import torch
from torch import nn

import calque


class Holder:
    pass


def ways(model):
    hooks, holder = model._forward_hooks, Holder()
    holder.hooks = hooks
    handle = model.register_forward_hook(lambda *_: None)
    handle.remove()
    return {
        "name": lambda: model._forward_hooks.factor,
        "computed name": lambda: getattr(model, "_forward" + "_hooks").factor,
        "all attributes": lambda: (
            next(v for v in vars(model).values() if hasattr(v, "factor")).factor
        ),
        "variable": lambda: hooks.factor,
        "another object": lambda: holder.hooks.factor,
        "weak reference": lambda: handle.hooks_dict_ref().factor,
    }


@pytest.mark.parametrize("way", ways(nn.Linear(1, 1)))
def test_an_attribute_of_the_hooks_is_seen(way):
    model = nn.Linear(2, 2).to("jax")
    read = ways(model)[way]
    model._forward_hooks.factor = 2.0
    run = calque.jit(lambda x: model(x) * read())
    x = torch.ones(1, 2, device="jax")
    with torch.no_grad():
        for _ in range(4):
            before = run(x)
        model._forward_hooks.factor = 4.0
        torch.testing.assert_close(run(x), before * 2)


def test_a_hook_is_seen():
    model = nn.Linear(2, 2).to("jax")
    run = calque.jit(model)
    x = torch.ones(1, 2, device="jax")
    with torch.no_grad():
        for _ in range(4):
            before = run(x)
        model.register_forward_hook(lambda module, given, found: found * 2)
        torch.testing.assert_close(run(x), before * 2)
