"""Run PyTorch programs as XLA programs."""

from calque.run import control_flow, flex  # its rules go into the table
from calque.run.choices import choose
from calque.run.interpreter import JaxInterpreter
from calque.run.loops import loop
from calque.trace.branching import implementations, loop_implementations

implementations["jax"] = choose  # how a traced graph chooses and loops on the device
loop_implementations["jax"] = loop
control_flow.install()

__all__ = ["JaxInterpreter", "flex"]
