"""Programs with several processes, which are started, connected and ended together."""

from calque.launching.joining import join
from calque_cli.starting import Job, start

__all__ = ["Job", "join", "start"]
