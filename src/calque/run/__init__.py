"""Run PyTorch programs as XLA programs."""

from calque.run import flex as _flex  # puts its rules into the table
from calque.run.interpreter import JaxInterpreter

__all__ = ["JaxInterpreter"]
