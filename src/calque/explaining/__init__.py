"""`calque.explain`: how a program reaches XLA, or why it does not."""

from calque.explaining.api import explain
from calque.explaining.report import Door, Operator, Report

__all__ = ["Door", "Operator", "Report", "explain"]
