"""Hooks of all optimizers, for as long as a function is traced.

PyTorch iterates over its dicts of global hooks in each step, and an iteration fails if the dict is
changed meanwhile. So when other threads exist, which may be in a step, one hook is left in each
dict after the first trace; it calls whatever hooks there are at the time.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

Hook = Callable[[Optimizer, Any, Any], None]

_lock = threading.Lock()
_hooks: tuple[tuple[Hook, Hook], ...] = ()  # replaced as a whole, because steps iterate over it
_handles: list[Any] = []


def _before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for before, _ in _hooks:
        before(optimizer, args, kwargs)


def _after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for _, after in _hooks:
        after(optimizer, args, kwargs)


@contextmanager
def step_hooks(before: Hook, after: Hook) -> Iterator[None]:
    """A context manager in which each step of any optimizer, in any thread, calls two functions.

    Args:
        before: called before a step, and before the optimizer's own hooks.
        after: called after it.
    """
    global _hooks
    pair = (before, after)
    with _lock:
        _hooks = (*_hooks, pair)
        if not _handles:
            _handles.append(register_optimizer_step_pre_hook(_before))
            _handles.append(register_optimizer_step_post_hook(_after))
    try:
        yield
    finally:
        with _lock:
            _hooks = tuple(one for one in _hooks if one is not pair)
            if not _hooks and threading.active_count() == 1:
                while _handles:
                    _handles.pop().remove()
