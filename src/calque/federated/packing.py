"""Packs the arguments of a Python function into one argument: none, the only one, or a struct.

`inspect.Signature` assigns arguments to parameters. Arguments that can be passed by keyword become
fields with names, other arguments fields without.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch

from calque.federated.errors import type_error
from calque.federated.types import Struct, StructType, Type, of_annotation, to_type

_NAMELESS = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class Packing:
    """Packs the arguments of a function into one argument, and unpacks them.

    Args:
        signature: the parameters that have types.
        type: the type of the packed argument; None if there is no parameter.
        positional: the number of fields that are passed by position.
        single: whether there is one argument, which is not packed into a struct.
    """

    signature: inspect.Signature
    type: Type | None
    positional: int
    single: bool

    def pack(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Returns the arguments of a call as one value.

        Raises:
            FederatedTypeError: they do not match the parameters; the message is Python's.
        """
        bound = _bind(self.signature, args, kwargs)
        bound.apply_defaults()
        if self.type is None:
            return None
        values = [*bound.args, *bound.kwargs.values()]
        if self.single:
            return values[0]
        assert isinstance(self.type, StructType)
        names = self.type.names
        if len(values) != len(names) or not set(bound.kwargs) <= set(names[self.positional :]):
            raise type_error(
                f"a function with parameter type {self.type} is called with other arguments",
                "Pass one argument for each type, and keywords with their names.",
            )
        ordered = [*bound.args, *(bound.kwargs[str(name)] for name in names[self.positional :])]
        return Struct(zip(names, ordered, strict=True))

    def unpack(self, *packed: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the positional and keyword arguments in the packed value."""
        if self.type is None:
            return (), {}
        if self.single:
            return packed, {}
        assert isinstance(self.type, StructType)
        whole = list(packed[0].values()) if isinstance(packed[0], dict) else packed[0]
        values = [whole[index] for index in range(len(self.type))]
        names = [str(name) for name in self.type.names[self.positional :]]
        keywords = dict(zip(names, values[self.positional :], strict=True))
        return tuple(values[: self.positional]), keywords


def packing_of(
    function: Callable[..., Any], types: tuple[Any, ...], named: Mapping[str, Any]
) -> Packing:
    """Returns the packing of a function's arguments of these types.

    Parameters that have a default and no type keep their default.

    Args:
        function: the user's function, or a module.
        types: types of parameters by position; a single struct may describe all.
        named: types of parameters by name.

    Raises:
        FederatedTypeError: the types do not match the parameters.
    """
    signature = _signature(getattr(function, "forward", function))
    specs = [to_type(spec) for spec in types]
    keywords = {name: to_type(spec) for name, spec in named.items()}
    if len(specs) == 1 and not keywords and isinstance(specs[0], StructType):
        if sum(_is_required(p) for p in signature.parameters.values()) > 1:
            pairs = specs[0].elements
            specs = [kind for name, kind in pairs if name is None]
            keywords = {name: kind for name, kind in pairs if name is not None}
    bound = _bind(signature, tuple(specs), keywords)
    return _packing(signature, bound.arguments, len(specs) == 1 and not keywords)


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """Returns a function's signature; `*args` for C functions that have none."""
    try:
        return inspect.signature(function)
    except ValueError:
        anything = inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)
        return inspect.Signature([anything])


def annotated_packing(function: Callable[..., Any]) -> Packing | None:
    """Returns the packing for the types of a function's annotations.

    Returns None if a parameter without a default has no annotation, or the annotation of any array
    (`torch.Tensor`), so the types are open.

    Raises:
        FederatedTypeError: an annotation does not describe a type.
    """
    signature = _signature(function)
    names = getattr(inspect.unwrap(function), "__globals__", {})
    types: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        annotated = not _is_open(parameter.annotation, names)
        if parameter.kind in _MANY or (_is_required(parameter) and not annotated):
            return None
        if annotated:
            types[name] = of_annotation(parameter.annotation, names)
    kinds = [signature.parameters[name].kind for name in types]
    single = len(kinds) == 1 and kinds[0] is not inspect.Parameter.KEYWORD_ONLY
    return _packing(signature, types, single)


def _is_open(annotation: object, names: Mapping[str, Any]) -> bool:
    """Returns True if an annotation is missing, or allows any array."""
    if isinstance(annotation, str):
        found: Any = names
        for part in annotation.split("."):
            found = found.get(part) if found is names else getattr(found, part, None)
        annotation = annotation if found is None else found
    if isinstance(annotation, str):
        return annotation == "Any"
    arrays = (torch.Tensor, jax.Array, np.ndarray)
    return any(annotation is one for one in (inspect.Parameter.empty, Any, *arrays))


def _packing(signature: inspect.Signature, arguments: Mapping[str, Any], single: bool) -> Packing:
    """Returns the packing for types bound to parameters."""
    pairs: list[tuple[str | None, Type]] = []
    positional = 0
    for name, parameter in signature.parameters.items():
        if name not in arguments:
            continue
        given = arguments[name]
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            pairs += [(None, kind) for kind in given]
            positional += len(given)
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            pairs += given.items()
        else:
            pairs.append((None if parameter.kind in _NAMELESS else name, given))
            positional += parameter.kind is not inspect.Parameter.KEYWORD_ONLY
    kept = [parameter for name, parameter in signature.parameters.items() if name in arguments]
    if not pairs:
        return Packing(signature.replace(parameters=[]), None, 0, False)
    kind = pairs[0][1] if single else StructType(tuple(pairs))
    return Packing(signature.replace(parameters=kept), kind, positional, single)


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is inspect.Parameter.empty and parameter.kind not in _MANY


def _bind(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        raise type_error(str(error), f"The parameters are {signature}.") from None
