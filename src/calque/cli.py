"""`calque.cli.main`: the command line, which is in its own package (`calque_cli`)."""

from calque_cli.main import main

__all__ = ["main"]
