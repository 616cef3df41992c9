"""What can be passed as a function to an intrinsic."""

import functools
import operator
from typing import Any

import numpy as np

from calque import federated as fed


class Scale:
    factor = 2.0

    def sum_of(self, a: Any, b: Any) -> Any:
        return self.factor * (a + b)

    def of_pair(self, pair: Any) -> Any:
        return self.sum_of(*pair)

    __call__ = sum_of


def test_a_mapped_function_takes_fields_for_as_many_parameters() -> None:
    scale = Scale()

    @functools.wraps(Scale.sum_of)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return scale.sum_of(*args[1:], **kwargs)

    @functools.wraps(scale.sum_of)
    def of_pair(pair: Any) -> Any:
        return scale.sum_of(*pair)

    functions: list[Any] = [
        of_pair,
        scale.sum_of,
        scale.of_pair,
        scale,
        functools.partial(Scale.sum_of, scale),
        functools.partial(wrapped, scale),
        lambda a, b, *, factor=2.0: factor * (a + b),
        lambda pair, factor=2.0: factor * (pair[0] + pair[1]),
    ]

    @fed.computation("{float32}@CLIENTS", "{float32}@CLIENTS")
    def sums(a: Any, b: Any) -> Any:
        plain = fed.federated_reduce(a, np.float32(0), operator.add)
        return plain, [fed.federated_sum(fed.federated_map(f, (a, b))) for f in functions]

    plain, others = sums([1.0, 2.0], [3.0, 4.0])
    assert (float(plain), [float(one) for one in others]) == (3.0, [20.0] * len(functions))
