"""`calque.cli.main`: the command line, which is a package of its own (`calque_cli`)."""

from calque_cli.main import main

__all__ = ["main"]
