"""What everything else stands on.

Executables and their caches, dtypes, sizes, signals, threads, callbacks.
"""
