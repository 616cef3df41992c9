"""Calls with the same kinds of tensors as the last one, recognized in fewer steps.

The general path takes a call's arguments apart as pytrees, looks its signature up and asks the
programs that it finds. Most calls are like the one before: some tensors, nothing else. What is
compared here is the same; whatever differs is left to the general path.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from calque.device.runtime.placement import placements_of, spread
from calque.program import turns

if TYPE_CHECKING:
    from calque.jitting.program import Program

MISS: Any = object()
"""Stands for no result: the general path decides."""

_Tensor = torch.Tensor
_is_grad_enabled = torch.is_grad_enabled
_is_inference = torch.is_inference_mode_enabled
_is_autocast = torch.is_autocast_enabled
_default_dtype = torch.get_default_dtype
_modes = torch._C._len_torch_function_stack


class FastCall:
    """One program, for calls with tensors alone; made by `fast_call`."""

    __slots__ = (
        "_count",
        "_dtype",
        "_forms",
        "_grad",
        "_guards",
        "_placements",
        "_program",
        "_state",
    )

    def __init__(self, program: "Program", leaves: list[torch.Tensor], ambient: Any) -> None:
        self._program = program
        self._count = len(leaves)
        self._forms = [(leaf.shape, leaf.stride(), leaf.dtype) for leaf in leaves]
        self._placements = _placements(leaves)
        self._grad, _, _, self._dtype, _ = ambient
        self._guards = [guard.holds for guard in program.guards]
        self._state = program.state_written

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of the program; `MISS` if the call is of another kind."""
        if kwargs or len(args) != self._count or self._grad is not _is_grad_enabled():
            return MISS
        cells = set()
        for tensor, (shape, stride, dtype) in zip(args, self._forms):
            if (
                type(tensor) is not _Tensor
                or tensor.shape != shape
                or tensor.dtype is not dtype
                or tensor.stride() != stride
                or tensor.requires_grad
                or tensor.__dict__
            ):
                return MISS
            cell = getattr(tensor.untyped_storage(), "cell", None)
            if cell is None:  # a tensor of another device
                return MISS
            cells.add(cell)
        if (
            len(cells) != self._count
            or _is_inference()
            or _is_autocast("jax")
            or _modes()
            or _default_dtype() is not self._dtype
            or (self._state and not self._state.isdisjoint(cells))
            or (spread.exists and _placements(args) != self._placements)
        ):
            return MISS
        program = self._program
        program.checked = turns.past.changes
        for holds in self._guards:
            if not holds():
                return MISS
        return program(list(args), (args, kwargs))


def _placements(leaves: Sequence[torch.Tensor]) -> list[Any]:
    return placements_of([leaf.untyped_storage().cell.array for leaf in leaves])  # type: ignore[attr-defined]


def fast_call(program: "Program", args: Any, kwargs: Any, key: Any) -> FastCall | None:
    """Calls like this one, if their arguments are tensors that need nothing else than is compared.

    Args:
        program: serves the call, and every other one of its signature, as long as its guards hold
            and no argument shares memory with its `state_written`.
        args, kwargs: of the call.
        key: its signature.
    """
    _, (_, inference, autocast, _, modes), sharing, *_ = key
    if kwargs or inference or autocast or modes or sharing:
        return None
    if any(type(one) is not _Tensor or one.requires_grad or one.__dict__ for one in args):
        return None
    if not all(hasattr(one.untyped_storage(), "cell") for one in args):
        return None
    return FastCall(program, list(args), key[1])
