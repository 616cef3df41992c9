"""The options of `calque.jit`: names, types, defaults and checks."""

from dataclasses import dataclass, fields
from typing import TypedDict

MAX_PROGRAMS = 128
"""The default number of signatures for which a jitted function keeps programs."""

_STATIC = "every argument that is no tensor is static: it is compiled in, and compared at each call"
_SHARDED = "shard the tensors themselves, with calque.sharding"
_OF_OTHERS = {
    "static_argnums": _STATIC,
    "static_argnames": _STATIC,
    "donate_argnums": "the memory of what the function replaces is donated already",
    "donate_argnames": "the memory of what the function replaces is donated already",
    "in_shardings": _SHARDED,
    "out_shardings": _SHARDED,
    "device": "it computes where its tensors are",
    "fullgraph": "a jitted function is always one program",
    "backend": "XLA is its only compiler; for others, use torch.compile",
    "mode": "XLA has only one way to optimize",
    "dynamic": "each shape is compiled; for dynamic shapes, use torch.compile(fn, backend="
    "'calque', dynamic=True, options={'buckets': 'pow2'})",
}
"""Options of `jax.jit` and `torch.compile` that `calque.jit` does not have, and the reasons."""


class JitOptions(TypedDict, total=False):
    """The keyword arguments of `calque.jit`, for type checkers; `Settings` has the defaults."""

    checks: bool
    specialize: bool | None
    verify: bool
    max_programs: int
    scan_layers: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options of a jitted function, which `calque.jit` documents.

    Raises:
        TypeError: an option has a value of the wrong type.
        ValueError: `max_programs` is less than 1.
    """

    checks: bool = False
    specialize: bool | None = None
    verify: bool = True
    max_programs: int = MAX_PROGRAMS
    scan_layers: bool = False

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if option.type is bool and not isinstance(value, bool):
                raise _wrong(option.name, "must be True or False", value)
        if self.specialize is not None and not isinstance(self.specialize, bool):
            raise _wrong("specialize", "must be None, True or False", self.specialize)
        most = self.max_programs
        if isinstance(most, bool) or not isinstance(most, int):
            raise _wrong("max_programs", "must be a number of programs", most)
        if most < 1:
            raise ValueError(f"calque.jit(..., max_programs=) must be at least 1, not {most}")


def check_function(fn: object) -> None:
    """Raise a TypeError if `fn` is not a function, method or module."""
    if not callable(fn):
        raise TypeError(
            f"calque.jit expects a function, a method or a module, not {_shown(fn)}: write "
            "`calque.jit(fn)`, or `@calque.jit` above the function"
        )


def no_option(name: str) -> TypeError:
    """Returns the error for an argument of `calque.jit` that is not an option."""
    why = _OF_OTHERS.get(name)
    return TypeError(
        f"calque.jit has no option {name!r}: leave it out, because {why}"
        if why
        else f"calque.jit has no option {name!r}; it has {', '.join(JitOptions.__annotations__)}"
    )


def _wrong(name: str, rule: str, value: object) -> TypeError:
    return TypeError(f"calque.jit(..., {name}=) {rule}, not {_shown(value)}")


def _shown(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) < 60 else text[:57] + '...'}"
