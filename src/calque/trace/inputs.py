"""The placeholders of `SymbolicTracer`: one for each parameter, whatever the examples hold."""

import functools
import inspect
import operator
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
from torch.fx.graph import Graph
from torch.fx.node import Node

from calque.trace import checks

_FLAGS = (bool, str, type(None))


def make_placeholder(tracer: Any, name: str, signature: inspect.Signature) -> Any:
    """What the program gets for the parameter `name`.

    Args:
        tracer: a SymbolicTracer; its `given` are the examples by name, or None.
        name: the parameter, with its stars.
        signature: of the traced function.
    """
    parameter = signature.parameters[name.lstrip("*")]
    empty = parameter.default is inspect.Parameter.empty
    default: tuple[Any, ...] = () if empty else (_held(tracer, parameter.default),)
    annotation = None if parameter.annotation is inspect.Parameter.empty else parameter.annotation
    given = tracer.given
    if given is None and tracer.decorated and name.startswith("*"):
        node = tracer.create_node("placeholder", name, default, {}, type_expr=annotation)
        return _constant(tracer, node, name, {} if name.startswith("**") else ())
    if given is None:
        proxy = tracer.create_proxy("placeholder", name, default, {}, type_expr=annotation)
        if not empty and (isinstance(parameter.default, _FLAGS) or default[0] is None):
            return _default(tracer, proxy.node, name, parameter.default)
        return proxy
    node = tracer.create_node("placeholder", name, default, {}, type_expr=annotation)
    starred = {"*": (), "**": {}}.get(name[: len(name) - len(name.lstrip("*"))])
    value = given.get(name.lstrip("*"), parameter.default if starred is None else starred)
    tracer._mark_inputs(node)
    if starred is None and name not in given:
        return _default(tracer, node, name, value)
    return _like(tracer, node, name, value)


def _held(tracer: Any, default: Any) -> Any:
    """The default as a graph can hold it; None in the place of a function and the like."""
    try:
        tracer.create_arg(default)
    except NotImplementedError:
        return None
    return default


def _default(tracer: Any, node: Node, name: str, default: Any) -> Any:
    """A default that the program was traced with; another value is refused."""
    return _constant(tracer, node, name, _held(tracer, default)) or default


def _like(tracer: Any, node: Node, name: str, value: Any) -> Any:
    """A stand-in for an example: tensors become proxies, all else is checked and kept."""
    if isinstance(value, torch.Tensor):
        node.meta["val"] = tracer.abstract.of(value)
        tracer.inputs.append((node, name))
        return tracer.tensor_proxy(node)
    if isinstance(value, (tuple, list)) and type(value) is not torch.Size:
        tracer.deferred.append((checks.expect_length, (node, len(value), name)))
        parts = [_part(tracer, node, i, f"{name}[{i}]", part) for i, part in enumerate(value)]
        build: Any = type(value)
        return _watched(tracer, node, build(*parts) if hasattr(value, "_fields") else build(parts))
    if type(value) is dict:
        tracer.deferred.append((checks.expect_length, (node, len(value), name)))
        made = {k: _part(tracer, node, k, f"{name}[{k!r}]", part) for k, part in value.items()}
        return _watched(tracer, node, made)
    return _constant(tracer, node, name, value)


def _watched(tracer: Any, node: Node, container: Any) -> Any:
    if isinstance(container, (list, dict)):
        tracer.containers.append((node, container, container.copy()))
    return container


def write_back(tracer: Any) -> None:
    """Record what the program has changed in the lists and dictionaries among its arguments."""

    def record(function: Any, *args: Any) -> None:
        tracer.create_proxy("call_function", function, args, {})

    for node, container, before in tracer.containers:
        given = torch.fx.Proxy(node)
        if isinstance(container, list):
            if [*map(id, container)] != [*map(id, before)]:
                record(operator.setitem, given, slice(None), list(container))
            continue
        for key in before.keys() - container.keys():
            record(operator.delitem, given, key)
        for key, value in container.items():
            if key not in before or value is not before[key]:
                record(operator.setitem, given, key, value)


def writing_back(tracer: Any, program: Callable[..., Any]) -> Callable[..., Any]:
    """The program, with `write_back` at its end."""

    @functools.wraps(program)
    def run(*args: Any) -> Any:
        result = program(*args)
        write_back(tracer)
        return result

    return run


def _part(tracer: Any, node: Node, key: Any, name: str, value: Any) -> Any:
    part = tracer.create_node("call_function", operator.getitem, (node, key), {})
    tracer._mark_inputs(part)
    return _like(tracer, part, name, value)


def _constant(tracer: Any, node: Node, name: str, value: Any) -> Any:
    tracer.deferred.append((checks.expect_value, (node, value, name)))
    return value


def order_inputs(graph: Graph, code: CodeType) -> None:
    """Put the placeholders first, in the order of a signature: `*rest` before what follows it."""
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
