"""The arguments of a call, by their names in its signature or schema."""

import inspect
from collections.abc import Callable
from typing import Any

import torch

from calque.convert.tensor_infos import TensorInfo, WeightInfo
from calque.upstream import torch_c
from calque.upstream.torch_internals import boolean_dispatched


def named_arguments(
    kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Returns the arguments of a call by name, with defaults filled in.

    If the signature is not known, positional arguments are called `"0"`, `"1"` and so on.

    >>> named_arguments("function", torch.nn.functional.relu, (3,), {})
    {'input': 3, 'inplace': False}
    """
    if kind == "module":
        signature = inspect.signature(target.forward)
    elif kind == "operator":
        return _by_schema(target._schema, args, kwargs) or _numbered(args, kwargs)
    else:
        signature = None if kind == "method" else _signature(target)
    if signature is not None:
        return _bound(signature, args, kwargs)
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    schemas = torch_c.jit_get_schemas_for_operator(f"aten::{name}")
    # In torch.where(mask, x, 1), unlike torch.max(x, 1), the 1 is a tensor.
    for numbers in (False, True):
        for schema in schemas:
            if not any(argument.is_out for argument in schema.arguments):
                found = _by_schema(schema, args, kwargs, numbers)
                if found is not None:
                    return found
    method = getattr(torch.Tensor, name, None) if kind == "method" else None
    if inspect.isfunction(method):  # written in Python, like `__rsub__`
        return _bound(inspect.signature(method), args, kwargs)
    return _numbered(args, kwargs)


def _bound(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return _numbered(args, kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        if hasattr(function, "differentiates"):
            return _of_forward(function.differentiates)
        either = boolean_dispatched.get(function)
        return inspect.signature(function if either is None else either["if_false"])
    except (TypeError, ValueError):
        return None


def _of_forward(kind: type[torch.autograd.Function]) -> inspect.Signature:
    """Returns the names of the arguments of `kind.apply`."""
    signature = inspect.signature(kind.forward)
    if kind.setup_context is not torch.autograd.Function.setup_context:
        return signature
    return signature.replace(parameters=[*signature.parameters.values()][1:])  # without `ctx`


def _numbered(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {**{str(i): value for i, value in enumerate(args)}, **kwargs}


def _by_schema(
    schema: Any, args: tuple[Any, ...], kwargs: dict[str, Any], numbers: bool = True
) -> dict[str, Any] | None:
    """Returns the arguments by the names of a schema; None if they do not match it.

    Args:
        numbers: whether a number may be passed for a tensor.
    """
    parameters = schema.arguments
    positional = [p for p in parameters if not p.kwarg_only]
    if len(args) > len(positional):
        lists = [i for i, p in enumerate(positional) if str(p.type).startswith("List[int]")]
        if not lists or not all(isinstance(a, int) for a in args[lists[0] :]):
            return None
        args = (*args[: lists[0]], list(args[lists[0] :]))  # x.view(2, 3)
    if len(args) > len(positional):
        return None
    found: dict[str, Any] = {}
    given = {p.name: a for p, a in zip(positional, args)}
    if given.keys() & kwargs.keys():
        return None  # x.var(1, unbiased=False) is not x.var(unbiased)
    given.update(kwargs)
    if any(parameter.name == "self" for parameter in parameters) and "input" in given:
        given["self"] = given.pop("input")
    for parameter in parameters:
        if parameter.name in given:
            value = given.pop(parameter.name)
            kind = str(parameter.type)
            if not _fits(kind, value) or (kind == "Tensor" and not numbers and _is_number(value)):
                return None
            found[parameter.name] = [value] if _is_one(kind, value) else value
        elif parameter.has_default_value():
            found[parameter.name] = parameter.default_value
        else:
            return None
    return None if given else found


def _is_one(kind: str, value: object) -> bool:
    """Returns True if a number is passed for a list of numbers, as in `x.sum(-1)`."""
    return type(value) is int and kind.removeprefix("Optional[").startswith("List[int]")


def _is_number(value: object) -> bool:
    return type(value) in (bool, int, float, complex)


def _fits(kind: str, value: object) -> bool:
    if kind.startswith("Optional["):
        return value is None or _fits(kind[9:-1], value)
    if kind.startswith("List["):
        inner = kind[5:-1]
        if inner == "int" and type(value) is int:
            return True
        return isinstance(value, (tuple, list)) and all(_fits(inner, part) for part in value)
    tensor = isinstance(value, (TensorInfo, WeightInfo))
    if kind == "Tensor":
        return tensor or _is_number(value)
    if kind in ("number", "Scalar"):
        return isinstance(value, (int, float, complex)) and not tensor
    if kind == "bool":
        return isinstance(value, bool)
    if kind == "float":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind == "int":
        return isinstance(value, (int, torch.dtype, torch.layout, torch.memory_format))
    return not tensor
