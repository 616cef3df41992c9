"""Errors of matrix decompositions, and the convention on which their gradients rely.

A decomposition reports failure in an integer tensor, which the host must read to raise an error. A
trace checks it only if requested; otherwise, a matrix that cannot be factored gives NaN or
infinity.
"""

from collections.abc import Callable
from typing import Any

import torch
from jax.core import Tracer

from calque.device.kernels import trace_checks
from calque.device.kernels.binding import functional
from calque.device.kernels.out_aliasing import Written, write_out
from calque.device.memory.cell import read
from calque.ops.table.facts import fact_of, operators_with
from calque.ops.table.registry import RULES, Rule
from calque.upstream import torch_c

Tensor = torch.Tensor
_check = torch.ops.aten._linalg_check_errors.default
_TRANSPOSED = "taken_transposed"  # a parameter of these rules that the operators do not have
_COMPOSITE = torch_c.DispatchKeySet(torch_c.DispatchKey.CPU)


def check_errors(info: Tensor, api_name: str, *, is_matrix: bool) -> None:
    """Raise torch.linalg.LinAlgError if a decomposition failed."""
    if not trace_checks.looking():
        return
    array = read(info)
    if not isinstance(array, Tracer):
        _check.redispatch(_COMPOSITE, info.cpu(), api_name, is_matrix=is_matrix)
        return

    def failed(code: int) -> Exception:
        try:
            _check(torch.tensor(code, dtype=torch.int32, device="cpu"), api_name, is_matrix=True)
        except Exception as error:
            return error
        raise AssertionError(f"{api_name} does not fail with {code}")

    trace_checks.collect(array != 0, array, failed)


def _kernel(rule: Rule) -> Callable[..., Any]:
    """Returns the kernel of a decomposition, which passes on the matrix's layout and raises
    errors.
    """
    kernel = functional(rule)
    api = fact_of(rule.name).get("reports")
    by_contiguity = _TRANSPOSED in rule.parameters

    def run(A: Tensor, *args: Any, check_errors: bool = False, **kwargs: Any) -> Any:
        if by_contiguity:
            # The gradient formula infers from A's strides whether A or A^T was factored.
            kwargs[_TRANSPOSED] = A.is_contiguous() and not A.is_complex()
        results = kernel(A, *args, **kwargs)
        if check_errors and api is not None:
            raise_failed(results[-1], api, is_matrix=A.ndim == 2)
        return results

    return run


raise_failed = check_errors


def cholesky(self: Tensor, upper: bool = False) -> Tensor:
    """`torch.cholesky`, which always raises an error on failure."""
    factor, info = torch.ops.aten.linalg_cholesky_ex.default(self, upper=upper)
    check_errors(info, "cholesky", is_matrix=self.ndim == 2)
    return factor


def cholesky_out(self: Tensor, upper: bool = False, *, out: Tensor) -> Tensor:
    """`torch.cholesky` into a tensor."""
    _write(out, "cholesky", self, cholesky(self, upper))
    return out


def _write(out: Tensor, name: str, self: Tensor, result: Tensor) -> None:
    """Write a result to an `out=`, if PyTorch accepts it."""
    written = Written(f"aten::{name}.out", RULES.get(f"aten::{name}"))
    written.check_dtype(result.dtype, out.dtype)
    written.check_memory(out, (self,), result.numel())
    write_out(out, read(result))


def cholesky_inverse(self: Tensor, upper: bool = False) -> Tensor:
    """`torch.cholesky_inverse`, which raises an error for a zero on the diagonal."""
    inverse = functional(RULES["aten::cholesky_inverse"])(self, upper)
    if not trace_checks.looking():
        return inverse
    zeros = self.diagonal(dim1=-2, dim2=-1) == 0
    first = zeros.cumsum(-1).eq(0).sum(-1) + 1
    info = torch.where(zeros.any(-1), first, 0).int()
    check_errors(info, "cholesky_inverse", is_matrix=self.ndim == 2)
    return inverse


def cholesky_inverse_out(self: Tensor, upper: bool = False, *, out: Tensor) -> Tensor:
    """`torch.cholesky_inverse` into a tensor."""
    _write(out, "cholesky_inverse", self, cholesky_inverse(self, upper))
    return out


def kernels() -> dict[str, Any]:
    """Returns the kernels by operator name."""
    told_how = [name for name, rule in RULES.items() if _TRANSPOSED in rule.parameters]
    return {
        "_linalg_check_errors": check_errors,
        "cholesky": cholesky,
        "cholesky.out": cholesky_out,
        "cholesky_inverse": cholesky_inverse,
        "cholesky_inverse.out": cholesky_inverse_out,
        **{
            name.removeprefix("aten::"): _kernel(RULES[name])
            for name in (*operators_with("reports"), *told_how)
        },
    }
