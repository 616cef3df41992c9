"""Run PyTorch programs as XLA programs."""

from calque.run import flex  # its rules go into the table
from calque.run.interpreter import JaxInterpreter

__all__ = ["JaxInterpreter", "flex"]
