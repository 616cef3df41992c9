"""The text of a traced tensor, for `print(x)`, `repr(x)`, f-strings and debuggers.

The tensor has no values yet. Printing must not end the trace, but the program must not read or keep
the text, which differs from the eager text. If the trace may assume values, in the code of an
installed package, the text contains them, because that code may do more than print it.
"""

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jax.core import Tracer

from calque.device.backend import forks
from calque.device.memory.cell import active
from calque.errors import TraceError, unrepeatable
from calque.errors.frames import caller_frame, is_library, user_origin
from calque.errors.placeholder_text import PlaceholderText
from calque.errors.text_use import is_read
from calque.upstream import torch_c, torch_internals

Tensor = torch.Tensor
_MARK = ", traced by calque.jit)"
_FORKED = ", device='jax', not readable in a forked process"
_ENDED = ", device='jax', of a function that JAX traces or has traced"
FREED = "calque: a backward has freed the graph"
"""A key in the metadata of a node of PyTorch's graph, set if its graph was freed."""
_NO_GRAPH = "grad_fn=<Invalid>"
"""PyTorch's text for a view that raises when its graph is read."""
_OTHER = "values=unknown ({}),\n       perhaps nan or inf"


class _Wording(threading.local):
    """The text for tensors of a trace.

    Attributes:
        others: for texts with different wording than usual, the lines that created them, by text.
    """

    others: dict[str, Any] | None = None


_wording = _Wording()


@contextmanager
def described_otherwise() -> Iterator[dict[str, Any]]:
    """A context manager in which traced tensors print differently, like tensors with other values.

    The traced program must not differ as a result. Yields the lines that create such texts.
    """
    around, _wording.others = _wording.others, {}
    try:
        yield _wording.others
    finally:
        _wording.others = around


def refuse_read(texts: dict[str, Any]) -> None:
    """Refuse a program that depends on its tensors' text."""
    places = " or ".join(dict.fromkeys(str(origin) for origin in texts.values() if origin))
    raise TraceError(
        f"{places}{': ' if places else ''}the text of a tensor is read, but it has no values "
        "while the function is traced, and what the function computes depends on that text.\n"
        "Compare the tensor itself, or read the text outside the function."
    )


def _is_traced(tensor: object) -> bool:
    """Returns True if the text should say that the tensor is traced:
    its values are neither known nor assumed.
    """
    trace = active.trace
    if trace is None or type(tensor).__module__ == "torch._subclasses.fake_tensor":
        return False
    return not trace.shown(caller_frame().f_code.co_filename)


def _is_left(tensor: Tensor) -> bool:
    """Returns True if a tensor has no values because its trace has ended, or is not calque's own.

    For example, a `KeyError` may hold such a tensor as its key.
    """
    if active.trace is not None or not torch_c.has_storage(tensor):
        return False
    cell = getattr(tensor.untyped_storage(), "cell", None)
    return cell is not None and isinstance(cell.array, Tracer)


def _described(tensor: Tensor) -> str:
    caller = caller_frame()
    if not is_library(caller.f_code.co_filename) and is_read(caller):
        raise _read()
    parts = [f"shape={tuple(tensor.shape)}", f"dtype={tensor.dtype}", f"device='{tensor.device}'"]
    try:
        node = tensor.grad_fn and tensor.grad_fn.name()
    except RuntimeError:  # a view that PyTorch does not allow to be differentiated
        node = "Invalid"
    if node is not None:
        parts.append(f"grad_fn=<{node}>")
    elif tensor.requires_grad:
        parts.append("requires_grad=True")
    if _wording.others is not None:
        parts.append(_OTHER.format(len(_wording.others) + 1))
    text = f"tensor({', '.join(parts)}{_MARK}"
    if _wording.others is not None:
        _wording.others.setdefault(text, user_origin())
    if active.trace is not None:
        active.trace.texts.setdefault(text, user_origin())
    return PlaceholderText(text, _read)


def _read() -> Exception:
    return unrepeatable(
        "the text of a tensor is read",
        "but it has no values while the function is traced",
        "Compare the tensor itself, or read the text outside the function.",
    )


def refuse_kept(text: str) -> None:
    """Refuse text that outlives a trace if it contains the text of a traced tensor."""
    if _MARK not in text or active.trace is None:
        return
    for shown, origin in active.trace.texts.items():
        if shown in text:
            place = f"{origin}: " if origin else ""
            raise TraceError(
                f"{place}a string made from a tensor outlives the traced function, but does not "
                f"contain the tensor's values: {shown}.\nKeep or return the tensor, and make the "
                "string outside the function."
            )


def _with_freed_graph(tensor: Any, text: str) -> str:
    """Returns the text of a tensor, even if a backward pass has freed its graph.

    The result of a compiled step with a backward pass is such a tensor.
    """
    if "grad_fn=<" not in text or _NO_GRAPH in text or tensor.device.type != "jax":
        return text
    node: Any = tensor.grad_fn
    name = type(node).__name__
    if name == "Error" or (node is not None and FREED in node.metadata):
        return text.replace(f"grad_fn=<{name}>", "grad_fn=<FreedBackward>")
    return text


def install() -> None:
    """Patch the text of the device's tensors in a trace."""
    their_str, their_format = torch_internals.tensor_str._str, Tensor.__format__

    @functools.wraps(their_str)
    def _str(self: Any, *args: Any, **kwargs: Any) -> str:
        if self.device.type == "jax":
            if forks.is_bad():  # because error messages contain the values
                return f"tensor(shape={tuple(self.shape)}, dtype={self.dtype}{_FORKED})"
            if _is_traced(self):
                return _described(self)
            if _is_left(self):
                return f"tensor(shape={tuple(self.shape)}, dtype={self.dtype}{_ENDED})"
        return _with_freed_graph(self, their_str(self, *args, **kwargs))

    @functools.wraps(their_format)
    def __format__(self: Any, format_spec: str) -> str:
        if not format_spec and type(self) is Tensor and self.device.type == "jax":
            if _is_traced(self):
                return _described(self)
        return their_format(self, format_spec)

    torch_internals.tensor_str._str = _str
    Tensor.__format__ = __format__  # type: ignore[method-assign]
