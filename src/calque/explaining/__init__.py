"""`calque.explain`: how a program runs on XLA, or why it cannot."""

from calque.explaining.api import explain
from calque.explaining.report import Door, Operator, Report

__all__ = ["Door", "Operator", "Report", "explain"]
