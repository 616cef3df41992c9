"""Functions that are written for one program: its guards, what it gathers and what it writes.

A general path asks at each call what a program reads, writes and returns. All of that is known when
the program has been made, so it is written down once, as the source of a Python function.
"""
