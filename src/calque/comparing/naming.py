"""Names for a node's function and arguments, independent of the tracer that wrote the graph."""

import dataclasses
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx.graph_module import GraphModule
from torch.fx.node import Node

from calque.tracing.abstract.tensor_properties import ASPECTS
from calque.tracing.graph.branching import cond
from calque.tracing.graph.checks import CHECKS, assign, expect_tensor, in_place, unpack
from calque.tracing.graph.purity import has_effect, name_mutates
from calque.tracing.graph.templates import rebuilt
from calque.tracing.graph.value_guards import HOST, OF_RECORDINGS
from calque.tracing.lowering.unseen_writes import is_view
from calque.tracing.proxies.proxy import assert_fn
from calque.tracing.record.number_uses import READS
from calque.upstream import torch_c
from calque.upstream.torch_internals import (
    OperatorBase,
    OpOverload,
    PyTreeCodeGen,
    check,
    tree_leaves,
    tree_unflatten,
)

_GUARDS = CHECKS | OF_RECORDINGS | {check, assert_fn}
_KEPT = {torch.ops.aten.detach.default, torch.ops.aten.alias.default}
"""The operators in which `make_fx` records that autograd saves a result for a backward pass."""


def nodes_of(graph: GraphModule) -> list[Node]:
    """Returns the nodes that compute: not inputs, members or guards.

    The copies to parameters and buffers at the end of a lowered graph are sorted by name, because
    their order depends on the tracer but does not matter.
    """
    nodes = [node for node in graph.graph.nodes if node.op.startswith("call") and counts(node)]
    end = len(nodes)
    while end and _copies_to_member(nodes[end - 1]):
        end -= 1
    return nodes[:end] + sorted(nodes[end:], key=lambda node: str(node.args[0].target))


def _copies_to_member(node: Node) -> bool:
    to = node.args[0] if node.target is torch.ops.aten.copy_.default else None
    return isinstance(to, Node) and to.op == "get_attr"


def counts(node: Node) -> bool:
    """Returns True if a node computes something other than a check, a value that is checked, or a
    number from the shapes of tensors, which a graph without shapes has, and no other.

    An attribute of a tensor that the graph does not return counts for nothing either.
    """
    if node.target in _GUARDS or str(node.target) == "_guards_fn" or _is_set_on_inner(node):
        return False
    if (node.target in _KEPT and not node.users) or is_number(node):
        return False
    return not (node.users and all(user.target in _GUARDS for user in node.users))


def _is_set_on_inner(node: Node) -> bool:
    """Returns True if a node sets an attribute of a tensor that is neither taken nor returned."""
    owner: Any = node.args[0] if node.target is setattr else None
    is_made = isinstance(owner, Node) and owner.op.startswith("call")
    if not is_made or not isinstance(owner.meta.get("val"), torch.Tensor):
        return False
    return not any(user.op == "output" or user.target is rebuilt for user in owner.users)


def is_read(node: Node) -> bool:
    """Returns True if a node reads a tensor's values into Python. One graph passes on what it
    reads, and another, a recording, checks it and has what it read in the run.

    >>> graph = torch.fx.Graph()
    >>> x = graph.placeholder("x")
    >>> is_read(graph.call_method("tolist", (x,))), is_read(graph.call_method("sum", (x,)))
    (True, False)
    """
    if node.op == "call_method":  # `x.float()` gives a tensor, `float(x)` does not
        return str(node.target) in HOST | READS
    return node.op == "call_function" and called(node) in _READS


_READS = HOST | READS | {name.strip("_") for name in READS}


def is_only_checked(node: Node) -> bool:
    """Returns True if only checks use a node's result, directly or indirectly."""
    seen, left = {node}, [node]
    while left:
        each = left.pop()
        if each.op == "output" or has_effect(each):
            return False
        users = [user for user in each.users if user.target not in _GUARDS and user not in seen]
        seen.update(users)
        left += users
    return bool(node.users)


