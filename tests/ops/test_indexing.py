"""Index expressions against CPU PyTorch: random ones, operators of the database, and errors."""

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import calque
from tests.ops.conformance import cases, compare_with_cpu

NAMES = [
    "argwhere",
    "bincount",
    "gather",
    "index_add",
    "index_copy",
    "index_fill",
    "index_put",
    "index_reduce",
    "index_select",
    "masked_fill",
    "masked_scatter",
    "masked_select",
    "nn.functional.one_hot",
    "nonzero",
    "nonzero_static",
    "put",
    "repeat_interleave",
    "scatter",
    "scatter_add",
    "scatter_reduce",
    "take",
    "take_along_dim",
    "unique",
    "unique_consecutive",
    "diagonal_scatter",
    "select_scatter",
    "slice_scatter",
    "as_strided_scatter",
]

SHAPE = (3, 4, 2)


@pytest.mark.sampled(14)
@pytest.mark.parametrize(("op", "dtype", "mode"), cases(NAMES))
def test_operators_agree_with_the_cpu(op: object, dtype: torch.dtype, mode: str) -> None:
    compare_with_cpu(op, dtype, mode)


@st.composite
def expressions(draw: st.DrawFn) -> tuple[Any, ...]:
    """An index expression for a tensor of SHAPE: ints, slices, None, Ellipsis, tensors, masks."""
    length = draw(st.integers(1, 3))
    key: list[Any] = []
    axis = 0
    while axis < len(SHAPE):
        size = SHAPE[axis]
        kind = draw(st.sampled_from(["int", "slice", "none", "tensor", "mask", "wide", "stop"]))
        if kind == "stop":
            break
        if kind == "none":
            if len(key) < 5:
                key.append(None)
            else:
                axis += 1
            continue
        if kind == "int":
            key.append(draw(st.integers(-size, size - 1)))
        elif kind == "slice":
            bounds = st.none() | st.integers(-size - 1, size + 1)
            key.append(slice(draw(bounds), draw(bounds), draw(st.none() | st.integers(1, 2))))
        elif kind == "tensor":
            values = st.lists(st.integers(-size, size - 1), min_size=length, max_size=length)
            key.append(torch.tensor(draw(values)))
        elif kind == "mask" or axis + 2 > len(SHAPE):
            # The same number of elements as the tensors, so that the two broadcast.
            chosen = draw(st.permutations(range(size)))[: min(length, size)]
            mask = torch.zeros(size, dtype=torch.bool)
            mask[list(chosen)] = True
            key.append(mask)
        else:
            chosen = draw(st.lists(st.booleans(), min_size=6, max_size=6))
            bits = (chosen * SHAPE[axis])[: SHAPE[axis] * SHAPE[axis + 1]]
            key.append(torch.tensor(bits).reshape(-1, SHAPE[axis + 1])[: SHAPE[axis]])
            if key[-1].shape != SHAPE[axis : axis + 2]:
                key.pop()
                continue
            axis += 1
        axis += 1
    if draw(st.booleans()) and axis < len(SHAPE):
        key.append(Ellipsis)
    return tuple(key)


