"""Generates a function for one program: its guards, inputs and outputs.

The general path determines in each call what a program reads, writes and returns. All of this is
known once the program exists, so a Python function for it is generated once.
"""
