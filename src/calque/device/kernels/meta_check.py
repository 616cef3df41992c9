"""Replaces errors of a rule with PyTorch's, by running the outline of a failed call on Meta
kernels.

PyTorch checks shapes, dtypes and dimensions with the same messages on every device, and "meta" does
nothing else. So if JAX or Python raises inside a rule (such as a TypeError for shapes that do not
broadcast), the operator runs on "meta" with the same shapes, and the caller gets PyTorch's error.
If "meta" has no kernel, or accepts more, the operator runs on the CPU with zeros. If PyTorch
accepts the call, the error is reported as a bug in calque.

This runs after a failure rather than before each call, because most Meta kernels are written in
Python: they take as long as the rule, and import much of PyTorch.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from calque.device.memory.cell import active
from calque.device.memory.wrapping import META
from calque.device.runtime import sizes
from calque.device.runtime.dtypes import to_torch
from calque.errors import InternalError, at_user_line
from calque.ops.table import promotion
from calque.ops.table.facts import fact_of_form
from calque.upstream import torch_c
from calque.upstream.torch_internals import OpOverload, tree_leaves

_DEVICE = torch.device("meta")
_CPU = torch_c.DispatchKeySet(torch_c.DispatchKey.CPU)
_FOREIGN = (TypeError, ValueError, OverflowError, ZeroDivisionError, AssertionError)
_NUMBERS = {promotion.BOOL: True, promotion.INT: 1, promotion.FLOAT: 1.0, promotion.COMPLEX: 1j}
_BY_POSITION = frozenset(("tuple index out of range", "list index out of range"))
_NO_KERNEL = "Could not run"  # the dispatcher's message if there is no kernel for the device
_MANY = 2**28
_FEW = 2**20
_TOO_LARGE = ("overflow", "negative dimension")  # PyTorch's messages about sizes
_OF_NUMPY = ("array is too big", "Maximum allowed dimension exceeded", "Unable to allocate")


class _Symbolic(Exception):
    """Signals that sizes are symbolic, in an exported program."""


class Outline:
    """The Meta kernel of an operator.

    Attributes:
        op: the operator: the in-place form if that was called, otherwise the functional form.
    """

    def __init__(self, op: OpOverload) -> None:
        self.op = op

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(argument.name for argument in self.op._schema.arguments)

    @cached_property
    def _tensors(self) -> frozenset[str]:
        arguments = self.op._schema.arguments
        return frozenset(a.name for a in arguments if "Tensor" in str(a.type))

    @cached_property
    def _compares_numbers(self) -> bool:
        return fact_of_form(self.op.name()).get("compares_numbers", False)

    @contextmanager
    def checked(
        self, args: Sequence[Any], kwargs: dict[str, Any], ours: bool = True
    ) -> Iterator[None]:
        """A context manager for running a rule, in which bad arguments raise PyTorch's errors.

        Args:
            args: the arguments of the rule, with arrays (or JAX's tracers) for tensors.
            ours: whether the rule is calque's; errors of users' rules are not replaced.
        """
        try:
            yield
        except promotion.RefusedDtype as error:
            raise self._refusal(error, args, kwargs) from None
        except (*_FOREIGN, IndexError, MemoryError) as error:
            if isinstance(error, (jax.errors.JAXTypeError, promotion.MissingDtype)):
                raise
            if isinstance(error, MemoryError) or str(error).startswith(_OF_NUMPY):
                raise sizes.out_of_memory(f"{self.op.name()}: {error}") from None
            if isinstance(error, IndexError) and str(error) not in _BY_POSITION:
                raise
            if self._compares_numbers:
                raise RuntimeError(f"{self.op.name()}: {error}") from error
            try:
                self._ask(META, _DEVICE, args, kwargs)
            except _Symbolic:
                raise RuntimeError(f"{self.op.name()}: {error}") from error
            except NotImplementedError:  # there is no Meta kernel, or it needs values
                pass
            except Exception:
                if _are_small(args, kwargs):  # Meta kernels in Python have their own messages
                    self._ask_cpu(args, kwargs)
                raise
            self._ask_cpu(args, kwargs)
            if not ours:
                error.add_note(f"in the rule of {self.op.name()}")
                raise
            raise InternalError(
                at_user_line(
                    f"the rule of {self.op.name()} failed for a call that PyTorch allows "
                    f"({type(error).__name__}: {error}).\nThis is a bug in calque: please report "
                    "it, with the traceback that CALQUE_TRACEBACK=full shows."
                )
            ) from error

    def _ask_cpu(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        try:
            with torch.random.fork_rng(devices=()):
                self._ask(_CPU, torch.device("cpu"), args, kwargs)
        except NotImplementedError as error:
            if not str(error).startswith(_NO_KERNEL):
                raise error.with_traceback(None) from None

    def _refusal(
        self, error: promotion.RefusedDtype, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Exception:
        """Returns the CPU kernel's error for the dtypes, whose class differs between releases."""
        try:
            with torch.random.fork_rng(devices=()):
                self._ask(_CPU, torch.device("cpu"), args, kwargs)
        except _Symbolic:
            pass
        except (RuntimeError, TypeError, ValueError) as refusal:
            of_kernel = str(refusal).startswith(_NO_KERNEL)
            if not of_kernel and not self._is_of_zeros(refusal, args, kwargs):
                return refusal.with_traceback(None)
        return NotImplementedError(str(error))

    def _is_of_zeros(self, refusal: Exception, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """Returns True if an error is about the zeros that the CPU's kernel was asked with: it is
        raised for another dtype too.
        """
        if "values" not in fact_of_form(self.op.name()) or not isinstance(args[0], jax.Array):
            return False
        try:
            other = jnp.zeros(args[0].shape, np.float32)
            self._ask(_CPU, torch.device("cpu"), (other, *args[1:]), kwargs)
        except (RuntimeError, TypeError, ValueError) as error:
            return str(error) == str(refusal)
        return False

    def check_sizes(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Checks the size of a result with PyTorch before a rule runs, if a number is very large.

        Raises:
            RuntimeError: the number of bytes of a result overflows.
            torch.OutOfMemoryError: a result is larger than the device's memory.
        """
        if self._compares_numbers or not any(map(_is_huge, (*args, *kwargs.values()))):
            return
        try:
            found = self._ask(META, _DEVICE, args, kwargs)
        except (TypeError, NotImplementedError, IndexError, _Symbolic):
            return  # the rule has its own message
        except RuntimeError as error:
            if any(words in str(error) for words in _TOO_LARGE):
                raise
            return
        for result in tree_leaves(found):
            sizes.check(result, active.trace is None)

    def _ask(
        self,
        keys: torch_c.DispatchKeySet,
        device: torch.device,
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> Any:
        """Returns PyTorch's result on another device, or its exception.

        Raises:
            NotImplementedError: there is no kernel.
            _Symbolic: the sizes are symbolic.
        """
        try:
            named = {n: self._outlined(v, n, device) for n, v in kwargs.items() if n in self._names}
            if "device" in self._names:
                named["device"] = device
            given = [self._outlined(v, n, device) for v, n in zip(args, self._names, strict=False)]
            with torch_c.DisableTorchFunction():
                return self.op.redispatch(keys, *given, **named)
        except (AssertionError, OverflowError) as error:
            raise RuntimeError(f"{self.op.name()}: {error}") from error

    def _outlined(self, value: object, name: str, device: torch.device) -> Any:
        if isinstance(value, list | tuple):
            return [self._outlined(item, name, device) for item in value]
        if isinstance(value, np.dtype):
            return to_torch(value)
        if isinstance(value, jax.Array):
            if not all(isinstance(n, int) for n in value.shape):
                raise _Symbolic
            # JAX has no weak booleans that would distinguish numbers from arrays.
            is_flag = value.dtype == np.bool_ and name not in self._tensors
            if not value.weak_type and not is_flag:
                return torch.zeros(value.shape, dtype=to_torch(value.dtype), device=device)
            value = _NUMBERS[promotion.category(value.dtype)]
        if name in self._tensors and type(value) in (bool, int, float, complex):
            return torch.tensor(value, device=device)
        return value


def _are_small(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Returns True if the arrays of a call, and the sizes that its numbers may mean, are small."""
    leaves = tree_leaves((args, kwargs))
    elements = sum(leaf.size for leaf in leaves if isinstance(leaf, jax.Array))
    numbers = [abs(leaf) for leaf in leaves if type(leaf) is int]
    return elements < _FEW and max(numbers, default=0) < _FEW


def _is_huge(value: Any) -> bool:
    """Returns True if a number, or one of a list, is too large for most sizes."""
    if isinstance(value, list | tuple):
        return any(map(_is_huge, value))
    return type(value) in (int, float) and value > _MANY
