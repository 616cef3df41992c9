"""Compare the device with CPU PyTorch on PyTorch's own operator database.

    python -m tests.conformance.opdb --op addmm --op 'nn.functional.*' --dtype float32 --mode grad

prints a line for each failure and a summary; the tests use `check` directly.
"""

import argparse
import collections
import fnmatch
import random
import sys
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils import _pytree as pytree

import calque  # noqa: F401  (registers the device)

RANDOM_NAMES = (
    "dropout",
    "rand",
    "normal",
    "bernoulli",
    "multinomial",
    "uniform",
    "exponential",
    "cauchy",
    "geometric",
    "log_normal",
    "rrelu",
    "empty",
    "poisson",
    "gumbel",
    "fractional",
    "multi_head_attention_forward",
)
TOLERANCE = {
    torch.float16: (1e-2, 1e-2),
    torch.bfloat16: (3e-2, 3e-2),
    torch.float32: (2e-4, 2e-4),
    torch.complex64: (2e-4, 2e-4),
    torch.float64: (1e-7, 1e-7),
    torch.complex128: (1e-7, 1e-7),
}


def to_device(tree: Any, grad: bool = False) -> Any:
    """Copies of the tensors in a tree on the device, leaves of autograd if `grad` and floating."""

    def move(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            named = isinstance(x, torch.device) or (isinstance(x, str) and x == "cpu")
            return torch.device("jax") if named else x
        copy = x.detach().to("jax")
        return copy.requires_grad_(x.requires_grad) if grad else copy

    return pytree.tree_map(move, tree)


def is_random(op: OpInfo) -> bool:
    """Whether values cannot be compared (only shapes and dtypes are)."""
    return any(part in op.name for part in RANDOM_NAMES)


def compare(expected: Any, actual: Any, values: bool = True) -> None:
    """Raise AssertionError where two results differ in structure, dtype, shape or value."""
    left, left_spec = pytree.tree_flatten(expected)
    right, right_spec = pytree.tree_flatten(actual)
    assert len(left) == len(right), f"{left_spec} != {right_spec}"
    for a, b in zip(left, right, strict=True):
        if not isinstance(a, torch.Tensor):
            assert type(a) is type(b), (a, b)
            continue
        assert b.device.type == "jax", f"the result is on {b.device}"
        assert a.dtype == b.dtype, f"dtype {b.dtype}, not {a.dtype}"
        assert a.shape == b.shape, f"shape {tuple(b.shape)}, not {tuple(a.shape)}"
        if not values:
            continue
        rtol, atol = TOLERANCE.get(a.dtype, (0, 0))
        host = b.detach().cpu().resolve_conj().resolve_neg()
        torch.testing.assert_close(host, a.detach(), rtol=rtol, atol=atol, equal_nan=True)


def _leaves(tree: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor) and t.requires_grad]


def check(op: OpInfo, dtype: torch.dtype, mode: str, limit: int = 0) -> int:
    """Compare every sample of an operator; returns how many were compared.

    Args:
        mode: "eager" compares values; "grad" the gradients of the sum of all results.
        limit: compare at most this many samples; 0 for all.
    """
    grad = mode == "grad"
    samples = 0
    for sample in op.sample_inputs("cpu", dtype, requires_grad=grad):
        if limit and samples >= limit:
            break
        arguments = (sample.input, sample.args, sample.kwargs)
        moved = to_device(arguments, grad)
        if not any(isinstance(x, torch.Tensor) for x in pytree.tree_leaves(arguments)):
            moved[2].setdefault("device", "jax")
        try:
            expected = op(sample.input, *sample.args, **sample.kwargs)
        except Exception:
            continue
        actual = op(moved[0], *moved[1], **moved[2])
        if sample.output_process_fn_grad is not None:
            expected = sample.output_process_fn_grad(expected)
            actual = sample.output_process_fn_grad(actual)
        values = not is_random(op) and not sample.kwargs.get("dropout_p")
        compare(expected, actual, values)
        samples += 1
        if grad and values:
            _compare_gradients(expected, actual, arguments, moved)
    return samples


def _compare_gradients(expected: Any, actual: Any, inputs: Any, moved: Any) -> None:
    outputs, device_outputs = _leaves(expected), _leaves(actual)
    leaves, device_leaves = _leaves(inputs), _leaves(moved)
    if not outputs or not leaves:
        return
    assert len(outputs) == len(device_outputs), "requires_grad of the results differs"
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(o.shape, dtype=o.dtype, generator=generator) for o in outputs]
    want = torch.autograd.grad(outputs, leaves, weights, allow_unused=True)
    got = torch.autograd.grad(
        device_outputs, device_leaves, [w.to("jax") for w in weights], allow_unused=True
    )
    for a, b in zip(want, got, strict=True):
        assert (a is None) == (b is None), "a gradient is missing"
        if a is not None:
            compare(a, b)


def matching(patterns: list[str]) -> Iterator[OpInfo]:
    """The entries of the database whose name matches one of the patterns."""
    for op in op_db:
        if not patterns or any(fnmatch.fnmatch(op.name, p) for p in patterns):
            yield op


def run_one(op: OpInfo, dtype: torch.dtype, mode: str, limit: int = 0) -> Exception | None:
    """`check` with seeds set and warnings silenced; the exception if it fails."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check(op, dtype, mode, limit)
    except Exception as error:
        return error
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--op", action="append", default=[])
    parser.add_argument("--dtype", action="append", default=[])
    parser.add_argument("--mode", action="append", default=[])
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--trace", action="store_true", help="print tracebacks")
    options = parser.parse_args()
    torch.set_num_threads(1)
    counts: collections.Counter[str] = collections.Counter()
    for op in matching(options.op):
        for name in options.dtype or ["float32"]:
            dtype = getattr(torch, name)
            for mode in options.mode or ["eager"]:
                supported = op.supported_dtypes("cpu")
                if mode == "grad":
                    if not op.supports_autograd or not (
                        dtype.is_floating_point or dtype.is_complex
                    ):
                        continue
                    supported = op.supported_backward_dtypes("cpu")
                if dtype not in supported:
                    continue
                error = run_one(op, dtype, mode, options.limit)
                counts["failed" if error else "passed"] += 1
                if error:
                    text = str(error).strip().split("\n")[0][:150]
                    print(f"FAIL {op.formatted_name} {name} {mode}: {type(error).__name__}: {text}")
                    if options.trace:
                        traceback.print_exception(error)
                sys.stdout.flush()
    from calque.device.fallback import SERVED

    for name, times in SERVED.most_common():
        print(f"CPU  {name} x{times}")
    print(f"{counts['passed']} passed, {counts['failed']} failed")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
