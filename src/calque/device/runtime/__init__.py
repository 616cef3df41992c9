"""The foundations of the device: dtypes, placements, threads, compiled programs.

Executables and their caches, dtypes, sizes, signals, threads, callbacks.
"""
