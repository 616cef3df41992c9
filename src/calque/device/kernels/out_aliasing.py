"""What PyTorch demands of a tensor that an operator writes: its memory, and the dtype of `out=`.

Most operators read and write element by element and take the written tensor as an input, but no
part of it; some gather, and take neither; a few compute first. Which is which is told by tables,
made by calling every operator of PyTorch's database on the CPU.
"""

from collections.abc import Sequence
from typing import Any

import torch

from calque.device.memory import geometry
from calque.device.memory.cell import check_writable
from calque.ops.table.helpers import names

Tensor = torch.Tensor

_FILLS = frozenset(
    names(
        "fill_ zero_ masked_fill_ index_fill_ index_put_ _index_put_impl_ tril_ triu_ tril triu "
        "zeros ones full eye"
    )
)
"""Write through elements that share memory: what they write there is the same, or unspecified."""

_CHANGES = frozenset(
    names("index_copy index_add index_reduce scatter scatter_add scatter_reduce put")
)
"""Give a changed copy of their first argument, which may be what they write."""

_APART = (
    frozenset(names("index_select take cat gather linalg_cross masked_select kthvalue")) | _CHANGES
)
"""Read no memory that they write, not even element by element."""

_COMPUTES_FIRST = frozenset(
    names(
        "mm addmm addmm_ baddbmm baddbmm_ linear cummax cummin geqrf lu_unpack _softmax "
        "_log_softmax softmax log_softmax native_batch_norm _native_batch_norm_legit avg_pool2d "
        "log_sigmoid_forward mvlgamma ormqr slice_scatter bucketize tril triu tril_ triu_ "
        "_fft_c2r sort masked_scatter_ triangular_solve ldexp ldexp_ resize_as_ cholesky bmm "
        "linalg_cholesky_ex linalg_qr linalg_lu linalg_householder_product linalg_ldl_factor_ex "
        "linalg_ldl_solve linalg_lstsq linalg_inv_ex linalg_lu_factor_ex linalg_lu_solve "
        "linalg_pinv _linalg_eigh _linalg_solve_ex"
    )
)
"""Do not look at whether they read memory that they write."""

_EXACT = frozenset(
    names(
        "abs addmm addmv addbmm baddbmm dot vdot bmm mv bitwise_not ceil conj_physical complex "
        "linalg_cross cummax cummin frac floor frexp isin kthvalue lu_unpack linalg_lu_solve "
        "masked_select mm heaviside softmax _softmax log_softmax _log_softmax aminmax "
        "native_batch_norm _native_batch_norm_legit avg_pool2d avg_pool3d linear "
        "log_sigmoid_forward topk softshrink hardshrink gelu mode median nanmedian neg ormqr "
        "linalg_qr round sign sgn signbit triangular_solve trunc nan_to_num isposinf isneginf "
        "polar gather index_copy index_select index_add index_reduce sort take scatter "
        "scatter_add scatter_reduce multinomial histogram histc bucketize searchsorted renorm "
        "tril triu logcumsumexp where nonzero linalg_vector_norm softplus all any amax amin "
        "argmax argmin _linalg_det linalg_cholesky_ex _linalg_eigh linalg_ldl_factor_ex "
        "linalg_ldl_solve linalg_inv_ex _linalg_slogdet linalg_lu_factor_ex linalg_lu "
        "_linalg_solve_ex linalg_solve_triangular _linalg_svd max.dim_max min.dim_min"
    )
)
"""Take no `out=` of another dtype than that of the result."""


class Written:
    """What one in-place or `out=` operator demands of the tensors it writes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.base = name.removeprefix("aten::").partition(".")[0]
        plain = self.base.removesuffix("_")
        self._fills = self.base in _FILLS
        self._looks = self.base not in _COMPUTES_FIRST
        self._apart = plain in _APART
        self._changes = self.base in _CHANGES
        short = name.removeprefix("aten::")
        self._exact = self.base in _EXACT or short in _EXACT or self.base.endswith("_copy")

    def check_memory(self, target: Tensor, inputs: Sequence[Any], size: int | None = None) -> None:
        """Raise RuntimeError where the operator may not write a tensor, in PyTorch's words.

        Args:
            target: the tensor.
            inputs: the operator's arguments, of which the tensors matter.
            size: how many elements it will have; None if that is how many it has.
        """
        if not self._fills:
            check_writable(target)
        if not self._looks:
            return
        storage = target.untyped_storage()
        if not self._apart and not getattr(getattr(storage, "cell", None), "viewed", True):
            return
        place = _Place(target, size)
        self._check_inputs(place, storage._cdata, inputs[1:] if self._changes else inputs)

    def _check_inputs(self, place: "_Place", storage: int, inputs: Sequence[Any]) -> None:
        for value in inputs:
            if isinstance(value, list | tuple):
                self._check_inputs(place, storage, value)
            elif isinstance(value, Tensor) and value.untyped_storage()._cdata == storage:
                other = _Place(value)
                same = value is place.tensor or place.same(other)
                if self._apart if same else place.overlaps(other):
                    raise RuntimeError(
                        "unsupported operation: some elements of the input tensor and the "
                        "written-to tensor refer to a single memory location. Please clone() the "
                        f"tensor before performing the operation. ({self.name})"
                    )

    def check_dtype(self, result: torch.dtype, target: torch.dtype) -> None:
        """Raise where PyTorch does not write a result of one dtype to an `out=` of another.

        Raises:
            NotImplementedError: the operator makes no booleans.
            RuntimeError: the operator takes only the dtype of its result, or cannot cast it.
            TypeError: likewise, for `torch.cat`.
        """
        if result == target:
            return
        if self._exact:
            raise RuntimeError(
                f"{self.base}: Expected out tensor to have dtype {result}, but got {target} instead"
            )
        if target == torch.bool and self.base in ("arange", "randperm"):
            raise NotImplementedError(f"\"{self.base}\" not implemented for 'Bool'")
        if not torch.can_cast(result, target):
            error = TypeError if self.base in ("cat", "stack") else RuntimeError
            raise error(
                f"{self.base}: result type {result} can't be cast to the desired output type "
                f"{target}"
            )


class _Place:
    """Where the elements of a tensor lie in its storage."""

    def __init__(self, tensor: Tensor, size: int | None = None) -> None:
        self.tensor = tensor
        resized = size is not None and size != tensor.numel()
        count = max(size or 0, tensor.numel())
        self.stride = tensor.stride()
        self.start = tensor.storage_offset() * tensor.itemsize
        self.end = self.start + count * tensor.itemsize
        self.dense = resized or geometry.is_dense(tuple(tensor.shape), self.stride)

    def same(self, other: "_Place") -> bool:
        """Whether both are the same elements in the same order."""
        return (self.start, self.end, self.stride) == (other.start, other.end, other.stride)

    def overlaps(self, other: "_Place") -> bool:
        """Whether both have memory in common; where one has gaps PyTorch does not look."""
        if not (self.dense and other.dense):
            return False
        return max(self.start, other.start) < min(self.end, other.end)
