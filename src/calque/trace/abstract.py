"""Abstract values: what is known of a node's value before it is computed.

A FakeTensor has a shape, a dtype and a device but no data; PyTorch's own kernels for it say what
an operation gives, and refuse what does not fit.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.fx.node import Node, map_arg

from calque.trace.active import suspended

UNKNOWN = object()
_UNKNOWABLE = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
    NotImplementedError,
)
_RUNNABLE = ("torch", "_operator", "operator", "math")


class AbstractValues:
    """Computes `node.meta["val"]` from those of the node's inputs.

    Args:
        resolve: finds what a `get_attr` or `call_module` names.
    """

    def __init__(self, resolve: Callable[[str], Any]) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._resolve = resolve
        self._modules: dict[torch.nn.Module, torch.nn.Module] = {}

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The abstract value of a tensor that exists."""
        with torch._C.DisableTorchFunction(), suspended():
            return self.mode.from_tensor(tensor, static_shapes=True)

    def compute(self, node: Node) -> Any:
        """What the node gives: a FakeTensor, a container of them, a Python value, or UNKNOWN.

        Raises:
            Exception: whatever PyTorch says to these shapes and dtypes.
        """
        if any("val" not in source.meta for source in node.all_input_nodes):
            return UNKNOWN
        run = self._runner(node)
        if run is None:
            return UNKNOWN
        args = map_arg(node.args, _value)
        kwargs = map_arg(node.kwargs, _value)
        try:
            with torch._C.DisableTorchFunction(), suspended(), self.mode:
                return run(*args, **kwargs)
        except _UNKNOWABLE:
            return UNKNOWN

    def _runner(self, node: Node) -> Callable[..., Any] | None:
        target: Any = node.target
        if node.op == "call_method":
            return lambda self, *args, **kwargs: getattr(self, target)(*args, **kwargs)
        if node.op == "call_module":
            module = self._resolve(target)
            known = type(module).__module__.startswith("torch.nn") and not _has_hooks(module)
            return self._without_data(module) if known else None
        if node.op == "call_function":
            home = getattr(target, "__module__", None) or "torch"
            known = target is getattr or home.split(".")[0] in _RUNNABLE
            return target if known or hasattr(target, "runs_abstractly") else None
        return None

    def _without_data(self, module: torch.nn.Module) -> torch.nn.Module:
        """A copy whose tensors are abstract: the module's own buffers must not change."""
        copied = self._modules.get(module)
        if copied is None:
            copied = self._modules[module] = module.__new__(type(module))
            attributes = {name: self._lists(value) for name, value in vars(module).items()}
            for kind in ("_parameters", "_buffers"):
                tensors = attributes[kind].items()
                attributes[kind] = {name: t if t is None else self.of(t) for name, t in tensors}
            inner = attributes["_modules"].items()
            attributes["_modules"] = {
                n: m if m is None else self._without_data(m) for n, m in inner
            }
            vars(copied).update(attributes)
        return copied

    def _lists(self, value: Any) -> Any:
        """Recurrent layers keep a list of their weights."""
        if isinstance(value, list) and value and all(isinstance(t, torch.Tensor) for t in value):
            return [self.of(t) for t in value]
        return value


def _has_hooks(module: torch.nn.Module) -> bool:
    return any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())


def _value(node: Node) -> Any:
    return node.meta["val"]
