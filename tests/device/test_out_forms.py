"""`out=` and in-place forms of operators that also change some of their arguments."""

import warnings

import pytest
import torch

import calque  # noqa: F401  (registers the device)

aten = torch.ops.aten


@pytest.mark.parametrize("op", [aten.native_batch_norm, aten._native_batch_norm_legit], ids=str)
def test_batch_norm_writes_its_outputs_and_its_statistics(op):
    x, weight, bias = torch.randn(4, 3, 5), torch.rand(3), torch.rand(3)
    found = []
    for device in ("cpu", "jax"):
        mean, var = torch.zeros(3, device=device), torch.ones(3, device=device)
        outs = [torch.empty(0, device=device) for _ in range(3)]
        args = (x.to(device), weight.to(device), bias.to(device), mean, var, True, 0.1, 1e-5)
        returned = op.out(
            *args, **dict(zip(("out", "save_mean", "save_invstd"), outs, strict=True))
        )
        assert all(a is b for a, b in zip(returned, outs, strict=True))
        found.append([t.cpu() for t in (*outs, mean, var)])
    for want, got in zip(*found, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("training", [True, False])
def test_rrelu_with_noise(training):
    x = torch.randn(64, device="jax")
    noise = torch.zeros_like(x)
    out = torch.empty_like(x)
    aten.rrelu_with_noise.out(x, noise, 0.1, 0.3, training, out=out)
    slope = noise if training else torch.full_like(x, 0.2)
    expected = torch.where(x < 0, x * slope, x)
    torch.testing.assert_close(out, expected)
    again, noise = x.clone(), torch.zeros_like(x)
    assert aten.rrelu_with_noise_(again, noise, 0.1, 0.3, training) is again
    slope = noise if training else torch.full_like(x, 0.2)
    torch.testing.assert_close(again, torch.where(x < 0, x * slope, x))


@pytest.mark.parametrize("training", [True, False])
def test_rrelu_does_not_write_to_expanded_memory(training):
    x = torch.ones(1, device="jax").expand(3)
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        torch.nn.functional.rrelu_(x, training=training)


def test_a_list_of_tensors_is_written() -> None:
    found = []
    for device in ("cpu", "jax"):
        x = torch.arange(6.0, device=device).reshape(3, 2)
        rows = [torch.empty(2, device=device) for _ in range(3)]
        parts = [torch.empty(1, 2, device=device), torch.empty(2, 2, device=device)]
        torch.unbind_copy(x, out=rows)
        torch.split_with_sizes_copy(x, [1, 2], out=parts)
        found.append([one.tolist() for one in (*rows, *parts)])
    assert found[1] == found[0]


@pytest.mark.parametrize("name", ["cholesky", "cholesky_inverse"])
def test_a_factor_is_written_where_it_fits(name) -> None:
    for device in ("cpu", "jax"):
        x = torch.eye(2, device=device)
        function = getattr(torch, name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's cholesky is deprecated
            whole = torch.ones(2, 2, dtype=torch.int64, device=device)
            for out in (whole, torch.ones(1, 2, device=device).expand(2, 2)):
                with pytest.raises(RuntimeError):
                    function(x, out=out)
            wide = torch.zeros(2, 2, dtype=torch.float64, device=device)
            assert function(x, out=wide) is wide
        assert torch.equal(wide.cpu(), torch.eye(2, dtype=torch.float64))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, out: torch.msort(x, out=out),
        lambda x, out: torch.scatter_add(x, 0, torch.zeros_like(x).long(), out * 1, out=out),
        lambda x, out: torch.index_add(x, 0, torch.zeros_like(x).long(), out * 1, out=out),
    ],
)
def test_a_changed_copy_is_written_over_the_whole_of_its_source_or_beside_it(function) -> None:
    for device in ("cpu", "jax"):
        memory = torch.ones(5, device=device)
        with pytest.raises(RuntimeError, match="refer to a single memory location"):
            function(memory[:4], memory[1:])
        whole = memory[:4]
        assert function(whole, whole) is whole


def test_a_transform_written_to_an_empty_tensor_is_row_major():
    x = torch.ones(2, 3, 4, dtype=torch.complex64)
    for transform in (torch.fft.fft, torch.fft.ifft):
        for dim in (0, 1):
            for _ in range(2):
                out = torch.empty(0, dtype=x.dtype, device="jax")
                expected = transform(x, dim=dim, out=torch.empty(0, dtype=x.dtype))
                assert transform(x.to("jax"), dim=dim, out=out).stride() == expected.stride()


RESIZED = {
    "fmod": lambda x, out: torch.fmod(x, 2, out=out),
    "sort": lambda x, out: torch.sort(x, out=(out, out.long())).values,
    "cholesky_solve": lambda x, out: torch.cholesky_solve(x, x[:3] @ x[:3].T, out=out),
    "sum": lambda x, out: torch.sum(x, 0, out=out),
    "add": lambda x, out: torch.add(x, x, out=out),
    "roll": lambda x, out: torch.ops.aten.roll.out(x, [1], [0], out=out),
}


@pytest.mark.parametrize("name", RESIZED)
def test_strides_of_an_out_that_is_resized(name):
    found = []
    for device in ("cpu", "jax"):
        x = torch.arange(12.0, device=device).reshape(4, 3).t()
        out = RESIZED[name](x, torch.empty(0, device=device))
        found.append((tuple(out.shape), out.stride()))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128, torch.int64], ids=str
)
def test_the_absolute_value_of_complex_numbers_is_written_to_real_and_complex_tensors(dtype):
    found = []
    for device in ("cpu", "jax"):
        x = torch.tensor([3 + 4j], device=device)
        try:
            found.append(torch.abs(x, out=torch.empty(1, dtype=dtype, device=device)).tolist())
        except RuntimeError as error:
            found.append(type(error))
    assert found[0] == found[1]


def test_lists_of_other_lengths_are_refused():
    x, numbers = [torch.ones(2, device="jax")] * 2, "same number of elements as scalar list"
    with pytest.raises(RuntimeError, match=numbers):
        torch._foreach_add(x, [1.0])
    with pytest.raises(RuntimeError, match=numbers):
        torch._foreach_addcmul(x, x, x, [1.0, 2.0, 3.0])
    with pytest.raises(RuntimeError, match="Tensor lists must have the same number of tensors"):
        torch._foreach_add(x, x[:1])
    with pytest.raises(RuntimeError, match="2 results, but 1 tensors"):
        aten._foreach_abs.out(x, out=[torch.empty(2, device="jax")])
