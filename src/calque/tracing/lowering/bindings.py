"""The inputs and the members that a graph is lowered with."""

import copy
import dataclasses
import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.graph import CodeGen, Graph
from torch.fx.graph_module import GraphModule
from torch.fx.node import Node

from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.graph import checks
from calque.tracing.graph.codegen import ExactLiterals
from calque.tracing.lowering import explained
from calque.upstream import torch_c
from calque.upstream.torch_internals import FakeTensorMode, LazyGraphModule, pytree

_PLAIN = (torch.Tensor, bool, int, float, complex, str, type(None), type(...))


class Inputs:
    """An example call of a graph, its tensors abstract.

    Attributes:
        placeholders: the placeholders of the graph.
        values: the value of each placeholder; tensors are FakeTensors.
        tensors: all tensors among the values, in order.
    """

    def __init__(
        self,
        graph: GraphModule,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        mode: FakeTensorMode,
    ) -> None:
        self.placeholders: list[Node] = graph.graph.find_nodes(op="placeholder")
        if args or kwargs:
            given = _bound(graph, args, kwargs)
        else:
            given = [_remembered(node) for node in self.placeholders]
        given = [*map(_or_unknown, self.placeholders, given)]
        self._refuse_objects(given)
        self.values: Any = mapped(given, lambda t: _abstract(t, mode))
        leaves = leaves_of(self.values)
        self.tensors: list[torch.Tensor] = [
            leaf for leaf in leaves if isinstance(leaf, torch.Tensor)
        ]

    def _refuse_objects(self, given: Sequence[Any]) -> None:
        for node, value in zip(self.placeholders, given, strict=True):
            for leaf in leaves_of(value):
                if not isinstance(leaf, _PLAIN):
                    raise SymbolicTraceError(
                        f"{node.target} gets a {type(leaf).__name__}, which cannot be lowered.\n"
                        "Pass tensors and numbers, in tuples, lists, dictionaries and "
                        "dataclasses."
                    )

    def ungraded(self) -> None:
        """Treat all tensors among the values as having no gradient from now on."""
        for tensor in self.tensors:
            tensor.requires_grad_(False)

    def filled(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """Returns the values with these tensors instead."""
        rest = iter(tensors)
        return mapped(self.values, lambda _: next(rest))


INTO_CONTAINERS = frozenset((operator.setitem, operator.delitem, setattr, delattr))


def refuse_changed_arguments(graph: Graph) -> None:
    """Raise if the program changes a list, a dictionary or an object that is an argument."""
    for node in graph.nodes:
        owner: Any = node.args[0] if node.target in INTO_CONTAINERS else None
        if isinstance(owner, Node) and owner.op == "placeholder":
            if isinstance(owner.meta.get("val"), (list, dict)):
                origin = node.meta.get("origin")
                raise explained.changes_container(f"{origin}: " if origin is not None else "")


def is_record(value: object) -> bool:
    """Returns True if a value is a dataclass object, whose fields are searched."""
    return dataclasses.is_dataclass(value) and not isinstance(value, (type, dict))


def leaves_of(value: Any) -> list[Any]:
    """Returns the leaves of containers and dataclass fields."""
    found: list[Any] = []
    for leaf in pytree.tree_leaves(value, is_leaf=is_record):
        parts = [getattr(leaf, f.name) for f in dataclasses.fields(leaf)] if is_record(leaf) else ()
        found += leaves_of(parts) if is_record(leaf) else [leaf]
    return found


def in_plain_containers(value: object) -> Any:
    """Returns a node's containers as plain Python containers."""
    if isinstance(value, dict) and type(value).__module__ == "torch.fx.immutable_collections":
        return {key: in_plain_containers(part) for key, part in value.items()}
    if isinstance(value, list) and type(value).__module__ == "torch.fx.immutable_collections":
        return [in_plain_containers(part) for part in value]
    return tuple(map(in_plain_containers, value)) if type(value) is tuple else value


def mapped(value: object, tensor: Callable[[torch.Tensor], Any]) -> Any:
    """Returns the value with `tensor` applied to its tensors, in new containers and objects of the
    same classes.
    """

    def leaf(part: Any) -> Any:
        if not is_record(part):
            return tensor(part) if isinstance(part, torch.Tensor) else part
        made = copy.copy(part)
        for field in dataclasses.fields(part):
            new = mapped(getattr(part, field.name), tensor)
            object.__setattr__(made, field.name, new)  # the class may be frozen
        return made

    return pytree.tree_map(leaf, value, is_leaf=is_record)


def _bound(graph: GraphModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    LazyGraphModule.force_recompile(graph)  # before that, its signature is not the graph's
    bound = inspect.signature(graph.forward).bind(*args, **kwargs)
    bound.apply_defaults()
    if type(graph.graph._codegen) in (CodeGen, ExactLiterals):
        return list(bound.arguments.values())
    return list(graph.graph.process_inputs(*bound.args))


def _remembered(node: Node) -> Any:
    """Returns the example value that the graph recorded for a placeholder."""
    if "val" in node.meta:
        return node.meta["val"]
    for user in node.users:
        if user.target is checks.expect_value:
            return user.args[1]
    if node.args:
        return node.args[0]
    raise SymbolicTraceError(
        f"the shape of the input {node.target} is not known.\nPass example inputs: lower(graph, x)."
    )


def _or_unknown(node: Node, value: Any) -> Any:
    """Returns an example value; `...` for an object that is the default of a parameter, such as a
    module, if nothing but a check uses the parameter.
    """
    default = node.args[0] if node.args else None
    is_default = value is default or any(isinstance(leaf, Node) for leaf in leaves_of(value))
    checked = all(user.target is checks.expect_value for user in node.users)
    is_object = any(not isinstance(leaf, _PLAIN) for leaf in leaves_of(default))
    return ... if is_default and checked and is_object else value


def _abstract(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    """Returns a separate FakeTensor, even for a tensor that is passed twice."""
    with mode, torch_c.DisableTorchFunction():
        made = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
        )
        return made.requires_grad_(tensor.requires_grad)


class GraphState:
    """The tensors that a graph refers to by name: parameters, buffers and constants.

    Attributes:
        names: one for each tensor; a tensor with two names has the first.
        values: their abstract values.
        aliases: maps every name to the entry of `names` for the same tensor.
    """

    def __init__(self, graph: GraphModule, mode: FakeTensorMode) -> None:
        if any(isinstance(module, torch.jit.ScriptModule) for module in graph.modules()):
            raise explained.of_torchscript()
        self.names: list[str] = []
        self.values: list[torch.Tensor] = []
        self.aliases: dict[str, str] = {}
        first: dict[int, str] = {}
        for name, tensor in _members(graph):
            known = first.setdefault(id(tensor), name)
            self.aliases[name] = known
            if known == name:
                self.names.append(name)
                self.values.append(mode.from_tensor(tensor, static_shapes=True))


def parameters_and_buffers(module: Any) -> set[str]:
    """Returns the attribute names of parameters and buffers; those of a module with two paths
    are listed once, because swapping twice would not restore them.
    """
    return {
        f"{path}.{name}" if path else name
        for path, part in module.named_modules()
        for name in (*part._parameters, *part._buffers)
    }


def _members(graph: GraphModule) -> Any:
    yield from graph.named_parameters(remove_duplicate=False)
    yield from graph.named_buffers(remove_duplicate=False)
    for node in graph.graph.find_nodes(op="get_attr"):
        value = resolve(graph, str(node.target))
        if isinstance(value, torch.Tensor):
            yield str(node.target), value


def resolve(root: Any, target: str) -> Any:
    """Returns the attribute of a module that a dotted name refers to."""
    for part in target.split("."):
        root = getattr(root, part)
    return root