def on_device(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(k.to("jax") if isinstance(k, torch.Tensor) else k for k in key)


def outcome(function: Any) -> Any:
    """What a function returns, or the class of the error it raises."""
    try:
        return function()
    except (IndexError, RuntimeError, ValueError) as error:
        return IndexError if isinstance(error, IndexError) else type(error)


@settings(max_examples=60, deadline=None)
@given(expressions(), st.booleans())
def test_random_expressions_read_like_the_cpu(key: tuple[Any, ...], moved: bool) -> None:
    base = torch.arange(24.0).reshape(SHAPE)
    device = base.to("jax")
    expected = outcome(lambda: base[key])
    actual = outcome(lambda: device[on_device(key) if moved else key])
    if isinstance(expected, torch.Tensor):
        assert torch.equal(actual.cpu(), expected)
    else:
        assert actual is expected


@settings(max_examples=60, deadline=None)
@given(expressions(), st.sampled_from(["number", "row", "full"]))
def test_random_expressions_write_like_the_cpu(key: tuple[Any, ...], kind: str) -> None:
    base = torch.arange(24.0).reshape(SHAPE)
    device = base.to("jax")
    shape = outcome(lambda: base[key].shape)
    if not isinstance(shape, torch.Size):
        return
    rows = shape[-1:] if kind == "row" else shape
    # A constant value if an element may be written twice, because the order is undefined.
    value: Any = -1.0 if kind == "number" else torch.full(rows, -2.0)
    base[key] = value
    device[on_device(key)] = value if kind == "number" else value.to("jax")
    assert torch.equal(device.cpu(), base)


def test_a_mask_writes_its_values_in_order() -> None:
    base = torch.zeros(2, 3)
    mask = torch.tensor([[True, False, True], [False, True, True]])
    device = base.to("jax")
    base[mask] = torch.arange(4.0)
    device[mask.to("jax")] = torch.arange(4.0).to("jax")
    assert torch.equal(device.cpu(), base)


@pytest.mark.parametrize("accumulate", [False, True])
def test_gradients_flow_through_masks_and_indices(accumulate: bool) -> None:
    for key in (torch.tensor([0, 2, 0]), torch.tensor([True, False, True])):
        gradients = []
        for device in ("cpu", "jax"):
            x = torch.arange(6.0).reshape(3, 2).to(device).requires_grad_()
            y = x[key.to(device)]
            z = x.index_put((key.to(device),), y * y, accumulate=accumulate)
            (z.sum() + (y**3).sum()).backward()
            gradients.append(x.grad.cpu())
        torch.testing.assert_close(gradients[0], gradients[1])


VECTOR = torch.arange(3.0)
FIVE = torch.tensor([5])


@pytest.mark.parametrize(
    "call",
    [
        lambda x, i: x[i],
        lambda x, i: x[-i],
        lambda x, i: x.gather(0, i),
        lambda x, i: x.scatter(0, i, 1.0),
        lambda x, i: x.scatter_add(0, i, x[:1]),
        lambda x, i: x.index_select(0, i),
        lambda x, i: x.index_add(0, i, x[:1]),
        lambda x, i: x.index_copy(0, i, x[:1]),
        lambda x, i: x.index_fill(0, i, 1.0),
        lambda x, i: x.take(i),
        lambda x, i: x.put(i, x[:1]),
        lambda x, i: x.index_put((i,), x[:1]),
        lambda x, i: torch.nn.functional.embedding(i, x[:, None]),
    ],
)
def test_an_index_out_of_range_raises_like_the_cpu(call: Any) -> None:
    with pytest.raises((IndexError, RuntimeError)) as expected:
        call(VECTOR, FIVE)
    with pytest.raises(expected.type) as actual:
        call(VECTOR.to("jax"), FIVE.to("jax"))
    assert str(actual.value).split(" ")[0] == str(expected.value).split(" ")[0]


@pytest.mark.parametrize(
    "keys", list(itertools.product([[], [0], [5], [0, 1], slice(None)], repeat=2))
)
def test_an_index_counts_only_where_there_is_something_to_read(keys: tuple[Any, Any]) -> None:
    def found(device: str, shape: tuple[int, ...]) -> Any:
        key = tuple(k if k == slice(None) else torch.tensor(k).long().to(device) for k in keys)
        try:
            return torch.zeros(shape, device=device)[key].shape
        except IndexError as error:
            return "with size 0" in str(error)

    for shape in [(3, 0), (0, 3), (3, 4), (0, 0), (3, 0, 2)]:
        assert found("jax", shape) == found("cpu", shape)


def test_a_mask_of_bytes_warns() -> None:
    for device in ("cpu", "jax"):
        x = torch.zeros(3, device=device)
        with pytest.warns(UserWarning, match="torch.uint8 is now deprecated") as warned:
            assert x[torch.tensor([1, 0, 1], dtype=torch.uint8, device=device)].shape == (2,)
        assert warned[0].filename == __file__
        with pytest.warns(UserWarning, match="torch.uint8 is now deprecated") as warned:
            x[torch.tensor([1, 0, 1], dtype=torch.uint8, device=device)] = torch.ones(
                2, device=device
            )
        assert warned[0].filename == __file__


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.gather(0, torch.tensor([[0]], device=x.device)),
        lambda x: x.gather(0, torch.tensor([0.0], device=x.device)),
        lambda x: x.index_put((torch.tensor([0], device=x.device),), x),
        lambda x: x.__setitem__(x > 0, x),
        lambda x: x[torch.zeros(2, dtype=torch.bool, device=x.device)],
        lambda x: x.index_select(0, torch.tensor([[0]], device=x.device)),
        lambda x: x.scatter(0, torch.tensor([0], device=x.device), x, reduce="mean"),
        lambda x: x.topk(4),
        lambda x: (x > 0).index_reduce(0, torch.tensor([0], device=x.device), x[:1] > 0, "prod"),
        lambda x: (x > 0)[0].index_reduce(0, torch.tensor([0], device=x.device), x[0] > 0, "amax"),
    ],
)
def test_wrong_shapes_and_dtypes_raise_like_the_cpu(call: Any) -> None:
    assert outcome(lambda: call(VECTOR.to("jax"))) is outcome(lambda: call(VECTOR.clone()))


