"""What a traced graph holds beside calls.

Choices, checks, effects, templates; and the code made of it.
"""
