"""The strides of fake tensors, while `torch.compile` and `torch.export` read a program.

PyTorch chooses the order of axes by the device for results of convolutions and `pixel_shuffle`.
It does not know that the device orders them as the CPU does, so it is asked about the CPU.
"""

from collections.abc import Callable
from typing import Any

import torch

from calque.upstream.torch_internals import (
    FakeTensor,
    FakeTensorMode,
    fake_impls,
    in_kernel_invocation_manager,
    tree_leaves,
    tree_map,
)

_CPU = torch.device("cpu")


def install() -> None:
    """Give fake tensors on the device the strides of real ones."""
    rules = fake_impls.op_implementations_dict
    theirs = rules[torch.ops.aten.convolution.default]
    for op in [op for op, rule in rules.items() if rule is theirs]:
        rules[op] = _as_on_cpu(theirs)
    rules[torch.ops.aten.pixel_shuffle.default] = _as_on_cpu(None)


def _as_on_cpu(theirs: Callable[..., Any] | None) -> Callable[..., Any]:
    def rule(mode: FakeTensorMode, op: Any, *args: Any, **kwargs: Any) -> Any:
        given = tree_leaves((args, kwargs))
        devices = {x.fake_device for x in given if isinstance(x, FakeTensor)}
        if len(devices) != 1 or (device := devices.pop()).type != "jax":
            return NotImplemented if theirs is None else theirs(mode, op, *args, **kwargs)

        def moved(value: Any, to: torch.device) -> Any:
            return _moved(mode, value, to) if isinstance(value, torch.Tensor) else value

        there, named = tree_map(lambda value: moved(value, _CPU), (args, kwargs))
        with mode:
            results = op(*there, **named)
        return tree_map(lambda value: moved(value, device), results)

    return rule


def _moved(mode: FakeTensorMode, fake: torch.Tensor, device: torch.device) -> FakeTensor:
    with in_kernel_invocation_manager(mode):
        shape, stride = fake.shape, fake.stride()
        place = torch.empty_strided(shape, stride, dtype=fake.dtype, device="meta")
        return FakeTensor(mode, place, device)
