"""Opens a JAX name scope for each layer, by which HLO and profiles name operations.

The name of an operation in a layer contains the layer's path, such as `encoder/layers.0/linear1`.
In a backward pass, it contains the path of the layer whose forward created the autograd node,
followed by `backward`. Autograd nodes are numbered in order of creation, which identifies the
layer.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch.nn import Module

from calque.upstream import torch_c
from calque.upstream.jax_internals import source_info_util

_BACKWARD = "backward"
# The number of all nodes that accumulate a leaf's gradient, which run as soon as possible.
_LAST = 2**64 - 1


class LayerNames:
    """The scopes of one trace.

    Args:
        paths: the paths of the modules in the user's program.
    """

    def __init__(self, paths: Mapping[Module, str]) -> None:
        self._paths = paths
        self._open: list[tuple[Module, str, Any]] = []
        self._starts: list[int] = []  # from these node numbers on,
        self._stacks: list[Any] = []  # these scopes were open
        self._backward: Any = None
        self._node: int | None = None  # the number of the node whose backward is running
        self._depth = 0  # the number of open scopes when that backward began

    @contextmanager
    def following(self) -> Iterator[None]:
        """A context manager in which layers close their scopes when they end."""
        try:
            yield
        finally:
            self.leave_backward()
            self._close(0)

    def enter(self, module: Module) -> Callable[[], None]:
        """Open the scope of a module that is called, possibly by the backward pass.

        Returns:
            A function that closes the scope.
        """
        self.before_operator()
        path = self._paths.get(module, type(module).__name__)
        around = self._open[-1][1] if self._open else ""
        name = path.removeprefix(f"{around}.") if around else path
        stack = source_info_util.current_name_stack()
        if self._node is not None and len(self._open) == self._depth:
            stack = stack[:0]
        scope = source_info_util.set_name_stack(stack.extend(name)) if name else None
        opened = (module, path or around, scope)
        self._open.append(opened)
        if scope is not None:
            scope.__enter__()
            self._mark()
        return lambda: self._leave(opened)

    def before_operator(self) -> None:
        """Open the scope of the layer whose backward is running; close it when the backward is
        over.
        """
        node = torch_c.current_autograd_node()
        if node is None:
            self.leave_backward()
            return
        number = node._sequence_nr()
        if number not in (self._node, _LAST):
            self.leave_backward()
            self._node, self._depth = number, len(self._open)
            index = bisect_right(self._starts, number) - 1
            if index >= 0 and len(self._stacks[index]):
                stack = self._stacks[index].extend(_BACKWARD)
                self._backward = source_info_util.set_name_stack(stack)
                self._backward.__enter__()

    def _leave(self, opened: object) -> None:
        for index in reversed(range(len(self._open))):
            if self._open[index] is opened:
                self._close(index)
                return

    def _close(self, index: int) -> None:
        """Close the scopes from this index on, including those left open by calls that raised."""
        scopes = [scope for _, _, scope in self._open[index:] if scope is not None]
        del self._open[index:]
        if scopes:
            scopes[0].__exit__(None, None, None)
            self._mark()

    def _mark(self) -> None:
        self._starts.append(torch_c.next_autograd_node())
        self._stacks.append(source_info_util.current_name_stack())

    def leave_backward(self) -> None:
        """Close the scope of a backward, if there is one, and discard its calls."""
        if self._node is None:
            return
        self._close(self._depth)
        self._node = None
        if self._backward is not None:
            self._backward.__exit__(None, None, None)
            self._backward = None
