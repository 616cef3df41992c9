"""Joining, repeating, turning, sorting and counting against CPU PyTorch."""

import jax
import jax.numpy as jnp
import pytest
import torch

import calque  # noqa: F401  (registers the device)
from calque.device.memory.cell import x64
from calque.ops.index import gather
from calque.ops.reduce import sorting
from tests.ops.conformance import cases, compare_with_cpu

NAMES = [
    "argsort",
    "block_diag",
    "bucketize",
    "cartesian_prod",
    "cat",
    "chunk",
    "combinations",
    "diag_embed",
    "diagonal_copy",
    "dstack",
    "expand_copy",
    "flip",
    "fliplr",
    "histc",
    "histogram",
    "histogramdd",
    "meshgrid",
    "msort",
    "narrow_copy",
    "permute_copy",
    "repeat",
    "roll",
    "rot90",
    "searchsorted",
    "sort",
    "split_with_sizes_copy",
    "squeeze_copy",
    "stack",
    "tile",
    "transpose_copy",
    "trace",
    "tril",
    "triu",
    "unbind_copy",
    "unfold",
    "unfold_copy",
    "view_copy",
    "vstack",
]


@pytest.mark.sampled(18)
@pytest.mark.parametrize(("op", "dtype", "mode"), cases(NAMES))
def test_operators_agree_with_the_cpu(op: object, dtype: torch.dtype, mode: str) -> None:
    compare_with_cpu(op, dtype, mode)


UNORDERED = torch.tensor([1.0, float("nan"), 3.0, -float("inf"), 0.5, float("nan"), float("inf")])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("largest", [False, True])
def test_nan_is_above_every_number(dtype: torch.dtype, largest: bool) -> None:
    values = UNORDERED.to(dtype)
    device = values.to("jax")
    for count in (2, 5):
        expected = values.topk(count, largest=largest).values
        assert torch.equal(
            device.topk(count, largest=largest).values.cpu().isnan(), expected.isnan()
        )
    expected_sorted = values.sort(descending=largest, stable=True)
    actual = device.sort(descending=largest, stable=True)
    assert actual.indices.tolist() == expected_sorted.indices.tolist()


def test_equal_elements_keep_their_order() -> None:
    values = torch.tensor([2, 1, 2, 1, 2])
    for descending in (False, True):
        expected = values.sort(descending=descending, stable=True).indices
        actual = values.to("jax").sort(descending=descending, stable=True).indices
        assert torch.equal(actual.cpu(), expected)


def test_cat_refuses_sizes_that_do_not_match() -> None:
    a, b = torch.ones(2, 3), torch.ones(3, 2)
    with pytest.raises(RuntimeError) as expected:
        torch.cat([a, b])
    with pytest.raises(RuntimeError) as actual:
        torch.cat([a.to("jax"), b.to("jax")])
    assert str(actual.value) == str(expected.value)


def test_cat_of_nothing_but_empty_vectors_takes_any_axis() -> None:
    empty = torch.zeros(0, device="jax")
    assert torch.cat([empty, empty], dim=1).shape == torch.cat([empty], dim=2).shape == (0,)
    with pytest.raises(RuntimeError, match="at position 1"):
        torch.cat([empty, torch.zeros((), device="jax")])


@pytest.mark.parametrize(
    ("rule", "arguments", "expected"),
    [
        (sorting.sort, (0, True), {"stablehlo.sort": 1}),
        (sorting.topk, (2,), {"chlo.top_k": 1, "stablehlo.sort": 0}),
        (gather.index_select, (0, jnp.zeros(2, jnp.int32)), {"stablehlo.gather": 1}),
    ],
)
def test_a_rule_lowers_to_one_instruction(rule, arguments, expected) -> None:
    with x64():
        text = jax.jit(lambda x: rule(x, *arguments)).lower(jnp.zeros(4)).as_text()
    assert {name: text.count(f'{name}"(') + text.count(f"{name}(") for name in expected} == expected
