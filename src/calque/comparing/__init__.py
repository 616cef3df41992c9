"""Compares two graphs of one program: `calque.diff`."""

from calque.comparing.api import diff
from calque.comparing.differences import Difference, Differences

__all__ = ["Difference", "Differences", "diff"]
