"""How the device computes a node: by a rule of the op table, by a decomposition, or on the CPU.

The operators of a function or a layer are found by calling it on tensors without data.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx.graph_module import GraphModule
from torch.fx.node import Node, map_arg

from calque.errors.handlers import is_of_handler
from calque.ops.table.registry import find
from calque.upstream import torch_c
from calque.upstream.dispatch_mode import DispatchMode
from calque.upstream.torch_internals import (
    FakeTensor,
    FakeTensorMode,
    HigherOrderOperator,
    OpOverload,
    decomposition_table,
    pytree,
    tree_leaves,
)

_COMPOSED = ("CompositeImplicitAutograd", "CompositeExplicitAutograd")
_WORST = ("fallback", "decomposition", "rule")
_FREE = frozenset(("prim", "prims", "profiler"))
_PURE = ("torch", "_operator", "math")
_VIEWS = frozenset(("aten::detach", "aten::alias", "aten::lift_fresh", "aten::_to_copy"))


def served_by(op: OpOverload) -> str:
    """`"rule"`, `"decomposition"` or `"fallback"`.

    >>> served_by(torch.ops.aten.relu.default)
    'rule'
    """
    name = op.name()
    functional = name.replace("_.", ".").removesuffix("_").replace(".out", "")
    if any(find(n) for n in (name, functional)) or name in _VIEWS:
        return "rule"
    if op.is_view or _has_device_kernel(name):
        return "rule"
    if any(torch_c.dispatch_has_kernel_for_dispatch_key(name, key) for key in _COMPOSED):
        return "decomposition"
    return "decomposition" if _decomposes(op) else "fallback"


def _has_device_kernel(name: str) -> bool:
    return torch_c.dispatch_has_kernel_for_dispatch_key(name, "PrivateUse1")


def _decomposes(op: OpOverload) -> bool:

    return op in decomposition_table


class Probe:
    """Finds how the nodes of a graph are computed, by trying one call of each kind."""

    def __init__(self, module: GraphModule) -> None:
        self._module = module
        self._known: dict[Any, str] = {}
        self._mode = next(filter(None, map(_mode, filter(_has_val, module.graph.nodes))), None)

    def served(self, node: Node) -> str:
        """Like `ViewNode.served`; "" if it cannot be found without data."""
        target: Any = node.target
        if isinstance(target, OpOverload):
            return served_by(target)
        if isinstance(target, HigherOrderOperator):
            return "rule"
        called = self._module.get_submodule(target) if node.op == "call_module" else target
        if not _is_torchs(node, called):
            return ""
        key = type(called) if node.op == "call_module" else (node.op, target)
        if key not in self._known:
            self._known[key] = self._tried(node, called)
        return self._known[key]

    def _tried(self, node: Node, called: object) -> str:
        if self._mode is None or not all(map(_has_val, node.all_input_nodes)):
            return ""
        if not any(map(_has_tensor, (node, *node.all_input_nodes))):
            return ""  # sets a mode, such as autocast
        try:
            ops = list(_operators(node, called, self._mode))
        except Exception as error:  # it needs values or unknown shapes
            if is_of_handler(error):
                raise
            return ""
        found = {served_by(op) for op in ops if op.namespace not in _FREE}
        return next((served for served in _WORST if served in found), "rule" if ops else "")


def _is_torchs(node: Node, called: Any) -> bool:
    """Returns True if a call only runs code of PyTorch."""
    if node.op == "call_method":
        return True
    if node.op == "call_module":
        hooked = called._forward_hooks or called._forward_pre_hooks
        return type(called).__module__.startswith("torch.nn.") and not hooked
    home = getattr(called, "__module__", None) or ("torch" if "torch" in repr(called) else "")
    return home.startswith(_PURE) and not isinstance(called, type)


def _operators(node: Node, called: Any, mode: FakeTensorMode) -> Iterator[OpOverload]:
    with mode, torch.no_grad():
        fresh = pytree.tree_map_only(torch.Tensor, _copied, (node.args, node.kwargs))
        args, kwargs = map_arg(
            fresh, lambda n: pytree.tree_map_only(torch.Tensor, _copied, _val(n))
        )
        with _Seen() as seen:
            if node.op == "call_method":
                getattr(args[0], str(node.target))(*args[1:], **kwargs)
            elif node.op == "call_module":
                state: dict[str, torch.Tensor] = {n: mode.from_tensor(t) for n, t in _state(called)}
                torch.func.functional_call(called, state, args, kwargs)
            else:
                called(*args, **kwargs)
    yield from seen.ops


def _state(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _mode(node: Node) -> FakeTensorMode | None:
    fakes = (leaf for leaf in tree_leaves(_val(node)) if isinstance(leaf, FakeTensor))
    return next((fake.fake_mode for fake in fakes), None)


def _has_val(node: Node) -> bool:
    return "val" in node.meta or "example_value" in node.meta


def _has_tensor(node: Node) -> bool:
    return _has_val(node) and any(isinstance(v, torch.Tensor) for v in tree_leaves(_val(node)))


def _val(node: Node) -> Any:
    return node.meta["val"] if "val" in node.meta else node.meta["example_value"]


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


class _Seen(DispatchMode):
    """Collects the operators that reach PyTorch's dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Any] = []

    def __torch_dispatch__(
        self, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.ops.append(func)
        return func(*args, **(kwargs or {}))
