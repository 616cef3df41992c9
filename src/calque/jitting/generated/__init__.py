"""Generates a function for one program: its guards, inputs and outputs.

A general path asks at each call what a program reads, writes and returns. All of that is known when
the program has been made, so it is written down once, as the source of a Python function.
"""
