"""PyTorch's requirements for a tensor that an operator writes to: its memory and, for `out=`, its
dtype.

Most operators read and write element by element, and accept the written tensor as an input, but not
a part of it; some gather, and accept neither; a few compute first. This is a fact of the operator
(`calque.ops.table.facts`), found by calling each operator of PyTorch's database on the CPU.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jax import Array

from calque.device.memory import geometry
from calque.device.memory.cell import check_writable, moving, read, write, x64
from calque.device.memory.moving_views import is_moving
from calque.device.runtime.dtypes import to_numpy
from calque.errors.warning import warn
from calque.ops.table.facts import Known, fact_of
from calque.ops.table.promotion import type_name
from calque.ops.table.registry import Rule

Tensor = torch.Tensor


class Written:
    """The requirements of one in-place or `out=` operator for the tensors it writes to.

    Args:
        name: the operator.
        rule: the functional rule from which it is derived; None if there is none.

    Attributes:
        apart: whether it may not read memory that it writes, even element by element.
        any_shape: whether an `out=` with the right number of elements keeps its shape.
        copies: whether an `out=` that is resized becomes row-major.
        says_dtype: whether the operator computes in the dtype of `out=`, if no dtype is given.
    """

    def __init__(self, name: str, rule: Rule | None = None) -> None:
        self.name = name
        self.base: str = name.removeprefix("aten::").partition(".")[0]
        known = Known() if rule is None else fact_of(rule.name)
        writes = known.get("writes", ())
        in_place = self.base.endswith("_")
        own = known.get("writes_in_place", ()) if in_place else writes
        self._fills = "fills" in own
        self._reads_target = in_place and rule is not None
        self._looks = "computes_first" not in own
        self.apart: bool = "apart" in writes or "changes" in writes
        self.any_shape: bool = "any_shape" in writes
        self.says_dtype: bool = "says_dtype" in writes
        self._no_complex = "no_complex" in own
        self.copies: bool = "copies" in writes
        self._truth = "truth" in writes
        self._any_real = "any_real" in writes
        self._changes = "changes" in writes and not in_place
        self._exact = "exact_dtype" in writes or self.base.endswith("_copy")
        self._sizes = "sizes" in writes
        self._no_booleans = "no_booleans" in writes
        self._cast_error = TypeError if "cast_type_error" in writes else RuntimeError

    def check_memory(self, target: Tensor, inputs: Sequence[Any], size: int | None = None) -> None:
        """Raise PyTorch's RuntimeError if the operator may not write to a tensor: for its memory
        or, in place, its dtype.

        Args:
            target: the tensor.
            inputs: the operator's arguments; only tensors matter.
            size: its future number of elements; None if it does not change.
        """
        if self._no_complex and target.is_complex():
            name = self.base.strip("_").rpartition("_")[2]
            raise RuntimeError(f"In-place {name} is not supported for complex tensors.")
        if not self._fills:
            check_writable(target, self._reads_target)
        if not self._looks:
            return
        storage = target.untyped_storage()
        if not self.apart and not getattr(getattr(storage, "cell", None), "viewed", True):
            return
        place = _Place(target, size)
        if self._changes:
            self._check_inputs(place, storage._cdata, inputs[:1], apart=False)
            inputs = inputs[1:]
        self._check_inputs(place, storage._cdata, inputs, self.apart)

    def _check_inputs(
        self, place: "_Place", storage: int, inputs: Sequence[Any], apart: bool
    ) -> None:
        for value in inputs:
            if isinstance(value, list | tuple):
                self._check_inputs(place, storage, value, apart)
            elif isinstance(value, Tensor) and value.untyped_storage()._cdata == storage:
                other = _Place(value)
                same = value is place.tensor or place.same(other)
                if not same and any(is_moving(t.storage_offset()) for t in (place.tensor, value)):
                    moving().refuse()
                if apart if same else place.overlaps(other):
                    raise RuntimeError(
                        "unsupported operation: some elements of the input tensor and the "
                        "written-to tensor refer to a single memory location. Please clone() the "
                        f"tensor before performing the operation. ({self.name})"
                    )

    def check_dtype(
        self, result: torch.dtype, target: torch.dtype, inputs: Sequence[Any] = ()
    ) -> None:
        """Raise if PyTorch does not write a result of one dtype to an `out=` of another dtype.

        Args:
            result: the dtype of the result.
            target: that of the tensor.
            inputs: the operator's arguments.

        Raises:
            NotImplementedError: the operator does not write booleans, or complex numbers.
            RuntimeError: the operator takes only the dtype of its result, or cannot cast it.
            TypeError: the same, for `torch.cat`.
        """
        if target == torch.bool and self._no_booleans:
            raise NotImplementedError(f"\"{self.base}\" not implemented for 'Bool'")
        if result == target or (self._truth and target == torch.uint8):
            return
        if self._any_real and not target.is_complex:
            return
        if self._any_real:
            raise NotImplementedError(
                f"\"{self.base}\" not implemented for '{type_name(to_numpy(target))}'"
            )
        if self._truth:
            raise RuntimeError(
                f"{self.base} only supports bool tensor for result, got: "
                f"{type_name(to_numpy(target))}"
            )
        whole = inputs[0].dtype if self._sizes else None
        is_size = whole is not None and whole.is_complex
        if self._exact and (target != whole if target.is_complex else not is_size):
            raise RuntimeError(
                f"{self.base}: Expected out tensor to have dtype {result}, but got {target} instead"
            )
        if not torch.can_cast(result, target):
            raise self._cast_error(
                f"{self.base}: result type {type_name(to_numpy(result))} can't be cast to the "
                "desired "
                f"output type {type_name(to_numpy(target))}"
            )


class _Place:
    """The positions of a tensor's elements in its storage."""

    def __init__(self, tensor: Tensor, size: int | None = None) -> None:
        self.tensor = tensor
        resized = size is not None and size != tensor.numel()
        count = max(size or 0, tensor.numel())
        self.stride = tensor.stride()
        self.start = tensor.storage_offset() * tensor.itemsize
        self.end = self.start + count * tensor.itemsize
        self.dense = resized or geometry.is_dense(tuple(tensor.shape), self.stride)

    def same(self, other: "_Place") -> bool:
        """Returns True if both have the same elements in the same order."""
        return (self.start, self.end, self.stride) == (other.start, other.end, other.stride)

    def overlaps(self, other: "_Place") -> bool:
        """Returns True if both share memory; like PyTorch, ignores tensors with gaps."""
        if not (self.dense and other.dense):
            return False
        return max(self.start, other.start) < min(self.end, other.end)


def write_out(target: Tensor, result: Array, stride: geometry.Ints | None = None) -> None:
    """Write a result to an `out=` tensor in its dtype; resizes the tensor if its shape differs,
    to the strides of the result or row-major.
    """
    dtype = read(target).dtype
    if tuple(target.shape) != result.shape:
        if target.numel():
            warn(
                f"An output with one or more elements was resized since it had shape "
                f"{list(target.shape)}, which does not match the required output shape "
                f"{list(result.shape)}. This behavior is deprecated, and in a future PyTorch "
                "release outputs will not be resized unless they have zero elements."
            )
        target.resize_(result.shape)
        if stride is not None:
            target.as_strided_(result.shape, stride)
    with x64():
        write(target, result.astype(dtype))