def is_number(node: Node) -> bool:
    """Returns True if a node reads a tensor's shape, dtype or the like, or computes only with such
    values.

    >>> graph = torch.fx.Graph()
    >>> x = graph.placeholder("x")
    >>> size = graph.call_method("size", (x, 0))
    >>> double = graph.call_function(operator.mul, (size, 2))
    >>> [is_number(node) for node in (size, double, graph.call_method("view", (x, double)))]
    [True, True, False]
    """
    if not node.op.startswith("call") or isinstance(node.meta.get("val"), torch.Tensor):
        return False
    if node.op != "call_module" and called(node) in ASPECTS:
        return True
    is_of_python = getattr(node.target, "__module__", "") in ("_operator", "builtins", "math")
    given = node.all_input_nodes
    return is_of_python and bool(given) and all(is_number(part) or is_read(part) for part in given)


def called(node: Node) -> str:
    """Returns the name of the function that a node calls, the same for every way to write the call.

    >>> graph = torch.fx.Graph()
    >>> x = graph.placeholder("x")
    >>> import operator
    >>> [called(graph.call_function(f, (x, 1))) for f in (operator.add, torch.add, operator.iadd)]
    ['add', 'add', 'add_']
    >>> called(graph.call_method("add", (x, 1)))
    'add'
    """
    target: Any = node.target
    if node.op == "call_module":
        module = module_of(node)
        return type(module).__name__ if module is not None else str(target)
    if target is in_place:
        return _spelled(str(node.args[0]), True)
    if target is assign:
        return "setattr"
    if target is getattr:
        return str(node.args[1])
    if isinstance(target, OpOverload):
        return target._schema.name.rpartition("::")[2]
    name = target if isinstance(target, str) else getattr(target, "__name__", repr(target))
    is_dunder = name.startswith("__") and name.endswith("__")
    is_operator = is_dunder or getattr(target, "__module__", "") == "_operator"
    name = name.strip("_") if is_operator else name
    return _spelled(_REVERSED.get(name, name) if is_dunder else name, is_operator)


_REVERSED = {
    f"r{name}": name
    for name in (
        *("add", "sub", "mul", "div", "truediv", "floordiv", "mod", "pow", "matmul"),
        *("and", "or", "xor", "lshift", "rshift"),
    )
}
"""The names of `1 - x` as a method of `x` and as a function of Python."""

