"""The examples in the docstrings of recording and conversion run."""

import doctest
import importlib
import pkgutil

import pytest
import torch

import calque
import calque.convert
import calque.tracing

PACKAGES = (calque.tracing, calque.convert)
MODULES = [
    info.name
    for package in PACKAGES
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
]


@pytest.mark.parametrize("name", [*(package.__name__ for package in PACKAGES), *MODULES])
def test_the_examples_of_a_module_run(name: str) -> None:
    module = importlib.import_module(name)
    names = {"torch": torch, "calque": calque, **vars(module)}
    failed, _ = doctest.testmod(
        module, extraglobs=names, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    )
    assert failed == 0
