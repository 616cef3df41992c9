"""The examples of docstrings run."""

import doctest
import importlib
import pkgutil

import pytest

from calque import federated

MODULES = [m.name for m in pkgutil.walk_packages(federated.__path__, "calque.federated.")]


@pytest.mark.parametrize("name", ["calque.federated", *MODULES])
def test_the_examples_of(name: str) -> None:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.testmod(importlib.import_module(name), optionflags=flags).failed == 0


def test_every_public_name_is_documented() -> None:
    from calque.federated import learning

    for package in (federated, learning):
        undocumented = [n for n in package.__all__ if not getattr(package, n).__doc__]
        assert undocumented in ([], ["CLIENTS", "SERVER"])
