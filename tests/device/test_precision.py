"""PyTorch's settings for float32 on accelerators, on a CPU that counts as one."""

from collections.abc import Callable, Iterator

import jax
import pytest
import torch
from torch.nn import functional as F

import calque
from calque.device.runtime import precision
from calque.ops.table import precision as table


@pytest.fixture(autouse=True)
def on_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(precision, "host_has_default_device", lambda: False)
    jax.clear_caches()
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.conv.fp32_precision = "tf32"
    monkeypatch.undo()
    jax.clear_caches()


@pytest.fixture
def scopes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The precisions that rules are applied with."""
    found: list[str] = []
    original = table.scope

    def scope(products: jax.lax.Precision, convolutions: jax.lax.Precision) -> object:
        found.append(f"{products.name} {convolutions.name}")
        return original(products, convolutions)

    monkeypatch.setattr(table, "scope", scope)
    return found


def product(x: torch.Tensor) -> torch.Tensor:
    return x @ x


def convolution(x: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x[None, None], torch.ones(1, 1, 2, 2, device=x.device))


def test_products_are_exact_until_the_setting_allows_less() -> None:
    x = torch.ones(4, 4, device="jax")
    step = calque.jit(product)
    for setting, wanted in (("highest", "HIGHEST"), ("high", "HIGH,"), ("highest", "HIGHEST")):
        torch.set_float32_matmul_precision(setting)
        step(x)
        assert f"precision = [{wanted}" in step.lower(x).as_text(), setting
        compiled = torch.compile(product, backend="calque")
        assert torch.equal(compiled(x), step(x))


def test_convolutions_have_a_setting_of_their_own() -> None:
    x = torch.ones(4, 4, device="jax")
    step = calque.jit(convolution)
    for setting, wanted in (("tf32", "HIGH>"), ("ieee", "HIGHEST>"), ("tf32", "HIGH>")):
        torch.backends.cudnn.conv.fp32_precision = setting  # as `allow_tf32`, which may be frozen
        step(x)
        assert f"precision {wanted}" in step.lower(x).as_text().replace("#stablehlo<", "")


@pytest.mark.parametrize("run", [product, convolution])
def test_eager_operators_follow_every_change(run: Callable[..., object], scopes: list[str]) -> None:
    x = torch.ones(4, 4, device="jax")
    for setting in ("highest", "high", "highest", "high"):
        torch.set_float32_matmul_precision(setting)
        for calls in range(4):  # until the call is served by its executable
            scopes.clear()
            run(x)
            if not calls:
                assert scopes[-1].split()[0] == setting.upper()
            if calls == 3:
                assert not scopes


def test_settings_are_those_of_cuda() -> None:
    torch.set_float32_matmul_precision("high")
    assert precision.settings() == ("tf32", "tf32")
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    assert precision.settings() == ("tf32", "ieee")
    torch.set_float32_matmul_precision("highest")
    assert precision.settings() == ("ieee", "ieee")


def test_jax_setting_comes_first(scopes: list[str]) -> None:
    with jax.default_matmul_precision("bfloat16"):
        product(torch.ones(3, 3, device="jax"))
    assert not scopes


def test_on_a_cpu_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "host_has_default_device", lambda: True)
    assert precision.settings() is None
    text = calque.jit(product).lower(torch.ones(5, 5, device="jax")).as_text()
    assert "HIGH" not in text
