"""Programs for the laws of Python state: what they read, change and return, however they run.

A program is a generator function (`programs/`). It makes a function, wraps it by `case.fn`, calls
it with changed state between the calls, and yields whatever a user could look at. It runs on the
CPU with nothing wrapped, which is the reference, and then in a mode:

    python -m tests.laws.state --mode jit --group reads
"""
