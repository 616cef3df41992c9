"""Runs a graph node by node, and reports each node's result."""

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx.graph import CodeGen
from torch.fx.graph_module import GraphModule
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.fx.node import Node

from calque.errors.handlers import is_of_handler
from calque.tracing.core.calling import bound_to
from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.graph import modes
from calque.tracing.graph.codegen import ExactLiterals
from calque.tracing.graph.templates import rebuilt, take_apart
from calque.upstream import torch_c
from calque.upstream.torch_internals import LazyGraphModule, pytree


class GraphRun(torch.fx.Interpreter):
    """One run of a graph.

    Args:
        graph: the graph.
        see: called with each node that was run, and its value.

    Attributes:
        failed: the node that raised, and its exception; None if none did.
    """

    def __init__(self, graph: GraphModule, see: Callable[[Node, Any], None]) -> None:
        super().__init__(graph, garbage_collect_values=True)
        self.extra_traceback = False
        self.failed: tuple[Node, Exception] | None = None
        self._see = see
        self._given: dict[Any, Any] = {}

    def result(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns the graph's result for a call; None if it raises."""
        module: Any = self.module
        LazyGraphModule.force_recompile(module)  # it has no real signature before
        signature = inspect.signature(module.forward)
        bound_to(signature, module._get_name(), *args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        placeholders = module.graph.find_nodes(op="placeholder")
        if type(module.graph._codegen) in (CodeGen, ExactLiterals):
            given = list(bound.arguments.values())
        else:
            given = list(module.graph.process_inputs(*bound.args))
        self._given = dict(zip((node.target for node in placeholders), given, strict=True))
        try:
            with _grad_mode_put_back(), modes.left_on_error(self):
                result = self.run(enable_io_processing=False)
        except Exception:
            if self.failed is None:
                raise
            return None
        return module.graph.process_outputs(result)

    def run_node(self, n: Node) -> Any:
        """Like `Interpreter.run_node`; its result is also reported."""
        try:
            value = super().run_node(n)
        except Exception as error:
            if not is_of_handler(error):
                self.failed = n, error
            raise
        self._see(n, value)
        return value

    def fetch_args_kwargs_from_env(self, n: Node) -> tuple[tuple[Any, ...], dict[Any, Any]]:
        """Copies lists and dicts written in the graph, as generated code does, because the function
        may change them. Those returned by nodes are passed unchanged.
        """
        args, kwargs = super().fetch_args_kwargs_from_env(n)
        return _new(args), {name: _new(part) for name, part in kwargs.items()}

    def placeholder(self, target: object, args: object, kwargs: object) -> Any:
        """Returns an input, in its containers."""
        return self._given[target]


def _new(value: object) -> Any:
    if type(value) is immutable_dict:
        return {key: _new(part) for key, part in value.items()}
    if type(value) is immutable_list:
        return [_new(part) for part in value]
    return tuple(map(_new, value)) if type(value) is tuple else value


@contextlib.contextmanager
def _grad_mode_put_back() -> Iterator[None]:
    grad = torch_c.is_grad_enabled()
    try:
        yield
    finally:
        torch_c.set_grad_enabled(grad)


@contextlib.contextmanager
def same_random_numbers(device: str) -> Iterator[None]:
    """A context in which random numbers are the same each time;
    the generators are restored after it.
    """
    kind = torch.device(device).type
    if kind == "cpu":
        with torch.random.fork_rng(devices=()):
            yield
        return
    with torch.random.fork_rng(devices=(0,), device_type=kind):
        yield


def on_device(device: str | None) -> Any:
    """A context in which tensors without an explicit device are created on the given one."""
    return torch.device(device) if device is not None else contextlib.nullcontext()


def copied(module: torch.nn.Module) -> Any:
    """Returns a copy of a module or graph.

    PyTorch does not copy a tensor that another one was computed into (a buffer that a call has
    written to, a weight of `torch.nn.utils.weight_norm`): the copy has its values, and no gradient.
    """
    owned = (vars(part) | part._parameters | part._buffers for part in module.modules())
    memo: dict[int, Any] = {
        id(tensor): tensor.detach().clone()
        for names in owned
        for tensor in names.values()
        if isinstance(tensor, torch.Tensor) and not tensor.is_leaf
    }
    return copy.deepcopy(module, memo)


def moved(value: Any, device: str | None) -> Any:
    """Returns the arguments of a call, including objects, with their tensors copied to a device.

    A tensor that occurs twice is copied only once.
    """
    copies: dict[int, torch.Tensor] = {}

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in copies:
            made = tensor.detach().clone()
            made = made if device is None else made.to(device)
            copies[id(tensor)] = made.requires_grad_(tensor.requires_grad)
        return copies[id(tensor)]

    def copied_object(part: object) -> Any:
        if isinstance(part, torch.Tensor):
            return copied(part)
        if isinstance(part, torch.nn.Module) or callable(part):
            return part
        try:
            template, tensors = take_apart(part)
        except SymbolicTraceError:
            return part
        return rebuilt(template, *map(copied_object, tensors)) if tensors else part

    return pytree.tree_map(copied_object, value)
