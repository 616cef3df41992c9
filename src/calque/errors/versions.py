"""The releases that calque is tested with; any other release causes a warning, once.

The bounds in `pyproject.toml` are the first and last of these; a test compares them.
"""

import platform
import re
from collections.abc import Mapping

from calque.errors.warning import warn

Release = tuple[int, int]

TESTED: dict[str, dict[Release, str]] = {
    "Python": {(3, 11): "all tests", (3, 12): "half", (3, 13): "a sample"},
    "torch": {(2, 13): "all tests", (2, 15): "a sample"},
    "jax": {(0, 10): "all tests", (0, 12): "a sample"},
}
"""How many of the tests ran with each release."""


class UntestedVersionWarning(UserWarning):
    """calque has not been tested with the installed release of Python, PyTorch or JAX."""


def untested(installed: Mapping[str, str]) -> list[str]:
    """Returns warnings about releases that calque was not tested with.

    >>> from calque.errors.versions import untested
    >>> untested({"torch": "2.13.1+cpu", "jax": "0.31.0"})
    ['jax 0.31.0 (all tests run with 0.10, a sample with 0.12)']

    Args:
        installed: the version of each package.
    """
    said = []
    for name, version in installed.items():
        releases = TESTED[name]
        numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
        if numbers not in releases:
            named = [(what, ".".join(map(str, one))) for one, what in releases.items()]
            (what, first), *others = named
            rest = "".join(f", {what} with {release}" for what, release in others)
            said.append(f"{name} {version} ({what} run with {first}{rest})")
    return said


def warn_of_untested(installed: Mapping[str, str]) -> None:
    """Warn of untested releases, at the line that imports calque.

    Args:
        installed: the versions of PyTorch and JAX.
    """
    if said := untested({"Python": platform.python_version(), **installed}):
        warn(
            f"calque has not been tested with {' and '.join(said)}: it may fail, or raise "
            "different errors than PyTorch does. The versions it is tested with are in "
            "constraints*.txt in its sources.",
            UntestedVersionWarning,
        )
