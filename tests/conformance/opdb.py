"""Compare the device with CPU PyTorch on PyTorch's own operator database.

    python -m tests.conformance.opdb --op addmm --op 'nn.functional.*' --dtype float32 --mode grad

prints a line for each failure and a summary; the tests use `run_one` directly.
"""

import argparse
import collections
import fnmatch
import itertools
import random
import sys
import traceback
import warnings
from collections.abc import Iterator

import numpy as np
import torch
from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import (
    foreach_binary_op_db,
    foreach_other_op_db,
    foreach_pointwise_op_db,
    foreach_reduce_op_db,
    foreach_unary_op_db,
    op_db,
)
from torch.testing._internal.opinfo import core
from torch.testing._internal.opinfo.core import OpInfo

from tests.conformance.checks import CHECKS, supports

# PyTorch's samples search the source lines of all frames for the test class that uses them, which
# takes a tenth of the time of a test.
common_utils.extract_test_fn = core.extract_test_fn = lambda: None

OPERATORS = [
    *op_db,
    *foreach_binary_op_db,
    *foreach_other_op_db,
    *foreach_pointwise_op_db,
    *foreach_reduce_op_db,
    *foreach_unary_op_db,
]
"""PyTorch's database, with its operators on lists of tensors."""


def matching(patterns: list[str]) -> Iterator[OpInfo]:
    """The entries of the database whose name matches one of the patterns."""
    for op in OPERATORS:
        if not patterns or any(fnmatch.fnmatch(op.name, p) for p in patterns):
            yield op


def run_one(op: OpInfo, dtype: torch.dtype, mode: str, limit: int = 0) -> Exception | None:
    """Check the samples of an operator, seeds set and warnings silenced; the first exception.

    Args:
        mode: a key of `CHECKS`.
        limit: check at most this many samples; 0 for all.
    """
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            collections.deque(itertools.islice(CHECKS[mode](op, dtype), limit or None), maxlen=0)
    except Exception as error:
        return error
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--op", action="append", default=[])
    parser.add_argument("--dtype", action="append", default=[])
    parser.add_argument("--mode", action="append", default=[], choices=CHECKS)
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--shard", default="0/1", help="every N-th entry, as I/N")
    parser.add_argument("--trace", action="store_true", help="print tracebacks")
    options = parser.parse_args()
    torch.set_num_threads(1)
    index, of = map(int, options.shard.split("/"))
    counts: collections.Counter[str] = collections.Counter()
    for op in itertools.islice(matching(options.op), index, None, of):
        for name in options.dtype or ["float32"]:
            dtype = getattr(torch, name)
            for mode in options.mode or ["eager"]:
                if not supports(op, dtype, mode):
                    continue
                error = run_one(op, dtype, mode, options.limit)
                counts["failed" if error else "passed"] += 1
                if error:
                    text = " ".join(str(error).split())[:200]
                    print(f"FAIL {op.formatted_name} {name} {mode}: {type(error).__name__}: {text}")
                    if options.trace:
                        traceback.print_exception(error)
                sys.stdout.flush()
    from calque.device.kernels.fallback import SERVED

    for name, times in SERVED.most_common():
        print(f"CPU  {name} x{times}")
    print(f"{counts['passed']} passed, {counts['failed']} failed")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
