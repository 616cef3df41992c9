"""Generates the lines that check whether a call is of the kind for which a program was compiled."""

import torch

from calque.device.runtime import precision
from calque.jitting.generated.kinds import kinds_of
from calque.jitting.generated.source import LEAVE, GeneratedFunction
from calque.jitting.generated.words import WatchedTensors
from calque.jitting.inlined import DISPATCHED, SURROUNDINGS
from calque.upstream import torch_c

_storage_of = torch.Tensor.untyped_storage
_FEW = 16
"""The maximum number of state tensors that are named individually."""
_PAIRS = 4
"""The maximum number of arguments that are compared pairwise."""


def arguments(count: int) -> list[str]:
    """Returns the names of the arguments in the generated lines."""
    return [f"a{index}" for index in range(count)]


def cells(count: int) -> list[str]:
    """Returns the names of their cells."""
    return [f"c{index}" for index in range(count)]


def write_arguments(
    source: GeneratedFunction,
    leaves: list[torch.Tensor],
    state: object,
    grad: bool,
    watched: WatchedTensors,
) -> None:
    """Write the lines that unpack the arguments, and leave if they are of a different kind.

    The comparison of their kinds (see `kinds_of`) includes inference mode and autocast.

    Args:
        source: the source of a function with the parameter `args`.
        leaves: example arguments: tensors of the device that do not require gradients and have
            no attributes.
        state: the cells that the arguments must not share.
        grad: whether gradients are enabled, now and in each call.
        watched: tensors of the state; if kinds are compared, together with the arguments'.
    """
    count, beside = len(leaves), watched.beside
    source.line(f"if len(args) != {count}: {LEAVE}")
    if not leaves:
        return
    names, held = arguments(count), cells(count)
    listed = ", ".join(names)
    source.line(f"{listed}, = args")
    if len(beside) <= _FEW:
        others = "".join(f", {source.name(tensor)}" for tensor in beside)
    else:
        others = f", *{source.name(tuple(beside))}"
    source.line(f"if not {{}}({listed}{others}): {LEAVE}", kinds_of([*leaves, *beside]))
    # If gradients are enabled, the kinds include requires_grad.
    asked = "{0}.__dict__" if grad else "{0}.requires_grad or {0}.__dict__"
    others = " or ".join(map(asked.format, names))
    source.line(f"if {others}: {LEAVE}")
    source.line("try:")
    for name, cell in zip(names, held):
        source.line(f"    {cell} = {{}}({name}).cell", _storage_of)
    source.line(f"except AttributeError: {LEAVE}")  # a tensor without memory
    if count > _PAIRS:
        source.line(f"if len({{{{{', '.join(held)}}}}}) != {count}: {LEAVE}")
    elif count > 1:
        pairs = [f"{a} is {b}" for i, a in enumerate(held) for b in held[:i]]
        source.line(f"if {' or '.join(pairs)}: {LEAVE}")
    if state and count <= _PAIRS:
        text = " or ".join(f"{cell} in {{0}}" for cell in held)
        source.line(f"if {text.format(source.name(state))}: {LEAVE}")
    elif state:
        source.line(f"if not {{}}.isdisjoint(({', '.join(held)},)): {LEAVE}", state)


def write_surroundings(source: GeneratedFunction, alone: bool) -> None:
    """Write the line that leaves if the call may be part of an enclosing trace.

    Args:
        source: the source of the function.
        alone: whether there are no arguments, whose kinds would show the rest.
    """
    asked = SURROUNDINGS + DISPATCHED if alone else SURROUNDINGS
    conditions = " or ".join(text for text, _ in asked)
    source.line(f"if {conditions}: {LEAVE}", *(held for _, held in asked))


def write_modes(
    source: GeneratedFunction,
    grad: bool,
    dtype: torch.dtype,
    precise: precision.Settings | None,
    alone: bool,
) -> None:
    """Write the lines that leave if PyTorch's modes differ.

    Args:
        source: the source of the function.
        grad: whether gradients are enabled.
        dtype: the default dtype.
        precise: the settings for float32 on accelerators.
        alone: whether there are no arguments, whose kinds would show the other modes.
    """
    look = "{}()" if not grad else "not {}()"
    line = f"if {look} or {{}}() or {{}}() is not {{}}: {LEAVE}"
    modes = torch_c.len_torch_function_stack
    source.line(line, torch_c.is_grad_enabled, modes, torch_c.get_default_dtype, dtype)
    if precise is not None:
        source.line(f"if {{}}() != {{}}: {LEAVE}", precision.settings, precise)
    if alone:
        line = f'if {{}}() or {{}}("jax"): {LEAVE}'
        source.line(line, torch.is_inference_mode_enabled, torch.is_autocast_enabled)
