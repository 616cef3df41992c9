"""`calque.jit`.

Traces of calls, the programs compiled from them, and their guards.
"""