def test_in_a_program_masks_write_but_do_not_read() -> None:
    @calque.jit
    def write(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[x > 2] = values
        return x.masked_fill(x == 0, 9.0)

    x, values = torch.tensor([0.0, 3.0, 1.0, 4.0]), torch.tensor([7.0, 8.0])
    assert write(x.to("jax"), values.to("jax")).tolist() == [9, 7, 1, 8]

    @calque.jit
    def read(x: torch.Tensor) -> torch.Tensor:
        return x[x > 2]

    with pytest.raises(calque.TraceError):
        read(x.to("jax"))


def test_in_a_program_an_index_out_of_range_reads_nan() -> None:
    read = calque.jit(lambda x, i: (x[i], x.gather(0, i), x.index_select(0, i), x.take(i)))
    index = torch.tensor([1, 5]).to("jax")
    for result in read(VECTOR.to("jax"), index):
        assert result[0].item() == 1
        assert result[1].isnan().item()


@pytest.mark.parametrize("place", [-1, -3, 3, 2**32, -(2**40), 2**40 + 1])
@pytest.mark.parametrize(
    "read",
    [
        lambda x, i: x.gather(0, i),
        lambda x, i: x.index_select(0, i),
        lambda x, i: F.embedding(i, x[:, None])[:, 0],
        lambda x, i: F.embedding_bag(i[:, None], x[:, None])[:, 0],
        lambda x, i: F.nll_loss(x.expand(2, -1), i, reduction="none").abs(),
        lambda x, i: F.nll_loss(x.expand(2, -1), i, x.abs(), reduction="none").abs(),
    ],
)
def test_in_a_program_an_index_neither_counts_from_the_end_nor_wraps_around(
    read: Any, place: int
) -> None:
    values, index = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([1, place])
    result = calque.jit(read)(values.to("jax"), index.to("jax"))
    assert result[0].item() == 1
    assert result[1].isnan().item()


@pytest.mark.parametrize("place", [-1, 3, 2**32 + 2])
@pytest.mark.parametrize("options", [{"scale_grad_by_freq": True}, {"max_norm": 1.0}])
def test_in_a_program_an_index_out_of_range_leaves_the_table_alone(
    options: dict[str, Any], place: int
) -> None:
    def looked_up(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        rows = table.clone().requires_grad_()
        F.embedding(index, rows, **options).nan_to_num().sum().backward()
        assert rows.grad is not None
        return torch.stack([rows.detach(), rows.grad])

    table, index = torch.full((3, 2), 5.0), torch.tensor([0, 2, place])
    found = calque.jit(looked_up)(table.to("jax"), index.to("jax"))
    torch.testing.assert_close(found.cpu(), looked_up(table, index[:2]))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
@pytest.mark.parametrize("value", [True, False])
def test_scatter_takes_a_bool_for_a_value(dtype: torch.dtype, value: bool) -> None:
    index = torch.tensor([[0, 2], [1, 1]])
    rows = torch.ones(2, 3, dtype=dtype).tril()
    expected = rows.scatter(1, index, value)
    placed, where = rows.to("jax"), index.to("jax")
    assert torch.equal(placed.scatter(1, where, value).cpu(), expected)
    assert torch.equal(placed.scatter_(1, where, value).cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_many_numbers_of_half_precision_into_one_place(dtype: torch.dtype) -> None:
    """Bfloat16 counts to 256: a sum that is rounded at each addend stays there."""
    n = 3000
    at = torch.zeros(n, dtype=torch.int64)
    into, ones = torch.zeros(2, 2, dtype=dtype), torch.ones(n, 2, dtype=dtype)
    factors = torch.full((n, 2), 1 + 2**-7, dtype=dtype)

    def sums(at, into, ones, factors):
        places = at[:, None].expand(n, 2)
        return [
            into.scatter_add(0, places, ones),
            into.scatter(0, places, ones, reduce="add"),
            into.index_add(0, at, ones),
            into.index_put((at,), ones, accumulate=True),
            into.scatter_reduce(0, places, ones, "sum"),
            into.scatter_reduce(0, places, ones, "mean", include_self=False),
            (into + 1).scatter_reduce(0, places, factors, "prod"),
        ]

    arguments = [t.to("jax") for t in (at, into, ones, factors)]
    for run in (sums, calque.jit(sums)):
        *found, mean, product = (r.float().cpu()[0, 0].item() for r in run(*arguments))
        assert found == [torch.tensor(3000.0).to(dtype).item()] * 5
        assert mean == 1
        expected = torch.tensor((1 + 2**-7) ** n).to(dtype).item()
        assert product == pytest.approx(expected, rel=1e-2)
    table, at = arguments[1].requires_grad_(), arguments[0]
    for taken in (table.index_select(0, at), table.gather(0, at[:, None].expand(n, 2)), table[at]):
        (gradient,) = torch.autograd.grad(taken.sum(), table)
        assert gradient[0, 0].item() == torch.tensor(3000.0).to(dtype).item()
