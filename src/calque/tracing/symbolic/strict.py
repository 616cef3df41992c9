"""Python operations that need a value, which a trace refuses.

torch.fx invents results for some of these: a string with the name of a node, True for an attribute
that does not exist. Here the result comes from the abstract value, or the operation is recorded, or
it is refused with the line and a remedy.
"""

import copy
import operator
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from calque.errors.frames import is_library
from calque.errors.placeholder_text import PlaceholderText
from calque.errors.text_use import is_read
from calque.tracing.core.bytecode import is_assertion, is_handled, unpacked_length
from calque.tracing.core.refusals import describe, refuse
from calque.tracing.core.statements import raises
from calque.tracing.graph import checks
from calque.tracing.proxies.proxy import assert_fn
from calque.tracing.symbolic import root_inputs

if TYPE_CHECKING:
    from calque.tracing.symbolic.symbolic_tracer import SymbolicTracer

_ROOT = root_inputs.__file__
"""The file with the function that calls the program."""
_IN_PLACE = (
    "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul",
    "iand", "ior", "ixor", "ilshift", "irshift",
)  # fmt: skip


class Strict:
    """Python operations that need a value; a mixin for the proxies of `SymbolicTracer`."""

    tracer: "SymbolicTracer"
    node: Any
    is_tensor: bool

    def __bool__(self) -> bool:
        follows = getattr(self.tracer, "path", None) is not None
        frame = sys._getframe(1)
        kept = self.tracer.trace_asserts and is_assertion(frame, bare=follows)
        if kept and not (follows and is_handled(frame, _ROOT)):
            self.tracer.create_proxy("call_function", assert_fn, (self,), {})
            return True
        return self.tracer.to_bool(self)

    def __iter__(self) -> Iterator[Any]:
        length = unpacked_length(sys._getframe(1))
        return self.tracer.iterate(self, length)

    def __len__(self) -> int:
        return self.tracer.length(self)

    def __int__(self) -> int:
        refuse(self, "int()")

    def __float__(self) -> float:
        refuse(self, "float()")

    def __complex__(self) -> complex:
        refuse(self, "complex()")

    def __index__(self) -> int:
        known = self.node.meta.get("val")
        if getattr(known, "dtype", None) is torch.bool and known.numel() == 1:
            return int(self.tracer.to_bool(self))
        refuse(self, "index")

    def __contains__(self, item: object) -> bool:
        if self.is_tensor and isinstance(item, (torch.Tensor, bool, int, float, complex)):
            return self.tracer.to_bool((self == item).any())  # pyright: ignore[reportAttributeAccessIssue]
        refuse(self, "in")

    def __repr__(self) -> str:
        if self.tracer.ended:  # for the messages of errors
            return super().__repr__()
        asking = sys._getframe(1)
        if not is_library(asking.f_code.co_filename) and is_read(asking):
            refuse(self, "repr()")
        return PlaceholderText(super().__repr__(), lambda: refuse(self, "repr()"))

    def __str__(self) -> str:
        return _text(self)

    def __format__(self, specification: str) -> str:
        return _text(self)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        refuse(self, "pickle")

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        refuse(self, "numpy")

    def __copy__(self) -> Any:
        return self.tracer.create_proxy("call_function", copy.copy, (self,), {})

    def __deepcopy__(self, memo: object) -> Any:
        return self.tracer.create_proxy("call_function", copy.deepcopy, (self,), {})

    def __rpow__(self, left: object) -> Any:
        # torch.fx's transforms would print the operator as `-2.0 ** x`.
        power = torch.pow if self.is_tensor else pow
        negative = isinstance(left, (int, float)) and str(left).startswith("-")
        target = power if negative else operator.pow
        return self.tracer.create_proxy("call_function", target, (left, self), {})

    def __setitem__(self, index: object, value: object) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, index, value), {})

    def __delitem__(self, index: object) -> None:
        self.tracer.create_proxy("call_function", operator.delitem, (self, index), {})


def _text(proxy: Any) -> str:
    """Returns the text of the value in the message of a `raise` statement; refuses it elsewhere."""
    if proxy.tracer.ended:
        return repr(proxy)
    if getattr(proxy.tracer, "path", None) is not None and raises(sys._getframe(2)):
        return f"<{describe(proxy).rstrip(',')}>"
    refuse(proxy, "str()")


def _in_place(name: str) -> Callable[[Any, Any], Any]:
    target = getattr(operator, name)

    def method(self: Any, right: Any) -> Any:
        if self.is_tensor and not hasattr(torch.Tensor, f"__{name}__"):
            return getattr(operator, name[1:])(self, right)  # as in Python, it is no write
        if self.is_tensor:
            return self.tracer.create_proxy("call_function", target, (self, right), {})
        # Generated code for `iadd` is `x += 1`, which would change other uses of an immutable `x`.
        return self.tracer.create_proxy("call_function", checks.in_place, (name, self, right), {})

    method.__name__ = f"__{name}__"
    return method


for _name in _IN_PLACE:
    setattr(Strict, f"__{_name}__", _in_place(_name))
