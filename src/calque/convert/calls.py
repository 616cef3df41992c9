"""Plain records of the calls in a graph, which converters receive.

A record has no nodes, proxies or tensors in it, only names, shapes and numbers. Arguments are named
and their defaults filled in, so a converter need not know how the program happened to write the
call.
"""

import dataclasses
import inspect
import operator
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import torch
from torch.fx.graph_module import GraphModule
from torch.fx.node import Node

from calque.convert.names import name_of
from calque.convert.structure import GUARDS, container_of, given_by, makes_container
from calque.tracing.core.origins import NodeOrigin, origin_of
from calque.tracing.graph.answers import expect_answer
from calque.upstream import torch_c
from calque.upstream.torch_internals import OpOverload, boolean_dispatched

_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


class TensorInfo(NamedTuple):
    """A tensor that a call takes or returns.

    Attributes:
        name: its name; `"split.1"` is the second result of the call `split`.
        shape, dtype: such as `(2, 3)` and `"float32"`; None if unknown.
    """

    name: str
    shape: tuple[int, ...] | None
    dtype: str | None


class WeightInfo(NamedTuple):
    """A parameter, a buffer or a constant, as an argument; its array is in `Call.weights`."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Call:
    """One call of a graph.

    Attributes:
        name: its name, which is unique in the graph.
        op: what is called: `"torch.nn.functional.relu"`, `"Tensor.view"`, `"torch.nn.Linear"` or
            `"aten.relu.default"`; `"Tensor.T"` for reading a property.
        kind: `"function"`, `"method"`, `"module"` or `"operator"`.
        target: the function, the name of the method, the module, or the operator itself.
        arguments: by name, defaults included; tensors are `TensorInfo` or `WeightInfo`.
        inputs: the tensors among the arguments, weights left out, in order.
        outputs: the tensors that it returns.
        weights: the arrays of the weights among the arguments, or of the module, by name.
        source: the line of the program; None if it is not known.
        path: the module that it is called in, or that is called.
    """

    name: str
    op: str
    kind: str
    target: Any
    arguments: dict[str, Any]
    inputs: list[TensorInfo]
    outputs: list[TensorInfo]
    weights: dict[str, np.ndarray] = field(repr=False)
    source: NodeOrigin | None
    path: str


class Calls:
    """The calls of a graph, in order.

    Args:
        graph: a graph from `calque.record`, `calque.trace` or any other tracer; nodes without `val`
            in their `meta` have tensors of unknown shape.
        without: nodes that are left out.

    Attributes:
        graph: the graph.
        inputs: the tensors that the graph takes.
        outputs: what it returns, in its containers, with `TensorInfo` in place of tensors.
    """

    def __init__(self, graph: GraphModule, without: Collection[Node] = ()) -> None:
        self.graph = graph
        self._without = without
        self._infos: dict[Node, Any] = {}
        self.inputs: list[TensorInfo] = []
        self.outputs: Any = None
        self.results: list[Any] = []  # the tensors in it, without containers
        self._calls = list(self._read())

    def __iter__(self) -> Iterator[Call]:
        return iter(self._calls)

    def __len__(self) -> int:
        return len(self._calls)

    def _read(self) -> Iterator[Call]:
        for node in self.graph.graph.nodes:
            if node.op == "placeholder":
                self._infos[node] = self._info(str(node.target), node.meta.get("val"))
                found = [i for i in leaves(self._infos[node]) if isinstance(i, TensorInfo)]
                self.inputs += [info for info in found if info.shape is not None]
            elif node.op == "get_attr":
                self._infos[node] = self._weight(str(node.target))
            elif node.op == "output":
                self.outputs = self._plain(node.args[0])
                self.results = [self._infos[part] for part in given_by(node.args[0])]
            elif node.target in GUARDS or self._only_for_guards(node):
                continue
            elif node.target in (operator.getitem, getattr) and self._is_part(node):
                self._infos[node] = self._part(node)
            elif makes_container(node):
                self._infos[node] = container_of(node, self._plain, self._member)
            elif node in self._without:
                self._infos[node] = self._info(node.name, node.meta.get("val"))
            else:
                yield self._call(node)

    def _only_for_guards(self, node: Node) -> bool:
        """Returns True if a node is part of a check of inputs; a value that is read is the
        program's.
        """
        users = {user.target for user in node.users}
        return bool(users) and users <= GUARDS and expect_answer not in users

    def _is_part(self, node: Node) -> bool:
        whole: Any = node.args[0]
        if not isinstance(whole, Node):
            return False
        info = self._infos.get(whole)
        return isinstance(info, tuple | dict) and type(info) not in (TensorInfo, WeightInfo)

    def _part(self, node: Node) -> Any:
        whole: Any = node.args[0]
        key: Any = node.args[1]
        found = self._infos[whole]
        try:
            return found[key]
        except (IndexError, KeyError, TypeError):
            return self._info(f"{whole.name}.{key}", node.meta.get("val"))

    def _info(self, name: str, value: Any) -> Any:
        if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
            parts = enumerate(value)
            return tuple(None if p is None else self._info(f"{name}.{i}", p) for i, p in parts)
        if isinstance(value, dict):
            found = value.items()
            return {k: None if p is None else self._info(f"{name}.{k}", p) for k, p in found}
        if isinstance(value, torch.Tensor):
            return TensorInfo(name, tuple(value.shape), _dtype(value))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._info(
                name, {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            )
        is_plain = value is not None and isinstance(value, _PLAIN)
        return value if is_plain else TensorInfo(name, None, None)

    def _weight(self, target: str) -> Any:
        value = self._member(target)
        if isinstance(value, torch.Tensor):
            return WeightInfo(target, tuple(value.shape), _dtype(value))
        return value

    def _plain(self, argument: Any) -> Any:
        """An argument without nodes."""
        if isinstance(argument, Node):
            return self._infos[argument]
        if isinstance(argument, slice):
            parts = (argument.start, argument.stop, argument.step)
            return slice(*map(self._plain, parts))
        if isinstance(argument, (tuple, list)) and not isinstance(argument, torch.Size):
            parts = [self._plain(part) for part in argument]
            return parts if isinstance(argument, list) else tuple(parts)
        if isinstance(argument, dict):
            return {key: self._plain(part) for key, part in argument.items()}
        return argument

    def _call(self, node: Node) -> Call:
        args = tuple(self._plain(part) for part in node.args)
        kwargs = {key: self._plain(part) for key, part in node.kwargs.items()}
        kind, op, target = self._named(node)
        if kind == "method" and node.op == "call_function":
            arguments = {"self": args[0]}  # a property
        else:
            arguments = named_arguments(kind, target, args, kwargs)
        info = self._infos[node] = self._info(node.name, node.meta.get("val"))
        stack = list(node.meta.get("nn_module_stack", {}).values())
        path = stack[-1][0] if stack else ""
        if kind == "module":
            path = path if stack or origin_of(node) is not None else str(node.target)
            members = (*target.named_parameters(), *target.named_buffers())
            weights = {name: array_of(tensor) for name, tensor in members}
        else:
            found = [leaf for leaf in leaves(arguments) if isinstance(leaf, WeightInfo)]
            weights = {weight.name: array_of(self._member(weight.name)) for weight in found}
        inputs = [leaf for leaf in leaves(arguments) if isinstance(leaf, TensorInfo)]
        outputs = [leaf for leaf in leaves(info) if isinstance(leaf, TensorInfo)]
        source = origin_of(node)
        return Call(node.name, op, kind, target, arguments, inputs, outputs, weights, source, path)

    def _member(self, target: str) -> Any:
        value: Any = self.graph
        for part in target.split("."):
            value = getattr(value, part)
        return value

    def _is_tensor(self, argument: Any) -> bool:
        info = self._plain(argument)
        return isinstance(info, WeightInfo) or getattr(info, "shape", None) is not None

    def _named(self, node: Node) -> tuple[str, str, Any]:
        target: Any = node.target
        if node.op == "call_module":
            module = self.graph.get_submodule(target)
            return "module", name_of(type(module)), module
        if node.op == "call_method":
            return "method", f"Tensor.{target}", target
        if isinstance(target, OpOverload):
            return "operator", str(target), target
        if target is getattr and len(node.args) == 2 and self._is_tensor(node.args[0]):
            return "method", f"Tensor.{node.args[1]}", node.args[1]
        return "function", name_of(target), target


def leaves(value: Any) -> Iterator[Any]:
    """Yields the leaves of nested containers, tensors among them."""
    if isinstance(value, (TensorInfo, WeightInfo)):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from leaves(part)
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from leaves(part)
    elif isinstance(value, slice):
        yield from leaves((value.start, value.stop, value.step))
    else:
        yield value


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """The elements of a tensor of any device, bfloat16 among the dtypes."""
    plain = tensor.detach().cpu().contiguous()
    if plain.dtype == torch.bfloat16:
        return plain.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return plain.numpy()


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


# Arguments by their names


def named_arguments(
    kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """The arguments of a call by name, with defaults filled in.

    Where the signature is not known, positional arguments are called `"0"`, `"1"` and so on.

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
    for numbers in (False, True):  # torch.max(x, 1) has no tensor 1, torch.where(mask, x, 1) has
        for schema in schemas:
            if not any(argument.is_out for argument in schema.arguments):
                found = _by_schema(schema, args, kwargs, numbers)
                if found is not None:
                    return found
    method = getattr(torch.Tensor, name, None) if kind == "method" else None
    if inspect.isfunction(method):  # written in Python, as `__rsub__` is
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
    """What `kind.apply` takes."""
    signature = inspect.signature(kind.forward)
    if kind.setup_context is not torch.autograd.Function.setup_context:
        return signature
    return signature.replace(parameters=[*signature.parameters.values()][1:])  # without `ctx`


def _numbered(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {**{str(i): value for i, value in enumerate(args)}, **kwargs}


def _by_schema(
    schema: Any, args: tuple[Any, ...], kwargs: dict[str, Any], numbers: bool = True
) -> dict[str, Any] | None:
    """The arguments by the names of a schema; None where they do not fit.

    Args:
        numbers: whether a number may stand for a tensor.
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
        return None  # x.var(1, unbiased=False) is none of x.var(unbiased)
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


def _is_one(kind: str, value: Any) -> bool:
    """Returns True if one number stands for a list of them, as in `x.sum(-1)`."""
    return type(value) is int and kind.removeprefix("Optional[").startswith("List[int]")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float, complex)


def _fits(kind: str, value: Any) -> bool:
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
