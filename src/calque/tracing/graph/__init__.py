"""The contents of traced graphs besides calls.

Choices, checks, effects, templates; and the code made of it.
"""
