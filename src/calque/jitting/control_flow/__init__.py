"""Control flow in a jitted function: choices and loops whose conditions are tensors."""

import functools

from calque.jitting.control_flow import calls
from calque.jitting.control_flow.choices import choose
from calque.jitting.control_flow.loops import loop
from calque.tracing.graph.branching import implementations, loop_implementations


@functools.cache
def install() -> None:
    """Support `torch.cond` and similar operators, and the choices and loops of traced graphs, on
    the device.
    """
    implementations["jax"] = choose
    loop_implementations["jax"] = loop
    calls.install()
