"""Programs are lowered without a second trace, and the garbage collector waits meanwhile."""

import gc
import weakref

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.extend.core import jaxpr_as_fun

import calque
from calque.program import lowering
from calque.program.lowering import lowered
from calque.program.trace_collection import collect_new, collecting_less, collecting_nothing_new

X = jax.ShapeDtypeStruct((3, 4), jnp.float32)


def program(x, y):
    """Has a constant, an input that is a result, a literal result and one result twice."""
    z = jnp.sin(x) @ y.T + jnp.arange(9.0).reshape(3, 3)
    return z, x, 1.0, z


@pytest.mark.parametrize("options", [{}, {"donate_argnums": (0,)}])
def test_the_text_is_that_of_a_second_trace(options, monkeypatch):
    closed = jax.make_jaxpr(program)(X, X)
    text = lowered(closed, [X, X], **options).as_text()
    assert text == jax.jit(jaxpr_as_fun(closed), **options).lower(X, X).as_text()
    monkeypatch.setattr(lowering, "_traced", lambda *given: None)
    assert text == lowered(closed, [X, X], **options).as_text()


def test_it_takes_no_second_trace():
    closed = jax.make_jaxpr(program)(X, X)
    assert lowering._traced(closed, [X, X], {}) is not None


def test_the_executable_computes_the_same():
    closed = jax.make_jaxpr(program)(X, X)
    x, y = jnp.arange(12.0).reshape(3, 4), jnp.ones((3, 4))
    found = lowered(closed, [X, X]).compile()(x, y)
    for one, other in zip(found, program(x, y), strict=True):
        assert jnp.array_equal(one, other)


def test_the_collector_waits_and_is_as_before_afterwards():
    before = gc.get_threshold()
    with collecting_less(), collecting_less():
        assert gc.get_threshold()[0] > before[0]
        assert gc.get_threshold()[1:] == before[1:]
    assert gc.get_threshold() == before


@pytest.mark.parametrize("threshold", [(0, 10, 10), (10**6, 10, 10)])
def test_a_collector_that_is_off_or_waits_longer_stays_so(threshold):
    before = gc.get_threshold()
    gc.set_threshold(*threshold)
    try:
        with collecting_less():
            assert gc.get_threshold() == threshold
        assert gc.get_threshold() == threshold
    finally:
        gc.set_threshold(*before)


def test_what_is_set_meanwhile_stays():
    before = gc.get_threshold()
    try:
        with collecting_less():
            gc.set_threshold(123, 4, 5)
        assert gc.get_threshold() == (123, 4, 5)
    finally:
        gc.set_threshold(*before)


def test_a_trace_that_fails_leaves_the_collector_as_it_was():
    before = gc.get_threshold()

    @calque.jit
    def fails(x):
        raise KeyError(gc.get_threshold()[0] > before[0])

    with pytest.raises(KeyError):
        fails(torch.ones(2, device="jax"))
    assert gc.get_threshold() == before


class Cyclic:
    def __init__(self) -> None:
        self.itself = self


@pytest.mark.usefixtures("few_objects")
@pytest.mark.parametrize("age", [0, 1, 2])
def test_garbage_of_a_trace_goes_without_a_look_at_older_generations(age):
    with collecting_less():
        held = Cyclic()
        garbage = weakref.ref(held)
        for generation in range(age):
            gc.collect(generation)
        del held
        before = [generation["collections"] for generation in gc.get_stats()]
        collect_new()
        after = [generation["collections"] for generation in gc.get_stats()]
    assert garbage() is None
    assert [n - m for n, m in zip(after, before)] == [int(index == age) for index in range(3)]


@pytest.mark.usefixtures("few_objects")
def test_outside_of_a_trace_all_garbage_goes():
    held = Cyclic()
    garbage = weakref.ref(held)
    gc.collect()
    del held
    collect_new()
    assert garbage() is None


def test_what_an_import_makes_is_old_at_once() -> None:
    before = gc.get_threshold()
    with collecting_nothing_new():
        made = [[index] for index in range(1000)]
    young = {id(one) for generation in (0, 1) for one in gc.get_objects(generation)}
    assert young.isdisjoint(map(id, made))
    gc.freeze()  # objects frozen by the user must stay frozen
    assert gc.get_freeze_count() > 5000
    with collecting_nothing_new():
        made.append([])
    assert gc.get_freeze_count() > 5000
    gc.unfreeze()
    assert gc.get_threshold() == before
