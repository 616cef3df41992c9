"""The placeholders of `SymbolicTracer`: one for each parameter."""

import copy
import dataclasses
import functools
import inspect
import operator
from collections.abc import Callable, Hashable, Iterator
from types import CodeType
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch.fx.graph import Graph
from torch.fx.node import Node

from calque.state import ATOMIC, call_watched
from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.core.origins import origin_of_code
from calque.tracing.core.refusals import refuse_because
from calque.tracing.graph import checks
from calque.tracing.graph.templates import attributes_of, mapped
from calque.tracing.proxies.proxy import OWN
from calque.tracing.tracer.constants import is_constant
from calque.upstream.torch_internals import FakeTensor, tree_leaves

if TYPE_CHECKING:
    from calque.tracing.symbolic.symbolic_tracer import SymbolicTracer

_FIXED = (bool, str, type(None), torch.Tensor)


def make_placeholder(tracer: "SymbolicTracer", name: str, signature: inspect.Signature) -> Any:
    """Returns what the program gets for the parameter `name`.

    Args:
        tracer: a SymbolicTracer; its `given` has the examples by name, or is None.
        name: the parameter, with its stars.
        signature: the signature of the traced function.
    """
    parameter = signature.parameters[name.lstrip("*")]
    empty = parameter.default is inspect.Parameter.empty
    default: tuple[Any, ...] = () if empty else (_held(tracer, parameter.default),)
    annotation = parameter.annotation if _is_printable(parameter.annotation) else None
    given = tracer.given
    if given is None and tracer.decorated and name.startswith("*"):
        node = tracer.create_node("placeholder", name, default, {}, type_expr=annotation)
        return _constant(tracer, node, name, {} if name.startswith("**") else ())
    if given is None:
        proxy = tracer.create_proxy("placeholder", name, default, {}, type_expr=annotation)
        if not empty and (isinstance(parameter.default, _FIXED) or default[0] is None):
            return _default(tracer, proxy.node, name, parameter.default)
        return proxy
    node = tracer.create_node("placeholder", name, default, {}, type_expr=annotation)
    starred = {"*": (), "**": {}}.get(name[: len(name) - len(name.lstrip("*"))])
    value = given.get(name.lstrip("*"), parameter.default if starred is None else starred)
    tracer.assumed.follow(node)
    if starred is None and name not in given:
        return _default(tracer, node, name, value)
    if not empty and isinstance(value, torch.Tensor) and name in given:
        tracer.assumed.may_be_left_out.add(name)
    made = _like(tracer, node, name, value)
    node.meta.setdefault("val", mapped(made, _abstract))
    return made


def _abstract(leaf: object) -> Any:
    return leaf.node.meta["val"] if isinstance(leaf, torch.fx.Proxy) else leaf


def _is_printable(annotation: object) -> bool:
    """Returns True if generated code can contain the annotation: torch.fx hashes each of its parts.

    The list in `Callable[[Tensor], Tensor]` is not hashable.
    """
    if annotation is inspect.Parameter.empty or not isinstance(annotation, Hashable):
        return False
    return all(map(_is_printable, get_args(annotation)))


def _held(tracer: "SymbolicTracer", default: object) -> Any:
    """Returns the default as a graph can hold it: without tensors, and None for functions."""
    if any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(default)):
        return ...
    if any(map(is_constant, tree_leaves(default))):
        return None
    try:
        tracer.create_arg(default)
    except NotImplementedError:
        return None
    return default


def _default(tracer: "SymbolicTracer", node: Node, name: str, default: object) -> Any:
    """Returns the default that the program was traced with; the graph refuses other values, except
    tensors.
    """
    if isinstance(default, torch.Tensor):
        either = torch.fx.Proxy(node), default
        given = tracer.create_proxy("call_function", checks.given_or, either, {}).node
        tracer.assumed.follow(given)
        return _like(tracer, given, name, default)
    held = _held(tracer, default)
    _constant(tracer, node, name, held)
    return default if held is None or held is ... else held


