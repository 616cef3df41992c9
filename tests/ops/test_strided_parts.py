"""Images of parts that lie a stride apart are what the windows give, added up where they are."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from calque.ops.nn import strided_parts

# size, kernel, stride, padding, dilation
CASES = [
    ((7, 6), (3, 3), (2, 2), (1, 1), (1, 1)),
    ((9, 8), (3, 2), (2, 3), (0, 1), (2, 3)),
    ((5,), (2,), (4,), (1,), (1,)),  # parts without elements
    ((4, 5), (1, 2), (1, 1), (2, 0), (1, 1)),  # windows without elements
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_window_reaches_what_it_stands_on(case: tuple) -> None:
    size, kernel, stride, padding, dilation = case
    rows = list(zip(size, kernel, stride, padding, dilation, strict=True))
    windows = tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in rows)
    given = np.random.default_rng(0).normal(size=(2, *windows, 3)).astype(np.float32)
    want = np.zeros((2, *size, 3), np.float32)
    positions = list(itertools.product(*map(range, kernel)))
    for window in itertools.product(*map(range, windows)):
        for number, position in enumerate(positions):
            steps = zip(window, position, rows, strict=True)
            at = tuple(w * s + i * d - p for w, i, (_, _, s, p, d) in steps)
            if all(0 <= a < n for a, n in zip(at, size, strict=True)):
                want[(slice(None), *at)] += (number + 1) * given[(slice(None), *window)]

    counts = strided_parts.counts(size, padding, stride)
    reach = strided_parts.reach(kernel, stride, dilation)
    beside = strided_parts.with_windows_beside(jnp.asarray(given), np.float32(1e9), reach, counts)
    parts = []
    for met in strided_parts.moves(kernel, stride, dilation):
        total = jnp.zeros((2, *counts, 3))
        for number, move in met:
            here = strided_parts.is_given(move, counts, windows)
            one = (number + 1) * strided_parts.moved(beside, move, reach, counts)
            total = total + (one if here is None else jnp.where(here, one, 0))
        parts.append(total)
    got = strided_parts.whole(parts, size, padding, stride)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
