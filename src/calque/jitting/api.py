"""`calque.jit`: a PyTorch function as one XLA program."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from torch.nn import Module

from calque.jitting.jitted import Jitted
from calque.jitting.module import JittedModule
from calque.jitting.settings import MAX_PROGRAMS, JitOptions, Settings, no_option

P = ParamSpec("P")
R = TypeVar("R")


@overload
def jit(
    fn: Module,
    **options: Unpack[JitOptions],
) -> JittedModule: ...


@overload
def jit(
    fn: Callable[P, R],
    **options: Unpack[JitOptions],
) -> Jitted[P, R]: ...


@overload
def jit(
    **options: Unpack[JitOptions],
) -> Callable[[Callable[P, R]], Jitted[P, R]]: ...


def jit(
    fn: Any = None,
    *,
    checks: bool = False,
    specialize: bool | None = None,
    verify: bool = True,
    max_programs: int = MAX_PROGRAMS,
    scan_layers: bool = False,
    **unknown: Any,
) -> Any:
    """Compiles a function into one XLA program: like `jax.jit`, but for PyTorch code with state.

    The function is run once with traced tensors. Tensors that it reads but that are not arguments
    (parameters, buffers, optimizer state) become inputs. Tensors that it writes become outputs,
    which are updated in place; their old memory is donated if nothing else uses it. A whole
    training step, with `loss.backward()` and `optimizer.step()`, is one program.

    Args:
        fn: a function, method or module. For a module, the result is also a module, as with
            `torch.compile`; for a module class, it is the class with its `forward` jitted. The
            arguments and results are pytrees of tensors (any shape and dtype) and Python values.
            Python values are compiled in: a different value is a different program. Without
            `fn`, `jit` returns a decorator.
        checks: whether the program checks values as PyTorch does eagerly: indices and class labels
            in bounds, nonzero integer divisors, matrices that can be factored. The first check
            that fails raises PyTorch's exception, with the line that it belongs to, before
            anything is changed. Each call of such a program waits for its result, and no memory
            is donated. Without the checks, a read out of bounds gives NaN (for integers the
            smallest number, for unsigned ones the largest), a write out of bounds is dropped, and
            a matrix that cannot be factored gives NaN.
        specialize: what happens if a tensor's value is needed while the function is traced (`if`,
            `.item()`, `x[mask]`). With False, a TraceError is raised. With True, the call runs
            eagerly, which shows the value. The next call is compiled for that value, and every call
                of the program compares it: if it differs, the call runs eagerly, or uses a program
                for the new value. The default, None, is True for the code of installed packages and
            False for the user's own.
        verify: whether the second call traces the function once more, without compiling, to check
            that it does the same. If it does not (because it reads the clock or a file, say), the
            function is traced at each call.
        max_programs: the number of kinds of arguments (their shapes, dtypes and Python values) for
            which programs are kept. If there are more, one that was not called recently is dropped.
        scan_layers: whether equal layers of a model run as one loop over their weights. This saves
            compilation time, and saves memory if the weights are sharded, because only one layer's
            weights are gathered at a time. A step may take longer.

    Returns:
        A callable like `fn`: a `Jitted`, which has `lower`, `explain` and `history`, or for a
        module a `JittedModule`.

    Raises:
        TypeError: an argument has the wrong type, or is not an option.
        ValueError: `max_programs` is less than 1.
        TraceError: when called: the function needs a tensor's value while it is traced, or does
            something else that a compiled program cannot repeat; or `scan_layers` is True and no
            layers are equal. Nothing has changed then.

    Warns:
        EagerWarning: the assumed values differ in most calls, so calls with such arguments run
            eagerly from now on.
        RetraceWarning: the function is traced at each call, because it does something different
            each time, or because each call changes Python state that it reads (a counter, a
            growing list). Or it was traced for the 4th, or 16th, time for different arguments; or
            it computes with CPU tensors.

    >>> import torch, calque
    >>> w = torch.ones(3, device="jax")
    >>> @calque.jit
    ... def step(x):
    ...     w.add_(x)
    ...     return w.sum()
    >>> step(torch.ones(3, device="jax")).item(), w.tolist()
    (6.0, [2.0, 2.0, 2.0])
    """
    for name in unknown:
        raise no_option(name)
    settings = Settings(
        checks=checks,
        specialize=specialize,
        verify=verify,
        max_programs=max_programs,
        scan_layers=scan_layers,
    )
    return functools.partial(_jitted, settings) if fn is None else _jitted(settings, fn)


def _jitted(settings: Settings, fn: Any) -> Any:
    """Returns a jitted function, module or class of modules."""
    if isinstance(fn, type) and issubclass(fn, Module):
        fn.forward = Jitted(fn.forward, settings)
        return fn
    jitted = Jitted(fn, settings)
    return JittedModule(jitted) if isinstance(fn, Module) else jitted
