"""Computations are pickled by name, as functions are; a copy of one is itself."""

import copy
import pickle
from typing import Any

import pytest

from calque import federated as fed


@fed.local("float32")
def doubled(x: Any) -> Any:
    return x * 2


@fed.computation("{float32}@CLIENTS")
def total(x: Any) -> Any:
    return fed.federated_sum(fed.federated_map(doubled, x))


@fed.computation
def passed_on(x: Any) -> Any:
    return x


@pytest.mark.parametrize("made", [doubled, total, passed_on])
def test_a_computation_of_a_module_is_pickled_by_its_name(made: Any) -> None:
    assert pickle.loads(pickle.dumps({"made": made}))["made"] is made
    assert copy.deepcopy(made) is made
    assert copy.copy(made) is made


def test_others_are_refused_with_a_remedy() -> None:
    inner = fed.local("float32")(lambda x: x)
    said = "is pickled by name(.|\n)*at the top level of a module"
    for made in (inner, total.configured(chunk=2)):
        with pytest.raises(TypeError, match=said) as caught:
            pickle.dumps(made)
        assert {str(entry.path) for entry in caught.traceback} == {__file__}
