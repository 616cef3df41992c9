"""What becomes of a program: `calque.explain`."""

from calque.explaining.api import explain
from calque.explaining.report import Door, Operator, Report

__all__ = ["Door", "Operator", "Report", "explain"]
