"""What `calque.jit` is given, looked at before anything is traced."""

from typing import Any


def check(
    fn: Any, checks: Any, specialize: Any, verify: Any, max_programs: Any, scan_layers: Any
) -> None:
    """See whether the arguments of `calque.jit` are of their kinds.

    Raises:
        TypeError: one is of another kind.
        ValueError: `max_programs` is less than 1.
    """
    if not callable(fn):
        raise TypeError(
            f"calque.jit takes a function, a method or a module, not {_spoken(fn)}: write "
            "`calque.jit(fn)`, or `@calque.jit` above the function"
        )
    for name, value in (("checks", checks), ("verify", verify), ("scan_layers", scan_layers)):
        if not isinstance(value, bool):
            raise TypeError(f"calque.jit(..., {name}=) is True or False, not {_spoken(value)}")
    if specialize is not None and not isinstance(specialize, bool):
        raise TypeError(
            f"calque.jit(..., specialize=) is None, True or False, not {_spoken(specialize)}"
        )
    if isinstance(max_programs, bool) or not isinstance(max_programs, int):
        raise TypeError(
            f"calque.jit(..., max_programs=) is a number of programs, not {_spoken(max_programs)}"
        )
    if max_programs < 1:
        raise ValueError(f"at least one program has to be kept, not max_programs={max_programs}")


def _spoken(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) < 60 else text[:57] + '...'}"
