"""Kernels that first check the numbers and values of a call, as declared by facts.

Of numbers that each call of a program computes, it is guarded that they pass.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from calque.device.kernels import trace_checks
from calque.device.kernels.checked_tensors import Seen, all_seen
from calque.device.kernels.python_numbers import computed_nodes, plain, without_stand_ins
from calque.device.memory.cell import active
from calque.ops.table.facts import Known, fact_of
from calque.ops.table.number_range import Holds, fits_every_dtype
from calque.ops.table.registry import Rule

Kernel = Any
_MOST_PASSED = 1024
_SEEN = frozenset((Tensor, bool, int, float, type(None)))
_default_dtype = torch.get_default_dtype


def checked(names: tuple[str, ...], rule: Rule | None, kernel: Kernel) -> Kernel:
    """Returns a kernel that first checks numbers and values as declared for its rule.

    Args:
        names: the names of the operator's arguments.
        rule: the rule; None for an operator without one.
        kernel: the kernel.
    """
    known = Known() if rule is None else fact_of(rule.name)
    numbers, values = known.get("numbers"), known.get("values")
    if numbers is None and values is None:
        return kernel
    if isinstance(numbers, Holds) and values is None:
        return _holding(numbers, names, kernel)

    def run(*args: Any, **kwargs: Any) -> Any:
        if numbers is not None or trace_checks.looking():
            if active.trace is not None:
                args, kwargs = without_stand_ins(args, kwargs)
            given = all_seen(names, args, kwargs)
            if numbers is not None:
                _check(numbers, given)
            if values is not None and trace_checks.looking():
                values(**given)
        return kernel(*args, **kwargs)

    return run


def _holding(check: Holds, names: tuple[str, ...], kernel: Kernel) -> Kernel:
    """Returns a kernel that first checks numbers, nearly all of which fit every dtype."""
    places = tuple((names.index(n), n) for n in check.parameters if n in names)
    if not places:
        return kernel

    passed: set[Any] = set()  # keys of calls that have passed the check

    def run(*args: Any, **kwargs: Any) -> Any:
        if active.trace is not None:
            args, kwargs = without_stand_ins(args, kwargs)
        for place, name in places:
            value = args[place] if place < len(args) else kwargs.get(name)
            if value is None or fits_every_dtype(value):
                continue
            looked_at = _looked_at(args, kwargs)
            if looked_at is None or looked_at not in passed:
                _check(check, all_seen(names, args, kwargs))
                if looked_at is not None and len(passed) < _MOST_PASSED:
                    passed.add(looked_at)
            break
        return kernel(*args, **kwargs)

    return run


def _check(check: Callable[..., None], given: dict[str, Any]) -> None:
    """Check the arguments of a call, by name; numbers that fail in a trace are needed themselves,
    so that the check raises its error in another trace.
    """
    nodes = computed_nodes(given.values())
    if not nodes:
        check(**given)
        return
    later = {name: _in_each_call(one) for name, one in given.items()}

    def passes(_: Any) -> bool:
        try:
            check(**{name: found() for name, found in later.items()})
        except Exception:
            return False
        return True

    if not nodes[0].watch.ask_of(passes, nodes[0]):
        nodes[0].watch.give_up(nodes[0])


def _in_each_call(value: Any) -> Callable[[], Any]:
    """Returns a function that returns an argument of a check, with the values that numbers have in
    the current call. It keeps no tensor and no number alive.
    """
    if isinstance(value, list | tuple):
        parts = [_in_each_call(one) for one in value]
        return lambda: [part() for part in parts]
    for node in computed_nodes((value,)):
        compute = node.compute
        return lambda: plain(compute())
    lasting = value.lasting() if isinstance(value, Seen) else value
    return lambda: lasting


def _looked_at(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """Returns the dtypes and numbers that decide whether a number fits;
    None for other arguments.
    """
    values = (*args, *kwargs.values()) if kwargs else args
    kinds = tuple(map(type, values))
    if not _SEEN.issuperset(kinds):
        return None
    found = [(v.dtype, v.ndim == 0) if k is Tensor else v for k, v in zip(kinds, values)]
    return (_default_dtype(), kinds, tuple(kwargs), *found)
