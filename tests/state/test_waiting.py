"""State that lies outside of Python's objects, or that code waits for."""

import ctypes
import datetime
import gc
import weakref
from concurrent.futures import Future

import pytest
import torch
from torch.nn import Parameter
from torch.nn import functional as F

import calque


class Object:
    def __init__(self, value: object = None) -> None:
        self.value = value


@pytest.mark.usefixtures("few_objects")
def test_addresses_are_not_written_back() -> None:
    held = ctypes.py_object(Object())

    @calque.jit
    def fails(x: torch.Tensor) -> torch.Tensor:
        held.value = Object()
        raise ValueError

    for _ in range(3):
        with pytest.raises(ValueError):
            fails(torch.ones(2, device="jax"))
        gc.collect()
        assert type(held.value) is Object


def test_numbers_of_c_are_state() -> None:
    class Pair(ctypes.Structure):
        _fields_ = (("a", ctypes.c_float), ("b", ctypes.c_int * 2))

    pair = Pair(2.0, (1, 2))
    jitted = calque.jit(lambda x: x * pair.a * pair.b[1])
    x = torch.ones(2, device="jax")
    for a, b in ((2.0, 2), (3.0, 2), (3.0, 5)):
        pair.a, pair.b[1] = a, b
        assert jitted(x).tolist() == [a * b] * 2


def test_a_weak_reference_follows_an_object_that_replaces_another() -> None:
    box: dict[str, object] = {}

    @calque.jit
    def step(x: torch.Tensor) -> torch.Tensor:
        made = Object(x * 2)
        box["object"], box["reference"] = made, weakref.ref(made)
        return x + 1

    for _ in range(4):
        step(torch.ones(2, device="jax"))
        reference = box["reference"]
        assert isinstance(reference, weakref.ref)
        assert reference() is box["object"]


def test_a_date_is_read_without_another_trace() -> None:
    jitted = calque.jit(lambda x: x * datetime.datetime.strptime("2020", "%Y").year)
    for _ in range(4):
        assert jitted(torch.ones(1, device="jax")).item() == 2020
    assert len(jitted.history) == 1


def test_the_result_of_a_future_is_state() -> None:
    future: Future[float] = Future()
    future.set_result(2.0)
    holder = Object(future)
    jitted = calque.jit(lambda x: x * holder.value.result())
    x = torch.ones(2, device="jax")
    assert jitted(x).tolist() == [2.0, 2.0]
    holder.value = Future()
    holder.value.set_result(3.0)
    assert jitted(x).tolist() == [3.0, 3.0]


@pytest.mark.usefixtures("few_objects")
def test_attention_keeps_no_parameters() -> None:
    key = torch.randn(1, 2, 3, 4, device="jax")
    with torch.no_grad():
        query = Parameter(torch.randn(1, 2, 3, 4, device="jax"))
        F.scaled_dot_product_attention(query, key, key)
        cell = weakref.ref(query.untyped_storage().cell)  # pyright: ignore[reportAttributeAccessIssue]
    del query
    gc.collect()
    assert cell() is None
