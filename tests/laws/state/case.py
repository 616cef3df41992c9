"""A case is one run of one program: its device, how functions are wrapped, what to undo."""

import contextlib
import inspect
import os
import random
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

import calque
from tests.laws.state.describe import Node, describe, difference

MODES = ("eager", "jit", "rows", "compile", "trace")
"""eager: nothing wrapped, on "jax". rows: `calque.jit` without its second trace."""

_ON_CPU = ("cpu", "trace", "aot_eager")
_VERIFIES = "verify" in inspect.signature(calque.jit).parameters


class _Traced:
    """One graph for all calls, made at the first."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn
        self.graph: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.graph is None:
            self.graph = calque.trace(self.fn, *args, **kwargs)
        return self.graph(*args, **kwargs)


class _Checked:
    """As the function, but a refusal must leave all that its caller can see as it was."""

    running = False

    def __init__(self, fn: Any) -> None:
        self.fn = fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _Checked.running:
            return self.fn(*args, **kwargs)
        caller = sys._getframe(1)
        before = _seen_by(caller, args, kwargs)
        _Checked.running = True
        try:
            made = self.fn(*args, **kwargs)
        except calque.CalqueError as error:
            if said := difference(_seen_by(caller, args, kwargs), before):
                raise AssertionError(f"a refused call has changed {said} ({error})") from error
            raise
        finally:
            _Checked.running = False
        try:
            _seen_by(caller, args, kwargs)
        except calque.CalqueError as error:
            raise AssertionError(f"the call has left a value of the trace: {error}") from error
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fn, name)


def _seen_by(caller: types.FrameType, args: Any, kwargs: Any) -> Node:
    own = {k: v for k, v in caller.f_locals.items() if not isinstance(v, Case | _Checked)}
    return describe({"variables": own, "arguments": args, "by name": kwargs})


class Case:
    """What a program gets: tensors on the device of the mode, and functions wrapped by it."""

    def __init__(self, mode: str, stack: contextlib.ExitStack) -> None:
        self.mode = mode
        self.device = "cpu" if mode in _ON_CPU else "jax"
        self.wrapped: list[Any] = []
        self._stack = stack

    def fn(self, fn: Any, **options: Any) -> Any:
        """`fn` (a function or a module) as the mode runs it."""
        if self.mode in ("cpu", "eager"):
            return fn
        fn = fn.fn if isinstance(fn, _Checked) else fn
        if self.mode in ("jit", "rows"):
            if self.mode == "rows" and _VERIFIES:
                options["verify"] = False
            made = calque.jit(fn, **options)
        elif self.mode == "trace":
            made = _Traced(fn)
        else:
            made = torch.compile(fn, backend="calque" if self.mode == "compile" else self.mode)
        self.wrapped.append(made)
        return made if isinstance(fn, nn.Module) else _Checked(made)

    def tensor(self, values: Any, **options: Any) -> torch.Tensor:
        """A tensor on the device of the mode."""
        return torch.tensor(values, device=self.device, **options)

    @property
    def x(self) -> torch.Tensor:
        """A new tensor of three floats."""
        return self.tensor([1.0, 2.0, 3.0])

    @property
    def rows(self) -> torch.Tensor:
        """A new tensor of two rows of three floats."""
        return self.tensor([[1.0, -2.0, 3.0], [0.5, 0.25, -1.0]])

    def on(self, made: Any) -> Any:
        """A module or tensor, made on the CPU, on the device of the mode."""
        return made.to(self.device)

    def linear(self, inputs: int = 3, outputs: int = 2, **options: Any) -> nn.Linear:
        return self.on(nn.Linear(inputs, outputs, **options))

    def undo(self, fn: Callable[..., Any], *args: Any) -> None:
        """Call `fn` when the program has ended."""
        self._stack.callback(fn, *args)

    def patch(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute, and put it back when the program has ended."""
        missing = object()
        before = owner.__dict__.get(name, missing)
        if before is missing:
            self.undo(lambda: name in vars(owner) and delattr(owner, name))
        else:
            self.undo(setattr, owner, name, before)
        setattr(owner, name, value)


_HOOKS = [
    value
    for module in (nn.modules.module, sys.modules["torch.optim.optimizer"])
    for name, value in vars(module).items()
    if name.startswith("_global_") and isinstance(value, dict)
]


@contextlib.contextmanager
def fresh() -> Iterator[contextlib.ExitStack]:
    """The same seeds before each run; PyTorch's modes, hooks and the environment as they were."""
    dtype, grad = torch.get_default_dtype(), torch.is_grad_enabled()
    hooks, environ = [dict(hooks) for hooks in _HOOKS], dict(os.environ)
    deterministic = torch.are_deterministic_algorithms_enabled()
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    try:
        with warnings.catch_warnings(), contextlib.ExitStack() as stack:
            yield stack
    finally:
        torch.set_default_dtype(dtype), torch.set_grad_enabled(grad)
        torch.use_deterministic_algorithms(deterministic)
        for found, before in zip(_HOOKS, hooks, strict=True):
            if dict(found) != before:
                found.clear(), found.update(before)
        for name in set(os.environ) - set(environ):
            del os.environ[name]
        os.environ.update(environ)
