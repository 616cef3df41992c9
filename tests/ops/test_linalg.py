"""Linear algebra and Fourier transforms against CPU PyTorch, and the errors of singular input."""

import pytest
import torch

import calque
from tests.ops.conformance import cases, compare_with_cpu

NAMES = [
    "cholesky",
    "cholesky_inverse",
    "cholesky_solve",
    "geqrf",
    "kron",
    "linalg.cholesky",
    "linalg.cond",
    "linalg.cross",
    "linalg.det",
    "linalg.eig",
    "linalg.eigh",
    "linalg.eigvals",
    "linalg.eigvalsh",
    "linalg.householder_product",
    "linalg.inv",
    "linalg.lstsq",
    "linalg.lu",
    "linalg.lu_factor",
    "linalg.lu_solve",
    "linalg.matrix_power",
    "linalg.matrix_rank",
    "linalg.pinv",
    "linalg.qr",
    "linalg.slogdet",
    "linalg.solve",
    "linalg.solve_triangular",
    "linalg.svd",
    "linalg.svdvals",
    "lu_unpack",
    "matrix_exp",
    "ormqr",
    "triangular_solve",
    "fft.fft",
    "fft.fftn",
    "fft.hfft2",
    "fft.ifft",
    "fft.irfftn",
    "fft.rfft2",
    "istft",
]


@pytest.mark.sampled(10)
@pytest.mark.parametrize(("op", "dtype", "mode"), cases(NAMES))
def test_operators_agree_with_the_cpu(op: object, dtype: torch.dtype, mode: str) -> None:
    compare_with_cpu(op, dtype, mode)


SINGULAR = torch.tensor([[1.0, 2.0], [2.0, 4.0]])
INDEFINITE = torch.tensor([[4.0, 1.0, 0.0], [1.0, 2.0, 5.0], [0.0, 5.0, 1.0]])


@pytest.mark.parametrize(
    ("function", "matrix"),
    [
        (torch.linalg.cholesky, INDEFINITE),
        (torch.linalg.inv, SINGULAR),
        (lambda a: torch.linalg.solve(a, a), SINGULAR),
        (lambda a: torch.linalg.cholesky_ex(a, check_errors=True), INDEFINITE),
        (lambda a: torch.linalg.inv_ex(a, check_errors=True), SINGULAR),
        (torch.cholesky_inverse, torch.stack([torch.eye(3), torch.eye(3).tril(-1)])),
    ],
)
def test_a_matrix_that_cannot_be_factored_raises_like_the_cpu(function, matrix) -> None:
    with pytest.raises(torch.linalg.LinAlgError) as expected:
        function(matrix)
    with pytest.raises(torch.linalg.LinAlgError) as actual:
        function(matrix.to("jax"))
    assert str(actual.value) == str(expected.value)


def test_info_counts_the_minors() -> None:
    batch = torch.stack([INDEFINITE, torch.eye(3), -torch.eye(3)])
    info = torch.linalg.cholesky_ex(batch.to("jax")).info
    assert info.tolist() == torch.linalg.cholesky_ex(batch).info.tolist()


def test_in_a_program_a_failed_factorization_gives_nan() -> None:
    factor = calque.jit(torch.linalg.cholesky)
    assert factor(INDEFINITE.to("jax")).isnan().any().item()
    good = torch.eye(3) * 4
    assert torch.equal(factor(good.to("jax")).cpu(), torch.eye(3) * 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
@pytest.mark.parametrize("factors", [(True, 1), (1, True), (1.5, 1), (1, 2.5)])
def test_factors_of_another_kind_are_refused_as_on_the_cpu(
    dtype: torch.dtype, factors: tuple[float, float]
) -> None:
    def outcomes(device: str) -> list[object]:
        def ones(*shape: int) -> torch.Tensor:
            return torch.ones(shape, dtype=dtype, device=device)

        beta, alpha = factors
        found: list[object] = []
        for call in (
            lambda: torch.addr(ones(2, 3), ones(2), ones(3), beta=beta, alpha=alpha),
            lambda: torch.addmm(ones(2, 3), ones(2, 2), ones(2, 3), beta=beta, alpha=alpha),
            lambda: torch.addmv(ones(2), ones(2, 3), ones(3), beta=beta, alpha=alpha),
        ):
            try:
                found.append(call().tolist())
            except RuntimeError as error:
                found.append((type(error), str(error)))
        return found

    assert outcomes("jax") == outcomes("cpu")


def test_wrong_options_and_batches_are_refused() -> None:
    for device in ("cpu", "jax"):
        square, tau = torch.eye(3, device=device), torch.ones(5, 3, device=device)
        for call in (torch.linalg.eigh, torch.linalg.eigvalsh):
            with pytest.raises(RuntimeError, match="to be 'L' or 'U', but got a"):
                call(square, UPLO="a")
        with pytest.raises(RuntimeError, match="must have at least 2 dimensions"):
            torch.linalg.householder_product(tau[0], tau[0])
        with pytest.raises(RuntimeError, match="Expected batch dimensions of tau"):
            torch.linalg.householder_product(square.expand(4, 3, 3), tau)


def test_ormqr_refuses_two_dtypes() -> None:
    for device in ("cpu", "jax"):
        x, scales = torch.eye(3, device=device), torch.ones(3, device=device)
        with pytest.raises(RuntimeError, match="have the same dtype"):
            torch.ormqr(x, scales, x.double())
        with pytest.raises(RuntimeError, match="have the same dtype"):
            torch.ormqr(x, scales.double(), x)


@pytest.mark.parametrize("of", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("by", [torch.float64, torch.complex64], ids=str)
def test_a_triangular_system_of_two_dtypes_has_that_of_the_matrix(of, by):
    matrix, right = torch.tensor([[2.0, 0.0], [3.0, 4.0]]).to(of), torch.ones(2, 1).to(by)
    if by.is_complex and not of.is_complex:
        with pytest.raises(RuntimeError, match="the same dtype"):
            torch.linalg.solve_triangular(matrix.to("jax"), right.to("jax"), upper=False)
        return
    want = torch.linalg.solve_triangular(matrix, right, upper=False)
    got = torch.linalg.solve_triangular(matrix.to("jax"), right.to("jax"), upper=False)
    torch.testing.assert_close(got.cpu(), want)
    assert got.stride() == want.stride()
