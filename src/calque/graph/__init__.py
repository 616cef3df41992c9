"""An ATen-level graph of `torch.fx`, run on JAX arrays: each node is a rule of the op table."""

from calque.graph import flex  # its rules go into the table
from calque.graph.interpreter import JaxInterpreter

__all__ = ["JaxInterpreter", "flex"]
