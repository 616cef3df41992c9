"""What a user can see of a value: types, order, numbers, gradients, what is one object."""

import collections
import dataclasses
import enum
import math
import types
from typing import Any

import numpy as np
import torch
from torch import nn

_PLAIN = (type(None), str, bytes, bool, int, float, complex, type(...), torch.dtype, torch.layout)
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_TOLERANCES = {
    **dict.fromkeys((torch.float32, torch.float64, torch.complex64), (1e-4, 1e-5)),
    **dict.fromkeys((torch.float16, torch.bfloat16), (2e-2, 1e-2)),
}


@dataclasses.dataclass
class Node:
    """One value: its type, a leaf value, and its named parts."""

    type: str
    value: Any = None
    parts: dict[Any, "Node"] = dataclasses.field(default_factory=dict)


def describe(value: Any) -> Node:
    """A copy of all that can be seen of `value` now."""
    return _Describer().of(value)


class _Describer:
    def __init__(self) -> None:
        self.seen: dict[int, tuple[int, Any]] = {}

    def of(self, value: Any) -> Node:
        kind = type(value).__qualname__
        if isinstance(value, torch.Size):
            return Node(kind, tuple(value))
        if isinstance(value, enum.Enum):
            return Node(kind, value.name)
        if type(value) in _PLAIN:
            return Node(kind, value)
        if isinstance(value, torch.device):
            return Node(kind)
        if isinstance(value, types.ModuleType):
            return Node(kind, value.__name__)
        if isinstance(value, _NAMED):
            return Node(kind, value.__qualname__)
        if id(value) in self.seen:
            return Node("the same as", self.seen[id(value)][0])
        if not isinstance(value, tuple | np.generic):
            self.seen[id(value)] = (len(self.seen), value)
        return self.made_of_parts(value, kind)

    def made_of_parts(self, value: Any, kind: str) -> Node:
        if isinstance(value, torch.Tensor):
            return self.of_tensor(value, kind)
        if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "OSUVMm":
            return Node(f"{kind} {value.dtype}", None, {"items": self.of(value.tolist())})
        if isinstance(value, np.ndarray | np.generic):
            return Node(f"{kind} {value.dtype}", torch.from_numpy(np.array(value)))
        if isinstance(value, nn.Module):
            return self.of_module(value, kind)
        if isinstance(value, torch.optim.Optimizer):
            return self.of_optimizer(value, kind)
        parts: dict[Any, Any] = {}
        if isinstance(value, set | frozenset):
            return Node(kind, None, dict(enumerate(map(self.of, sorted(value, key=repr)))))
        if isinstance(value, collections.abc.Mapping):
            parts |= {"keys in order": [repr(key) for key in value]}
            parts |= {f"[{key!r}]": item for key, item in value.items()}
        elif isinstance(value, list | tuple | collections.deque):
            parts |= {f"[{i}]": item for i, item in enumerate(value)}
            parts |= {"length": len(value)}
        for owner in type(value).__mro__:
            for name in owner.__dict__.get("__slots__", ()):
                if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                    parts["." + name] = getattr(value, name)
        if not isinstance(value, tuple) or type(value).__module__ != "torch.return_types":
            parts |= {f".{name}": item for name, item in getattr(value, "__dict__", {}).items()}
        return Node(kind, None, {name: self.of(part) for name, part in parts.items()})

    def of_tensor(self, value: torch.Tensor, kind: str) -> Node:
        shown = value.detach().cpu().clone()
        parts = {"requires_grad": Node("bool", value.requires_grad)}
        parts["is_leaf"] = Node("bool", value.is_leaf)
        if value.is_leaf:
            parts["grad"] = self.of(value.grad)
        return Node(f"{kind} {value.dtype}", shown, parts)

    def of_module(self, value: nn.Module, kind: str) -> Node:
        parts = {f"parameter {n}": self.of(p) for n, p in value.named_parameters()}
        parts |= {f"buffer {n}": self.of(b) for n, b in value.named_buffers()}
        training = {n: m.training for n, m in value.named_modules()}
        return Node(kind, None, parts | {"training": self.of(training)})

    def of_optimizer(self, value: torch.optim.Optimizer, kind: str) -> Node:
        return Node(kind, None, {"state": self.of(value.state_dict())})


def difference(found: Node, expected: Node, path: str = "") -> str | None:
    """The first place where the two differ, in words."""
    path = path or "the value"
    if found.type != expected.type:
        return f"{path}: {found.type}, expected {expected.type}"
    if not _equal(found.value, expected.value):
        return f"{path}: {_short(found.value)}, expected {_short(expected.value)}"
    if list(found.parts) != list(expected.parts):
        return f"{path} has {list(found.parts)}, expected {list(expected.parts)}"
    for name, part in found.parts.items():
        if said := difference(part, expected.parts[name], f"{path} {name}"):
            return said
    return None


def _equal(found: Any, expected: Any) -> bool:
    if isinstance(found, torch.Tensor):
        if found.shape != expected.shape:
            return False
        rtol, atol = _TOLERANCES.get(found.dtype, (0.0, 0.0))
        return torch.allclose(found, expected, rtol=rtol, atol=atol, equal_nan=True)
    if isinstance(found, float):
        if math.isnan(found) or math.isnan(expected):
            return math.isnan(found) and math.isnan(expected)
        same_sign = math.copysign(1, found) == math.copysign(1, expected)
        return same_sign and math.isclose(found, expected, rel_tol=1e-4, abs_tol=1e-6)
    return type(found) is type(expected) and found == expected


def _short(value: Any) -> str:
    said = str(value.tolist()) if isinstance(value, torch.Tensor) else repr(value)
    return said if len(said) < 80 else said[:77] + "..."
