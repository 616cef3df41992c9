"""Programs of several processes: started together, joined by JAX, ended together."""

from calque.launching.joining import join
from calque.launching.starting import Job, start

__all__ = ["Job", "join", "start"]
