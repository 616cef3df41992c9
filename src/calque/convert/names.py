"""The names of calls, and the names under which converters are registered.

Registering a name that no call can have is an error, because its converter would never be used.
"""

import importlib.util
import inspect
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, is_tensor_method_or_property

from calque.upstream.torch_internals import OpOverload, OpOverloadPacket


def name_of(target: object) -> str:
    """Returns the public name of a class or a function.

    >>> name_of(torch.nn.Linear), name_of(torch.nn.functional.relu), name_of(torch.relu)
    ('torch.nn.Linear', 'torch.nn.functional.relu', 'torch.relu')
    >>> name_of(torch.einsum), name_of(torch.Tensor.new_zeros)
    ('torch.einsum', 'Tensor.new_zeros')
    """
    name = getattr(target, "__name__", type(target).__name__)
    home = getattr(target, "__module__", None) or ""
    if getattr(torch.Tensor, name, None) is target:
        home = "Tensor"
    elif home == "torch.functional" and getattr(torch, name, None) is target:
        home = "torch"
    elif getattr(torch.nn.functional, name, None) is target:
        home = "torch.nn.functional"
    elif home.startswith("torch.nn.modules"):
        home = "torch.nn"
    elif home.startswith("torch._C") or (not home and hasattr(torch, name)):
        home = "torch"
    elif home == "_operator":
        home = "operator"
    return f"{home}.{name}" if home else name


def operator_names(target: object) -> list[str]:
    """Returns the names of an operator's overloads, or the name of a single overload.

    >>> operator_names("aten.relu"), operator_names(torch.ops.aten.t.default)
    (['aten.relu.default', 'aten.relu.out'], ['aten.t.default'])
    """
    if isinstance(target, OpOverloadPacket):
        return [str(getattr(target, name)) for name in target.overloads()]
    if isinstance(target, OpOverload):
        return [str(target)]
    if not isinstance(target, str):
        raise TypeError(
            f"{target!r} is not an operator. Write 'aten.relu' or torch.ops.aten.relu.default; "
            "register PyTorch's functions with `function` and modules with `module`"
        )
    found = _operator(target)
    if found is None:
        raise ValueError(
            f"there is no operator {target!r}. Name operators as 'aten.relu' or "
            "'aten.add.Tensor'; register functions and methods with `function`"
        )
    return operator_names(found)


def is_operator(name: str) -> bool:
    """Returns True if this is the name of an operator."""
    return isinstance(_operator(name), OpOverload)


def _operator(name: str) -> Any:
    """Returns the operator of `torch.ops` with a name; None if there is none."""
    parts = name.removeprefix("torch.ops.").split(".")
    if len(parts) not in (2, 3):
        return None
    try:
        found: Any = torch.ops
        for part in parts:
            found = getattr(found, part)
    except AttributeError:
        return None
    return found if isinstance(found, OpOverload | OpOverloadPacket) else None


def function_names(target: Callable[..., Any] | str) -> list[str]:
    """Returns the names of calls of a function, or of a method given by its name.

    >>> function_names(torch.relu), function_names("torch.conv2d"), function_names(operator.add)
    (['torch.relu'], ['torch.nn.functional.conv2d'], ['operator.add', 'Tensor.add'])
    """
    if isinstance(target, OpOverload | OpOverloadPacket):
        return operator_names(target)
    if isinstance(target, str):
        return _names_meant(target)
    if isinstance(target, torch.nn.Module) or _is_class_of(target, torch.nn.Module):
        raise TypeError(f"{target!r} is a module: register its class with `module`")
    kind = getattr(target, "__self__", target)
    if _is_class_of(kind, torch.autograd.Function):
        return [f"{kind.__module__}.{kind.__name__}_apply"]
    if inspect.isgetsetdescriptor(target):
        return [f"Tensor.{target.__name__}"]
    if not callable(target):
        raise TypeError(f"{target!r} is not a function or the name of one")
    if is_tensor_method_or_property(target):
        return [f"Tensor.{getattr(target, '__name__', '')}"]
    name = name_of(target)
    if getattr(operator, getattr(target, "__name__", ""), None) is target:
        return [name, *_method_behind(target)]
    return [name]


def _names_meant(name: str) -> list[str]:
    """Returns the names of the calls that a name written by a user refers to."""
    root, *rest = name.removeprefix("torch.Tensor.").split(".")
    if name.startswith(("Tensor.", "torch.Tensor.")):
        method = name.rpartition("Tensor.")[2]
        if not hasattr(torch.Tensor, method):
            raise ValueError(f"{name!r} is not a method: tensors have no {method}")
        return [f"Tensor.{method}"]
    if _operator(name) is not None:
        return operator_names(name)
    if root == "torch":
        found: Any = torch
        for part in rest:
            found = getattr(found, part, None)
        if found is None or not rest:
            raise ValueError(f"there is no function {name!r} in PyTorch")
        return function_names(found)
    if not rest or (root != "__main__" and not _is_package(root)):
        raise ValueError(
            f"{name!r} does not name a function. Name functions with their module, as in "
            "'torch.nn.functional.relu', and methods as in 'Tensor.relu'"
        )
    return [name]


def _is_package(root: str) -> bool:
    try:
        return importlib.util.find_spec(root) is not None
    except ValueError:  # the overload is already defined elsewhere
        return True


def _is_class_of(target: object, kind: type) -> bool:
    return isinstance(target, type) and issubclass(target, kind)


class _MethodRecorder(TorchFunctionMode):
    """Records which tensor method a Python function calls, without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(f"Tensor.{func.__name__}")
        return args[0]


def _method_behind(function: Callable[..., Any]) -> list[str]:
    """Returns the method as which a Python operator is recorded: `Tensor.add` for `x + y`."""
    for count in (1, 2):
        tensors = [torch.empty(1)] * count
        with _MethodRecorder() as asking:
            try:
                function(*tensors)
            except TypeError:
                continue  # takes a different number of arguments
        return asking.names[:1]
    return []
