"""Runs ATen-level graphs of `torch.fx` on JAX arrays, with a rule of the op table for each node."""

from calque.graph import flex  # registers its rules
from calque.graph.interpreter import JaxInterpreter

__all__ = ["JaxInterpreter", "flex"]
