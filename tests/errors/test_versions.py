"""Releases of Python, PyTorch and JAX that were never tested are named once."""

import platform
import sys
import tomllib
import warnings
from pathlib import Path

import pytest

import calque
from calque.errors.versions import TESTED, untested, warn_of_untested
from tests import new_process

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("package", ["torch", "jax"])
def test_the_bounds_of_the_package_are_what_is_tested(package: str) -> None:
    first, *_, (major, minor) = TESTED[package]
    bounds = f"{package}>={'.'.join(map(str, first))},<{major}.{minor + 1}"
    assert bounds in PROJECT["dependencies"]


def test_the_pythons_of_the_package_are_what_is_tested() -> None:
    classifiers = [one.rpartition(" :: ")[2] for one in PROJECT["classifiers"]]
    named = [one for one in classifiers if one.startswith("3.")]
    assert named == [f"{major}.{minor}" for major, minor in TESTED["Python"]]
    assert PROJECT["requires-python"] == f">={named[0]}"


@pytest.mark.parametrize(
    "file", ["constraints.txt", "constraints-3.12.txt", "constraints-3.13.txt"]
)
def test_the_exact_sets_are_of_releases_that_are_tested(file: str) -> None:
    lines = (Path(__file__).parents[2] / file).read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line and line[0] != "#")
    assert untested({name: pinned[name] for name in ("torch", "jax")}) == []


@pytest.mark.parametrize("version", ["2.13.0", "2.13.1+cpu", "2.15.0a0+git1234"])
def test_what_is_tested_is_not_spoken_of(version: str) -> None:
    assert untested({"torch": version, "jax": "0.12.0.1"}) == []


@pytest.mark.parametrize("version", ["2.9.1", "2.14.0", "2.16.0", "3.0"])
def test_any_other_release_is_named_with_what_was_tested(version: str) -> None:
    tested = "all tests run with 2.13, a sample with 2.15"
    assert untested({"torch": version}) == [f"torch {version} ({tested})"]


def test_one_warning_names_every_package_and_the_line() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        (lambda: warn_of_untested({"torch": "1.0", "jax": "1.0"}))()
    (warning,) = seen
    assert warning.category is calque.UntestedVersionWarning
    assert "torch 1.0" in str(warning.message)
    assert "jax 1.0" in str(warning.message)


def test_importing_calque_warns_once_at_the_line_of_the_import() -> None:
    program = """
import warnings, torch
torch.__version__ = "9.1.0"
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    import calque
(one,) = [w for w in seen if w.category is calque.UntestedVersionWarning]
assert one.filename == "<string>" and one.lineno == 6, one
assert "torch 9.1.0" in str(one.message)
"""
    new_process.check(program)


def test_the_versions_that_run_here_are_tested() -> None:
    versions = {name: sys.modules[name].__version__ for name in ("torch", "jax")}
    assert untested({"Python": platform.python_version(), **versions}) == []


def test_the_package_says_its_version() -> None:
    assert calque.__version__[0].isdigit()
    assert PROJECT["dynamic"] == ["version"]
