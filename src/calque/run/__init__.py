"""Run PyTorch programs as XLA programs."""

from calque.run.choices import choose
from calque.run.interpreter import JaxInterpreter
from calque.trace.branching import implementations

implementations["jax"] = choose  # a traced graph's `cond`, on the device

__all__ = ["JaxInterpreter"]
