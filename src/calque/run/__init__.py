"""Run PyTorch programs as XLA programs."""

from calque.run.interpreter import JaxInterpreter

__all__ = ["JaxInterpreter"]
