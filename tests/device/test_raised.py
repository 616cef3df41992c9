"""An exception in a hook reaches the caller of backward, and never ends the process."""

import pytest
import torch

import calque  # noqa: F401  (registers the device)
from tests import new_process

HOOKS = {
    "tensor": lambda x, y, hook: y.register_hook(hook),
    "leaf": lambda x, y, hook: x.register_hook(hook),
    "accumulated": lambda x, y, hook: x.register_post_accumulate_grad_hook(hook),
    "node before": lambda x, y, hook: y.grad_fn.register_prehook(hook),
    "node after": lambda x, y, hook: y.grad_fn.register_hook(hook),
}


def raising(*args):
    raise ValueError("from the hook")


def check_every_kind(threads: bool) -> None:
    for register in HOOKS.values():
        x = torch.ones(3, device="jax", requires_grad=True)
        y = x * 2
        register(x, y, raising)
        with torch.autograd.set_multithreading_enabled(threads):
            with pytest.raises(ValueError, match="from the hook"):
                (y * y).sum().backward()
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t, raising):
                z = (x * 2).sin().sum()
            with pytest.raises(ValueError, match="from the hook"):
                z.backward()
            after = torch.ones(3, device="jax", requires_grad=True)
            (after * 2).sum().backward()
        assert after.grad.tolist() == [2, 2, 2]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("threads", [True, False])
def test_an_exception_in_a_hook_is_raised_by_backward(threads):
    # In its own process, because a failure would end this one.
    program = f"from tests.device.test_raised import check_every_kind; check_every_kind({threads})"
    done = new_process.run(program)
    assert done.returncode == 0, done.stderr[-2000:]
