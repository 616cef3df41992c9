"""The tracer's interface to the parts of `calque.trace` that a recording shares."""

from collections.abc import Callable
from typing import Any

import torch

from calque.tracing.graph.checks import expect_setting


class WithinTrace:
    """Handles a recorded program's changes of modules, and graphs that it runs."""

    leaves: Any
    local: Any
    assumed: Any
    contexts: Any
    create_node: Callable[..., Any]
    run: Callable[..., Any]
    _paths: dict[int, str]

    def set_attribute(self, module: torch.nn.Module, name: str, value: object) -> bool:
        """Handle an assignment to an attribute of a module."""
        self.leaves.assigned(module)
        return True

    def delete_attribute(self, module: torch.nn.Module, name: str) -> None:
        """Note a deleted attribute; deletions are intercepted only while another thread traces."""
        self.leaves.assigned(module)

    def make_module(self, module: torch.nn.Module) -> None:
        """Like `delete_attribute`, for modules that the program creates; their calls are opened."""

    def member_of(self, value: object) -> Any:
        """Returns the assigned value itself."""
        return value

    def keep_mode(self, path: str, training: bool) -> bool:
        """Keep the check of a graph within the program, which runs now and in the new graph."""
        owner = self.local.module.path if self.local.module is not None else ""
        full = ".".join(part for part in (owner, path) if part)
        if full in self._paths.values():
            self.assumed.modes[full] = training
        return False

    def keep_setting(self, name: str, args: tuple[Any, ...], answer: object) -> bool:
        """Like `keep_mode`, for a PyTorch setting."""
        self.create_node("call_function", expect_setting, (name, args, answer), {})
        return False

    def repeat(
        self, call: Callable[..., Any], function: Callable[..., Any], args: tuple[Any, ...]
    ) -> Any:
        """Record an action of a graph within the program that no mode sees."""
        return function(*args) if self.contexts is None else self.run(call, args, {})
