"""Generates a function for one program: its guards, inputs and outputs.

The general path determines at each call what a program reads, writes and returns. All of this is
known once the program exists, so it is generated once, as the source of a Python function.
"""
