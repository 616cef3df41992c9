"""The examples of the docstrings run."""

import doctest

import pytest

from calque import sharding


@pytest.mark.parametrize("name", sharding.__all__)
def test_examples_run(name: str) -> None:
    value = getattr(sharding, name)
    tests = doctest.DocTestFinder(recurse=False).find(value, name, globs={})
    assert sum(doctest.DocTestRunner().run(test).failed for test in tests) == 0