def _like(tracer: "SymbolicTracer", node: Node, name: str, value: object) -> Any:
    """Returns the traced form of an example: tensors become proxies, and the graph checks other
    values.
    """
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_nested:
            refuse_because(
                tracer,
                f"the argument {name} is a tensor of layout {value.layout}",
                "A graph supports only dense tensors: pass a dense one, or its parts.",
            )
        node.meta["val"] = tracer.abstract.of(value)
        tracer.assumed.add_input(node, name, checks.class_name(value))
        proxy = tracer.tensor_proxy(node)
        if isinstance(value, torch.nn.Parameter) and hasattr(proxy, "type_of_value"):
            proxy._is_param, proxy.type_of_value = True, type(value)
        return _with_attributes(tracer, node, name, proxy, value)
    if isinstance(value, (tuple, list)) and type(value) is not torch.Size:
        _expect_container(tracer, node, name, value)
        parts = [_part(tracer, node, i, f"{name}[{i}]", part) for i, part in enumerate(value)]
        build: Any = type(value)
        made = build(*parts) if hasattr(value, "_fields") else build(parts)
        return _watched(tracer, node, name, made, value)
    if isinstance(value, dict):
        _expect_container(tracer, node, name, value)
        made = copy.copy(value)
        for key, part in value.items():
            made[key] = _part(tracer, node, key, f"{name}[{key!r}]", part)
        return _watched(tracer, node, name, made, value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        made = _of_dataclass(tracer, node, name, value)
        return _watched(tracer, node, name, made, value)
    if not isinstance(value, torch.nn.Module) and _holds_tensors(value):
        refuse_because(
            tracer,
            f"the argument {name} is a {type(value).__name__}, an object that contains tensors",
            "Pass the tensors themselves, or in a tuple, a list, a dictionary or a dataclass.",
        )
    return _constant(tracer, node, name, value)


def _expect_container(tracer: "SymbolicTracer", node: Node, name: str, value: object) -> None:
    kind = checks.class_name(value)
    check = (node, kind, checks.parts_of(value), name)
    tracer.create_node("call_function", checks.expect_container, check, {})


def _with_attributes(
    tracer: "SymbolicTracer", node: Node, name: str, proxy: object, value: torch.Tensor
) -> Any:
    """Returns a proxy with the example's Python attributes, as far as a graph supports them."""
    if isinstance(value, FakeTensor):
        return proxy  # has only PyTorch's attributes
    for key, part in vars(value).items():
        if not key.startswith("_") and (isinstance(part, torch.Tensor) or type(part) in ATOMIC):
            child = tracer.create_node("call_function", getattr, (node, key), {})
            tracer.assumed.follow(child)
            vars(proxy)[key] = _like(tracer, child, f"{name}.{key}", part)
            tracer.annotated_before.setdefault(id(proxy), {})[key] = vars(proxy)[key]
    return proxy


def _of_dataclass(tracer: "SymbolicTracer", node: Node, name: str, value: Any) -> Any:
    _expect_container(tracer, node, name, value)
    made = copy.copy(value)
    for field in dataclasses.fields(value):
        part = getattr(value, field.name)
        child = tracer.create_node("call_function", getattr, (node, field.name), {})
        tracer.assumed.follow(child)
        # The class may be frozen.
        object.__setattr__(made, field.name, _like(tracer, child, f"{name}.{field.name}", part))
    return made


def _holds_tensors(value: object) -> bool:
    inside = list(getattr(value, "__dict__", {}).values())
    leaves = tree_leaves([value, *inside])
    return any(isinstance(leaf, torch.Tensor) for leaf in leaves)


def _watched(
    tracer: "SymbolicTracer", node: Node, name: str, container: object, example: object
) -> Any:
    tracer.nodes_of[id(container)] = node, container
    if not isinstance(container, tuple):
        tracer.containers.append((node, container, copy.copy(container), example))
        tracer.assumed.containers.append((node, name))
    return container


def _moved(before: dict[Any, Any], after: dict[Any, Any]) -> list[Any]:
    """Returns the keys of a dictionary that have to be set anew for their order."""
    kept = [key for key in before if key in after]
    differs = [key != other for key, other in zip(kept, after)]
    return kept[differs.index(True) :] if True in differs else []


def write_back(tracer: "SymbolicTracer") -> None:
    """Record the program's changes of argument lists and dictionaries."""
    held = tracer.results.held
    for node, container, before, _ in tracer.containers:
        for function, key, *values in _changes(container, before):
            if not tracer.assumed.changes_containers:
                _refuse_repeated(tracer)
            tracer.assumed.changes_containers = True
            made = [[*map(held, v)] if isinstance(container, list) else held(v) for v in values]
            arguments = node, tracer.create_arg(key), *made
            tracer.create_node("call_function", function, arguments, {})
    for proxy in list(tracer.annotated.values()):
        attributes = {key: value for key, value in vars(proxy).items() if key not in OWN}
        before = tracer.annotated_before.get(id(proxy), {})
        for key in before.keys() - attributes.keys():
            tracer.create_node("call_function", delattr, (proxy.node, key), {})
        for key, value in attributes.items():
            if key not in before or value is not before[key]:
                made = held(value)
                tracer.create_node("call_function", setattr, (proxy.node, key, made), {})


def _changes(container: Any, before: Any) -> Iterator[tuple[Any, ...]]:
    """Yields the calls, without their first argument, that repeat the changes of a container."""
    change: Any = operator.setitem
    if dataclasses.is_dataclass(container) and not isinstance(container, dict):
        container, before = attributes_of(container), attributes_of(before)
        change = setattr
    if isinstance(container, list):
        if [*map(id, container)] != [*map(id, before)]:
            yield operator.setitem, slice(None), container
        return
    moved = _moved(before, container) if change is operator.setitem else ()
    for key in (*(before.keys() - container.keys()), *moved):
        yield (operator.delitem if change is operator.setitem else delattr), key
    for key, value in container.items():
        if key not in before or key in moved or value is not before[key]:
            yield change, key, value


def _refuse_repeated(tracer: "SymbolicTracer") -> None:
    """Refuse a change of arguments among which one container is passed twice."""
    names: dict[int, str] = {}
    for (*_, example), (_, name) in zip(tracer.containers, tracer.assumed.containers):
        other = names.setdefault(id(example), name)
        if other != name:
            refuse_because(
                tracer,
                f"{other} and {name} are one {type(example).__name__}, and the program changes a "
                "container among its arguments, which a graph would do to one of the two only",
                "Pass copies, or do not change the arguments.",
            )


def writing_back(tracer: "SymbolicTracer", program: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the program so that it writes back its changes of arguments and attributes at the
    end.
    """

    @functools.wraps(program)
    def run(*args: Any) -> Any:
        result = call_watched(program, *args)
        write_back(tracer)
        tracer.assignments.record()
        return result

    return run


def _part(tracer: "SymbolicTracer", node: Node, key: object, name: str, value: object) -> Any:
    part = tracer.create_node("call_function", operator.getitem, (node, key), {})
    tracer.assumed.follow(part)
    return _like(tracer, part, name, value)


def _constant(tracer: "SymbolicTracer", node: Node, name: str, value: object) -> Any:
    tracer.deferred.append((checks.expect_value, (node, value, name)))
    if type(value) not in ATOMIC and not isinstance(value, tuple):
        tracer.nodes_of[id(value)] = node, value
    return value


def unheld(tracer: "SymbolicTracer", node: Node, value: object, name: str) -> SymbolicTraceError:
    """Returns the error for an argument that a graph cannot compare."""
    return SymbolicTraceError(
        f"{origin_of_code(tracer.graph._co_fields)}: the argument {name} is a "
        f"{type(value).__name__}, which a graph cannot hold.\n"
        "Use the object as a global or a default of the function, or pass tensors, numbers and "
        "strings."
    )


def order_inputs(graph: Graph, code: CodeType) -> None:
    """Move the placeholders to the front, in the order of a signature, with `*args` before
    keyword-only parameters.
    """
    named = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]

    def rank(node: Node) -> int:
        target = str(node.target)
        return (
            3 if target.startswith("**") else 1 if target.startswith("*") else 2 * (target in named)
        )

    previous = None
    for node in sorted(graph.find_nodes(op="placeholder"), key=rank):
        if previous is None:
            previous = next(iter(graph.nodes))
            if node is not previous:
                previous.prepend(node)
        else:
            previous.append(node)
        previous = node
