"""Bad arguments raise what CPU PyTorch raises, and change nothing.

A row that PyTorch accepts must be accepted, too.
"""

import warnings
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F

import calque
from calque.device.kernels.meta_check import Outline
from calque.errors import InternalError
from tests.device import bad_options, bad_shapes, bad_values
from tests.device.bad_shapes import Case

CASES = {
    f"{table.lower()}: {name}": case
    for module in (bad_shapes, bad_values, bad_options)
    for table, rows in vars(module).items()
    if table.isupper() and isinstance(rows, dict)
    for name, case in rows.items()
}


class Maker:
    """Makes the tensors of a call, the same ones on every device, and remembers them."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.generator = torch.Generator().manual_seed(0)
        self.made: list[tuple[torch.Tensor, torch.Tensor]] = []

    def _keep(self, host: torch.Tensor) -> torch.Tensor:
        tensor = host.clone().to(self.device)
        self.made.append((tensor, host))
        return tensor

    def __call__(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return self._keep(torch.randn(shape, generator=self.generator).to(dtype))

    def i(self, *shape: int) -> torch.Tensor:
        return self._keep(torch.ones(shape, dtype=torch.int64))

    def b(self, *shape: int) -> torch.Tensor:
        return self._keep(torch.ones(shape, dtype=torch.bool))

    def c(self, *shape: int) -> torch.Tensor:
        return self(*shape, dtype=torch.complex64)

    def d(self, *shape: int) -> torch.Tensor:
        return self(*shape, dtype=torch.float64)

    def h(self, *shape: int) -> torch.Tensor:
        return self(*shape, dtype=torch.float16)

    def of(self, values: Any) -> torch.Tensor:
        return self._keep(torch.tensor(values))

    def eye(self, n: int) -> torch.Tensor:
        return self._keep(torch.eye(n))

    def module(self, module: torch.nn.Module) -> torch.nn.Module:
        return module.to(self.device)

    def inference(self, *shape: int) -> torch.Tensor:
        with torch.inference_mode():
            return self(*shape)

    def saved(self) -> None:
        x = self(2).requires_grad_()
        y = x.exp()
        y.add_(1)
        y.sum().backward()

    def twice(self) -> None:
        y = (self(2).requires_grad_() ** 2).sum()
        y.backward()
        y.backward()

    def changed(self) -> list[str]:
        """What a failed call has left different."""
        found = []
        for tensor, host in self.made:
            now = tensor.detach().cpu()
            if now.shape != host.shape or not torch.equal(now, host):
                found.append(f"{host.tolist()} became {now.tolist()}")
        return found


def outcome(case: Case, device: str) -> tuple[Exception | None, list[str]]:
    """The exception of a call, and what it changed if it raised."""
    maker = Maker(device)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            case(maker)
        except Exception as error:
            return error, maker.changed()
    return None, []


@pytest.mark.sampled(400)
@pytest.mark.parametrize("case", [pytest.param(c, id=n) for n, c in CASES.items()])
def test_raises_what_the_cpu_raises(case: Case) -> None:
    expected, changed_there = outcome(case, "cpu")
    actual, changed = outcome(case, "jax")
    assert type(actual) is type(expected), f"{actual!r}, not {expected!r}"
    assert changed == changed_there or not changed


def test_dtypes_are_called_as_pytorch_calls_them():
    x = torch.ones(3, device="jax")
    index = torch.tensor([0, 2], device="jax")
    with pytest.raises(RuntimeError, match="got Float for the destination and Long for the source"):
        x[index] = index
    with pytest.raises(RuntimeError, match="Float can't be cast to the desired output type Long"):
        torch.add(x, 1, out=torch.empty(3, dtype=torch.int64, device="jax"))
    with pytest.raises(RuntimeError, match="Float can't be cast to the desired output type Bool"):
        torch.add(x, 1, out=torch.empty(3, dtype=torch.bool, device="jax"))


def test_a_mistake_of_a_rule_is_not_told_as_the_users():
    def broken(self):
        raise TypeError("unexpected")

    def run(op, *arrays):
        with Outline(op).checked(arrays, {}):
            broken(None)

    allowed = "aten::neg failed for a call that PyTorch allows"
    with pytest.raises(InternalError, match=allowed) as found:
        run(torch.ops.aten.neg.default, jnp.ones(3))
    assert isinstance(found.value.__cause__, TypeError)
    assert "test_errors.py" in str(found.value)
    with pytest.raises(RuntimeError, match="size of tensor a") as found:
        run(torch.ops.aten.add.Tensor, jnp.ones(3), jnp.ones(4))
    assert not isinstance(found.value, InternalError)


SPARSE: dict[str, Callable[[torch.Tensor], Any]] = {
    "made of indices": lambda x: torch.sparse_coo_tensor(x.nonzero().t(), x.diagonal(), (2, 2)),
    "made of a dense tensor": lambda x: x.to_sparse(),
    "made in rows of a dense tensor": lambda x: x.to_sparse_csr(),
    "moved": lambda x: torch.eye(2).to_sparse().to("jax"),
    "empty": lambda x: torch.zeros(2, 2, layout=torch.sparse_coo, device="jax"),
    "in rows, used": lambda x: torch.eye(2).to_sparse_csr().to("jax") @ x,
    "of a gradient": lambda x: F.embedding(
        x.long(), x.clone().requires_grad_(), sparse=True
    ).backward(torch.ones(2, 2, 2, device="jax")),
}


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning", "ignore::calque.FallbackWarning")
@pytest.mark.parametrize("use", SPARSE.values(), ids=SPARSE)
def test_says_that_there_are_no_sparse_tensors(use: Callable[[torch.Tensor], Any]) -> None:
    with pytest.raises(calque.UnsupportedOpError, match="the jax device does not support"):
        use(torch.eye(2, device="jax"))


OTHER_KINDS: dict[str, Callable[[torch.Tensor], Any]] = {
    "nested": lambda x: torch._nested_tensor_from_mask(x[None], torch.ones_like(x[None, :, 0]) > 0),
    "nested, used": lambda x: torch.nested.nested_tensor([x, x[:1]]).cos(),
    "nested, with a gradient": lambda x: torch.nested.as_nested_tensor([x.requires_grad_()]) * 2,
    "quantized": lambda x: torch.quantize_per_tensor(x.cpu(), 0.1, 0, torch.qint8).to("jax"),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:.*quantiz", "ignore::calque.FallbackWarning")
@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_says_that_there_are_no_tensors_of_a_kind(kind: str) -> None:
    what = f"a {kind.split(',')[0]} tensor, which the jax device does not support"
    with pytest.raises(calque.UnsupportedOpError, match=f"test_errors.py:.*{what}"):
        OTHER_KINDS[kind](torch.eye(2, device="jax"))
