"""`calque.explain`: how a program runs on XLA, or why it cannot."""

from calque.explaining.api import explain
from calque.explaining.report import EntryPoint, Operator, Report

__all__ = ["EntryPoint", "Operator", "Report", "explain"]
