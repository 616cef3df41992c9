"""Equal abstract values are shared, so that results computed from them can be reused.

Most of a model repeats: the second transformer layer makes the same calls as the first. Results of
calls are therefore cached by their target and the identity of the abstract values among their
arguments. Two parameters of the same geometry have the same abstract value.
"""

from typing import Any

import torch
from torch.fx.node import Node

from calque.upstream import torch_c
from calque.upstream.torch_internals import FakeTensor


class Uncertain(TypeError):
    """A value has parts that cannot be compared reliably."""


def key_of_call(node: Node, module: object) -> Any:
    """Returns a key that determines the abstract value of a node: equal keys, equal values.

    Args:
        node: a node whose inputs have shared abstract values, which are compared by identity.
        module: for a `call_module`, the `key_of_module`.

    Raises:
        TypeError: an argument cannot be compared.
    """
    key = (
        node.op,
        node.target if module is None else module,
        tuple([_key(a) for a in node.args]),
        tuple([(name, _key(a)) for name, a in node.kwargs.items()]) if node.kwargs else (),
        torch_c.is_grad_enabled(),
        torch_c.get_default_dtype(),
    )
    hash(key)
    return key


def _key(value: Any) -> Any:
    kind = type(value)
    if kind is Node:
        return id(value.meta["val"])
    if isinstance(value, (tuple, list)):
        return kind, tuple([_key(part) for part in value])
    if kind is slice:
        return kind, _key(value.start), _key(value.stop), _key(value.step)
    if isinstance(value, dict):
        return kind, tuple([(name, _key(part)) for name, part in value.items()])
    if kind is float:
        return kind, repr(value)  # -0.0 and 0.0 are equal
    return kind, value  # True, 1 and 1.0 are equal


_KINDS = (torch.Tensor, torch.nn.Parameter, FakeTensor)
_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device)


def key_of_module(module: torch.nn.Module) -> Any:
    """Returns a key that determines what a torch.nn module computes, apart from its data.

    Raises:
        TypeError: the module has an attribute that cannot be compared.
    """
    parts: list[Any] = [type(module)]
    for name, value in vars(module).items():
        if name in ("_parameters", "_buffers"):
            parts.append(tuple([(n, t if t is None else geometry(t)) for n, t in value.items()]))
        elif name == "_modules":
            inner = [(n, m if m is None else key_of_module(m)) for n, m in value.items()]
            parts.append(tuple(inner))
        elif isinstance(value, dict) or (isinstance(value, set | frozenset) and not value):
            # hooks; this is not called for modules that have any
            parts.append((name, type(value)))
        else:
            parts.append((name, _attribute(value)))
    return tuple(parts)


def are_without_data_alike(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    """Returns True if two modules, created by different runs, have no tensors and compute the
    same.
    """
    if any(True for module in (a, b) for _ in (*module.parameters(), *module.buffers())):
        return False
    try:
        return key_of_module(a) == key_of_module(b)
    except TypeError:
        return False


def _attribute(value: object) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple([_attribute(part) for part in value])
    if not isinstance(value, _PLAIN):
        raise Uncertain(type(value))
    return type(value), value


def geometry(tensor: torch.Tensor) -> Any:
    """Returns a tensor's geometry, as in an abstract value.

    Raises:
        TypeError: the geometry does not describe such a tensor (sparse, quantized, a subclass).
    """
    if type(tensor) not in _KINDS or tensor.layout != torch.strided:
        raise Uncertain(type(tensor))
    if tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        raise Uncertain(tensor.dtype)
    return (
        type(tensor),
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.device,
        tensor.requires_grad,
        tensor.is_leaf,
    )
