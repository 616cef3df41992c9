"""Programs of several processes: started together, joined by JAX, ended together."""

from calque.launching.joining import join
from calque_cli.starting import Job, start

__all__ = ["Job", "join", "start"]
