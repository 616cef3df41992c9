"""Laws of `device.memory.geometry`: what is written through a view is read back through it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calque.device.memory import geometry, view_access
from calque.device.memory.cell import x64
from calque.device.memory.geometry import Layout, View

FEW = settings(max_examples=20, deadline=None)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Dense layouts of up to three axes, in any axis order."""
    shape = draw(st.lists(st.integers(1, 4), max_size=3))
    order = draw(st.permutations(range(len(shape))))
    stride = [0] * len(shape)
    step = 1
    for axis in reversed(order):
        stride[axis] = step
        step *= shape[axis]
    return Layout(tuple(shape), tuple(stride))


@st.composite
def views(draw: st.DrawFn, layout: Layout, overlapping: bool) -> View:
    """Any view of the memory; without two indices of one element unless `overlapping`."""
    length = layout.length
    offset = draw(st.integers(0, length - 1))
    size: list[int] = []
    stride: list[int] = []
    reach = offset
    for _ in range(draw(st.integers(0, 3))):
        least = 0 if overlapping else 1 + sum((n - 1) * s for n, s in zip(size, stride))
        step = draw(st.integers(least, max(least, length)))
        most = (length - 1 - reach) // step + 1 if step else 3
        count = draw(st.integers(1, max(1, min(most, 4))))
        reach += (count - 1) * step
        size.append(count)
        stride.append(step)
    order = draw(st.permutations(range(len(size))))
    return View(tuple(size[a] for a in order), tuple(stride[a] for a in order), offset)


def through_numpy(flat: np.ndarray, view: View) -> np.ndarray:
    """The view as numpy sees it, over a one-axis memory."""
    steps = [s * flat.itemsize for s in view.stride]
    return np.lib.stride_tricks.as_strided(flat[view.offset :], view.size, steps)


def memory_of(layout: Layout) -> tuple[np.ndarray, jnp.ndarray]:
    """Distinct numbers as memory, and as the array of the layout."""
    flat = np.arange(layout.length, dtype=np.float32)
    return flat, jnp.array(np.array(through_numpy(flat, View(*layout, 0))))


@FEW
@given(st.data())
def test_read_gives_the_elements_at_the_strides(data: st.DataObject) -> None:
    layout = data.draw(layouts())
    view = data.draw(views(layout, overlapping=True))
    flat, array = memory_of(layout)
    with x64():  # as on the device
        got = jax.jit(lambda: view_access.read(array, layout, view))()
    np.testing.assert_array_equal(np.asarray(got), through_numpy(flat, view))


@FEW
@given(st.data())
def test_write_changes_the_elements_of_the_view_and_no_other(data: st.DataObject) -> None:
    layout = data.draw(layouts())
    view = data.draw(views(layout, overlapping=False))
    flat, array = memory_of(layout)
    value = -1 - np.arange(np.prod(view.size, dtype=int), dtype=np.float32).reshape(view.size)

    @jax.jit
    def results() -> tuple[jax.Array, jax.Array]:
        written = view_access.write(array, layout, view, jnp.array(value))
        return view_access.read(written, layout, view), geometry.memory(written, layout)

    with x64():
        got, memory = results()
    np.testing.assert_array_equal(np.asarray(got), value)
    through_numpy(flat, view)[...] = value
    np.testing.assert_array_equal(np.asarray(memory), flat)


@FEW
@given(layouts())
def test_memory_and_from_memory_are_inverse(layout: Layout) -> None:
    flat, array = memory_of(layout)
    memory, back = jax.jit(
        lambda: (geometry.memory(array, layout), geometry.from_memory(jnp.array(flat), layout))
    )()
    np.testing.assert_array_equal(np.asarray(memory), flat)
    np.testing.assert_array_equal(np.asarray(back), np.asarray(array))


def test_a_view_beyond_the_memory_raises() -> None:
    layout = Layout((4,), (1,))
    with pytest.raises(RuntimeError, match="out of bounds"):
        view_access.read(jnp.zeros(4), layout, View((3,), (1,), 2))


@given(st.data())
@FEW
def test_a_layout_with_holes_is_read_and_written_as_its_memory(data):
    size, stride, reached = [], [], 0
    for _ in range(data.draw(st.integers(1, 3))):
        size.append(data.draw(st.integers(1, 4)))
        stride.append(reached + data.draw(st.integers(1, 3)))
        reached += (size[-1] - 1) * stride[-1]
    order = data.draw(st.permutations(range(len(size))))
    layout = Layout(tuple(size[a] for a in order), tuple(stride[a] for a in order))
    assert geometry.is_nested(*layout)
    array = np.arange(1.0, 1 + np.prod(size)).reshape(layout.shape)
    first = View((layout.shape[0],), (layout.stride[0],), 0)
    column = array[(slice(None), *[0] * (len(size) - 1))]

    @jax.jit
    def results() -> tuple[jax.Array, ...]:
        memory = geometry.memory(jnp.asarray(array), layout)
        written = view_access.write(jnp.asarray(array), layout, first, jnp.asarray(-column))
        return (
            memory,
            geometry.from_memory(memory, layout),
            view_access.read(jnp.asarray(array), layout, first),
            geometry.memory(written, layout),
        )

    with x64():
        memory, back, read, written = map(np.array, results())
    assert memory.shape == (layout.length,)
    assert (through_numpy(memory, View(*layout, 0)) == array).all()
    assert (back == array).all()
    assert (read == column).all()
    through_numpy(memory, first)[...] *= -1
    assert (written == memory).all()


def test_a_slice_takes_no_starts_of_axes_that_it_sees_whole() -> None:
    view = View((2, 4), (4, 1), 4)
    plan, starts = view_access.plan_of(Layout((3, 4), (4, 1)), view)
    assert (plan.free, starts) == ((0,), (1,))
    with x64():
        traced = jax.make_jaxpr(lambda a, i: view_access.read_plan(plan, a, [i]))(
            jnp.ones((3, 4)), 1
        )
    names = {equation.primitive.name for equation in traced.eqns}
    assert "dynamic_slice" in names
    assert names.isdisjoint({"lt", "select_n"})  # a start is never negative


def test_blocks_of_a_product_share_its_reshape() -> None:
    heads, width = 4, 8
    layout = Layout((6, 3 * heads * width), (3 * heads * width, 1))
    views = [
        View((2, heads, 3, width), (3 * 96, width, 96, 1), block * heads * width)
        for block in range(3)
    ]
    plans = [view_access.plan_of(layout, view) for view in views]
    assert {plan for plan, _ in plans} == {plans[0][0]}
    assert plans[0][0].axes_shape == (2, 3, 3, heads, width)
    assert [starts for _, starts in plans] == [(0,), (1,), (2,)]
    array = jnp.arange(6 * 96.0).reshape(6, 96)
    for view in views:
        read = view_access.read(array, layout, view)
        assert (read == through_numpy(np.asarray(array).reshape(-1), view)).all()
