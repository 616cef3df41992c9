"""Jaxprs that are cut keep what they need."""

import jax
import numpy as np
from jax.extend.core import jaxpr_as_fun

from calque.program.jaxprs import prune


def test_constants_that_nothing_needs_are_left_out():
    used, unused = np.arange(3.0), np.arange(4.0)

    def fn(x):
        (x[0] + unused).sum()
        return x + used, used

    closed = jax.make_jaxpr(fn)(used)
    pruned, kept = prune(closed)
    assert kept == [0] and len(closed.consts) > len(pruned.consts) == len(pruned.jaxpr.constvars)
    assert np.array_equal(pruned.consts[0], used)
    assert jaxpr_as_fun(pruned)(used)[0].tolist() == [0, 2, 4]
