"""Builtins that answer without asking the object: a proxy is what it is when the graph runs."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import calque

X = torch.arange(3.0)

PACKAGE = """
import torch


def default(value, fallback):
    if value is not None:
        return value
    return fallback() if callable(fallback) else fallback


def doubled(x):
    return x * 2 if type(x) is torch.Tensor else x
"""


def test_a_tensor_is_not_callable_and_a_function_is() -> None:
    def f(x: Tensor, given: Tensor | None = None) -> Tensor:
        def default(value: Any) -> Tensor:
            return value() if callable(value) else value  # pyright: ignore[reportReturnType]

        return default(x) + default(lambda: x * 2) + default(x * 3 if given is None else given)

    for graph in (calque.trace(f, X), calque.symbolic_trace(f), calque.record(f, X).graph()):
        assert torch.equal(graph(X + 1), f(X + 1))
    assert "callable" not in globals()


def test_the_code_of_packages_is_answered_too(tmp_path: Path) -> None:
    home = tmp_path / "site-packages" / "calque_tests_package"
    home.mkdir(parents=True)
    (home / "__init__.py").write_text(PACKAGE)
    spec = importlib.util.spec_from_file_location(home.name, home / "__init__.py")
    assert spec is not None and spec.loader is not None
    sys.modules[home.name] = package = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(package)

        def f(x: Tensor) -> Tensor:
            return package.default(None, x) + package.doubled(x)

        assert calque.trace(f, X)(X + 1).tolist() == f(X + 1).tolist()
        assert not {"callable", "type"} & vars(package).keys()
    finally:
        del sys.modules[home.name]


own = torch.Generator()


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x * torch.initial_seed(),
        lambda x: x * torch.random.initial_seed(),
        lambda x: x * torch.default_generator.initial_seed(),
        lambda x: x + torch.default_generator.get_state().sum(),
        lambda x: x * own.initial_seed(),
        lambda x: x * torch.seed(),
    ],
)
def test_how_random_numbers_are_seeded_is_no_part_of_a_graph(program: Any) -> None:
    before = torch.get_rng_state()
    with pytest.raises(calque.TraceError):
        calque.trace(program, X)
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(calque.TraceError):
        calque.record(program, X).graph()
    torch.set_rng_state(before)
