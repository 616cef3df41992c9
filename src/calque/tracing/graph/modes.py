"""Blocks of `torch.no_grad` and `torch.autocast` in the code of a graph.

A block is two nodes, the second of which is not reached if something between them raises. So the
code of a graph closes open blocks on an error. The mode that a block restores is a value of the
run, even if the code is traced again.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch.fx.node import Node

from calque.tracing.core.active import current_trace
from calque.upstream import torch_c
from calque.upstream.torch_internals import enter_autocast, exit_autocast

BEGINNINGS: tuple[Any, ...] = (torch_c.is_grad_enabled, enter_autocast)
ENDS: tuple[Any, ...] = (torch_c.set_grad_enabled, exit_autocast)


def is_grad_enabled() -> Any:
    """Like `torch.is_grad_enabled`; a node where the code is traced again by `calque.trace`."""
    now = torch_c.is_grad_enabled()
    if torch.compiler.is_dynamo_compiling():
        return now
    trace: Any = current_trace()
    tracer = trace.tracer if trace is not None else None
    contexts = getattr(tracer, "contexts", None)
    if tracer is None or contexts is None or contexts.repeats:
        return now
    node = tracer.create_node("call_function", torch_c.is_grad_enabled, (), {})
    node.meta["val"] = now
    return torch.fx.Proxy(node, tracer)


def set_grad_enabled(enabled: Any) -> None:
    """Set the mode to a result of `is_grad_enabled` or a bool."""
    if not isinstance(enabled, torch.fx.Proxy):
        torch_c.set_grad_enabled(enabled)
        return
    enabled.tracer.create_proxy("call_function", torch_c.set_grad_enabled, (enabled,), {})
    with torch_c.DisableTorchFunction():
        torch_c.set_grad_enabled(bool(enabled.node.meta["val"]))


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch_c.is_grad_enabled: is_grad_enabled,
    torch_c.set_grad_enabled: set_grad_enabled,
}
"""The functions that the code of a graph calls in place of PyTorch's."""


def beginnings(nodes: Sequence[Node]) -> list[Node]:
    """Returns the nodes that begin blocks and whose value the end uses, last first."""
    found = [node for node in nodes if node.target in BEGINNINGS]
    return [n for n in reversed(found) if any(user.target in ENDS for user in n.users)]


def blocks_around(node: Node) -> list[Node]:
    """Returns the `torch.autocast` blocks around a node, by their first nodes."""
    nodes = node.graph.find_nodes(op="call_function", target=enter_autocast)
    return [n for n in nodes if n < node and not any(user <= node for user in n.users)]


def sets_for_itself(nodes: Sequence[Node]) -> bool:
    """Returns True if nodes set the gradient mode, and none reads the previous one.

    So do the nodes of a graph that was recorded while it ran: the modes were known then.
    """
    targets = [node.target for node in nodes]
    return torch_c.set_grad_enabled in targets and torch_c.is_grad_enabled not in targets


class Unchanged:
    """A context manager that restores the gradient mode if an error leaves it."""

    def __enter__(self) -> None:
        self._before = torch_c.is_grad_enabled()

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if kind is not None:
            torch_c.set_grad_enabled(self._before)


@contextlib.contextmanager
def left_on_error(run: torch.fx.Interpreter) -> Iterator[None]:
    """A context manager that leaves the open blocks if an interpreter's run raises."""
    try:
        yield
    except BaseException:
        blocks = [node.name for node in beginnings(list(run.module.graph.nodes))]  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
        leave({node.name: value for node, value in run.env.items()}, blocks)
        raise


def leave(values: Mapping[str, Any], names: Sequence[str]) -> None:
    """Leave the open blocks after an error.

    Args:
        values: of the nodes that have run; None for what is not used any more.
        names: of the nodes that blocks begin with, the last first.
    """
    for name in names:
        value = values.get(name)
        if isinstance(value, bool):
            torch_c.set_grad_enabled(value)
        elif isinstance(value, torch.autocast):
            exit_autocast(value)
