"""`calque.jit`.

The trace of a call, the program made of it, its guards, and the calls that it serves.
"""
