"""What `print(x)`, `repr(x)`, an f-string and a debugger show of a tensor while it is traced.

It has no values yet; looking at it must not end the trace. Where the trace may assume values, in
the code of an installed package, the text has them: that code may do more with it than show it.
"""

import functools
from typing import Any

import torch

from calque.device.memory.cell import active
from calque.errors.frames import asking_frame

Tensor = torch.Tensor


def _is_traced(tensor: Any) -> bool:
    """Whether the text is to say that: the values are neither there nor assumed by the trace."""
    trace = active.trace
    if trace is None or type(tensor).__module__ == "torch._subclasses.fake_tensor":
        return False
    return not trace.shown(asking_frame().f_code.co_filename)


def _described(tensor: Tensor) -> str:
    parts = [f"shape={tuple(tensor.shape)}", f"dtype={tensor.dtype}", f"device='{tensor.device}'"]
    if tensor.grad_fn is not None:
        parts.append(f"grad_fn=<{tensor.grad_fn.name()}>")
    elif tensor.requires_grad:
        parts.append("requires_grad=True")
    return f"tensor({', '.join(parts)}, traced by calque.jit)"


def _with_freed_graph(tensor: Any, text: str) -> str:
    """The text of a tensor, which PyTorch calls `Error` the graph of that a backward has freed.

    Such is what a compiled step gives, in which the backward was.
    """
    if tensor.device.type == "jax" and type(tensor.grad_fn).__name__ == "Error":
        return text.replace("grad_fn=<Error>", "grad_fn=<FreedBackward>")
    return text


def install() -> None:
    """Answer for the device's tensors in a trace; all others are shown as ever."""
    their_str, their_format = torch._tensor_str._str, Tensor.__format__

    @functools.wraps(their_str)
    def _str(self: Any, *args: Any, **kwargs: Any) -> str:
        if self.device.type == "jax" and _is_traced(self):
            return _described(self)
        return _with_freed_graph(self, their_str(self, *args, **kwargs))

    @functools.wraps(their_format)
    def __format__(self: Any, format_spec: str) -> str:
        if not format_spec and type(self) is Tensor and self.device.type == "jax":
            if _is_traced(self):
                return _described(self)
        return their_format(self, format_spec)

    torch._tensor_str._str = _str
    Tensor.__format__ = __format__  # type: ignore[method-assign]
