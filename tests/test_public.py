"""The public surface is what it says it is."""

import doctest
from pathlib import Path

import pytest

import calque
from calque import federated
from calque.federated import learning
from tests import new_process


def test_every_public_name_exists_and_is_documented() -> None:
    assert [name for name in calque.__all__ if not getattr(calque, name).__doc__] == []


def test_importing_changes_no_default_and_leaves_the_slow_packages_to_those_who_need_them() -> None:
    program = """
import gc, jax, jax.numpy, sys, torch
gc.set_threshold(701, 11, 12)
before = (jax.config.values.copy(), torch.get_default_dtype(), torch.get_default_device())
loaded_before = set(sys.modules)
import calque
after = (jax.config.values.copy(), torch.get_default_dtype(), torch.get_default_device())
assert before == after, (before, after)
assert gc.isenabled() and gc.get_threshold() == (701, 11, 12)
slow = {"calque.federated", "calque.view", "flatbuffers", "lightning", "sympy"}
slow |= {"torch._decomp", "torch._dynamo", "torch._inductor"}
loaded = slow & (set(sys.modules) - loaded_before)
assert not loaded, loaded
x = torch.ones(2, device="jax", requires_grad=True)
calque.jit(lambda x: x.max().backward())(x)
loaded = slow & (set(sys.modules) - loaded_before)
assert not loaded, loaded
"""
    new_process.check(program)


def test_every_public_name_of_the_federated_language_is_documented() -> None:
    for package in (federated, learning):
        undocumented = [n for n in package.__all__ if not getattr(package, n).__doc__]
        assert undocumented in ([], ["CLIENTS", "SERVER"])


def test_names_that_are_imported_later_are_listed() -> None:
    assert set(calque.__all__) <= set(dir(calque))


def test_the_package_is_marked_as_typed() -> None:
    assert (Path(calque.__file__).parent / "py.typed").exists()


@pytest.mark.parametrize("name", calque.__all__)
def test_examples_of_public_names_run(name: str) -> None:
    value = getattr(calque, name)
    tests = doctest.DocTestFinder(recurse=False).find(value, name, globs={})
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    failed = sum(runner.run(test).failed for test in tests)
    assert failed == 0
