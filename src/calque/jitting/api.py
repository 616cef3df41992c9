"""`calque.jit`: a PyTorch function as one XLA program."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from torch.nn import Module

from calque.jitting.jitted import Jitted
from calque.jitting.module import JittedModule
from calque.jitting.settings import MAX_PROGRAMS, Options, Settings

P = ParamSpec("P")
R = TypeVar("R")


@overload
def jit(
    fn: Module,
    **options: Unpack[Options],
) -> JittedModule: ...


@overload
def jit(
    fn: Callable[P, R],
    **options: Unpack[Options],
) -> Jitted[P, R]: ...


@overload
def jit(
    **options: Unpack[Options],
) -> Callable[[Callable[P, R]], Jitted[P, R]]: ...


def jit(
    fn: Any = None,
    *,
    checks: bool = False,
    specialize: bool | None = None,
    verify: bool = True,
    max_programs: int = MAX_PROGRAMS,
    scan_layers: bool = False,
) -> Any:
    """Like `jax.jit`, but for PyTorch code with state: a function becomes one XLA program.

    The function is run once with traced tensors. Tensors it reads that are not arguments
    (parameters, buffers, optimizer state) become inputs; those it writes become outputs, updated
    in place, their memory donated if nothing else holds it. A whole training step, with
    `loss.backward()` and `optimizer.step()`, is one program.

    Args:
        fn: a function, method or module; of a module the result is a module, too, as of
            `torch.compile`, and of a class of modules it is the class with its `forward` jitted.
            Its arguments and results are pytrees of tensors (any
            shape and dtype) and Python values. Python values are compiled in: another value is
            another program. Without it, `jit` gives a decorator.
        checks: whether the program checks values as PyTorch does eagerly: indices and class labels
            in bounds, integer divisors that are not zero, matrices that can be factored. The first
            check that fails raises PyTorch's exception, with the line it stands for, and nothing
            has changed then. Such a program is waited for at every call, and its memory is not
            donated. Without the checks a read out of bounds gives NaN (the smallest number, of
            integers; the largest, of unsigned ones), a write out of bounds is left out, and a
            matrix that cannot be factored gives NaN.
        specialize: what happens where a tensor's value is needed while the function is traced
            (`if`, `.item()`, `x[mask]`). With False a TraceError is raised. With True the call runs
            eagerly, which shows the value; the next one is compiled for it, and every call of that
            program compares: with other values the call runs eagerly, or by a program made for
            those. By default that is so in the code of installed packages, and an error in the
            user's own.
        verify: whether the second call traces the function once more, without compiling, to see
            that it does the same: the clock, files and the like differ from call to call. Such a
            function is traced at each call.
        max_programs: for how many kinds of arguments (their shapes, dtypes and Python values)
            programs are kept. When there are more, one goes that was not called lately.
        scan_layers: whether equal layers of a model run as one loop over their weights. It takes
            less memory where the weights are spread over devices, since those of one layer are
            gathered at a time, and less time to compile; a step may take longer.

    Raises:
        TypeError: an argument is of another kind.
        ValueError: `max_programs` is less than 1.
        TraceError: the function needs a tensor's value while it is traced, or does something else
            one program cannot repeat; or `scan_layers` is asked for and no layers are equal.
            Nothing has changed then.

    Warns:
        EagerWarning: the values are others at most calls, so that calls with such arguments run
            eagerly from now on.
        RetraceWarning: the function is traced at each call: it does something else each time, or
            what it reads of Python is changed by each call (a counter, a list that grows). Or it
            was traced 4 times, and 16, for other arguments; or it computes with CPU tensors.

    >>> import torch, calque
    >>> w = torch.ones(3, device="jax")
    >>> @calque.jit
    ... def step(x):
    ...     w.add_(x)
    ...     return w.sum()
    >>> step(torch.ones(3, device="jax")).item(), w.tolist()
    (6.0, [2.0, 2.0, 2.0])
    """
    settings = Settings(
        checks=checks,
        specialize=specialize,
        verify=verify,
        max_programs=max_programs,
        scan_layers=scan_layers,
    )
    return functools.partial(_jitted, settings) if fn is None else _jitted(settings, fn)


def _jitted(settings: Settings, fn: Any) -> Any:
    """A function, a module or a class of modules, jitted."""
    if isinstance(fn, type) and issubclass(fn, Module):
        fn.forward = Jitted(fn.forward, settings)
        return fn
    jitted = Jitted(fn, settings)
    return JittedModule(jitted) if isinstance(fn, Module) else jitted
