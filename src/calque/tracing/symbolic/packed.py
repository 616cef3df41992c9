"""Results of recurrent layers for packed sequences, whose lengths depend on values."""

from operator import getitem
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils.rnn import PackedSequence

from calque.tracing.graph import checks

if TYPE_CHECKING:
    from calque.tracing.symbolic.symbolic_tracer import SymbolicTracer


def takes_packed(module: torch.nn.Module, args: tuple[Any, ...]) -> bool:
    """Returns True if a module is a recurrent layer of PyTorch and takes a packed sequence."""
    return isinstance(module, torch.nn.RNNBase) and isinstance(
        next(iter(args), None), PackedSequence
    )


def packed_result(
    tracer: "SymbolicTracer", module: object, given: PackedSequence, result: Any
) -> Any:
    """Returns the result of a recurrent layer, with a proxy for each part.

    The packed sequence in it has the batch sizes and the order of the argument's, so programs can
    check whether the order `is None`.
    """

    def parts(source: Any, length: int) -> list[Any]:
        found = tracer.create_node("call_function", checks.unpack, (source, length), {})
        return [
            tracer.tensor_proxy(tracer.create_node("call_function", getitem, (found, i), {}))
            for i in range(length)
        ]

    sequence, last = parts(result.node, 2)
    data = parts(sequence.node, len(given))[0]
    packed = tuple.__new__(PackedSequence, (data, *given[1:]))  # its own `__new__` reads devices
    return packed, tuple(parts(last.node, 2)) if isinstance(module, torch.nn.LSTM) else last