_SPELLINGS = {
    "truediv": "div",
    "true_divide": "div",
    "divide": "div",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "inv": "bitwise_not",
    "invert": "bitwise_not",
    "negative": "neg",
    "multiply": "mul",
    "subtract": "sub",
    "absolute": "abs",
    "concat": "cat",
    "concatenate": "cat",
}
_WRITING = frozenset(f"i{name}" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod"))
_WRITING |= {"ipow", "iand", "ior", "ixor", "ilshift", "irshift", "imatmul"}


def _spelled(name: str, is_operator: bool) -> str:
    """Returns the common name of a method, function or Python operator that has several names."""
    if is_operator and name in _WRITING:
        return f"{_SPELLINGS.get(name[1:], name[1:])}_"
    return _SPELLINGS.get(name, name)


def module_of(node: Node) -> Any:
    """Returns the layer that a node calls."""
    owner = node.graph.owning_module
    return owner.get_submodule(str(node.target)) if owner is not None else None


def is_part(node: Node) -> bool:
    """Returns True if a node only unpacks an argument, or a container that another node returned,
    or packs the results of other nodes.
    """
    if node.target in (unpack, rebuilt) or dataclasses.is_dataclass(node.target):
        return True
    if node.target in (getattr, operator.getitem) and _is_argument(node.args[0]):
        return True
    if called(node) != "getitem" or not isinstance(node.args[0], Node):
        return False
    source = node.args[0]
    return source.target is unpack or isinstance(source.meta.get("val"), (tuple, list, dict))


def _is_argument(node: object) -> bool:
    """Returns True for a container or an object among the arguments, or within one."""
    if not isinstance(node, Node) or isinstance(node.meta.get("val"), torch.Tensor):
        return False
    if node.op == "placeholder":
        return node.meta.get("val") is not None
    return node.target in (getattr, operator.getitem) and _is_argument(node.args[0])


def writes(node: Node) -> bool:
    """Returns True if a node writes to an argument, and so changes an earlier node's result."""
    into = "out" in node.kwargs or called(node) in ("setitem", "delitem")
    return node.op != "call_module" and (into or name_mutates(called(node)))


def has_values(node: Node) -> bool:
    """Returns False if a node returns uninitialized memory, or a view of it."""
    if called(node).startswith(_MEMORY):
        return False
    source = node.args[0] if node.args and is_view(node) else None
    return not isinstance(source, Node) or has_values(source) or any(map(writes, source.users))


_MEMORY = ("empty", "new_empty", "resize_")


def result_of(graph: GraphModule) -> Any:
    """Returns the result of a graph, in the containers that a call returns."""
    given = graph.graph.output_node().args[0]
    codegen = graph.graph._codegen
    if isinstance(codegen, PyTreeCodeGen) and codegen.pytree_info.out_spec is not None:
        given = tree_unflatten(tree_leaves(given), codegen.pytree_info.out_spec)
    return given


def nodes_in(value: object) -> Iterator[Node]:
    """Returns the nodes in a result."""
    return (part for part in tree_leaves(value) if isinstance(part, Node))


def flat(value: object) -> Iterator[Any]:
    """Yields the parts of a result and of the objects in it."""
    for part in tree_leaves(value):
        if isinstance(part, Node) and part.target is rebuilt:
            yield from flat(part.args[1:])
        else:
            yield part


def checks_device(graph: GraphModule) -> bool:
    """Returns True if a graph checks the devices of its inputs, because its program reads them."""
    checks = graph.graph.find_nodes(op="call_function", target=expect_tensor)
    return any("device" in str(node.args[2:]) for node in checks)


def chooses(graph: GraphModule) -> bool:
    """Returns True if a graph chooses between branches when it runs. A recording of the same
    program has only the nodes of the branch taken.
    """
    return bool(graph.graph.find_nodes(op="call_function", target=cond))


def vocabulary(graph: GraphModule) -> str:
    """Returns the kind of a graph's nodes: `"calls"`, or the level of its operators."""
    nodes = [node for node in nodes_of(graph) if not _is_of_any_graph(node)]
    if not all(isinstance(node.target, OperatorBase) for node in nodes):
        return "calls"
    if any(map(_is_written, nodes)):
        return "operators that write"
    is_composite = any(_is_composite(node.target) for node in nodes)
    return "composite operators" if is_composite else "operators"


def _is_of_any_graph(node: Node) -> bool:
    """Returns True for nodes that only unpack or pack results."""
    if node.target is operator.getitem:
        return isinstance(node.args[1], (int, str)) and not _gives_tensor(node.args[0])
    return node.target in (assign, rebuilt)


def _gives_tensor(node: object) -> bool:
    return isinstance(node, Node) and isinstance(node.meta.get("val"), torch.Tensor)


def _is_written(node: Node) -> bool:
    """Returns True for an operator that writes, except a final write to an input of the graph."""
    target: Any = node.target
    if not isinstance(target, OpOverload) or not target._schema.is_mutable:
        return False
    into: Any = node.args[0] if node.args else None
    is_end = target is torch.ops.aten.copy_.default and getattr(into, "op", "") in _GIVEN
    return not is_end


_GIVEN = ("placeholder", "get_attr")


def _is_composite(target: object) -> bool:
    if not isinstance(target, OpOverload) or target is torch.ops.aten.reshape.default:
        return False  # lowered graphs use it instead of views
    key = "CompositeImplicitAutograd"
    return torch_c.dispatch_has_kernel_for_dispatch_key(target.name(), key)
