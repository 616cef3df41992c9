"""Symbolic tracing: a program is run on proxies, and what it does becomes a graph."""
