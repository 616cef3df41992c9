"""Blocks of `torch.no_grad`, `torch.autocast` and `torch.random.fork_rng` in the code of a graph.

A block is two nodes, and the second is not reached if a node between them raises. So the code of a
graph closes open blocks on an error. The mode that a block restores is read at run time, even if
the code is traced again.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch.fx.node import Node

from calque.tracing.core.active import current_trace
from calque.tracing.graph.random_calls import forked_state, set_random_state
from calque.upstream import torch_c
from calque.upstream.torch_internals import enter_autocast, exit_autocast

BEGINNINGS: tuple[Any, ...] = (torch_c.is_grad_enabled, enter_autocast, forked_state)
ENDS: tuple[Any, ...] = (torch_c.set_grad_enabled, exit_autocast, set_random_state)

Block = tuple[str, *tuple[Any, ...]]
"""The name of the node that begins a block, and its arguments."""


def is_grad_enabled() -> Any:
    """Like `torch.is_grad_enabled`, but it becomes a node if `calque.trace` traces the code
    again.
    """
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
"""The functions that the code of a graph calls instead of PyTorch's."""


def blocks_of(nodes: Sequence[Node]) -> list[Block]:
    """Returns the blocks whose end uses what they begin with, the last first."""
    found = [node for node in nodes if node.target in BEGINNINGS]
    ended = [n for n in reversed(found) if any(user.target in ENDS for user in n.users)]
    return [(n.name, *(n.args if n.target is forked_state else ())) for n in ended]


def blocks_around(node: Node) -> list[Node]:
    """Returns the first nodes of the `torch.autocast` blocks around a node."""
    nodes = node.graph.find_nodes(op="call_function", target=enter_autocast)
    return [n for n in nodes if n < node and not any(user <= node for user in n.users)]


def sets_for_itself(nodes: Sequence[Node]) -> bool:
    """Returns True if nodes set the gradient mode outside blocks that end.

    This holds for a graph that was recorded while it ran, because the modes were known. If the
    program has read the mode itself, as an optimizer does, it must also have set it back.
    """
    begun = {name for name, *_ in blocks_of(nodes)}
    given = [
        node.args[0]
        for before, node in zip((None, *nodes), nodes)
        if node.target is torch_c.set_grad_enabled
        and not isinstance(node.args[0], Node)
        and not (before is not None and before.name in begun)
    ]
    if not given:
        return False
    reads = any(node.target is torch_c.is_grad_enabled for node in nodes)
    return not reads or given[0] is not given[-1]


class Unchanged:
    """A context manager that restores the gradient mode if an error leaves it."""

    def __enter__(self) -> None:
        self._before = torch_c.is_grad_enabled()

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if kind is not None:
            torch_c.set_grad_enabled(self._before)


@contextlib.contextmanager
def left_on_error(run: torch.fx.Interpreter) -> Iterator[None]:
    """A context manager that closes the open blocks if an interpreter's run raises."""
    try:
        yield
    except BaseException:
        blocks = blocks_of(list(run.module.graph.nodes))  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
        leave({node.name: value for node, value in run.env.items()}, blocks)
        raise


def leave(values: Mapping[str, Any], blocks: Sequence[Block]) -> None:
    """Leave the open blocks after an error.

    Args:
        values: the values of the nodes that have run; None for those no longer used.
        blocks: those of the graph, the last first.
    """
    for name, *device in blocks:
        value = values.get(name)
        if isinstance(value, bool):
            torch_c.set_grad_enabled(value)
        elif isinstance(value, torch.autocast):
            exit_autocast(value)
        elif isinstance(value, torch.Tensor):
            set_random_state(value, *device)
