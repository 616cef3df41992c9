"""Plain records of the calls in a graph, which converters receive.

A record contains no nodes, proxies or tensors, only names, shapes and numbers. Arguments are named
and defaults filled in, so a converter does not depend on how the program wrote the call.
"""

import dataclasses
import operator
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.fx.graph_module import GraphModule
from torch.fx.node import Node

from calque.convert.named_arguments import named_arguments
from calque.convert.names import name_of
from calque.convert.structure import container_of, given_by, is_guard, makes_container
from calque.convert.tensor_infos import TensorInfo, WeightInfo
from calque.tracing.core.origins import NodeOrigin, origin_of
from calque.tracing.graph.value_guards import expect_answer
from calque.upstream.torch_internals import OpOverload

_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


@dataclass(frozen=True)
class Call:
    """A call in a graph.

    Attributes:
        name: its name, which is unique in the graph.
        op: the name of the operation: `"torch.nn.functional.relu"`, `"Tensor.view"`,
            `"torch.nn.Linear"` or `"aten.relu.default"`; `"Tensor.T"` for reading a property.
        kind: `"function"`, `"method"`, `"module"` or `"operator"`.
        target: the function, the name of the method, the module, or the operator itself.
        arguments: by name, defaults included; tensors are `TensorInfo` or `WeightInfo`.
        inputs: the tensors among the arguments, without weights, in order.
        outputs: the tensors that it returns.
        weights: the arrays of the weights among the arguments, or of the module, by name.
        source: the line of the program; None if not known.
        path: the path of the module that contains the call, or that is called.
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
        without: nodes to leave out.

    Attributes:
        graph: the graph.
        inputs: the graph's inputs.
        outputs: its result, in its containers, with `TensorInfo` instead of tensors.
    """

    def __init__(self, graph: GraphModule, without: Collection[Node] = ()) -> None:
        self.graph = graph
        self._without = without
        self._infos: dict[Node, Any] = {}
        self.inputs: list[TensorInfo] = []
        self.outputs: Any = None
        self.results: list[Any] = []  # the tensors in `outputs`, without containers
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
            elif is_guard(node) or self._only_for_guards(node):
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
        """Returns True if a node is only used to check inputs, not values the program reads."""
        reads = any(user.target is expect_answer for user in node.users)
        return bool(node.users) and all(map(is_guard, node.users)) and not reads

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

    def _info(self, name: str, value: object) -> Any:
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

    def _plain(self, argument: object) -> Any:
        """Returns an argument without nodes."""
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

    def _is_tensor(self, argument: object) -> bool:
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
    """Yields the leaves of nested containers, including tensors."""
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
    """Returns the elements of a tensor on any device, including bfloat16 tensors."""
    plain = tensor.detach().cpu().contiguous()
    if plain.dtype == torch.bfloat16:
        return plain.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return plain.numpy()


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
